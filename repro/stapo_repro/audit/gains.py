"""Gains of the proposed method over the others in its group: in points, relative, and against the noise.

The noise of a difference of two averages, from the printed values, rows and samples alone. Without the single answers
two bounds can be said, for models whose scores are not negatively correlated over problems, with p the printed accuracy
of a benchmark:

    sampling alone      Var <= p (1 - p) / (rows N): the problems are taken as fixed; reached when all are equally hard
    problems, unpaired  Var <= p (1 - p) / rows: reached when every problem is always right or always wrong

The average of B benchmarks has Var = sum / B^2, the difference of two models the sum of both. Pairing by problem, which
needs the single answers, lies between the two bounds as a rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist

from stapo_repro.audit.findings import Check, Finding, Grid, Numbers, rounded
from stapo_repro.audit.grim import RowCount, chosen, row_counts
from stapo_repro.audit.marks import highest
from stapo_repro.audit.rounding import Printed
from stapo_repro.audit.schema import AuditTable, Column, Measure, Over, Row

Z = NormalDist().inv_cdf(0.975)
READINGS: dict[tuple[Measure, Over], str] = {
    ("relative", "strongest"): "relative to the strongest",
    ("points", "strongest"): "points over the strongest",
    ("relative", "each"): "relative, all pairs",
    ("points", "each"): "points, all pairs",
}


@dataclass(frozen=True)
class Gain:
    """Percent or points; low and high: where it may lie for values with more digits than are printed."""

    exact: Fraction
    low: Fraction
    high: Fraction


@dataclass(frozen=True)
class Noise:
    """Standard errors of a difference of two averages, in percentage points."""

    sampling: float
    unpaired: float


def noise_of(first: Row, second: Row, column: Column, counts: Mapping[str, RowCount]) -> Noise | None:
    """Bounds of the standard error of first minus second; None where a cell, its rows or its samples are not known."""
    if not all(set(column.mean_of) <= set(counts) & set(r.values) for r in (first, second)):
        return None
    sampling = unpaired = 0.0
    for row in (first, second):
        for name in column.mean_of:
            p = float(Printed.of(row.values[name]).value)
            sampling += p * (100.0 - p) / counts[name].n
            unpaired += p * (100.0 - p) / counts[name].rows
    parts = len(column.mean_of)
    return Noise(math.sqrt(sampling) / parts, math.sqrt(unpaired) / parts)


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


def _verdict(points: float, noise: Noise | None) -> str:
    if noise is None:
        return "n/a"
    if abs(points) < Z * noise.sampling:
        return "within both"
    return "beyond sampling" if abs(points) < Z * noise.unpaired else "beyond both"


def _of_group(
    table: AuditTable, column: Column, group: str, counts: Mapping[str, RowCount]
) -> tuple[list[str], dict[str, int | float | str | bool | None], Finding | None] | None:
    """A row of the grid, its numbers, and the finding where the gain is within the noise."""
    opponents = _opponents(table, group, table.proposed or "", column.id)
    if opponents is None:
        return None
    row, others = opponents
    best = highest(others, column.id)[0]
    points, relative = (_gain(row, best, column.id, m) for m in ("points", "relative"))
    assert points is not None  # only a relative gain may be undefined
    noise, value, name = noise_of(row, best, column, counts), float(points.exact), table.label(best.method)
    verdict = _verdict(value, noise)
    errors = [f"{Z * x:.1f}" for x in (noise.sampling, noise.unpaired)] if noise else ["n/a", "n/a"]
    shown = f"{float(relative.exact):.2f} %" if relative else "n/a"
    numbers = {
        "baseline": best.method,
        "points": rounded(value),
        "relative_percent": rounded(float(relative.exact)) if relative else None,
        "se_sampling": rounded(noise.sampling) if noise else None,
        "se_unpaired": rounded(noise.unpaired) if noise else None,
        "verdict": verdict,
    }
    finding = None
    if verdict == "within both":
        fact = (
            f"{value:.2f} points over {name}; 95 % of differences of two equal models lie within {errors[0]} points by "
            f"sampling alone, within {errors[1]} when the choice of problems counts too and is not paired."
        )
        reasons = ["the single answers, compared problem by problem, may tell more than the printed table does"]
        finding = Finding("within noise", table.label(group), {**numbers}, fact, reasons)
    return [table.label(group), name, f"{value:.2f}", shown, *errors, verdict], numbers, finding


def _range(numbers: Numbers) -> str:
    """The standard errors from the smallest to the largest group."""
    parts = []
    for key, name in (("se_sampling", "by sampling alone"), ("se_unpaired", "with the choice of problems")):
        errors = [x for n in numbers.values() if isinstance(n, dict) and isinstance(x := n[key], float)]
        if errors:
            ends = dict.fromkeys(f"{x:.2f}" for x in (min(errors), max(errors)))
            parts.append(f"{' to '.join(ends)} points {name}")
    return f" Standard errors: {', '.join(parts)}." if parts else ""


def check(table: AuditTable) -> list[Check]:
    """A check for each average column: gain of the proposed method over the strongest other one of each group."""
    if table.proposed is None or not table.means:
        text = "Not checked: the table names no proposed method, or has no average."
        return [Check("gains", "Gains and noise", [text], {})]
    counts, checks = chosen(row_counts(table)), []
    for column in table.means:
        found = {g: one for g in table.groups if (one := _of_group(table, column, g, counts))}
        numbers: Numbers = {g: n for g, (_, n, _) in found.items()}
        findings = [f for _, _, f in found.values() if f]
        within = sum(n["verdict"] in ("within both", "beyond sampling") for _, n, _ in found.values())
        summary = [
            f"{table.label(table.proposed)} minus the strongest other method of each group, {table.label(column.id)}. "
            "Noise: 1.96 standard errors of the difference, at most, by sampling alone and by the choice of problems "
            f"too, unpaired.{_range(numbers)}",
            f"{within} of {len(found)} gains are smaller than the noise with the choice of problems, "
            f"{len(findings)} also than that of sampling alone.",
        ]
        header = ["group", "strongest other", "points", "relative", "noise: sampling", "noise: problems", "gain"]
        title = f"Gains and noise: {table.label(column.id)}" if len(table.means) > 1 else "Gains and noise"
        grid = Grid(header, [row for row, _, _ in found.values()])
        checks.append(Check("gains", title, summary, numbers, findings, grid))
    return checks
