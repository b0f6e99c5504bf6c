"""GRIM: can a printed accuracy be a whole number of right answers, divided by the number of answers?

N. J. L. Brown and J. A. J. Heathers, "The GRIM Test", Social Psychological and Personality Science 8(4), 2017: a mean
of n whole numbers is a multiple of 1/n. Here n is problems x samples. The row count is not always printed, so several
are tried and the one that most cells of the column fit is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from stapo_repro.audit.findings import Check, Finding, Grid, Number, Numbers, join, rounded
from stapo_repro.audit.rounding import Printed, fits, nearest, numerators
from stapo_repro.audit.schema import AuditTable, Column

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


@dataclass(frozen=True)
class Fit:
    """How a printed value relates to the multiples of 1/n.

    Attributes:
        right: a k with k / n printed so, by the kind's rounding; None where there is none.
        below, above: the neighbouring values, rounded to nearest; None beyond 0 and 100.
    """

    kind: Kind
    n: int
    right: int | None
    below: str | None
    above: str | None


def fit(printed: Printed, n: int) -> Fit:
    """Classify one value. Half up and half even both count as rounding to nearest."""
    down, up = numerators(printed, n, "truncation"), numerators(printed, n, "ceiling")
    k = printed.units * n // printed.scale
    beside = [nearest(Fraction(100 * i, n), printed.decimals) if i <= n else None for i in (k, k + 1)]
    kind: Kind = "impossible"
    found = down or up
    if fits(printed, n):
        kind, found = "possible", numerators(printed, n, "half up") or numerators(printed, n, "half even")
    elif down or up:
        kind = "only by directed rounding" if down and up else "only by truncation" if down else "only by rounding up"
    return Fit(kind, n, found[0] if found else None, *beside)


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


def column_values(table: AuditTable, column: str) -> list[Printed]:
    return [Printed.of(r.values[column]) for r in table.rows if column in r.values]


def row_counts(table: AuditTable) -> list[RowCount]:
    """Every column under every row count that it names."""
    tried = []
    for column in table.plain:
        values = column_values(table, column.id)
        for rows in column.rows:
            n = rows * (column.samples or 1)  # the schema: rows and samples go together
            chance = sum(min(1.0, (n + 1) / (v.scale + 1)) for v in values)
            fitting = sum(fits(v, n) for v in values)
            tried.append(RowCount(column, rows, column.samples or 1, len(values), fitting, chance))
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
        return Check("row-counts", "Row counts", ["Not checked: no column names its rows and samples."], {})
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
    numbers: dict[str, Number] = {f"{t.column.id}/{t.rows}": t.fitting for t in tried}
    grid = Grid(["column", "rows", "samples", "cells that fit", "by chance", "taken"], rows)
    return Check("row-counts", "Row counts", [summary], {"fitting": numbers}, grid=grid)


def _finding(printed: Printed, f: Fit, where: str) -> Finding:
    reasons, whole = list(REASONS[f.kind]), f"{f.n:,}"
    numbers: Numbers = {"printed": printed.text, "n": f.n, "k": f.right, "below": f.below, "above": f.above}
    if f.right is None:
        near = join([v for v in (f.below, f.above) if v is not None])
        fact = f"{printed.text} is k / {whole} for no k, however it is rounded; the neighbouring values are {near}."
        return Finding(f.kind, where, numbers, fact, reasons)
    exact = Fraction(100 * f.right, f.n)
    numbers["exact"] = rounded(float(exact))
    if (2 * exact * 10**printed.decimals) % 2 == 1:
        reasons.append(_TIE)
    how = "cut off" if numerators(printed, f.n, "truncation") else "rounded up"
    fact = (
        f"{printed.text} is {f.right:,} / {whole} = {float(exact):.{printed.decimals + 2}f} % only when digits are "
        f"{how}; rounded to nearest that is {nearest(exact, printed.decimals)}."
    )
    return Finding(f.kind, where, numbers, fact, reasons)


def check(table: AuditTable) -> Check:
    """Every printed value against the multiples of 1/n of its column."""
    counts = chosen(row_counts(table))
    found = [
        (table.where(row, c), printed, fit(printed, counts[c].n))
        for row in table.rows
        for c in row.values
        if c in counts and (printed := Printed.of(row.values[c]))
    ]
    if not found:
        return Check("grim", "GRIM", ["Not checked: no column names its rows and samples."], {"cells": 0})
    order: list[Kind] = ["impossible", "only by truncation", "only by rounding up", "only by directed rounding"]
    findings = [_finding(p, f, where) for kind in order for where, p, f in found if f.kind == kind]
    possible = len(found) - len(findings)
    kinds: dict[str, int] = {k: sum(x.kind == k for x in findings) for k in order}
    words = f"; {join([f'{n} {k}' for k, n in kinds.items() if n])}" if findings else ""
    summary = f"{possible} of {len(found)} printed values are a whole number of right answers, rounded to nearest"
    return Check("grim", "GRIM", [f"{summary}{words}."], {"cells": len(found), "possible": possible, **kinds}, findings)
