"""Coarser steps than the stated number of samples gives: a sign that fewer samples were drawn.

With N samples a problem the printed values are multiples of 1 / (rows N). Were the counts of right answers spread
evenly over the multiples, a share s / N of them would be multiples of the coarser 1 / (rows s), for s that divides N.
More than that is what s samples a problem give.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from scipy.stats import binom

from stapo_repro.audit.findings import Check, Finding, Numbers, rounded
from stapo_repro.audit.grim import RowCount, chosen, column_values, row_counts
from stapo_repro.audit.rounding import fits
from stapo_repro.audit.schema import AuditTable
from stapo_results.statistics import holm

LEVEL = 0.01
REASONS = [
    "some of the cells were evaluated with fewer samples a problem than stated",
    "some samples of a problem were the same text, for example by equal seeds or at a low temperature",
    "the models answer most problems always right or always wrong",
]


@dataclass(frozen=True)
class CoarseStep:
    """One column against multiples of 1 / n, n = rows x samples with fewer samples than stated.

    Attributes:
        p: probability of at least `hits` by chance (binomial, cells independent).
        adjusted: p after Holm's correction over everything that was looked at.
    """

    stated: RowCount
    n: int
    hits: int
    expected: float
    p: float
    adjusted: float = 1.0


def coarse_steps(table: AuditTable) -> list[CoarseStep]:
    """Every column against every smaller number of samples that divides the stated one."""
    found = []
    for stated in chosen(row_counts(table)).values():
        values = column_values(table, stated.column.id)
        if any(v.scale <= stated.n for v in values):  # steps finer than the printed digits cannot be told apart
            continue
        for samples in (s for s in range(1, stated.samples) if values and stated.samples % s == 0):
            n, share = stated.rows * samples, samples / stated.samples
            hits = sum(fits(v, n) for v in values)
            p = float(binom.sf(hits - 1, len(values), share))
            found.append(CoarseStep(stated, n, hits, len(values) * share, p))
    adjusted = holm([c.p for c in found]) if found else []
    return [replace(c, adjusted=float(a)) for c, a in zip(found, adjusted, strict=True)]


def _finding(where: str, steps: list[CoarseStep]) -> Finding:
    """All steps of a column that chance does not explain; the one that it explains least comes first."""
    least = min(steps, key=lambda s: (s.p, s.n))
    ordered = [least, *(s for s in steps if s is not least)]
    parts = []
    for s in ordered:
        p = f"{s.adjusted:.3f}" if s.adjusted >= 0.001 else f"{s.adjusted:.0e}"
        parts.append(f"{s.hits} are multiples of 1/{s.n} ({s.expected:.2g} by chance, p = {p})")
    stated = least.stated
    fact = (
        f"Of {stated.cells} values, {'; '.join(parts)}. With {stated.samples} samples a problem the step is "
        f"1/{stated.n:,}: fewer samples are likely in some of these values."
    )
    numbers: Numbers = {
        f"1/{s.n}": {
            "hits": s.hits, "cells": stated.cells, "expected": rounded(s.expected), "p": float(f"{s.p:.3g}"),
            "p_holm": float(f"{s.adjusted:.3g}"),
        }
        for s in ordered
    }  # fmt: skip
    return Finding("coarse steps", where, numbers, fact, REASONS)


def check(table: AuditTable) -> Check:
    """Columns whose values are multiples of a coarser step more often than chance explains."""
    by_column: dict[str, list[CoarseStep]] = {}
    for step in coarse_steps(table):
        by_column.setdefault(step.stated.column.id, []).append(step)
    if not by_column:
        return Check("granularity", "Granularity", ["Not checked: no column has steps that its digits show."], {})
    unlikely = {c: [s for s in steps if s.adjusted < LEVEL] for c, steps in by_column.items()}
    findings = [_finding(table.label(c), steps) for c, steps in unlikely.items() if steps]
    columns, comparisons = len(by_column), sum(map(len, by_column.values()))
    summary = (
        f"Columns with more multiples of a coarser step than chance explains (binomial, p below {LEVEL:g} after Holm's "
        f"correction over {comparisons} comparisons): {len(findings)} of {columns}."
    )
    return Check(
        "granularity", "Granularity", [summary], {"columns": columns, "comparisons": comparisons}, findings
    )  # fmt: skip
