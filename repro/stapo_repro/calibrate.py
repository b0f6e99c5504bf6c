"""Our scores of a public checkpoint beside its published ones (results/paper/calibration.json), each with a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel

from stapo_repro.labels import PAPER_BENCHMARKS, benchmark_label
from stapo_repro.paper import transcribed
from stapo_repro.read import Loaded, load_cells
from stapo_repro.statistics import against_printed
from stapo_repro.text import escape, grid, p_shown, percent, shown, signed
from stapo_results.benchmarks import registry
from stapo_results.errors import BadInput
from stapo_results.schema import SETTINGS, CellRecord
from stapo_results.shapes import Shape, shape_from
from stapo_results.statistics import holm, parse_verdicts

Row = dict[str, Any]
NOT_STATED = "not stated"
_Stated = Literal["temperature", "top_p", "max_tokens", "grader", "judge", "judge_mode", "prompt"]
_APART = ("temperature", "top_p", "max_tokens", "grader", "judge", "prompt", "n", "problems", "golds", "kind")


class Set(BaseModel, extra="forbid", frozen=True):
    """One source's results; rows: a checkpoint's values by benchmark, [score] or [score, SD over seeds], in percent."""

    name: str
    source: dict[Literal["repository", "commit", "places"], Any]
    kind: Literal["evaluation", "validation while training", "peak of a training"]
    spread: Literal["standard deviation over seeds", "not printed"]
    problems: Literal["registered copies", "not printed"]  # whether its benchmarks are those of our registry
    setting: dict[_Stated, float | int | str | None]  # None: not stated; the prompt "ours" is our harness's wording
    n: dict[str, int]  # samples a problem, by benchmark where stated
    other_golds: list[str] = []  # benchmarks graded against other gold answers
    rows: list[dict[Literal["model", "organization", "values"], Any]]


class Checkpoint(BaseModel, extra="forbid", frozen=True):
    """A checkpoint that the driver evaluates: its hub id, and what it costs by its config.json, read on the hub
    ("stated") or its family's ("inferred")."""

    id: str
    basis: Literal["stated", "inferred"]
    config: dict[str, Any]

    @property
    def shape(self) -> Shape:
        return shape_from(self.config, self.id)


class Calibration(BaseModel, extra="forbid", frozen=True):
    """The file. aliases: one source's name of a checkpoint -> another's; checkpoints: by the driver's name for them."""

    schema_version: Literal[1]
    source: str
    aliases: dict[str, str]
    checkpoints: dict[str, Checkpoint]
    sets: list[Set]

    def key(self, name: str) -> str:
        """The one key of a checkpoint: without its organization, in lower case, its aliases taken together."""
        key = name.rsplit("/", 1)[-1].lower()
        return {k.lower(): v.lower() for k, v in self.aliases.items()}.get(key, key)


def load() -> Calibration:
    """The transcribed results; raises as `paper.transcribed`."""
    return transcribed("calibration.json", Calibration)


def published(model: str) -> list[Row]:
    """Every published number of a checkpoint with what its source states, by benchmark in the paper's order.

    `published` and `sd` (over seeds) are in percent. None is not stated.

    Raises:
        BadInput: no source has it; names those that are known.
    """
    known = load()
    mine = [(s, r["values"]) for s in known.sets for r in s.rows if known.key(r["model"]) == known.key(model)]
    if not mine:
        raise BadInput("no published result of this model is on record", found=model or "no name",
                       expected=", ".join(sorted({r["model"] for s in known.sets for r in s.rows}, key=str.lower)),
                       next_step="stapo-repro calibrate JustRL-DeepSeek-1.5B")  # fmt: skip
    return [_stated(s, b, *values[b]) for b in PAPER_BENCHMARKS for s, values in mine if b in values]


def _stated(s: Set, benchmark: str, value: float, sd: float | None = None) -> Row:
    judge, mode = s.setting["judge"], s.setting["judge_mode"]
    return {
        "benchmark": benchmark, "source": s.name, "published": value, "sd": sd, **s.setting, "kind": s.kind,
        "judge": judge if judge in (None, "none") else f"{judge}, mode {mode}",
        "problems": None if s.problems == "not printed" else s.problems,
        "golds": "other" if benchmark in s.other_golds else "registered", "n": s.n.get(benchmark),
    }  # fmt: skip


