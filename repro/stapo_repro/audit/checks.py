"""A printed table's numbers against one another, and the claims about them. Pure functions of table and claims.

Granularity: with N samples a problem the values are multiples of 1 / (rows N). Were the counts of right answers spread
evenly, a share s / N of them would be multiples of 1 / (rows s), for s that divides N. More is what s samples give.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, NamedTuple, get_args

from pydantic import BaseModel
from scipy.stats import binom, norm

from stapo_repro.audit.printed import ROUNDINGS, WHOLE, given_by, kind_of, nearest, neighbours, numerators, units
from stapo_repro.labels import AVERAGE, METHODS, PAPER_BENCHMARKS, PAPER_SIZES, benchmark_label
from stapo_repro.paper import COLUMNS, PaperRow, PaperTable, Percent, gains
from stapo_repro.scores import BASELINES, METHOD
from stapo_results.benchmarks import registry
from stapo_results.schema import SETTINGS
from stapo_results.statistics import holm

OTHER_ROWS = {
    "amc23": (83,),  # AMC 2022 and 2023 together
    "olympiadbench": (675, 581),  # the official English text-only part; a filtered part
}
"""Row counts that are published under a benchmark's name, beside the registry's; the paper prints none."""
LEVEL = 0.01  # of the p-values of coarser steps
REASONS = {
    "impossible": "a slip in typing or copying; another number of samples or problems in this cell, for example "
    "answers that failed and were left out; the mean of rounded parts, or of scores that are not 0 or 1",
    "only by truncation": "the program that wrote the table cut the digits off instead of rounding",
    "only by rounding up": "digits were rounded up; another number of samples or problems in this cell",
    "coarse steps": "some of the cells were evaluated with fewer samples a problem than stated; some samples of a "
    "problem were the same text, for example by equal seeds or at a low temperature; the models answer most problems "
    "always right or always wrong",
    "average": "the average was taken of values with more digits, then rounded; the average was cut off instead of "
    "rounded; a slip in typing or copying, in the average or in a cell",
    "mark": "a slip in typing; the mark follows digits that are not printed",
    "within both": "the single answers, compared problem by problem, may tell more than the printed table does",
    "reading found": "which reading is meant may be said elsewhere in the text",
    "differs": "another version of the table is meant; digits that are not printed were used; a slip in typing",
    "versions": "the runs, the table or the reading changed between versions",
    "limit": "the examples were taken from a run with another threshold; a slip in typing",
}
"""Kind of a finding -> what could innocently explain it."""


class Finding(NamedTuple):
    """One departure: where, its kind in a fixed word, and what was computed."""

    where: str
    kind: str
    fact: str


class Check(NamedTuple):
    """One kind of check over the whole table: what is always said, a grid (its header first), and what departs."""

    title: str
    lines: list[str]
    grid: list[list[str]]
    findings: list[Finding]


def groups(table: PaperTable) -> dict[str, list[PaperRow]]:
    """The rows that compete: "size/setting" -> one row a method, in the order of the printed table."""
    cells = [(size, setting) for size in PAPER_SIZES for setting in SETTINGS]
    return {f"{z}/{s}": [r for m in METHODS if (r := table.get(z, m, s))] for z, s in cells}


def _rows(table: PaperTable) -> list[PaperRow]:
    return [row for rows in groups(table).values() for row in rows]


def _where(row: PaperRow, method: str, column: str) -> str:
    return f"{_group(row)}, {METHODS[method]}, {benchmark_label(column)}"


def _group(row: PaperRow) -> str:
    return f"{PAPER_SIZES[row.size]} T={SETTINGS[row.setting][0]}"


def _hits(table: PaperTable, benchmark: str, n: int) -> int:
    """How many of a benchmark's printed values are multiples of 1/n."""
    return sum(kind_of(units(r.values[benchmark]), n) == "possible" for r in table.rows)


class RowCount(NamedTuple):
    """A benchmark under one row count: n = rows x samples, and how many of its values are multiples of 1/n."""

    benchmark: str
    rows: int
    n: int
    hits: int


