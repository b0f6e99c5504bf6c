"""A table's numbers against one another: averages and their cells, best marks, gains and their noise.

The noise of a difference of two averages, from the printed values, rows and samples alone, as
`statistics.difference_se` has it: by sampling alone (the problems are taken as fixed), and with the choice of problems,
unpaired. Pairing by problem, which needs the single answers, lies between the two bounds as a rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist

from stapo_repro.audit.findings import Check, Finding, Grid, join
from stapo_repro.audit.grim import ROUNDINGS, Printed, RowCount, chosen, kind_of, nearest, neighbours, row_counts
from stapo_repro.audit.schema import AuditTable, Column, Measure, Over, Row
from stapo_results.statistics import Bounds, Design, difference_se

AVERAGE_REASONS = [
    "the average was taken of values with more digits, then rounded",
    "the average was cut off instead of rounded",
    "a slip in typing or copying, in the average or in a cell",
]
Z = NormalDist().inv_cdf(0.975)


# Averages.


def mean_of(parts: list[Printed]) -> Fraction:
    """The exact mean of printed cells, in percent."""
    return sum((p.value for p in parts), Fraction(0)) / len(parts)


def _cells(values: Mapping[str, str], column: Column) -> list[Printed]:
    return [Printed.of(values[c]) for c in column.mean_of]


def _replaced(table: AuditTable, row: Row, column: Column) -> list[tuple[str, str]]:
    """(cell, neighbour) whose exchange makes the average right: cells that GRIM refuses."""
    counts, printed = chosen(row_counts(table)), Printed.of(row.values[column.id])
    out = []
    for cell in (c for c in row.values if c in column.mean_of and c in counts):
        value, n = Printed.of(row.values[cell]), counts[cell].n
        for near in neighbours(value, n) if kind_of(value, n) != "possible" else ():
            if printed.gives(mean_of(_cells({**row.values, cell: near}, column))):
                out.append((cell, near))
    return out


def _average(table: AuditTable, row: Row, column: Column) -> Finding | None:
    """The finding where the mean of the printed cells, rounded to nearest, is another one."""
    printed, parts = Printed.of(row.values[column.id]), _cells(row.values, column)
    exact = mean_of(parts)
    if printed.gives(exact):
        return None
    slack, digits = sum((p.slack for p in parts), Fraction(0)) / len(parts), printed.decimals + 2
    explained = []
    if roundings := printed.gives(exact, ROUNDINGS):
        explained.append(f"{join(list(roundings), 'or')} of that mean")
    if abs(exact - printed.value) <= slack + printed.slack:
        low, high = (f"{float(x):.{digits}f}" for x in (exact - slack, exact + slack))
        explained.append(f"cells with more digits, whose mean lies between {low} and {high}")
    explained += [
        f"{new} instead of {row.values[cell]} at {table.label(cell)}, which GRIM points to"
        for cell, new in _replaced(table, row, column)
    ]
    fact = (
        f"{printed.text} is printed; the {len(parts)} printed cells give {float(exact):.{digits}f}, rounded "
        f"{nearest(exact, printed.decimals)}. "
        + (f"Each of these explains it: {'; '.join(explained)}." if explained else "No rounding explains it.")
    )
    return Finding("average", table.where(row, column.id), fact, AVERAGE_REASONS)


def check_averages(table: AuditTable) -> Check:
    """Every printed average whose cells are all printed."""
    found = [
        _average(table, row, column)
        for column in table.means
        for row in table.rows
        if {column.id, *column.mean_of} <= set(row.values)
    ]
    if not found:
        return Check("averages", "Averages", ["Not checked: the table has no average with all its cells."])
    agree = f"{found.count(None)} of {len(found)} averages"
    summary = f"{agree} agree with the mean of their printed cells, rounded to nearest."
    return Check("averages", "Averages", [summary], [f for f in found if f])


# Best marks.


Comparison = tuple[str, str, list[Row], list[Row]]
"""Group, column, the rows with a value there, those with the highest one."""


def highest(rows: list[Row], column: str) -> list[Row]:
    """The rows with the highest value; several where they are equal."""
    top = max(Printed.of(r.values[column]).value for r in rows)
    return [r for r in rows if Printed.of(r.values[column]).value == top]


def _comparisons(table: AuditTable, columns: list[Column]) -> list[Comparison]:
    """All groups and columns in which at least two rows can be compared."""
    pairs = [(g, c.id, table.competing(g, c.id)) for g in table.groups for c in columns]
    return [(g, c, rows, highest(rows, c)) for g, c, rows in pairs if len(rows) > 1]


def _wins(table: AuditTable, comparisons: list[Comparison]) -> dict[str, int]:
    """Method -> how often its value is the highest; equals all count."""
    return {m: sum(r.method == m for *_, best in comparisons for r in best) for m in table.methods}


def _misplaced(table: AuditTable, comparisons: list[Comparison]) -> list[Finding]:
    def named(rows: list[Row], column: str) -> str:
        return " and ".join(f"{table.label(r.method)} ({r.values[column]})" for r in rows) or "nothing"

    findings = []
    for group, column, rows, best in comparisons:
        marked = [r for r in rows if column in (r.best or [])]
        if marked != best:
            fact = f"Marked is {named(marked, column)}; the highest printed value is that of {named(best, column)}."
            reasons = ["a slip in typing", "the mark follows digits that are not printed"]
            findings.append(Finding("mark", f"{table.label(group)}, {table.label(column)}", fact, reasons))
    return findings


def check_marks(table: AuditTable) -> Check:
    """Marks and how often each method is best."""
    plain = _comparisons(table, table.plain)
    if not plain:
        return Check("marks", "Best marks", ["Not checked: no group has two values to compare."])
    counts = _wins(table, plain)
    order = sorted(counts, key=lambda m: (-counts[m], table.methods.index(m)))
    shown = ", ".join(f"{table.label(m)} {counts[m]}" for m in order)
    summary = [f"How often each method is the highest of its group and column, of {len(plain)}: {shown}."]
    for column in table.means:
        groups = _comparisons(table, [column])
        by = _wins(table, groups)
        first = max(by, key=lambda m: by[m])
        which = f"{table.label(column.id)}: {table.label(first)}"
        summary.append(f"{which} is highest in {by[first]} of {len(groups)} groups.")
    if all(r.best is None for r in table.rows):
        return Check("marks", "Best marks", ["The table marks nothing.", *summary])
    total = _comparisons(table, table.columns)
    findings = _misplaced(table, total)
    right = f"{len(total) - len(findings)} of {len(total)} best marks"
    return Check("marks", "Best marks", [f"{right} stand on the highest printed value.", *summary], findings)


# Gains.


@dataclass(frozen=True)
class Gain:
    """Percent or points; low and high: where it may lie for values with more digits than are printed."""

    exact: Fraction
    low: Fraction
    high: Fraction


def noise_of(first: Row, second: Row, column: Column, counts: Mapping[str, RowCount]) -> Bounds | None:
    """Bounds of the standard error of first minus second, as fractions; None where a cell, its rows or its samples are
    not known."""
    if not all(set(column.mean_of) <= set(counts) & set(r.values) for r in (first, second)):
        return None

    def score(row: Row, name: str) -> float:
        return float(Printed.of(row.values[name]).value) / 100

    return difference_se(
        [Design(score(first, c), score(second, c), counts[c].rows, counts[c].samples) for c in column.mean_of]
    )


def _opponents(table: AuditTable, group: str, method: str, column: str) -> tuple[Row, list[Row]] | None:
    """The method's row of the group and all others; None where either is missing."""
    rows = table.competing(group, column)
    own, others = [r for r in rows if r.method == method], [r for r in rows if r.method != method]
    return (own[0], others) if own and others else None


