"""The audit of the paper's printed table: do its numbers agree with one another, and with the claims about them?

GRIM (Brown and Heathers, Social Psychological and Personality Science 8(4), 2017): a mean of n whole numbers is a
multiple of 1/n. Here n is problems x samples, and k / n is 10,000 k / n units of 0.01 %, an exact fraction that each
way of rounding prints as one whole number.

Granularity: with N samples a problem the values are multiples of 1 / (rows N). Were the counts of right answers spread
evenly, a share s / N of them would be multiples of 1 / (rows s), for s that divides N. More is what s samples give.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Literal, NamedTuple, get_args

from pydantic import BaseModel
from scipy.stats import binom

from stapo_repro.labels import AVERAGE, METHODS, PAPER_BENCHMARKS, PAPER_SIZES, benchmark_label
from stapo_repro.paper import COLUMNS, PaperRow, PaperTable, Percent
from stapo_repro.scores import METHOD
from stapo_results.benchmarks import registry
from stapo_results.schema import SETTINGS
from stapo_results.statistics import holm

ROUNDINGS: dict[str, Callable[[Fraction], int]] = {
    "half up": lambda x: math.floor(x + Fraction(1, 2)),
    "half even": round,
    "truncation": math.floor,
    "ceiling": math.ceil,
}
"""Ways of rounding an exact number of units to a whole one."""
NEAREST = ("half up", "half even")
WHOLE = 10_000  # 100 % in units of 0.01 %
OTHER_ROWS = {
    "amc23": (83,),  # AMC 2022 and 2023 together
    "olympiadbench": (675, 581),  # the official English text-only part; a filtered part
}
"""Row counts that are published under a benchmark's name, beside the registry's; the paper prints none."""
LEVEL = 0.01  # of the p-values of coarser steps
TOP_FIVE = "probabilities in percent of the five most probable tokens beside each"
LOGIT_STEP = 1 / 8  # nats
REASONS = {
    "impossible": "a slip in typing or copying; another number of samples or problems in this cell, for example "
    "answers that failed and were left out; the mean of rounded parts, or of scores that are not 0 or 1",
    "only by truncation": "the program that wrote the table cut the digits off instead of rounding; of a tie (a value "
    "that ends in 50), binary floating point put it just below one half",
    "only by rounding up": "digits were rounded up; another number of samples or problems in this cell",
    "coarse steps": "some of the cells were evaluated with fewer samples a problem than stated; some samples of a "
    "problem were the same text, for example by equal seeds or at a low temperature; the models answer most problems "
    "always right or always wrong",
    "average": "the average was taken of values with more digits, then rounded; the average was cut off instead of "
    "rounded; a slip in typing or copying, in the average or in a cell",
    "mark": "a slip in typing; the mark follows digits that are not printed",
    "reading found": "which reading is meant may be said elsewhere in the text",
    "differs": "another version of the table is meant; digits that are not printed were used; a slip in typing",
    "versions": "the runs, the table or the reading changed between versions",
    "limit": "the examples were taken from a training with another threshold or none, as JustRL's; the printed "
    "probability is not the one that was compared with it (the sampler's, the old policy's); a slip in typing",
}
"""Kind of a finding -> what could innocently explain it."""

Grid = list[list[str]]


class AuditCheck(NamedTuple):
    """One kind of check over the whole table: a summary, and grids, each with its header first. A cell that is a key
    of REASONS is a finding."""

    title: str
    summary: str
    grids: list[Grid]


def units(text: str) -> int:
    """A percentage with two decimals, such as "7.60", in units of 0.01 %."""
    return int(text.replace(".", ""))


def given_by(m: int, x: Fraction, roundings: Iterable[str] = NEAREST) -> list[str]:
    """The ways of rounding that print x units as m."""
    return [r for r in roundings if ROUNDINGS[r](x) == m]


def kind_of(m: int, n: int) -> str:
    """How a printed value relates to the multiples of 1/n, rounded to nearest: "possible", or what else explains it."""
    near = range(max((m - 1) * n // WHOLE, 0), min((m + 1) * n // WHOLE + 1, n) + 1)  # no other rounds to m
    found = {r for k in near for r in given_by(m, Fraction(WHOLE * k, n), ROUNDINGS)}
    if found & {*NEAREST}:
        return "possible"
    return "only by truncation" if "truncation" in found else "only by rounding up" if found else "impossible"


def neighbours(m: int, n: int) -> list[Fraction]:
    """The multiples of 1/n beside a value, in units of 0.01 %; none beyond 100 %."""
    k = m * n // WHOLE
    return [Fraction(WHOLE * i, n) for i in (k, k + 1) if i <= n]


def groups(table: PaperTable) -> dict[str, list[PaperRow]]:
    """The rows that compete: "size/setting" -> one row a method, in the order of the printed table."""
    cells = [(size, setting) for size in PAPER_SIZES for setting in SETTINGS]
    return {f"{z}/{s}": [r for m in METHODS if (r := table.get(z, m, s))] for z, s in cells}


def _rows(table: PaperTable) -> Iterator[PaperRow]:
    return (row for rows in groups(table).values() for row in rows)


def _group(row: PaperRow) -> str:
    return f"{PAPER_SIZES[row.size]} T={SETTINGS[row.setting][0]}"


def _where(row: PaperRow, column: str) -> str:
    return f"{_group(row)}, {METHODS[row.method]}, {benchmark_label(column)}"


def _hits(rows: Sequence[PaperRow], benchmark: str, n: int) -> int:
    """How many of a benchmark's printed values are multiples of 1/n."""
    return sum(kind_of(units(r.values[benchmark]), n) == "possible" for r in rows)


