"""Means and differences as JSON holds them: rounded, null where undefined or where an interval has no width."""

from __future__ import annotations

import math

from stapo_results.statistics import Estimate, Paired


def rounded(x: float) -> float | None:
    """To eight decimals; null for NaN."""
    return None if math.isnan(x) else round(x, 8)


def estimate_fields(estimate: Estimate, ends: tuple[float, float]) -> dict[str, float | None]:
    """A mean with its standard error and both intervals.

    Where all problems have one score every resample is the same, and the bootstrap has no interval to give.

    Args:
        ends: of the bootstrap interval.
    """
    low, high = ends if ends[0] < ends[1] else (math.nan, math.nan)
    return {
        "accuracy": rounded(estimate.mean),
        "standard_error": rounded(estimate.se),
        "low": rounded(estimate.low),
        "high": rounded(estimate.high),
        "bootstrap_low": rounded(low),
        "bootstrap_high": rounded(high),
    }


def difference_fields(d: Paired, ends: tuple[float, float]) -> dict[str, float | None]:
    """A paired difference and both intervals; where no problem differs they would claim certainty and are null."""
    low, high, bootstrap_low, bootstrap_high = (d.low, d.high, *ends) if d.se > 0 else (math.nan,) * 4
    return {
        "difference": rounded(d.difference),
        "low": rounded(low),
        "high": rounded(high),
        "bootstrap_low": rounded(bootstrap_low),
        "bootstrap_high": rounded(bootstrap_high),
    }