def _gain(row: Row, other: Row, column: str, measure: Measure) -> Gain | None:
    """None for a relative gain over 0."""
    a, b = Printed.of(row.values[column]), Printed.of(other.values[column])
    x, y, dx, dy = a.value, b.value, a.slack, b.slack
    if measure == "points":
        return Gain(x - y, x - y - dx - dy, x - y + dx + dy)
    if y <= dy:
        return None
    return Gain(100 * (x / y - 1), 100 * ((x - dx) / (y + dy) - 1), 100 * ((x + dx) / (y - dy) - 1))


def gain(
    table: AuditTable, method: str, column: str, groups: list[str], names: list[str], measure: Measure, over: Over
) -> Gain | None:
    """The mean gain over groups, or over groups and baselines (all others without `names`).

    None where a value is missing.
    """
    found = []
    for group in groups:
        opponents = _opponents(table, group, method, column)
        others = [r for r in opponents[1] if not names or r.method in names] if opponents else []
        if not opponents or not others:
            return None
        for other in highest(others, column)[:1] if over == "strongest" else others:
            found.append(_gain(opponents[0], other, column, measure))
    if None in found:
        return None
    ends = zip(*((g.exact, g.low, g.high) for g in found if g), strict=True)
    return Gain(*(sum(values, Fraction(0)) / len(found) for values in ends))


