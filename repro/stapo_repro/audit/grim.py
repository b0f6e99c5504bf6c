"""Can a printed accuracy be a whole number of right answers, divided by the number of answers?

N. J. L. Brown and J. A. J. Heathers, "The GRIM Test", Social Psychological and Personality Science 8(4), 2017: a mean
of n whole numbers is a multiple of 1/n. Here n is problems x samples. The row count is not always printed, so several
are tried and the one that most cells of the column fit is taken.

Integers alone, so exact. A printed value with d decimals is an integer m of units of 10^-d percent; k / n lies at
x = k S / n units, where S = 100 * 10^d. Each way of rounding prints m for the x of one interval:

    half up     m - 1/2 <= x <  m + 1/2
    half even   the same for odd m without its lower end, for even m with both ends
    truncation  m <= x < m + 1
    ceiling     m - 1 < x <= m

Granularity: with N samples a problem the values are multiples of 1 / (rows N). Were the counts of right answers spread
evenly, a share s / N of them would be multiples of the coarser 1 / (rows s), for s that divides N. More than that is
what s samples a problem give.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from scipy.stats import binom

from stapo_repro.audit.findings import Check, Finding, Grid, join
from stapo_repro.audit.schema import AuditTable, Column
from stapo_results.statistics import holm

Rounding = Literal["half up", "half even", "truncation", "ceiling"]
NEAREST: tuple[Rounding, ...] = ("half up", "half even")
ROUNDINGS: tuple[Rounding, ...] = (*NEAREST, "truncation", "ceiling")

Kind = Literal["possible", "only by truncation", "only by rounding up", "only by directed rounding", "impossible"]
REASONS: dict[Kind, list[str]] = {
    "impossible": [
        "a slip in typing or copying",
        "another number of samples or problems in this cell, for example answers that failed and were left out",
        "the mean of rounded parts, or of scores that are not 0 or 1",
    ],
    "only by truncation": ["the program that wrote the table cut the digits off instead of rounding"],
    "only by rounding up": ["digits were rounded up", "another number of samples or problems in this cell"],
    "only by directed rounding": ["the digits were cut off, or rounded up"],
}
_TIE = "the exact value is a tie, which binary floating point may put just below one half"

LEVEL = 0.01  # of the p-values of coarser steps
COARSE_REASONS = [
    "some of the cells were evaluated with fewer samples a problem than stated",
    "some samples of a problem were the same text, for example by equal seeds or at a low temperature",
    "the models answer most problems always right or always wrong",
]


@dataclass(frozen=True)
class Printed:
    """A percentage as printed: `units` of 10^-`decimals`."""

    text: str
    units: int
    decimals: int

    @staticmethod
    def of(text: str) -> Printed:
        return Printed(text, int(text.replace(".", "")), len(text.partition(".")[2]))

    @property
    def scale(self) -> int:
        """Units in 100 percent."""
        return 100 * 10**self.decimals

    @property
    def value(self) -> Fraction:
        """In percent."""
        return Fraction(self.units, 10**self.decimals)

    @property
    def slack(self) -> Fraction:
        """How far the value before rounding to nearest may lie from the printed one, in percent."""
        return Fraction(1, 2 * 10**self.decimals)

    def gives(self, exact: Fraction, roundings: tuple[Rounding, ...] = NEAREST) -> list[Rounding]:
        """The ways of rounding that print `exact` (in percent) as this value."""
        return [r for r in roundings if round_to(exact, self.decimals, r) == self.units]


def round_to(percent: Fraction, decimals: int, rounding: Rounding) -> int:
    """Units of 10^-decimals of an exact percentage."""
    units = percent * 10**decimals
    if rounding == "half even":
        return round(units)
    if rounding == "half up":
        return math.floor(units + Fraction(1, 2))
    return math.floor(units) if rounding == "truncation" else math.ceil(units)


def as_text(units: int, decimals: int) -> str:
    return str(Decimal(units).scaleb(-decimals).quantize(Decimal(1).scaleb(-decimals)))


def nearest(percent: Fraction, decimals: int) -> str:
    """An exact percentage as it is printed when rounded half to even."""
    return as_text(round_to(percent, decimals, "half even"), decimals)


def numerators(printed: Printed, n: int, rounding: Rounding) -> range:
    """All k in 0..n for which k / n is printed as this value."""
    m = printed.units
    odd = m % 2 == 1
    low, low_open, high, high_open = {  # ends of the interval of 2 x, and whether they are outside of it
        "half up": (2 * m - 1, False, 2 * m + 1, True),
        "half even": (2 * m - 1, odd, 2 * m + 1, odd),
        "truncation": (2 * m, False, 2 * m + 2, True),
        "ceiling": (2 * m - 2, True, 2 * m, False),
    }[rounding]
    first = low * n // (2 * printed.scale) + 1 if low_open else -(-low * n // (2 * printed.scale))
    last = -(-high * n // (2 * printed.scale)) - 1 if high_open else high * n // (2 * printed.scale)
    return range(max(first, 0), min(last, n) + 1)


def fits(printed: Printed, n: int) -> bool:
    """Whether some k / n is printed so by rounding to nearest, half up or half even."""
    return any(len(numerators(printed, n, r)) for r in NEAREST)


def kind_of(printed: Printed, n: int) -> Kind:
    """How a printed value relates to the multiples of 1/n."""
    if fits(printed, n):
        return "possible"
    down, up = (bool(numerators(printed, n, r)) for r in ("truncation", "ceiling"))
    if down and up:
        return "only by directed rounding"
    return "only by truncation" if down else "only by rounding up" if up else "impossible"


def neighbours(printed: Printed, n: int) -> list[str]:
    """The multiples of 1/n beside a value, rounded to nearest; none beyond 100 percent."""
    k = printed.units * n // printed.scale
    return [nearest(Fraction(100 * i, n), printed.decimals) for i in (k, k + 1) if i <= n]


@dataclass(frozen=True)
class RowCount:
    """A column under one row count: how many of its cells fit, and how many of as many random values would."""

    column: Column
    rows: int
    samples: int
    cells: int
    fitting: int
    by_chance: float

    @property
    def n(self) -> int:
        return self.rows * self.samples


def _values(table: AuditTable, column: str) -> list[Printed]:
    return [Printed.of(r.values[column]) for r in table.rows if column in r.values]


def row_counts(table: AuditTable) -> list[RowCount]:
    """Every column under every row count that it names."""
    tried = []
    for column in table.plain:
        values, samples = _values(table, column.id), column.samples or 1  # the schema: rows and samples go together
        for rows in column.rows:
            n = rows * samples
            chance = sum(min(1.0, (n + 1) / (v.scale + 1)) for v in values)
            tried.append(RowCount(column, rows, samples, len(values), sum(fits(v, n) for v in values), chance))
    return tried


def chosen(tried: list[RowCount]) -> dict[str, RowCount]:
    """The row count of each column that most of its cells fit; of equals the first named."""
    best: dict[str, RowCount] = {}
    for t in tried:
        if t.column.id not in best or t.fitting > best[t.column.id].fitting:
            best[t.column.id] = t
    return best


def check_row_counts(table: AuditTable) -> Check:
    """How well each row count that was named fits."""
    tried = row_counts(table)
    if not tried:
        return Check("row-counts", "Row counts", ["Not checked: no column names its rows and samples."])
    taken = chosen(tried)
    rows = [
        [table.label(t.column.id), str(t.rows), str(t.samples), f"{t.fitting} of {t.cells}", f"{t.by_chance:.1f}",
         "yes" if taken[t.column.id] is t else ""]
        for t in tried
    ]  # fmt: skip
    summary = (
        "How many cells of each column are a multiple of 1 / (rows x samples), rounded to nearest. By chance: how many "
        "of as many random percentages would be."
    )
    grid = Grid(["column", "rows", "samples", "cells that fit", "by chance", "taken"], rows)
    return Check("row-counts", "Row counts", [summary], grid=grid)


def _finding(printed: Printed, n: int, kind: Kind, where: str) -> Finding:
    reasons, whole = list(REASONS[kind]), f"{n:,}"
    if kind == "impossible":
        near = join(neighbours(printed, n))
        fact = f"{printed.text} is k / {whole} for no k, however it is rounded; the neighbouring values are {near}."
        return Finding(kind, where, fact, reasons)
    down = numerators(printed, n, "truncation")
    k = (down or numerators(printed, n, "ceiling"))[0]
    exact = Fraction(100 * k, n)
    if (2 * exact * 10**printed.decimals) % 2 == 1:
        reasons.append(_TIE)
    fact = (
        f"{printed.text} is {k:,} / {whole} = {float(exact):.{printed.decimals + 2}f} % only when digits are "
        f"{'cut off' if down else 'rounded up'}; rounded to nearest that is {nearest(exact, printed.decimals)}."
    )
    return Finding(kind, where, fact, reasons)


def check(table: AuditTable) -> Check:
    """Every printed value against the multiples of 1/n of its column."""
    counts = chosen(row_counts(table))
    cells = [(r, c, Printed.of(r.values[c]), counts[c].n) for r in table.rows for c in r.values if c in counts]
    if not cells:
        return Check("grim", "GRIM", ["Not checked: no column names its rows and samples."])
    found = [(kind_of(printed, n), printed, n, table.where(row, c)) for row, c, printed, n in cells]
    order: list[Kind] = ["impossible", "only by truncation", "only by rounding up", "only by directed rounding"]
    findings = [_finding(p, n, kind, where) for kind in order for x, p, n, where in found if x == kind]
    kinds = {k: sum(x.kind == k for x in findings) for k in order}
    words = f"; {join([f'{n} {k}' for k, n in kinds.items() if n])}" if findings else ""
    possible = f"{len(found) - len(findings)} of {len(found)} printed values"
    summary = f"{possible} are a whole number of right answers, rounded to nearest{words}."
    return Check("grim", "GRIM", [summary], findings)


@dataclass(frozen=True)
class CoarseStep:
    """One column against multiples of 1 / n, n = rows x samples with fewer samples than stated.

    `p`: probability of at least `hits` by chance (binomial, cells independent).
    """

    stated: RowCount
    n: int
    hits: int
    expected: float
    p: float


def coarse_steps(table: AuditTable) -> list[CoarseStep]:
    """Every column against every smaller number of samples that divides the stated one."""
    found = []
    for stated in chosen(row_counts(table)).values():
        values = _values(table, stated.column.id)
        if any(v.scale <= stated.n for v in values):  # steps finer than the printed digits cannot be told apart
            continue
        for samples in (s for s in range(1, stated.samples) if values and stated.samples % s == 0):
            n, share = stated.rows * samples, samples / stated.samples
            hits = sum(fits(v, n) for v in values)
            p = float(binom.sf(hits - 1, len(values), share))
            found.append(CoarseStep(stated, n, hits, len(values) * share, p))
    return found


def _coarse(where: str, steps: list[tuple[CoarseStep, float]]) -> Finding:
    """All steps of a column that chance does not explain, each with its corrected p; the least probable comes first."""
    least = min(steps, key=lambda s: (s[0].p, s[0].n))
    parts = []
    for s, adjusted in [least, *(s for s in steps if s is not least)]:
        p = f"{adjusted:.3f}" if adjusted >= 0.001 else f"{adjusted:.0e}"
        parts.append(f"{s.hits} are multiples of 1/{s.n} ({s.expected:.2g} by chance, p = {p})")
    stated = least[0].stated
    fact = (
        f"Of {stated.cells} values, {'; '.join(parts)}. With {stated.samples} samples a problem the step is "
        f"1/{stated.n:,}: fewer samples are likely in some of these values."
    )
    return Finding("coarse steps", where, fact, COARSE_REASONS)


def check_granularity(table: AuditTable) -> Check:
    """Columns whose values are multiples of a coarser step more often than chance explains."""
    steps = coarse_steps(table)
    if not steps:
        return Check("granularity", "Granularity", ["Not checked: no column has steps that its digits show."])
    unlikely: dict[str, list[tuple[CoarseStep, float]]] = {s.stated.column.id: [] for s in steps}
    for s, adjusted in zip(steps, holm([s.p for s in steps]), strict=True):
        if adjusted < LEVEL:
            unlikely[s.stated.column.id].append((s, adjusted))
    findings = [_coarse(table.label(c), found) for c, found in unlikely.items() if found]
    summary = (
        f"Columns with more multiples of a coarser step than chance explains (binomial, p below {LEVEL:g} after Holm's "
        f"correction over {len(steps)} comparisons): {len(findings)} of {len(unlikely)}."
    )
    return Check("granularity", "Granularity", [summary], findings)
