"""Coarser steps than the stated number of samples gives: a sign that fewer samples were drawn.

With N samples a problem the printed values are multiples of 1 / (rows N). Were the counts of right answers spread
evenly over the multiples, a share s / N of them would be multiples of the coarser 1 / (rows s), for s that divides N.
More than that is what s samples a problem give.
"""

from __future__ import annotations

from dataclasses import dataclass

from scipy.stats import binom

from stapo_repro.audit.findings import Check, Finding, Numbers, rounded
from stapo_repro.audit.grim import Tried, chosen, column_values, row_counts
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
class Coarse:
    """One column against multiples of 1 / (rows x samples) with fewer samples than stated.

    Attributes:
        p: probability of at least `hits` by chance (binomial, cells independent).
        adjusted: p after Holm's correction over everything that was looked at.
    """

    column: str
    samples: int
    n: int
    cells: int
    hits: int
    expected: float
    p: float
    adjusted: float = 1.0


def _divisors(n: int) -> list[int]:
    """Proper divisors, ascending."""
    small = [i for i in range(1, int(n**0.5) + 1) if n % i == 0]
    return [i for i in sorted({*small, *(n // i for i in small)}) if i < n]


def _column(table: AuditTable, tried: Tried) -> list[Coarse]:
    values = column_values(table, tried.column.id)
    if any(v.scale <= tried.n for v in values):  # steps finer than the printed digits cannot be told apart
        return []
    out = []
    for samples in _divisors(tried.samples):
        n, share = tried.rows * samples, samples / tried.samples
        hits = sum(fits(v, n) for v in values)
        p = float(binom.sf(hits - 1, len(values), share))
        out.append(Coarse(tried.column.id, samples, n, len(values), hits, len(values) * share, p))
    return out


def coarse_steps(table: AuditTable) -> list[Coarse]:
    """Every column against every smaller number of samples that divides the stated one."""
    found = [c for t in chosen(row_counts(table)).values() if t.cells for c in _column(table, t)]
    adjusted = holm([c.p for c in found]) if found else []
    return [Coarse(**{**c.__dict__, "adjusted": float(a)}) for c, a in zip(found, adjusted, strict=True)]


def _small(p: float) -> str:
    return f"p = {p:.3f}" if p >= 0.001 else f"p = {p:.0e}"


def _finding(table: AuditTable, first: Coarse, steps: list[Coarse], samples: int) -> Finding:
    """`first` is the step that chance explains least, `steps` all of the column that chance does not explain."""
    ordered = [first, *(s for s in steps if s is not first)]
    parts = [f"{s.hits} are multiples of 1/{s.n} ({s.expected:.2g} by chance, {_small(s.adjusted)})" for s in ordered]
    fact = (
        f"Of {first.cells} values, {'; '.join(parts)}. With {samples} samples a problem the step is "
        f"1/{first.n // first.samples * samples:,}: fewer samples are likely in some of these values."
    )
    numbers: Numbers = {
        f"1/{s.n}": {
            "hits": s.hits, "cells": s.cells, "expected": rounded(s.expected), "p": float(f"{s.p:.3g}"),
            "p_holm": float(f"{s.adjusted:.3g}"),
        }
        for s in ordered
    }  # fmt: skip
    return Finding("coarse steps", table.label(first.column), numbers, fact, REASONS)


def check(table: AuditTable) -> Check:
    """Columns whose values are multiples of a coarser step more often than chance explains."""
    steps = coarse_steps(table)
    if not steps:
        return Check("granularity", "Granularity", ["Not checked: no column has steps that its digits show."], {})
    samples = {c.id: c.samples for c in table.plain if c.samples is not None}
    findings = []
    for column in dict.fromkeys(s.column for s in steps):
        unlikely = [s for s in steps if s.column == column and s.adjusted < LEVEL]
        if unlikely:
            least = min(unlikely, key=lambda s: (s.p, s.samples))
            findings.append(_finding(table, least, unlikely, samples[column]))
    columns = len({s.column for s in steps})
    summary = (
        f"Columns with more multiples of a coarser step than chance explains (binomial, p below {LEVEL:g} after Holm's "
        f"correction over {len(steps)} comparisons): {len(findings)} of {columns}."
    )
    numbers: Numbers = {"columns": columns, "comparisons": len(steps)}
    return Check("granularity", "Granularity", [summary], numbers, findings)
