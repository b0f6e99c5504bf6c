"""How uncertain a difference of two averages is, from the printed values, rows and samples alone.

Without the single answers two bounds can be said, for models whose scores are not negatively correlated over problems,
with p the printed accuracy of a benchmark:

    sampling alone      Var <= p (1 - p) / (rows N): the problems are taken as fixed; reached when all are equally hard
    problems, unpaired  Var <= p (1 - p) / rows: reached when every problem is always right or always wrong

The average of B benchmarks has Var = sum / B^2, the difference of two models the sum of both. Pairing by problem, which
needs the single answers, lies between the two bounds as a rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

from stapo_repro.audit.grim import Tried
from stapo_repro.audit.rounding import Printed
from stapo_repro.audit.schema import Column, Row

Z = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class Noise:
    """Standard errors of a difference of two averages, in percentage points."""

    sampling: float
    unpaired: float


def _variances(row: Row, column: Column, counts: Mapping[str, Tried]) -> tuple[float, float]:
    """(sampling, unpaired) variance of a row's average, in squared percentage points."""
    sampling = unpaired = 0.0
    for name in column.mean_of:
        p = float(Printed.of(row.values[name]).value)
        spread = p * (100.0 - p)
        sampling += spread / counts[name].n
        unpaired += spread / counts[name].rows
    parts = len(column.mean_of) ** 2
    return sampling / parts, unpaired / parts


def of_difference(first: Row, second: Row, column: Column, counts: Mapping[str, Tried]) -> Noise | None:
    """Bounds of the standard error of first minus second; None where a cell, its rows or its samples are not known."""
    known = set(counts)
    if not all(set(column.mean_of) <= known & set(r.values) for r in (first, second)):
        return None
    a, b = (_variances(r, column, counts) for r in (first, second))
    return Noise(math.sqrt(a[0] + b[0]), math.sqrt(a[1] + b[1]))