@dataclass(frozen=True)
class _GroupGain:
    """Of the proposed method over the strongest other one of a group; `noise` in points."""

    group: str
    baseline: str
    points: float
    relative: Gain | None
    noise: tuple[float, float] | None

    @property
    def verdict(self) -> str:
        if self.noise is None:
            return "n/a"
        beyond = [abs(self.points) >= Z * se for se in self.noise]
        return "within both" if not beyond[0] else "beyond both" if beyond[1] else "beyond sampling"


def _group_gain(table: AuditTable, column: Column, group: str, counts: Mapping[str, RowCount]) -> _GroupGain | None:
    opponents = _opponents(table, group, table.proposed or "", column.id)
    if opponents is None:
        return None
    row, others = opponents
    best = highest(others, column.id)[0]
    points, relative = (_gain(row, best, column.id, m) for m in ("points", "relative"))
    assert points is not None  # only a relative gain may be undefined
    noise = noise_of(row, best, column, counts)
    scaled = (100 * noise.sampling, 100 * noise.unpaired) if noise else None
    return _GroupGain(table.label(group), table.label(best.method), float(points.exact), relative, scaled)


def _range(gains: list[_GroupGain]) -> str:
    """The standard errors from the smallest to the largest group."""
    parts = []
    for i, name in enumerate(("by sampling alone", "with the choice of problems")):
        if errors := [g.noise[i] for g in gains if g.noise]:
            ends = dict.fromkeys(f"{x:.2f}" for x in (min(errors), max(errors)))
            parts.append(f"{' to '.join(ends)} points {name}")
    return f" Standard errors: {', '.join(parts)}." if parts else ""


def check_gains(table: AuditTable) -> list[Check]:
    """A check for each average column: gain of the proposed method over the strongest other one of each group."""
    if table.proposed is None or not table.means:
        return [
            Check("gains", "Gains and noise", ["Not checked: the table names no proposed method, or has no average."])
        ]
    counts, checks = chosen(row_counts(table)), []
    for column in table.means:
        gains = [g for group in table.groups if (g := _group_gain(table, column, group, counts))]
        findings, rows = [], []
        for g in gains:
            errors = [f"{Z * se:.1f}" for se in g.noise] if g.noise else ["n/a", "n/a"]
            relative = f"{float(g.relative.exact):.2f} %" if g.relative else "n/a"
            rows.append([g.group, g.baseline, f"{g.points:.2f}", relative, *errors, g.verdict])
            if g.verdict == "within both":
                fact = (
                    f"{g.points:.2f} points over {g.baseline}; 95 % of differences of two equal models lie within "
                    f"{errors[0]} points by sampling alone, within {errors[1]} when the choice of problems counts too "
                    "and is not paired."
                )
                reasons = ["the single answers, compared problem by problem, may tell more than the printed table does"]
                findings.append(Finding("within noise", g.group, fact, reasons))
        within = sum(g.verdict in ("within both", "beyond sampling") for g in gains)
        summary = [
            f"{table.label(table.proposed)} minus the strongest other method of each group, {table.label(column.id)}. "
            "Noise: 1.96 standard errors of the difference, at most, by sampling alone and by the choice of problems "
            f"too, unpaired.{_range(gains)}",
            f"{within} of {len(gains)} gains are smaller than the noise with the choice of problems, "
            f"{len(findings)} also than that of sampling alone.",
        ]
        header = ["group", "strongest other", "points", "relative", "noise: sampling", "noise: problems", "gain"]
        title = f"Gains and noise: {table.label(column.id)}" if len(table.means) > 1 else "Gains and noise"
        checks.append(Check("gains", title, summary, findings, Grid(header, rows)))
    return checks
