"""`stapo-repro tokens`: a token log as files, with its numbers as JSON, figures and one HTML page.

The page has no script and loads nothing; its policy allows the one style sheet and the pictures in it. Model text is
hostile: it passes `visible` and the template's escaping.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import resources
from typing import Any

from markupsafe import Markup

from stapo_repro.figures import tokens as figures
from stapo_repro.figures.style import save, style
from stapo_repro.text import template, visible
from stapo_repro.tokens import numbers
from stapo_repro.tokens.log import LoggedRun, marked
from stapo_repro.tokens.tables import MISMATCH, mismatch_cells, small_percent

_MOST_WORDS = 500  # different tokens a part in tokens.json; the page's bars have fewer


def analyse(run: LoggedRun, top: int = 30) -> tuple[dict[str, bytes], list[str]]:
    """The files by name, the same bytes each time, and what the command prints.

    Args:
        top: how many cases are shown.

    Raises:
        RunFailed: the log contradicts the run's metrics (`numbers.by_step`).
    """
    counts, quadrants, cases = numbers.by_step(run), numbers.quadrants(run), numbers.cases(run, top)
    with style():
        drawn = [save(sketch, ("svg", "png")) for sketch in figures.sketches(run)]
    spread, disagreement, compared = numbers.threshold(run), numbers.mismatch(run), _compared(run, counts)
    found = {
        "schema_version": 6,
        "run_id": run.record.run_id if run.record is not None else None,
        "inputs": dict(sorted(run.inputs.items())),
        "facts": run.header.model_dump(mode="json"),
        "comparison": compared,
        "threshold": dict(zip(("low", "median", "high"), spread, strict=True)) if spread else None,
        "taxonomy": [asdict(q) for q in quadrants],
        "silenced": counts,
        "mismatch": disagreement and {name: asdict(number) for name, number in disagreement.items()},
        "ranked": {
            part: {"tokens": sum(w.values()), "counts": dict(list(w.items())[:_MOST_WORDS])}
            for part, w in numbers.words(run).items()
        },
        "cases": cases,
    }
    sheet = resources.files("stapo_repro").joinpath("templates", "tokens.css").read_text(encoding="utf-8")
    allowed = base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    page = template("stapo_repro", "tokens.html.jinja", _visible).render(
        title=run.heading("Tokens"),
        compared=compared,
        run=run,
        done=sum(c["silenced" if run.masks_rare else "region"] for c in counts),
        counts=counts,
        pictures={d.name: (d, base64.b64encode(d.files["svg"]).decode()) for d in drawn},
        quadrants=quadrants,
        mismatch=list(zip(MISMATCH, mismatch_cells(disagreement), strict=True)) if disagreement else [],
        cases=cases,
        marked=marked,
        percent=small_percent,
        style=Markup(sheet),
        policy=f"default-src 'none'; style-src 'sha256-{allowed}'; img-src data:; base-uri 'none'; form-action 'none'",
    )
    texts = {"index.html": page, "tokens.json": json.dumps(found, ensure_ascii=False, indent=1, allow_nan=False) + "\n"}
    files = {name: text.encode("utf-8", "backslashreplace") for name, text in texts.items()}
    return files | {f"{d.name}.{kind}": data for d in drawn for kind, data in d.files.items()}, [compared]


def _visible(value: object) -> object:
    return visible(value) if type(value) is str else value


def _compared(run: LoggedRun, counts: Sequence[Mapping[str, Any]]) -> str:
    """The comparison of log and metrics, which `by_step` has made."""
    left_out, compared = run.header.left_out, sum(c["metric"] is not None for c in counts)
    said = f"silenced: {sum(c['silenced'] for c in counts):,} in the log"
    said += f", equal to the metrics in {compared} of {len(counts)} steps" if compared else "; no metrics beside it"
    return said + (f"; {left_out:,} rows left out at the log's bound" if left_out else "")