def row_counts(table: PaperTable) -> list[RowCount]:
    """Every benchmark under the registry's row count and the other ones."""
    tried = [(b, rows) for b in PAPER_BENCHMARKS for rows in (registry()[b].rows, *OTHER_ROWS.get(b, ()))]
    samples = table.samples_per_problem
    return [RowCount(b, rows, rows * samples[b], _hits(table, b, rows * samples[b])) for b, rows in tried]


def answers(table: PaperTable) -> dict[str, int]:
    """rows x samples of each benchmark, with the row count that most of its cells fit; of equals the first tried."""
    tried = row_counts(table)
    return {b: max((t for t in tried if t.benchmark == b), key=lambda t: t.hits).n for b in PAPER_BENCHMARKS}


def grim(printed: str, n: int) -> tuple[str, str]:
    """(kind, what was computed) of a printed value against the multiples of 1/n; "possible" says nothing more."""
    kind = kind_of(m := units(printed), n)
    if kind == "possible":
        return kind, ""
    if kind == "impossible":
        return kind, f"{printed} is k / {n:,} for no k; the neighbours are {' and '.join(neighbours(m, n))}"
    k = numerators(m, n, "truncation" if kind == "only by truncation" else "ceiling")[0]
    x = Fraction(WHOLE * k, n)
    tie = ", a tie that binary floating point may put just below one half" if x % 1 == Fraction(1, 2) else ""
    exact = f"{printed} is {k:,} / {n:,} = {float(x / 100):.4f} %{tie}"
    return kind, f"{exact}; rounded to nearest that is {nearest(x)}"


