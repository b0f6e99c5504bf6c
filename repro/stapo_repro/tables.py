"""The table as one value, made from records alone; `render` writes it as Markdown, CSV and JSON.

Layout of the paper's main table: a section a model size, a row a method, a column a benchmark, both decoding settings
in each cell, the unweighted average last. The miniature has sections of its own. Missing data is a status, never a
blank or a zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Literal

from stapo_repro import labels
from stapo_repro.notes import footnotes
from stapo_repro.paper import PaperTable
from stapo_repro.records import Loaded, final_step, inputs_hash
from stapo_repro.scores import Score, ScoreKey, difference, score_all
from stapo_results.errors import BadInput
from stapo_results.schema import SETTINGS
from stapo_results.statistics import average, bootstrap

Status = Literal["run", "not run", "incomplete", "paper", "not in the paper"]


@dataclass(frozen=True)
class Value:
    """One value of the table, in percent. `shown` is the printed text (two decimals, half to even)."""

    status: Status
    shown: str = ""
    mean: float | None = None
    se: float | None = None
    low: float | None = None
    high: float | None = None
    bootstrap_low: float | None = None
    bootstrap_high: float | None = None
    problems: int = 0
    rows: int = 0
    samples: int = 0
    fewest_samples: int = 0
    missing: int = 0
    best: bool = False
    seeds: dict[str, float] = field(default_factory=dict)
    records: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return self.status == "run" and self.missing == 0 and self.problems == self.rows


@dataclass(frozen=True)
class Row:
    """One method: benchmark (and "avg") -> setting -> value."""

    method: str
    label: str
    source: Literal["ours", "paper"]
    values: dict[str, dict[str, Value]]


@dataclass(frozen=True)
class Difference:
    """A method minus the base model, in percentage points, paired by problem; or why there is none."""

    method: str
    benchmark: str
    setting: str
    status: Literal["run", "not run", "other problems"]
    points: float | None = None
    se: float | None = None
    low: float | None = None
    high: float | None = None
    p_sign_flip: float | None = None
    problems: int = 0


@dataclass(frozen=True)
class Section:
    """One block of the table."""

    id: str
    title: str
    miniature: bool
    size: str
    benchmarks: list[str]
    rows: list[Row]
    differences: list[Difference]
    footnotes: list[str]


@dataclass(frozen=True)
class Table:
    """Everything that the written formats show."""

    schema_version: int
    inputs_sha256: str
    paper: str
    records: list[dict[str, str]]
    sections: list[Section]


def percent(fraction: float) -> float | None:
    """Percent with eight decimals (beyond that two machines may differ); None for NaN."""
    return None if math.isnan(fraction) else round(100 * fraction, 8) + 0.0


def shown(value: float | None, digits: int = 2) -> str:
    """The printed number: rounded half to even, as the paper's 53.125 -> 53.12. "n/a" for None."""
    if value is None:
        return "n/a"
    return str(Decimal(repr(value)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_EVEN))


def _value(score: Score) -> Value:
    e = score.estimate
    mean = percent(e.mean)
    return Value(
        status="run" if mean is not None else "incomplete",
        shown=shown(mean),
        mean=mean,
        se=percent(e.se),
        low=percent(e.low),
        high=percent(e.high),
        bootstrap_low=percent(score.bootstrap[0]),
        bootstrap_high=percent(score.bootstrap[1]),
        problems=e.problems,
        rows=score.rows,
        samples=e.samples,
        fewest_samples=score.fewest,
        missing=e.missing,
        seeds={str(s): v for s, f in sorted(score.seeds.items()) if (v := percent(f)) is not None},
        records=sorted(c.path for c in score.cells),
    )


def _average(parts: Sequence[Score | None]) -> Value:
    have = [p for p in parts if p is not None]
    if not have:
        return Value("not run")
    if len(have) < len(parts) or any(math.isnan(p.estimate.mean) for p in have):
        return Value("incomplete", shown=f"{len(have)} of {len(parts)} run")
    e = average([p.estimate for p in have])
    low, high = bootstrap([list(p.means.values()) for p in have])
    worst = min(have, key=lambda p: p.fewest / p.estimate.samples)
    return Value(
        status="run",
        shown=shown(percent(e.mean)),
        mean=percent(e.mean),
        se=percent(e.se),
        low=percent(e.low),
        high=percent(e.high),
        bootstrap_low=percent(low),
        bootstrap_high=percent(high),
        problems=e.problems,
        rows=sum(p.rows for p in have),
        samples=worst.estimate.samples,
        fewest_samples=worst.fewest,
        missing=e.missing,
        records=sorted(c.path for p in have for c in p.cells),
    )


def _our_row(scores: Mapping[ScoreKey, Score], size: str, method: str, benchmarks: Sequence[str]) -> Row:
    values: dict[str, dict[str, Value]] = {}
    for b in benchmarks:
        values[b] = {}
        for s in SETTINGS:
            found = scores.get((size, method, b, s))
            values[b][s] = _value(found) if found else Value("not run")
    values[labels.AVERAGE] = {s: _average([scores.get((size, method, b, s)) for b in benchmarks]) for s in SETTINGS}
    return Row(method, labels.method_label(method), "ours", values)


