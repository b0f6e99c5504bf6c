"""A score beside a printed one, of the same fixed problems: what is random is the sampling of answers alone.

With the problems fixed, the variance of avg@N is sum_q v_q / (N Q^2), v_q the unbiased variance of problem q's samples.
Its degrees of freedom are Satterthwaite's, (sum v_q)^2 / sum(v_q^2 / (N - 1)): a problem that is always right or always
wrong adds none. Values are fractions; dimensions: Q problems, N samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr

from stapo_results.statistics.estimates import LEVEL, matrix, quantile_t


@dataclass(frozen=True)
class Fixed:
    """First minus second: standard error, 95 % interval, two-sided p of "no difference"; NaN where undefined."""

    difference: float
    se: float
    low: float
    high: float
    p: float


@dataclass(frozen=True)
class Noise:
    """Variance of a mean over fixed problems, and the degrees of freedom of that variance."""

    variance: float
    df: float


def noise(scores_QN: ArrayLike) -> Noise:
    """Sampling noise of avg@N; NaN with a missing sample or one sample a problem. Values may be differences."""
    values = np.asarray(scores_QN, dtype=np.float64)
    q, n = values.shape
    if n < 2 or np.isnan(values).any():
        return Noise(math.nan, math.nan)
    v = values.var(axis=1, ddof=1) / n
    total, squares = math.fsum(v), math.fsum(v**2)
    return Noise(total / q**2, total**2 / squares * (n - 1) if squares else math.inf)


def against_printed(scores_QN: ArrayLike, printed: float, n: int, sd: float | None = None) -> Fixed:
    """Our score against one of which only a number is printed.

    Args:
        n: their samples a problem; 0 is not known, and leaves the difference without an interval.
        sd: the printed standard deviation over n seeds, each with one sample a problem. Without one (or at 0) their
            variance is the most that it can be, v (1 - v) / (n Q): v is the printed value, one sample away from 0 and 1
            at least. Problems that are not alike only lower it.
    """
    scores = matrix(scores_QN)
    size = n * len(scores)
    if not size:
        theirs = Noise(math.nan, math.nan)
    elif sd and n > 1:
        theirs = Noise(sd**2 / n, n - 1)
    else:
        v = min(max(printed, 1 / size), 1 - 1 / size)
        theirs = Noise(v * (1 - v) / size, math.inf)
    return _found(float(scores.mean()) - printed, noise(scores), theirs)


def _found(difference: float, *parts: Noise) -> Fixed:
    """A difference whose variance is the sum of independent parts (Welch and Satterthwaite).

    Without any spread there is no interval: it would claim certainty.
    """
    variance = math.fsum(x.variance for x in parts)
    if math.isnan(variance) or math.isnan(difference):
        return Fixed(difference, math.nan, math.nan, math.nan, math.nan)
    if variance == 0:
        return Fixed(difference, 0.0, math.nan, math.nan, 1.0 if difference == 0 else math.nan)
    se = math.sqrt(variance)
    squares = math.fsum(x.variance**2 / x.df for x in parts)
    df = variance**2 / squares if squares else math.inf
    half = quantile_t(LEVEL, df) * se
    return Fixed(difference, se, difference - half, difference + half, float(2 * stdtr(df, -abs(difference) / se)))
