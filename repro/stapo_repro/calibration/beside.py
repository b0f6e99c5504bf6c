"""Our scores of a checkpoint beside its published ones, a row for each benchmark, setting and source."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stapo_repro import labels
from stapo_repro.calibration.judging import Difference, at, judged, mean, measured, obstacle, other_problems, scores
from stapo_repro.calibration.published import Published, load, plain
from stapo_repro.read import Loaded, load_cells
from stapo_results.errors import BadInput
from stapo_results.schema import CellRecord
from stapo_results.statistics import problem_means
from stapo_results.statistics.fixed import against_printed

NOT_STATED = "not stated"
_MODE = re.compile(r"\bmode (\S+)$")


@dataclass(frozen=True)
class Ours:
    """A cell of ours; `value` in percent, over the samples that are there (None: a problem has none)."""

    cell: str
    at: str
    record: str
    value: float | None
    n: int
    problems: int
    missing: int
    setting: dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One published number beside one cell of ours.

    Attributes:
        noise_of_published: where their noise comes from.
        differs_in: settings in which the two differ or may differ -> (ours, theirs).
    """

    benchmark: str
    published: Published
    ours: Ours | None
    difference: Difference
    noise_of_published: str
    differs_in: dict[str, tuple[Any, Any]]

    @property
    def setting(self) -> str:
        """Of our cell, by its name."""
        return self.ours.at if self.ours else ""


def ours_of(cell: Loaded) -> Ours:
    r = cell.record
    value = mean(problem_means(scores(r)))
    missing = "".join(p.verdicts for p in r.problems).count("-")
    return Ours(r.cell.id, at(r.cell), cell.path, value, r.n, len(r.problems), missing, stated(r))


def stated(r: CellRecord) -> dict[str, Any]:
    """A record's setting under the names of `published.Setting`."""
    return {
        "temperature": r.temperature,
        "top_p": r.top_p,
        "max_tokens": r.max_tokens,
        "grader": r.grader.split(",")[0] or NOT_STATED,
        "judge": (r.judge.partition(" ")[0] or NOT_STATED) if r.scored_by == "rule+judge" else "none",
        "judge_mode": (m[1] if (m := _MODE.search(r.judge)) else NOT_STATED) if r.scored_by == "rule+judge" else "none",
        "prompt": "ours",
    }


def own_cells(runs: Sequence[Path], model: str = "") -> list[Loaded]:
    """The cells of one model below these folders. With several models there, those whose size label is `model`.

    Raises:
        BadInput: no cell, or several models and none of them, or more than one, is `model`.
    """
    cells = load_cells(runs)
    if not cells:
        raise BadInput("no finished cell stands in these folders", found=", ".join(map(str, runs)),
                       expected="cells/*.json, as stapo-eval run leaves them",
                       next_step="name the --out of a finished stapo-eval run")  # fmt: skip
    models = dict.fromkeys(c.record.cell.model for c in cells)
    if len(models) > 1:
        models = dict.fromkeys(m for m in models if model and _same(m[1], model)) or models
    if len(models) > 1:
        raise BadInput("the folders hold several models, and one is compared", found=", ".join(map(_label, models)),
                       expected="one model, or one with the checkpoint's name as its size",
                       next_step="name the run folder of that one model alone")  # fmt: skip
    order = list(labels.PAPER_BENCHMARKS)
    kept = [c for c in cells if c.record.cell.model in models]
    return sorted(kept, key=lambda c: order.index(c.record.cell.benchmark) if c.record.cell.benchmark in order else 99)


def _label(model: tuple[str, str, int, int | str]) -> str:
    return "/".join(map(str, model))


def _same(label: str, model: str) -> bool:
    aliases = load().aliases
    return plain(label, aliases) == plain(model, aliases)


def notes(cells: Sequence[Loaded], model: str) -> list[str]:
    """What a reader must know of our side."""
    found = []
    for c in cells:
        r = c.record
        if model and not _same(r.cell.size, model):
            found.append(f"the records say that the model is {_label(r.cell.model)}; it is taken for {model}")
        if r.text_variants:
            found.append(f"{r.cell.benchmark}: {r.text_variants} problem texts differ from the registered copy")
        if r.synthetic:
            found.append("records were made up for a test")
        if r.miniature:
            found.append("a miniature: its benchmarks are its own")
        if cut := r.finish_reasons.get("length", 0):
            share = 100 * cut / (r.n * len(r.problems))
            found.append(f"{r.cell.benchmark} at {r.cell.setting}: {share:.1f} % of the responses reached the limit of "
                         f"{r.max_tokens:,} tokens; a longer one could add at most as many points")  # fmt: skip
    return list(dict.fromkeys(found))


def _settings_apart(theirs: Published, r: CellRecord) -> dict[str, tuple[Any, Any]]:
    found = {}
    for name, mine in stated(r).items():
        other = getattr(theirs.setting, name)
        same = other in mine if name == "judge" and other not in (None, "none") else other == mine
        if not same and not (name == "judge_mode" and "none" in (mine, other)):  # who judged says it
            found[name] = mine, NOT_STATED if other is None else other
    if theirs.n != r.n:
        found["n"] = r.n, theirs.n or NOT_STATED
    if theirs.problems != "registered copies":
        found["problems"] = "registered copy", NOT_STATED
    if theirs.other_golds:
        found["gold answers"] = "registered", "other"
    if theirs.kind != "evaluation":
        found["kind"] = "evaluation", theirs.kind
    return found


def row(theirs: Published, cell: Loaded | None) -> Row:
    """One comparison, its verdict still open (`table`)."""
    if cell is None:
        return Row(theirs.benchmark, theirs, None, Difference(), "", {})
    r = cell.record
    noise = "not known" if not theirs.n else "printed spread" if theirs.sd else "at most that of the printed score"
    why = obstacle(r) or other_problems(r) or ("" if theirs.n else "their samples a problem are not stated")
    sd = None if theirs.sd is None else theirs.sd / 100
    found = against_printed(scores(r), theirs.value / 100, theirs.n or 0, sd)
    return Row(theirs.benchmark, theirs, ours_of(cell), measured(found, why), noise, _settings_apart(theirs, r))


def table(published: Sequence[Published], cells: Sequence[Loaded], margin: float) -> list[Row]:
    """Every published number beside every cell of its benchmark, judged together; without a cell "not run"."""
    rows = [
        row(p, c) for p in published for c in [c for c in cells if c.record.cell.benchmark == p.benchmark] or [None]
    ]
    verdicts = judged([r.difference for r in rows], margin)
    return [replace(r, difference=d) for r, d in zip(rows, verdicts, strict=True)]