def row_counts(table: PaperTable) -> list[tuple[str, int, int, int]]:
    """(benchmark, rows, rows x samples, cells that fit) of every row count under which a benchmark is published."""
    tried = [(b, rows) for b in PAPER_BENCHMARKS for rows in (registry()[b].rows, *OTHER_ROWS.get(b, ()))]
    return [(b, rows, n := rows * table.samples_per_problem[b], _hits(table.rows, b, n)) for b, rows in tried]


def answers(table: PaperTable) -> dict[str, int]:
    """rows x samples of each benchmark, with the row count that most of its cells fit, of equals the first."""
    tried = row_counts(table)
    return {b: max((t for t in tried if t[0] == b), key=lambda t: t[3])[2] for b in PAPER_BENCHMARKS}


def check_grim(table: PaperTable) -> AuditCheck:
    """How well each row count fits, and every printed value against the multiples of 1/n of its column."""
    taken, cells = answers(table), len(table.rows)
    counts = [["column", "rows", "samples", "cells that fit", "by chance", "taken"]]
    for b, rows, n, hits in row_counts(table):
        chance, mark = f"{cells * min(1.0, (n + 1) / (WHOLE + 1)):.1f}", "yes" if n == taken[b] else ""
        counts.append([benchmark_label(b), str(rows), str(n // rows), f"{hits} of {cells}", chance, mark])
    found = []
    for row, (b, n) in ((row, column) for row in _rows(table) for column in taken.items()):
        if (kind := kind_of(m := units(row.values[b]), n)) != "possible":
            beside = ", ".join(f"{float(x / 100):.4f}" for x in neighbours(m, n))
            found.append([_where(row, b), row.values[b], kind, f"1/{n:,}", beside])
    found.sort(key=lambda row: list(REASONS).index(row[2]))
    total = cells * len(taken)
    summary = (
        "How many cells of each column are a multiple of 1 / (rows x samples), rounded to nearest. By chance: how many "
        f"of as many random percentages would be. {total - len(found)} of {total} printed values are a whole number of "
        "right answers."
    )
    return AuditCheck(
        "GRIM", summary, [counts, [["where", "printed", "finding", "step", "multiples beside it"], *found]]
    )


def check_granularity(table: PaperTable) -> AuditCheck:
    """Columns whose values are multiples of a coarser step than stated more often than chance explains."""
    rows, p, cells = [], [], len(table.rows)
    for b, n in answers(table).items():
        stated = table.samples_per_problem[b]
        # steps finer than the printed digits cannot be told apart
        for samples in (s for s in range(1, stated) if stated % s == 0 and n < WHOLE):
            coarse, share = n * samples // stated, samples / stated
            hits = _hits(table.rows, b, coarse)
            p.append(float(binom.sf(hits - 1, cells, share)))
            rows.append([benchmark_label(b), f"1/{coarse}", f"{hits} of {cells}", f"{cells * share:.2g}"])
    grid = [["column", "step", "cells that are multiples", "by chance", "p", "finding"]]
    by_step = dict[str, list[tuple[float, str]]]()  # of each column with a finding: (p, step)
    for row, adjusted in zip(rows, holm(p), strict=True):
        if adjusted < LEVEL:
            grid.append([*row, f"{adjusted:.3f}" if adjusted >= 0.001 else f"{adjusted:.0e}", "coarse steps"])
            by_step.setdefault(row[0], []).append((adjusted, row[1]))
    parts = {PAPER_SIZES[z]: [r for r in table.rows if r.size == z] for z in PAPER_SIZES}
    parts |= {f"T={t}": [r for r in table.rows if r.setting == s] for s, (t, _) in SETTINGS.items()}
    where, n = [["column", "multiples of", *parts]], answers(table)
    for found, step in ((b, min(steps)[1]) for b, steps in by_step.items()):
        alike = [b for b in n if n[b] == n[next(b for b in n if benchmark_label(b) == found)]]
        counts = {b: [f"{_hits(of, b, int(step[2:]))} of {len(of)}" for of in parts.values()] for b in alike}
        where += [[benchmark_label(b), step, *shown] for b, shown in counts.items()]
    summary = (
        f"{len({r[0] for r in grid[1:]})} of {len({r[0] for r in rows})} columns have more multiples of a coarser step "
        f"than chance explains (binomial p below {LEVEL:g} after Holm's correction over {len(p)} comparisons): their "
        "counts are not spread as those of so many independent samples would be. Shown apart: where they are, for the "
        "step with the smallest p, beside columns with as many samples."
    )
    return AuditCheck("Granularity", summary, [grid, where])


def check_averages(table: PaperTable) -> AuditCheck:
    """Every printed average against its printed cells, and what would explain it where they differ."""
    n, grid = answers(table), [["where", "printed", "finding", "mean of the cells", "explained by"]]
    for row in _rows(table):
        cells = {b: units(row.values[b]) for b in PAPER_BENCHMARKS}
        m, mean = units(row.values[AVERAGE]), Fraction(sum(cells.values()), len(cells))
        if given_by(m, mean):
            continue
        by: list[str] = [*given_by(m, mean, ROUNDINGS)]
        if abs(mean - m) <= 1:  # half a unit of the cells, and half a unit of the average
            by.append("cells with more digits")
        for b, cell in cells.items():
            for near in map(round, neighbours(cell, n[b]) if kind_of(cell, n[b]) != "possible" else ()):
                if given_by(m, mean + Fraction(near - cell, len(cells))):
                    by.append(f"{Decimal(near).scaleb(-2)} for {row.values[b]} at {benchmark_label(b)} (see GRIM)")
        shown = f"{float(mean / 100):.4f}", "; ".join(by) or "no rounding"
        grid.append([_where(row, AVERAGE), row.values[AVERAGE], "average", *shown])
    right, every = len(table.rows) - len(grid) + 1, len(table.rows)
    return AuditCheck("Averages", f"{right} of {every} averages are the rounded mean of their printed cells.", [grid])


def _highest(rows: Sequence[PaperRow], column: str) -> list[PaperRow]:
    """The rows with the highest value; several where they are equal."""
    top = max(units(r.values[column]) for r in rows)
    return [r for r in rows if units(r.values[column]) == top]


def check_marks(table: PaperTable) -> AuditCheck:
    """Whether each mark is on the highest value, and how often each method has it."""
    wins, wrong = {m: [0, 0] for m in METHODS}, [["where", "finding", "marked", "highest"]]
    compared = [(rows, column) for rows in groups(table).values() for column in COLUMNS]
    for rows, column in compared:
        best, marked = _highest(rows, column), [r for r in rows if column in r.best]
        for r in best:
            wins[r.method][column == AVERAGE] += 1
        if marked != best:
            names = (", ".join(f"{METHODS[r.method]} ({r.values[column]})" for r in of) for of in (marked, best))
            wrong.append([f"{_group(rows[0])}, {benchmark_label(column)}", "mark", *names])
    summary = f"{len(compared) - len(wrong) + 1} of {len(compared)} best marks are on the highest printed value."
    n = len(groups(table))
    header = ["method", f"highest on a benchmark (of {n * len(PAPER_BENCHMARKS)})", f"highest average (of {n})"]
    return AuditCheck("Best marks", summary, [[header, *([METHODS[m], *map(str, wins[m])] for m in METHODS)], wrong])


Reading = Literal["relative, strongest", "points, strongest", "relative, each", "points, each"]
"""In percent of, or in points over, the strongest baseline of a group, or each."""
_STRONGEST: tuple[Reading, Reading] = ("relative, strongest", "points, strongest")


def gain(table: PaperTable, names: Sequence[str], reading: Reading, of: Sequence[str] = (AVERAGE,)) -> Fraction:
    """STAPO's mean of the columns `of` over the baselines', the mean over groups and baselines, in units of 0.01 % or
    0.01 points."""
    found = []
    for rows in (groups(table)[name] for name in names):
        means = {r.method: Fraction(sum(units(r.values[c]) for c in of), len(of)) for r in rows}
        own = means.pop(METHOD)
        for other in means.values() if reading.endswith("each") else [max(means.values())]:
            found.append(WHOLE * Fraction(own - other, other if reading.startswith("relative") else WHOLE))
    return sum(found, Fraction(0)) / len(found)


class ClaimedGain(NamedTuple):
    """A gain of STAPO's average in the text, over groups; `reading` is null where the text names none."""

    id: str
    version: str
    place: str
    about: str
    value: Percent
    groups: list[str]
    reading: Reading | None = None


class Fact(NamedTuple):
    """What else was found in the text; without a kind it departs from nothing."""

    where: str
    kind: str
    fact: str


class PaperClaims(BaseModel, extra="forbid"):
    """The file of claims. `facts` are constants, each worked out of `printed` in tests/test_audit_paper.py."""

    schema_version: Literal[2]
    source: str
    gains: list[ClaimedGain]
    facts: list[Fact]
    printed: dict[str, list[str]]


def judge(table: PaperTable, claim: ClaimedGain) -> tuple[list[Fraction], list[str], str]:
    """(a claimed gain in units of 0.01 under each reading, the readings that give its value, the finding)"""
    values = [gain(table, claim.groups, reading) for reading in get_args(Reading)]
    fitting = [r for r, v in zip(get_args(Reading), values, strict=True) if given_by(units(claim.value), v)]
    if claim.reading in fitting or (fitting and claim.reading is None):
        return values, fitting, "agrees" if claim.reading else "reading found"
    return values, fitting, "differs" if re.search(rf"{claim.version}\b", table.source) else "another version"


def check_claims(table: PaperTable, claims: PaperClaims) -> AuditCheck:
    """Every claimed gain against the table, and what else was found in the text."""
    grid = [["claimed gain", "printed", *get_args(Reading), "finding", "readings that give it"]]
    for c in claims.gains:
        values, fitting, finding = judge(table, c)
        grid.append([c.id, c.value, *(f"{float(v / 100):.2f}" for v in values), finding, "; ".join(fitting)])
    outcomes = Counter(row[-2] for row in grid[1:])
    summary = (
        f"{outcomes['agrees'] + outcomes['reading found']} of {len(claims.gains)} claimed gains follow from the "
        f"table's averages, {outcomes['another version']} are other versions' and do not. Readings: relative (in "
        "percent) or in points, to the strongest baseline or to each."
    )
    return AuditCheck("Claims", summary, [grid, [["where", "finding", "what was found"], *map(list, claims.facts)]])


def check_statements(table: PaperTable) -> AuditCheck:
    """What the table says of statements of the text that have no number, and what its gains rest on."""
    cells = {s: [f"{z}/{s}" for z in PAPER_SIZES] for s in SETTINGS}
    gains = [[gain(table, cells[s], reading) for s in SETTINGS] for reading in _STRONGEST]
    left = [f"{float(100 * low / high):.0f} % of {float(high / 100):.2f}" for high, low in gains]
    every = [(rows, b) for rows in groups(table).values() for b in PAPER_BENCHMARKS]
    behind = []  # (units, the cell of the best row) where STAPO is not the best
    for rows, b in every:
        best, own = _highest(rows, b)[0], next(r for r in rows if r.method == METHOD)
        behind.append((units(best.values[b]) - units(own.values[b]), _where(best, b)))
    below = sorted((x for x in behind if x[0] > 0), reverse=True)
    ahead = sum(_highest(rows, AVERAGE)[0].method == METHOD for rows in groups(table).values())
    said = [
        ['"The performance gap narrows slightly" at T=0.7', f"of the gain at T=1.0 {left[0]} % and {left[1]} points"],
        [
            '"STAPO consistently attains optimal results"',
            f"the highest in {len(every) - len(below)} of {len(every)} cells, its average in {ahead} of "
            f"{len(groups(table))}; furthest below: "
            + "; ".join(f"{d / 100:.2f} points at {where}" for d, where in below[:2]),
        ],
    ]
    for b in PAPER_BENCHMARKS:
        rest = [c for c in PAPER_BENCHMARKS if c != b]
        without = [f"{float(gain(table, names, _STRONGEST[0], rest) / 100):.2f}" for names in cells.values()]
        said.append([f"gains in percent without {benchmark_label(b)}", " and ".join(without)])
    average = {(r.size, r.method, r.setting): units(r.values[AVERAGE]) for r in table.rows}
    for z in PAPER_SIZES:
        moved = (f"{METHODS[m]} {(average[z, m, 't0.7'] - average[z, m, 't1.0']) / 100:+.2f}" for m in METHODS)
        said.append([f"average at T=0.7 less that at T=1.0, {PAPER_SIZES[z]}", ", ".join(moved)])
    summary = "Gains are over the strongest baseline, at T=1.0 and 0.7. AIME24 also validates the paper's curves."
    return AuditCheck("Statements", summary, [[["statement or question", "what the table gives"], *said]])


def log_ratios(five: str) -> list[tuple[float, float]]:
    """Bounds in nats of each ln(p / largest p), of percentages with two decimals that do not round to 0."""
    p = [(float(x) - 0.005, float(x) + 0.005) for x in five.split() if float(x)]
    return [(math.log(low / p[0][1]), math.log(high / p[0][0])) for low, high in p[1:]]


def check_precision(claims: PaperClaims) -> AuditCheck:
    """Whether the logits behind the printed probabilities lie on a coarse grid, as those of bf16 do."""
    rows, steps, sure = [["printed (%)", "ln of the ratios, nearest 1/8 nat", "entropy of these (nats)"]], [], []
    for five in claims.printed[TOP_FIVE]:
        bounds = [(low / LOGIT_STEP, high / LOGIT_STEP) for low, high in log_ratios(five)]
        steps += (telling := [b for b in bounds if b[1] - b[0] < 1])
        p = [float(x) / 100 for x in five.split() if float(x)]
        sure.append(-math.fsum(x * math.log(x) for x in p))
        shown = ", ".join(f"{LOGIT_STEP * round((low + high) / 2):g}" for low, high in telling)
        rows.append([five, shown, f"{sure[-1]:.2f}"])
    hits, chance = sum(math.floor(high) >= low for low, high in steps), math.prod(high - low for low, high in steps)
    summary = (
        f"{hits} of {len(steps)} log ratios of a printed probability to the largest beside it are multiples of 1/8 nat "
        f"within rounding, all of them by chance with a probability of {chance:.0e}; left out are those whose rounding "
        "is wider. "
        "Numbers in bf16 from 16 to 32 are 1/8 apart, from 32 to 64 1/4: so logits in bf16 give such ratios. "
        "Rounding moves each of two such logits by up to 1/16 nat, the probability of a rare token beside a likely one "
        f"by {math.expm1(LOGIT_STEP):.0%}, from 32 on by {math.expm1(2 * LOGIT_STEP):.0%}. Possible reasons: autocast "
        "in the training, which is ordinary; a forward pass for the figure alone. No entropy is printed; the five most "
        f"probable tokens alone give up to {max(sure):.2f} nats."
    )
    return AuditCheck("Printed probabilities", summary, [rows])


OF_TABLE = (check_grim, check_granularity, check_averages, check_marks, check_statements)