def check_grim(table: PaperTable) -> Check:
    """How well each row count fits, and every printed value against the multiples of 1/n of its column."""
    n, cells = answers(table), len(table.rows)
    grid = [["column", "rows", "samples", "cells that fit", "by chance", "taken"]]
    for t in row_counts(table):
        chance, mark = cells * min(1.0, (t.n + 1) / (WHOLE + 1)), "yes" if t.n == n[t.benchmark] else ""
        shown = str(t.rows), str(t.n // t.rows), f"{t.hits} of {cells}", f"{chance:.1f}", mark
        grid.append([benchmark_label(t.benchmark), *shown])
    found = [Finding(_where(r, r.method, b), *grim(r.values[b], n[b])) for r in _rows(table) for b in n]
    findings = [f for kind in REASONS for f in found if f.kind == kind]
    right = f"{len(found) - len(findings)} of {len(found)} printed values are a whole number of right answers"
    lines = [
        "How many cells of each column are a multiple of 1 / (rows x samples), rounded to nearest. By chance: how many "
        "of as many random percentages would be.",
        "; ".join([right, *(f"{n} {kind}" for kind, n in Counter(f.kind for f in findings).items())]) + ".",
    ]
    return Check("GRIM", lines, grid, findings)


def check_granularity(table: PaperTable) -> Check:
    """Columns whose values are multiples of a coarser step than stated more often than chance explains."""
    rows, p, cells = [], [], len(table.rows)
    for b, n in answers(table).items():
        stated = table.samples_per_problem[b]
        # steps finer than the printed digits cannot be told apart
        for samples in (s for s in range(1, stated) if stated % s == 0 and n < WHOLE):
            coarse, share = n * samples // stated, samples / stated
            hits = _hits(table, b, coarse)
            p.append(float(binom.sf(hits - 1, cells, share)))
            rows.append([benchmark_label(b), f"1/{coarse}", f"{hits} of {cells}", f"{cells * share:.2g}"])
    grid = [["column", "step", "cells that are multiples", "by chance", "p", "finding"]]
    for row, adjusted in zip(rows, holm(p), strict=True):
        if adjusted < LEVEL:
            grid.append([*row, f"{adjusted:.3f}" if adjusted >= 0.001 else f"{adjusted:.0e}", "coarse steps"])
    line = (
        f"{len({r[0] for r in grid[1:]})} of {len({r[0] for r in rows})} columns have more multiples of a coarser step "
        f"than chance explains (binomial p below {LEVEL:g} after Holm's correction over {len(p)} comparisons): fewer "
        "samples than stated are likely in some of their values."
    )
    return Check("Granularity", [line], grid, [])


def average(table: PaperTable, row: PaperRow) -> str:
    """What would explain a row's printed average that is not the mean of its printed cells; "" where it is."""
    cells, n = {b: units(row.values[b]) for b in PAPER_BENCHMARKS}, answers(table)
    printed, x = row.values[AVERAGE], Fraction(sum(cells.values()), len(cells))
    if given_by(m := units(printed), x):
        return ""
    explained = [f"{r} of that mean" for r in given_by(m, x, ROUNDINGS)]
    if abs(x - m) <= 1:  # half a unit of the cells, and half a unit of the average
        low, high = (f"{float(end / 200):.4f}" for end in (2 * x - 1, 2 * x + 1))
        explained.append(f"cells with more digits, whose mean is between {low} and {high}")
    for b, cell in cells.items():
        for near in neighbours(cell, n[b]) if kind_of(cell, n[b]) != "possible" else ():
            if given_by(m, x + Fraction(units(near) - cell, len(cells))):
                explained.append(f"{near} for {row.values[b]} at {benchmark_label(b)}, which GRIM points to")
    computed = f"{printed} is printed; the printed cells give {float(x / 100):.4f}, rounded {nearest(x)}"
    return f"{computed}. What explains it: {'; '.join(explained) or 'no rounding'}"


def check_averages(table: PaperTable) -> Check:
    """Every printed average against its printed cells."""
    found = {_where(r, r.method, AVERAGE): average(table, r) for r in _rows(table)}
    findings = [Finding(where, "average", fact) for where, fact in found.items() if fact]
    line = f"{len(found) - len(findings)} of {len(found)} averages are the rounded mean of their printed cells."
    return Check("Averages", [line], [], findings)


def _highest(rows: Sequence[PaperRow], column: str) -> list[PaperRow]:
    """The rows with the highest value; several where they are equal."""
    top = max(units(r.values[column]) for r in rows)
    return [r for r in rows if units(r.values[column]) == top]


def check_marks(table: PaperTable) -> Check:
    """Whether each mark is on the highest value, and how often each method has it."""
    wins, findings = {m: [0, 0] for m in METHODS}, []
    compared = [(rows, column) for rows in groups(table).values() for column in COLUMNS]
    for rows, column in compared:
        best, marked = _highest(rows, column), [r for r in rows if column in r.best]
        for r in best:
            wins[r.method][column == AVERAGE] += 1
        if marked != best:
            names = [", ".join(f"{METHODS[r.method]} ({r.values[column]})" for r in of) for of in (marked, best)]
            fact = f"marked is {names[0] or 'nothing'}; highest is {names[1]}"
            findings.append(Finding(f"{_group(rows[0])}, {benchmark_label(column)}", "mark", fact))
    line = f"{len(compared) - len(findings)} of {len(compared)} best marks are on the highest printed value."
    n = len(groups(table))
    header = ["method", f"highest on a benchmark (of {n * len(PAPER_BENCHMARKS)})", f"highest average (of {n})"]
    return Check("Best marks", [line], [header, *([METHODS[m], *map(str, wins[m])] for m in METHODS)], findings)


Reading = Literal["relative, strongest", "points, strongest", "relative, each", "points, each"]
"""In percent of, or in points over, the strongest baseline of a group, or each."""


def _baselines(rows: Sequence[PaperRow], reading: Reading) -> list[PaperRow]:
    others = [r for r in rows if r.method in BASELINES]
    return _highest(others, AVERAGE)[:1] if reading.endswith("strongest") else others


def gain(table: PaperTable, names: Sequence[str], reading: Reading) -> Fraction:
    """STAPO's average over the baselines', the mean over groups and baselines, in units of 0.01 % or 0.01 points."""
    found = []
    for rows in (groups(table)[name] for name in names):
        own = next(units(r.values[AVERAGE]) for r in rows if r.method == METHOD)
        for other in (units(r.values[AVERAGE]) for r in _baselines(rows, reading)):
            found.append(WHOLE * Fraction(own - other, other if reading.startswith("relative") else WHOLE))
    return sum(found, Fraction(0)) / len(found)


def check_gains(table: PaperTable) -> Check:
    """STAPO over the strongest baseline of each group, beside 1.96 standard errors of two equal models' difference."""
    z, of_paper = norm.ppf(0.975), [g for g in gains(table) if g.benchmark == AVERAGE]
    grid = [["group", "strongest other", "points", "relative", "noise: sampling", "noise: problems", "gain"]]
    errors = []
    for name, rows in groups(table).items():
        (best,) = _baselines(rows, "points, strongest")
        g = next(g for g in of_paper if (g.size, g.setting, g.baseline) == (best.size, best.setting, best.method))
        errors.append((g.se_sampling, g.se_unpaired))
        beyond = [abs(g.points) >= z * se for se in errors[-1]]
        verdict = "within both" if not beyond[0] else "beyond both" if beyond[1] else "beyond sampling"
        relative = float(gain(table, [name], "relative, strongest") / 100)
        shown = f"{g.points:.2f}", f"{relative:.2f} %", *(f"{z * se:.1f}" for se in errors[-1]), verdict
        grid.append([_group(best), METHODS[best.method], *shown])
    sampling, problems = (f"{min(column):.2f} to {max(column):.2f} points" for column in zip(*errors, strict=True))
    verdicts = Counter(row[-1] for row in grid[1:])
    lines = [
        f"{METHODS[METHOD]} minus the strongest other method of each group, {benchmark_label(AVERAGE)}. Noise: 1.96 "
        "standard errors, at most: 95 % of differences of two equal models are smaller. Standard errors: "
        f"{sampling} by sampling alone, {problems} with the choice of problems, unpaired.",
        f"{len(errors) - verdicts['beyond both']} of {len(errors)} gains are smaller than the noise with the choice of "
        f"problems, {verdicts['within both']} also than that of sampling alone.",
    ]
    return Check("Gains and noise", lines, grid, [])


class ClaimedGain(NamedTuple):
    """A gain of STAPO's average in the text, over groups; `reading` is null where the text names none."""

    id: str
    version: str
    place: str
    about: str
    value: Percent
    groups: list[str]
    reading: Reading | None = None


class Claims(BaseModel, extra="forbid"):
    """The file of claims. `facts` are constants about what else the text prints, each worked out of `printed` in
    tests/test_audit_paper.py; those without a kind depart from nothing."""

    schema_version: Literal[2]
    source: str
    gains: list[ClaimedGain]
    facts: list[Finding]
    printed: dict[str, list[str]]


def judge(table: PaperTable, claim: ClaimedGain) -> tuple[list[Fraction], str]:
    """(a claimed gain in units of 0.01 under each reading, the outcome with the readings that give its value)"""
    values = [gain(table, claim.groups, reading) for reading in get_args(Reading)]
    fitting = [r for r, v in zip(get_args(Reading), values, strict=True) if given_by(units(claim.value), v)]
    if claim.reading in fitting:
        return values, "agrees"
    if fitting and claim.reading is None:
        return values, f"reading found: {' or '.join(fitting)}"
    return values, "differs" if re.search(rf"{claim.version}\b", table.source) else "another version"


def check_claims(table: PaperTable, claims: Claims) -> Check:
    """Every claimed gain against the table, and what else was found in the text."""
    grid = [["claimed gain", "printed", *get_args(Reading), "outcome"]]
    for c in claims.gains:
        values, outcome = judge(table, c)
        grid.append([c.id, c.value, *(f"{float(v / 100):.2f}" for v in values), outcome])
    outcomes = Counter(row[-1].partition(":")[0] for row in grid[1:])
    follow = f"{outcomes['agrees'] + outcomes['reading found']} of {len(claims.gains)} claimed gains follow"
    lines = [
        f"{follow} from the table's averages, {outcomes['another version']} are other versions' and do not. Readings: "
        "relative (in percent) or in points, to the strongest baseline or to each.",
        *(f"{f.where}: {f.fact}." for f in claims.facts if not f.kind),
    ]
    return Check("Claims", lines, grid, [f for f in claims.facts if f.kind])


OF_TABLE = (check_grim, check_granularity, check_averages, check_marks, check_gains)
