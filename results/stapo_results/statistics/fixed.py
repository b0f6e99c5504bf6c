"""Differences of two scores of the same fixed problems: what is random is the sampling of answers alone.

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

from stapo_results.errors import BadInput
from stapo_results.statistics.estimates import LEVEL, matrix, quantile_t
from stapo_results.statistics.resampling import sign_flip_p


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


def by_sample(first_QN: ArrayLike, second_QN: ArrayLike, *, same_responses: bool = False) -> Fixed:
    """Sample i of a problem against sample i of the same problem, p by the sign-flip test over samples.

    Right whatever the two have in common: the same responses graded twice, the same seeds, or nothing. Where no sample
    differs the interval ends at 1 - 0.05^(1 / (Q N)): were more samples to differ on average, one of these would have.

    Args:
        same_responses: the same responses graded twice; where no sample differs, nothing does.

    Raises:
        BadInput: the two are not of one shape.
    """
    first, second = matrix(first_QN), matrix(second_QN)
    if first.shape != second.shape:
        raise BadInput("samples can be paired one by one only where both have as many", found=first.shape,
                       expected=second.shape)  # fmt: skip
    d = first - second
    if not d.any():
        end = 0.0 if same_responses else 1 - (1 - LEVEL) ** (1 / d.size)
        return Fixed(0.0, 0.0 if same_responses else math.nan, -end, end, 1.0)
    found = _found(float(d.mean()), noise(d))
    return Fixed(found.difference, found.se, found.low, found.high, sign_flip_p(d.ravel()))


def independent(first_QN: ArrayLike, second_QM: ArrayLike) -> Fixed:
    """Two runs with samples of their own, as many as each has."""
    first, second = matrix(first_QN), matrix(second_QM)
    return _found(float(first.mean() - second.mean()), noise(first), noise(second))


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


def first_samples(scores_QN: ArrayLike, n: int, again_QN: ArrayLike | None = None) -> Fixed:
    """The first n samples of each problem against all N of them, of which they are a part.

    Args:
        again_QN: the same samples graded in another way, of which the first n are taken.

    Raises:
        BadInput: n is not below N.
    """
    scores = matrix(scores_QN)
    again, size = scores if again_QN is None else matrix(again_QN), scores.shape[1]
    if not 1 <= n < size:
        raise BadInput("a part of the samples is fewer than all", found=n, expected=f"1 to {size - 1}")
    # of the first n a sample counts y / n - x / N, of the others - x / N
    first, others = noise(again - scores * n / size), noise(scores)
    variance = first.variance * size / n + others.variance * (size - n) / size
    found = float(again[:, :n].mean() - scores.mean())
    return _found(found, Noise(variance, min(first.df, others.df)))


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
