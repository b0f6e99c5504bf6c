"""Best marks: whether each stands on the highest value of its column and group, and who has how many."""

from __future__ import annotations

from stapo_repro.audit.findings import Check, Finding, Numbers
from stapo_repro.audit.rounding import Printed
from stapo_repro.audit.schema import AuditTable, Column, Row

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
            numbers: Numbers = {"marked": [r.method for r in marked], "highest": [r.method for r in best]}
            fact = f"Marked is {named(marked, column)}; the highest printed value is that of {named(best, column)}."
            reasons = ["a slip in typing", "the mark follows digits that are not printed"]
            where = f"{table.label(group)}, {table.label(column)}"
            findings.append(Finding("mark", where, numbers, fact, reasons))
    return findings


def check(table: AuditTable) -> Check:
    """Marks and how often each method is best."""
    plain = _comparisons(table, table.plain)
    if not plain:
        return Check("marks", "Best marks", ["Not checked: no group has two values to compare."], {})
    counts = _wins(table, plain)
    order = sorted(counts, key=lambda m: (-counts[m], table.methods.index(m)))
    shown = ", ".join(f"{table.label(m)} {counts[m]}" for m in order)
    summary = [f"How often each method is the highest of its group and column, of {len(plain)}: {shown}."]
    numbers: Numbers = {"comparisons": len(plain), "highest": dict(counts)}
    for column in table.means:
        groups = _comparisons(table, [column])
        by = _wins(table, groups)
        first = max(by, key=lambda m: by[m])
        summary.append(
            f"{table.label(column.id)}: {table.label(first)} is highest in {by[first]} of {len(groups)} groups."
        )
        numbers[f"highest_{column.id}"] = dict(by)
    if all(r.best is None for r in table.rows):
        return Check("marks", "Best marks", ["The table marks nothing.", *summary], numbers)
    total = _comparisons(table, table.columns)
    findings = _misplaced(table, total)
    right = len(total) - len(findings)
    summary.insert(0, f"{right} of {len(total)} best marks stand on the highest printed value.")
    return Check("marks", "Best marks", summary, {"marks": len(total), "right": right, **numbers}, findings)