def _paper_row(paper: PaperTable, size: str, method: str) -> Row:
    values: dict[str, dict[str, Value]] = {}
    for b in (*labels.PAPER_BENCHMARKS, labels.AVERAGE):
        values[b] = {}
        for s in SETTINGS:
            row = paper.get(size, method, s)
            values[b][s] = (
                Value("paper", shown=row.values[b], mean=float(row.values[b]), best=b in row.best)
                if row
                else Value("not in the paper")
            )
    return Row(method, f"{labels.method_label(method)}, paper", "paper", values)


def _mark_best(rows: Sequence[Row], columns: Iterable[str]) -> list[Row]:
    """Mark the highest complete value of our rows, where at least two can be compared. Ties are all marked."""
    marked = {id(r): {c: dict(v) for c, v in r.values.items()} for r in rows}
    for column in columns:
        for setting in SETTINGS:
            ours = [r for r in rows if r.source == "ours" and r.values[column][setting].complete]
            if len(ours) < 2:
                continue
            top = max(Decimal(r.values[column][setting].shown) for r in ours)
            for r in ours:
                v = r.values[column][setting]
                if Decimal(v.shown) == top:
                    marked[id(r)][column][setting] = Value(**{**v.__dict__, "best": True})
    return [Row(r.method, r.label, r.source, marked[id(r)]) for r in rows]


def _differences(
    scores: Mapping[ScoreKey, Score], size: str, methods: Sequence[str], benchmarks: Sequence[str]
) -> list[Difference]:
    out = []
    for method in methods:
        for b in benchmarks:
            for s in SETTINGS:
                ours, base = scores.get((size, method, b, s)), scores.get((size, labels.BASE, b, s))
                if ours is None or base is None:
                    out.append(Difference(method, b, s, "not run"))
                    continue
                try:
                    d = difference(ours, base)
                except BadInput:  # the table says so in the place of the number
                    out.append(Difference(method, b, s, "other problems"))
                    continue
                p = None if math.isnan(d.p) else round(d.p, 8)
                points, se, low, high = (percent(x) for x in (d.difference, d.se, d.low, d.high))
                out.append(Difference(method, b, s, "run", points, se, low, high, p, d.problems))
    return out


def _section(
    id: str, title: str, size: str, benchmarks: Sequence[str], scores: Mapping[ScoreKey, Score], *,
    paper: PaperTable | None = None, miniature: bool = False,
) -> Section:  # fmt: skip
    here = {k: v for k, v in scores.items() if k[0] == size and k[2] in benchmarks}
    extra = sorted({k[1] for k in here} - {labels.BASE, *labels.METHODS})
    methods = [*labels.METHODS, *extra]
    rows: list[Row] = [_our_row(here, size, labels.BASE, benchmarks)]
    for m in methods:
        if paper is not None and m in labels.METHODS:
            rows.append(_paper_row(paper, size, m))
        rows.append(_our_row(here, size, m, benchmarks))
    return Section(
        id=id,
        title=title,
        miniature=miniature,
        size=size,
        benchmarks=list(benchmarks),
        rows=_mark_best(rows, [*benchmarks, labels.AVERAGE]),
        differences=_differences(here, size, methods, benchmarks),
        footnotes=footnotes(here),
    )


def build(cells: Sequence[Loaded], paper: PaperTable) -> Table:
    """The whole table from all records.

    Raises:
        RecordError: records that cannot be pooled (see `scores.score`).
    """
    final, earlier = final_step(cells)
    scores = score_all(final)
    mini, real = list(labels.MINI_BENCHMARKS), list(labels.PAPER_BENCHMARKS)
    sections = [_section("miniature", "Miniature (a tiny model on additions; not a result of the paper)", labels.MINI,
                         mini, scores, miniature=True)]  # fmt: skip
    if any(k[0] == labels.MINI and k[2] in real for k in scores):
        title = "Miniature model on the paper's benchmarks (shows that the path works; not a result)"
        sections.append(_section("miniature-real", title, labels.MINI, real, scores, miniature=True))
    for size, label in labels.PAPER_SIZES.items():
        title = f"RL from the {label} base model"
        sections.append(_section(size, title, size, real, scores, paper=paper))
    for size in sorted({k[0] for k in scores} - labels.PAPER_SIZES.keys() - {labels.MINI}):
        benchmarks = sorted({k[2] for k in scores if k[0] == size})
        sections.append(_section(size, f"Other models: {size}", size, benchmarks, scores))
    records = [{"cell": c.record.cell.id, "path": c.path, "sha256": c.sha256} for c in cells]
    if earlier:
        note = f"{len(earlier)} records of earlier checkpoints are not in this table."
        sections[0].footnotes.append(note)
    stamp = inputs_hash(cells, paper.model_dump_json())
    return Table(1, stamp, paper.source, records, sections)
