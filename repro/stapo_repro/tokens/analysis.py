"""The whole analysis of one token log, as files."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from stapo_repro.figures.canvas import Sketch, save, style
from stapo_repro.tokens import cases, density, figures, page, quadrants, silencing, words
from stapo_repro.tokens.logged_run import LoggedRun

_MOST_WORDS = 500  # different tokens a part in tokens.json; the page's bars have fewer


@dataclass(frozen=True)
class Analysis:
    """The files by name, and what the command prints."""

    files: dict[str, bytes]
    messages: tuple[str, ...]


def analyse(run: LoggedRun, top: int = 30) -> Analysis:
    """The page, all numbers as JSON, and the figures.

    Args:
        top: how many cases are shown.

    Raises:
        RunFailed: the log contradicts the run's metrics (`silencing.by_step`).
    """
    counts, found, chosen = silencing.by_step(run), quadrants.measure(run), cases.choose(run, top)
    with style():
        drawn = [save(sketch) for sketch in sketches(run)]
    spread, said = silencing.all_thresholds(run), silencing.statement(run, counts)
    numbers = {
        "schema_version": 2,
        "run_id": run.record.run_id if run.record is not None else None,
        "provenance": page.provenance(run, counts),
        "inputs": dict(sorted(run.inputs.items())),
        "facts": run.header.model_dump(mode="json"),
        "comparison": said,
        "threshold": {
            "all": asdict(spread) if spread else None,
            "steps": [asdict(t) for t in silencing.thresholds(run)],
        },
        "taxonomy": [asdict(q) for q in found],
        "silenced": [asdict(c) for c in counts],
        "ranked": [
            {"part": w.part, "tokens": w.total, "counts": dict(list(w.counts.items())[:_MOST_WORDS])}
            for w in words.count(run)
        ],
        "cases": [asdict(c) for c in chosen],
        "captions": {d.name: {"title": d.title, "caption": d.caption} for d in drawn},
    }
    texts = {
        "index.html": page.to_html(run, counts, found, chosen, drawn),
        "tokens.json": json.dumps(_finite(numbers), ensure_ascii=False, indent=1, allow_nan=False) + "\n",
    }
    files = {name: text.encode("utf-8", "backslashreplace") for name, text in texts.items()}
    files |= {f"{d.name}.{kind}": data for d in drawn for kind, data in d.files.items()}
    return Analysis(files, (said, *page.notices(run, counts)))


def sketches(run: LoggedRun) -> list[Sketch]:
    """All figures, to be drawn under the style; raises as `analyse`."""
    spread = silencing.all_thresholds(run)
    return [
        density.density(run, spread),
        figures.quadrant_bars(run, quadrants.measure(run)),
        figures.silenced_share(run, silencing.by_step(run)),
        figures.threshold(run, spread, silencing.thresholds(run)),
        words.clouds(run, words.count(run)),
    ]


def _finite(value: Any) -> Any:
    """The same with null in the place of numbers that JSON does not have: an infinite threshold (q is 0 or 1)."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
