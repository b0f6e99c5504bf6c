"""Best marks: whether each stands on the highest value of its column and group, and who has how many."""

from __future__ import annotations

from fractions import Fraction

from stapo_repro.audit.findings import Check, Finding, Numbers
from stapo_repro.audit.rounding import Printed
from stapo_repro.audit.schema import AuditTable, Column, Row


def _blocks(table: AuditTable, columns: list[Column]) -> list[tuple[str, str, list[Row]]]:
    """(group, column, rows with a value there), where at least two can be compared."""
    out = []
    for group in table.groups:
        for column in columns:
            rows = [r for r in table.of_group(group) if column.id in r.values]
            if len(rows) > 1:
                out.append((group, column.id, rows))
    return out


def _value(row: Row, column: str) -> Fraction:
    return Printed.of(row.values[column]).value


def highest(rows: list[Row], column: str) -> list[Row]:
    """The rows with the highest value; several where they are equal."""
    top = max(_value(r, column) for r in rows)
    return [r for r in rows if _value(r, column) == top]


def wins(table: AuditTable, columns: list[Column]) -> tuple[dict[str, int], int]:
    """(method -> how often its value is the highest, number of comparisons); equals all count."""
    blocks = _blocks(table, columns)
    counts = dict.fromkeys(table.methods, 0)
    for _, column, rows in blocks:
        for row in highest(rows, column):
            counts[row.method] += 1
    return counts, len(blocks)


def _misplaced(table: AuditTable) -> tuple[list[Finding], int]:
    findings, right = [], 0
    for group, column, rows in _blocks(table, table.columns):
        best = highest(rows, column)
        marked = [r for r in rows if column in (r.best or [])]
        if {r.method for r in best} == {r.method for r in marked}:
            right += 1
            continue
        where = f"{table.label(group)}, {table.label(column)}"
        on = " and ".join(f"{table.label(r.method)} ({r.values[column]})" for r in marked) or "nothing"
        top = " and ".join(f"{table.label(r.method)} ({r.values[column]})" for r in best)
        names: Numbers = {"marked": [r.method for r in marked], "highest": [r.method for r in best]}
        fact = f"Marked is {on}; the highest printed value is that of {top}."
        reasons = ["a slip in typing", "the mark follows digits that are not printed"]
        findings.append(Finding("mark", where, names, fact, reasons))
    return findings, right


def check(table: AuditTable) -> Check:
    """Marks and how often each method is best."""
    counts, comparisons = wins(table, table.plain)
    if not comparisons:
        return Check("marks", "Best marks", ["Not checked: no group has two values to compare."], {})
    order = sorted(counts, key=lambda m: (-counts[m], table.methods.index(m)))
    shown = ", ".join(f"{table.label(m)} {counts[m]}" for m in order)
    summary = [f"How often each method is the highest of its group and column, of {comparisons}: {shown}."]
    numbers: Numbers = {"comparisons": comparisons, "highest": dict(counts)}
    for column in table.means:
        by, n = wins(table, [column])
        first = max(by, key=lambda m: by[m])
        summary.append(f"{table.label(column.id)}: {table.label(first)} is highest in {by[first]} of {n} groups.")
        numbers[f"highest_{column.id}"] = dict(by)
    if all(r.best is None for r in table.rows):
        return Check("marks", "Best marks", ["The table marks nothing.", *summary], numbers)
    findings, right = _misplaced(table)
    total = right + len(findings)
    summary.insert(0, f"{right} of {total} best marks stand on the highest printed value.")
    return Check("marks", "Best marks", summary, {"marks": total, "right": right, **numbers}, findings)
