"""Printed averages against the cells they are averages of."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from stapo_repro.audit.findings import Check, Finding, Numbers, join, rounded
from stapo_repro.audit.grim import cells, chosen, row_counts
from stapo_repro.audit.rounding import NEAREST, ROUNDINGS, Printed, Rounding, as_text, round_to
from stapo_repro.audit.schema import AuditTable, Column, Row

REASONS = [
    "the average was taken of values with more digits, then rounded",
    "the average was cut off instead of rounded",
    "a slip in typing or copying, in the average or in a cell",
]


@dataclass(frozen=True)
class Mean:
    """One printed average beside the mean of its printed cells.

    Attributes:
        exact: the mean of the printed cells, in percent.
        roundings: ways of rounding `exact` that give the printed average.
        low, high: where the mean of unrounded cells may lie, in percent, when each was rounded to nearest.
        unrounded: whether some mean in between is printed as this average.
    """

    printed: Printed
    exact: Fraction
    roundings: list[Rounding]
    low: Fraction
    high: Fraction
    unrounded: bool

    @property
    def agrees(self) -> bool:
        return any(r in NEAREST for r in self.roundings)


def mean_of(printed: Printed, parts: list[Printed]) -> Mean:
    """Compare a printed average with its printed cells."""
    exact = sum((p.value for p in parts), Fraction(0)) / len(parts)
    slack = sum((Fraction(1, 2 * 10**p.decimals) for p in parts), Fraction(0)) / len(parts)
    half = Fraction(1, 2 * 10**printed.decimals)
    roundings: list[Rounding] = [r for r in ROUNDINGS if round_to(exact, printed.decimals, r) == printed.units]
    return Mean(printed, exact, roundings, exact - slack, exact + slack, abs(exact - printed.value) <= slack + half)


def _replaced(table: AuditTable, row: Row, column: Column, mean: Mean) -> list[tuple[str, str, str]]:
    """(cell, value printed, value of the neighbour) whose exchange makes the average right: cells that GRIM refuses."""
    counts = chosen(row_counts(table))
    index = table.rows.index(row)
    out = []
    for i, cell, fit in cells(table, counts):
        if i != index or cell not in column.mean_of or fit.kind == "possible":
            continue
        for neighbour in (fit.below, fit.above):
            if neighbour is None:
                continue
            values = {**row.values, cell: neighbour}
            if mean_of(mean.printed, [Printed.of(values[c]) for c in column.mean_of]).agrees:
                out.append((cell, row.values[cell], neighbour))
    return out


def _finding(table: AuditTable, row: Row, column: Column, mean: Mean) -> Finding:
    decimals = mean.printed.decimals
    nearest = as_text(round_to(mean.exact, decimals, "half even"), decimals)
    fact = (
        f"{mean.printed.text} is printed; the {len(column.mean_of)} printed cells give "
        f"{float(mean.exact):.{decimals + 2}f}, rounded {nearest}."
    )
    explained = []
    if mean.roundings:
        explained.append(f"{join(list(mean.roundings), 'or')} of that mean")
    if mean.unrounded:
        explained.append(
            f"cells with more digits, whose mean lies between {float(mean.low):.{decimals + 2}f} and "
            f"{float(mean.high):.{decimals + 2}f}"
        )
    replaced = _replaced(table, row, column, mean)
    explained += [f"{new} instead of {old} at {table.label(cell)}, which GRIM points to" for cell, old, new in replaced]
    fact += f" Each of these explains it: {'; '.join(explained)}." if explained else " No rounding explains it."
    numbers: Numbers = {
        "printed": mean.printed.text,
        "mean_of_cells": rounded(float(mean.exact)),
        "nearest": nearest,
        "roundings": list(mean.roundings),
        "low": rounded(float(mean.low)),
        "high": rounded(float(mean.high)),
        "more_digits_explain_it": mean.unrounded,
        "replaced": {cell: new for cell, _, new in replaced},
    }
    return Finding("average", table.where(row, column.id), numbers, fact, REASONS)


def check(table: AuditTable) -> Check:
    """Every printed average whose cells are all printed."""
    means = [
        (row, column, mean_of(Printed.of(row.values[column.id]), [Printed.of(row.values[c]) for c in column.mean_of]))
        for column in table.means
        for row in table.rows
        if column.id in row.values and set(column.mean_of) <= set(row.values)
    ]
    if not means:
        return Check("averages", "Averages", ["Not checked: the table has no average with all its cells."], {})
    findings = [_finding(table, row, column, mean) for row, column, mean in means if not mean.agrees]
    agree = len(means) - len(findings)
    summary = f"{agree} of {len(means)} averages agree with the mean of their printed cells, rounded to nearest."
    return Check("averages", "Averages", [summary], {"averages": len(means), "agree": agree}, findings)