def _ours(r: CellRecord) -> Row:
    """A cell of ours under the names of `_stated`."""
    judge, mode = r.judge.partition(" ")[0].rpartition("/")[2], r.judge.partition(" mode ")[2] or NOT_STATED
    return {
        "temperature": r.temperature, "top_p": r.top_p, "max_tokens": r.max_tokens, "n": r.n, "kind": "evaluation",
        "grader": r.grader.split(",")[0] or NOT_STATED, "prompt": "ours", "golds": "registered",
        "judge": f"{judge}, mode {mode}" if r.scored_by == "rule+judge" else "none",
        "problems": "registered copies",
    }  # fmt: skip


class Point(NamedTuple):
    """A source's way of evaluating, as `stapo-eval run` is told of it."""

    source: str
    setting: str
    max_tokens: int


def points_of(model: str) -> list[Point]:
    """Every fully stated decoding at which this checkpoint was published; raises as `published`."""
    found = {}
    for row in published(model):
        t, top_p, limit = row["temperature"], row["top_p"], row["max_tokens"]
        if None not in (t, top_p, limit):
            named = (name for name, decoding in SETTINGS.items() if decoding == (t, top_p))
            found[row["source"]] = Point(row["source"], next(named, f"t{t:g}-p{top_p:g}"), limit)
    return list(found.values())


def own_cells(runs: Sequence[Path], model: str) -> list[Loaded]:
    """The cells below these folders; where they are of several models, those whose size label is `model`.

    Raises:
        BadInput: no cell, or several models of which not exactly one is `model`.
    """
    cells, key = load_cells(runs), load().key
    models = {c.record.cell.model for c in cells}
    mine = models if len(models) == 1 else {m for m in models if key(m[1]) == key(model)}
    if len(mine) != 1:
        names = ", ".join(sorted("/".join(map(str, m)) for m in models))
        raise BadInput("the folders do not hold one model", found=names or "no cells/*.json",
                       expected=f"cells of one model, or of one whose size is {model}",
                       next_step="name the --out of a finished stapo-eval run")  # fmt: skip
    return [c for c in cells if c.record.cell.model in mine]


def compare(theirs: Sequence[Row], cells: Sequence[Loaded], margin: float) -> list[Row]:
    """Every published number beside every cell of its benchmark; without a cell "not run".

    Scores in percent; `points` is ours minus published, with `se` and the 95 % interval `low` to `high` in points; None
    is undefined. `p_holm` is over all rows. `apart`: setting -> (ours, theirs) where they differ or may differ.
    """
    of = {b: [c for c in cells if c.record.cell.benchmark == b] for b in PAPER_BENCHMARKS}
    rows = [_beside(p, cell) for p in theirs for cell in of[p["benchmark"]] or [None]]
    for row, p in zip(rows, holm([math.nan if r["p"] is None else r["p"] for r in rows]), strict=True):
        if row["p"] is not None:
            row["p_holm"] = p
            row["verdict"], row["why"] = verdict(p, row["low"], row["high"], margin)
    return rows


def _beside(theirs: Row, cell: Loaded | None) -> Row:
    ours = _ours(cell.record) if cell else dict.fromkeys(_APART)
    stated = {k: NOT_STATED if theirs[k] is None else theirs[k] for k in _APART}
    row = theirs | {"p": None, "apart": {k: (ours[k], stated[k]) for k in _APART if ours[k] != theirs[k]}}
    if not cell:
        return row | {"verdict": "not run"}
    r, sd = cell.record, theirs["sd"]
    scores = [parse_verdicts(q.verdicts) for q in r.problems]
    found = against_printed(scores, theirs["published"] / 100, theirs["n"] or 0, sd and sd / 100)
    why = _obstacle(r) or ("" if theirs["n"] else "their samples a problem are not stated")
    se, low, high = (None if why else percent(x) for x in (found.se, found.low, found.high))
    p = None if why or math.isnan(found.p) else found.p
    return row | {
        "record": cell.path, "at": r.cell.setting + (f", seed {r.cell.eval_seed}" if r.cell.eval_seed else ""),
        "ours": percent(math.fsum(map(math.fsum, scores)) / (r.n * len(scores))), "our_n": r.n,
        "points": percent(found.mean), "se": se, "low": low, "high": high, "p": p,
        "verdict": "cannot tell", "why": why if why or p is not None else "the noise cannot be estimated",
    }  # fmt: skip


