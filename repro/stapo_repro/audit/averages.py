"""Printed averages against the cells they are averages of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from stapo_repro.audit.findings import Check, Finding, Numbers, join, rounded
from stapo_repro.audit.grim import chosen, fit, row_counts
from stapo_repro.audit.rounding import NEAREST, ROUNDINGS, Printed, Rounding, nearest
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
    slack = sum((p.slack for p in parts), Fraction(0)) / len(parts)
    unrounded = abs(exact - printed.value) <= slack + printed.slack
    return Mean(printed, exact, printed.gives(exact, ROUNDINGS), exact - slack, exact + slack, unrounded)


def _of_cells(values: Mapping[str, str], column: Column) -> Mean:
    return mean_of(Printed.of(values[column.id]), [Printed.of(values[c]) for c in column.mean_of])


def _replaced(table: AuditTable, row: Row, column: Column) -> list[tuple[str, str]]:
    """(cell, neighbour) whose exchange makes the average right: cells that GRIM refuses."""
    counts = chosen(row_counts(table))
    out = []
    for cell in (c for c in row.values if c in column.mean_of and c in counts):
        f = fit(Printed.of(row.values[cell]), counts[cell].n)
        for near in (f.below, f.above) if f.kind != "possible" else ():
            if near is not None and _of_cells({**row.values, cell: near}, column).agrees:
                out.append((cell, near))
    return out


def _finding(table: AuditTable, row: Row, column: Column, mean: Mean) -> Finding:
    digits = mean.printed.decimals + 2
    low, high, exact = (f"{float(x):.{digits}f}" for x in (mean.low, mean.high, mean.exact))
    shown = nearest(mean.exact, mean.printed.decimals)
    explained = []
    if mean.roundings:
        explained.append(f"{join(list(mean.roundings), 'or')} of that mean")
    if mean.unrounded:
        explained.append(f"cells with more digits, whose mean lies between {low} and {high}")
    replaced = _replaced(table, row, column)
    explained += [
        f"{new} instead of {row.values[cell]} at {table.label(cell)}, which GRIM points to" for cell, new in replaced
    ]
    fact = (
        f"{mean.printed.text} is printed; the {len(column.mean_of)} printed cells give {exact}, rounded {shown}. "
        + (f"Each of these explains it: {'; '.join(explained)}." if explained else "No rounding explains it.")
    )
    numbers: Numbers = {
        "printed": mean.printed.text,
        "mean_of_cells": rounded(float(mean.exact)),
        "nearest": shown,
        "roundings": list(mean.roundings),
        "low": rounded(float(mean.low)),
        "high": rounded(float(mean.high)),
        "more_digits_explain_it": mean.unrounded,
        "replaced": dict(replaced),
    }
    return Finding("average", table.where(row, column.id), numbers, fact, REASONS)


def check(table: AuditTable) -> Check:
    """Every printed average whose cells are all printed."""
    means = [
        (row, column, _of_cells(row.values, column))
        for column in table.means
        for row in table.rows
        if {column.id, *column.mean_of} <= set(row.values)
    ]
    if not means:
        return Check("averages", "Averages", ["Not checked: the table has no average with all its cells."], {})
    findings = [_finding(table, row, column, mean) for row, column, mean in means if not mean.agrees]
    agree = len(means) - len(findings)
    summary = f"{agree} of {len(means)} averages agree with the mean of their printed cells, rounded to nearest."
    return Check("averages", "Averages", [summary], {"averages": len(means), "agree": agree}, findings)
