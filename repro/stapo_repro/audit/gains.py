"""Gains of the proposed method over the others in its group: in points, relative, and against the noise."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from stapo_repro.audit.findings import Check, Finding, Grid, Numbers, rounded
from stapo_repro.audit.grim import chosen, row_counts
from stapo_repro.audit.noise import Noise, Z, of_difference
from stapo_repro.audit.rounding import Printed
from stapo_repro.audit.schema import AuditTable, Column, Row

Measure = Literal["relative", "points"]
Over = Literal["strongest", "each"]
READINGS: dict[tuple[Measure, Over], str] = {
    ("relative", "strongest"): "relative to the strongest",
    ("points", "strongest"): "points over the strongest",
    ("relative", "each"): "relative, all pairs",
    ("points", "each"): "points, all pairs",
}


@dataclass(frozen=True)
class Reading:
    """A gain under one reading, in percent or points; low and high: where it may lie for values with more digits."""

    exact: Fraction
    low: Fraction
    high: Fraction


def _row(table: AuditTable, group: str, method: str, column: str) -> Row | None:
    return next((r for r in table.of_group(group) if r.method == method and column in r.values), None)


def baselines(table: AuditTable, group: str, method: str, column: str, names: list[str]) -> list[Row]:
    """The other rows of the group with a value there; with `names` only those methods."""
    others = [r for r in table.of_group(group) if r.method != method and column in r.values]
    return [r for r in others if not names or r.method in names]


def strongest(rows: list[Row], column: str) -> Row:
    return max(rows, key=lambda r: Printed.of(r.values[column]).value)


def _gain(row: Row, other: Row, column: str, measure: Measure) -> Reading | None:
    """None for a relative gain over 0."""
    a, b = Printed.of(row.values[column]), Printed.of(other.values[column])
    x, y = a.value, b.value
    dx, dy = (Fraction(1, 2 * 10**v.decimals) for v in (a, b))
    if measure == "points":
        return Reading(x - y, x - y - dx - dy, x - y + dx + dy)
    if y <= dy:
        return None
    return Reading(100 * (x / y - 1), 100 * ((x - dx) / (y + dy) - 1), 100 * ((x + dx) / (y - dy) - 1))


def gain(
    table: AuditTable, method: str, column: str, groups: list[str], names: list[str], measure: Measure, over: Over
) -> Reading | None:
    """The mean gain over groups, or over groups and baselines; None where a value is missing."""
    found = []
    for group in groups:
        row = _row(table, group, method, column)
        others = baselines(table, group, method, column, names)
        if row is None or not others:
            return None
        for other in [strongest(others, column)] if over == "strongest" else others:
            one = _gain(row, other, column, measure)
            if one is None:
                return None
            found.append(one)
    return Reading(*(sum(parts, Fraction(0)) / len(found) for parts in zip(*_triples(found), strict=True)))


def _triples(found: list[Reading]) -> list[tuple[Fraction, Fraction, Fraction]]:
    return [(r.exact, r.low, r.high) for r in found]


def _verdict(points: float, noise: Noise | None) -> str:
    if noise is None:
        return "n/a"
    if abs(points) < Z * noise.sampling:
        return "within both"
    return "beyond sampling" if abs(points) < Z * noise.unpaired else "beyond both"


def _groups(table: AuditTable, column: Column) -> tuple[list[list[str]], Numbers, list[Finding], list[str]]:
    rows, numbers, findings, verdicts = [], {}, [], []
    counts = chosen(row_counts(table))
    assert table.proposed is not None  # asked before
    for group in table.groups:
        row = _row(table, group, table.proposed, column.id)
        others = baselines(table, group, table.proposed, column.id, [])
        if row is None or not others:
            continue
        best = strongest(others, column.id)
        points, relative = (_gain(row, best, column.id, m) for m in ("points", "relative"))
        assert points is not None  # only a relative gain may be undefined
        noise = of_difference(row, best, column, counts)
        value = float(points.exact)
        verdict = _verdict(value, noise)
        verdicts.append(verdict)
        shown = f"{float(relative.exact):.2f} %" if relative else "n/a"
        errors = [f"{Z * x:.1f}" for x in (noise.sampling, noise.unpaired)] if noise else ["n/a", "n/a"]
        rows.append([table.label(group), table.label(best.method), f"{value:.2f}", shown, *errors, verdict])
        numbers[group] = {
            "baseline": best.method,
            "points": rounded(value),
            "relative_percent": rounded(float(relative.exact)) if relative else None,
            "se_sampling": rounded(noise.sampling) if noise else None,
            "se_unpaired": rounded(noise.unpaired) if noise else None,
            "verdict": verdict,
        }
        if noise is not None and verdict == "within both":
            fact = (
                f"{value:.2f} points over {table.label(best.method)}; 95 % of differences of two equal models lie "
                f"within {Z * noise.sampling:.1f} points by sampling alone, within {Z * noise.unpaired:.1f} when the "
                "choice of problems counts too and is not paired."
            )
            reasons = ["the single answers, compared problem by problem, may tell more than the printed table does"]
            findings.append(Finding("within noise", table.label(group), dict(numbers[group]), fact, reasons))
    return rows, numbers, findings, verdicts


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
    checks = []
    for column in table.means:
        rows, numbers, findings, verdicts = _groups(table, column)
        within = sum(v in ("within both", "beyond sampling") for v in verdicts)
        summary = [
            f"{table.label(table.proposed)} minus the strongest other method of each group, {table.label(column.id)}. "
            "Noise: 1.96 standard errors of the difference, at most, by sampling alone and by the choice of problems "
            f"too, unpaired.{_range(numbers)}",
            f"{within} of {len(verdicts)} gains are smaller than the noise with the choice of problems, "
            f"{len(findings)} also than that of sampling alone.",
        ]
        header = ["group", "strongest other", "points", "relative", "noise: sampling", "noise: problems", "gain"]
        title = f"Gains and noise: {table.label(column.id)}" if len(table.means) > 1 else "Gains and noise"
        checks.append(Check("gains", title, summary, numbers, findings, Grid(header, rows)))
    return checks