def _obstacle(r: CellRecord) -> str:
    """Why no difference of this cell can be judged; "" for nothing."""
    spec, missing = registry()[r.cell.benchmark], sum(q.verdicts.count("-") for q in r.problems)
    if missing or r.n < 2:
        return f"{missing} samples missing" if missing else "one sample a problem has no spread"
    if r.variant or (len(r.problems), r.benchmark_sha256) != (spec.rows, spec.golds_sha256):
        return f"other problems: {r.variant or f'{len(r.problems)} of {spec.rows}, or other answers'}"
    return ""


def verdict(p_holm: float, low: float | None, high: float | None, margin: float) -> tuple[str, str]:
    """The verdict on a difference by its p after Holm and its interval in points; and why none can be given."""
    if p_holm < 0.05:
        return "differs", ""
    if low is not None and high is not None and -margin <= low <= 0 <= high <= margin:
        return "agrees", ""
    return "cannot tell", "no interval around 0 within the margin"


def calibration(model: str, runs: Sequence[Path], margin: float) -> dict[str, Any]:
    """All that the command shows and writes; raises as `published` and `own_cells`."""
    cells = own_cells(runs, model) if runs else []
    rows, known = compare(published(model), cells, margin), load()
    notes = [f"differs: p after Holm below 0.05; else agrees: the 95 % interval, not corrected for the number of "
             f"rows, holds 0 and lies within {margin:g} points of it; else cannot tell"]  # fmt: skip
    for s in (s for s in known.sets if s.name in {r["source"] for r in rows}):
        at = [f"github.com/{s.source['repository']}", s.source["commit"] or "no commit on record", *s.source["places"]]
        notes.append(f"{s.name} ({s.kind}): {', '.join(at)}")
    for r in (c.record for c in cells):
        where, cut = f"{r.cell.benchmark} at {r.cell.setting}", r.finish_reasons.get("length", 0)
        said = {
            f"the records say that the model is {r.cell.size}": known.key(r.cell.size) != known.key(model),
            f"{where}: {100 * cut / (r.n * len(r.problems)):.1f} % of the responses reached the limit": cut,
            f"{where}: {r.text_variants} problem texts differ from the registered copy": r.text_variants,
            "records were made up for a test": r.synthetic,
        }
        notes += [text for text, applies in said.items() if applies]
    return {"schema_version": 2, "model": model, "margin": margin, "rows": rows, "notes": list(dict.fromkeys(notes))}


def to_markdown(found: dict[str, Any]) -> str:
    """One table of what `calibration` found, with its notes; its difference is ours minus published."""
    lines = []
    for r in found["rows"]:
        run, ends = "ours" in r, "" if r.get("low") is None else f" [{signed(r['low'])}, {signed(r['high'])}]"
        spread = "" if r["sd"] is None else f" ± {r['sd']}"
        apart = "; ".join(f"{k} {y}" if x is None else f"{k} {x} / {y}" for k, (x, y) in r["apart"].items())
        lines.append([
            benchmark_label(r["benchmark"]), r.get("at", ""), r["source"],
            f"{shown(r['ours'])} ({r['our_n']})" if run else "", f"{r['published']}{spread} ({r['n'] or '?'})",
            f"{signed(r['points'])}{ends}" if run else "", p_shown(r.get("p_holm")),
            r["verdict"] + (f" ({r['why']})" if r.get("why") else ""), apart,
        ])  # fmt: skip
    head = ("Benchmark", "At", "Source", "Ours (N)", "Published (N)", "Difference", "p (Holm)", "Verdict", "Settings")
    table, notes = [[escape(x) for x in line] for line in lines], [f"- {escape(x)}" for x in found["notes"]]
    return "\n".join([f"# Calibration of {escape(found['model'])}", "", *grid(head, table, 3), "", *notes, ""])
