"""Values of the table from scores: mean, interval, the paper's value beside it, best marks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

from stapo_repro import labels
from stapo_repro.paper import COLUMNS, PaperTable
from stapo_repro.tables.model import AgainstPaper, MethodRow, Value
from stapo_repro.tables.scores import Score, ScoreKey, average_score
from stapo_repro.text import percent, shown
from stapo_results.benchmarks import registry
from stapo_results.schema import SETTINGS
from stapo_results.statistics import Estimate, bootstrap


def _from_estimate(e: Estimate, se_problems: float, se_seeds: float, bounds: tuple[float, float]) -> Value:
    mean = percent(e.mean)
    return Value(
        status="run" if mean is not None else "incomplete",
        shown=shown(mean),
        mean=mean,
        se=percent(e.se),
        low=percent(e.low),
        high=percent(e.high),
        se_problems=percent(se_problems),
        se_seeds=percent(se_seeds),
        bootstrap_low=percent(bounds[0]),
        bootstrap_high=percent(bounds[1]),
        problems=e.problems,
        samples=e.samples,
        missing=e.missing,
    )


def from_score(score: Score) -> Value:
    """One benchmark at one setting."""
    return replace(
        _from_estimate(score.estimate, score.se_problems, score.se_seeds, score.bootstrap),
        se_sampling=percent(score.se_sampling),
        rows=score.rows,
        fewest_samples=score.fewest,
        seeds={str(s): v for s, f in sorted(score.seeds.items()) if (v := percent(f)) is not None},
        records=sorted(c.path for c in score.cells),
    )


def from_average(parts: Sequence[Score | None]) -> Value:
    """The unweighted mean over benchmarks; not a number unless all of them are there, from the same models."""
    have = [p for p in parts if p is not None]
    if not have:
        return Value("not run")
    if len(have) < len(parts) or any(math.isnan(p.estimate.mean) for p in have):
        return Value("incomplete", shown=f"{len(have)} of {len(parts)} run")
    found = average_score(have)
    if found is None:
        return Value("incomplete", shown="seeds differ")
    worst = min(have, key=lambda p: p.fewest / p.estimate.samples)
    by_seed = {s: math.fsum(p.seeds[s] for p in have) / len(have) for s in sorted(have[0].seeds)}
    return replace(
        _from_estimate(*found, bootstrap([list(p.means.values()) for p in have])),
        se_sampling=percent(math.sqrt(math.fsum(p.se_sampling**2 for p in have)) / len(have)),
        rows=sum(p.rows for p in have),
        samples=worst.estimate.samples,
        fewest_samples=worst.fewest,
        seeds={str(s): v for s, f in by_seed.items() if (v := percent(f)) is not None},
        records=sorted(c.path for p in have for c in p.cells),
    )


def _comparable(value: Value, parts: Sequence[Score]) -> bool:
    """Whether the paper's value is held against our interval: nothing is missing, and the problems are the paper's."""
    known = registry()
    same = all(p.rows == known[p.cells[0].record.cell.benchmark].rows for p in parts)
    return value.complete and same and not any(c.record.variant for p in parts for c in p.cells)


def against_paper(value: Value, printed: str, parts: Sequence[Score]) -> Value:
    """The value with its difference to the paper's printed one."""
    if value.mean is None or value.status != "run":
        return value
    within = None
    if value.low is not None and value.high is not None and _comparable(value, parts):
        within = value.low <= float(printed) <= value.high
    return replace(value, paper=AgainstPaper(round(value.mean - float(printed), 8) + 0.0, within))


def our_row(
    scores: Mapping[ScoreKey, Score], size: str, method: str, benchmarks: Sequence[str], paper: PaperTable | None
) -> MethodRow:
    """One method's row; `paper` is None where there is nothing of the paper's to hold it against."""
    values: dict[str, dict[str, Value]] = {name: {} for name in (*benchmarks, labels.AVERAGE)}
    for s in SETTINGS:
        parts = {b: scores.get((size, method, b, s)) for b in benchmarks}
        for b, found in parts.items():
            values[b][s] = from_score(found) if found else Value("not run")
        values[labels.AVERAGE][s] = from_average(list(parts.values()))
        printed = paper.get(size, method, s) if paper else None
        if printed is not None:
            there = {b: [p] for b, p in parts.items() if p}
            for name, by_setting in values.items():
                used = there.get(name, []) if name != labels.AVERAGE else [p for v in there.values() for p in v]
                by_setting[s] = against_paper(by_setting[s], printed.values[name], used)
    return MethodRow(method, labels.method_label(method), "ours", values)


def paper_row(paper: PaperTable, size: str, method: str) -> MethodRow:
    """The paper's printed values and marks."""
    rows = {s: row for s in SETTINGS if (row := paper.get(size, method, s)) is not None}
    values = {
        name: {
            s: Value("paper", shown=row.values[name], mean=float(row.values[name]), best=name in row.best)
            for s, row in rows.items()
        }
        for name in COLUMNS
    }
    return MethodRow(method, f"{labels.method_label(method)}, paper", "paper", values)


def mark_best(rows: Sequence[MethodRow], columns: Iterable[str]) -> None:
    """Mark in place the highest complete value of our rows, where at least two can be compared. Ties are all marked."""
    for column in columns:
        for setting in SETTINGS:
            ours = [r.values[column] for r in rows if r.source == "ours" and r.values[column][setting].complete]
            top = max((Decimal(by_setting[setting].shown) for by_setting in ours), default=None)
            for by_setting in ours if len(ours) > 1 else ():
                if Decimal(by_setting[setting].shown) == top:
                    by_setting[setting] = replace(by_setting[setting], best=True)
