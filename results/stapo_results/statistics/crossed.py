"""Statistics of several training runs: problems crossed with training seeds.

Every seed's model answers the same problems, so two choices could have come out otherwise: which problems, and which
seeds. An interval for "this method" covers both. Values are plain numbers (accuracies as fractions, or differences of
them); dimensions: Q problems, S seeds. Nothing here reads a record or rounds a number.

The squared standard error is the sum of the two one-way ones, SE_problems^2 + SE_seeds^2. What differs from problem to
problem and seed to seed alike (sampling noise, interaction) is in both summands, so the interval is somewhat too wide
rather than too narrow, but the degrees of freedom are estimated too: with 64 problems and normal tables, at a nominal
95 %, the coverage was 91 % to 96 % with 3 seeds (least where problems and seeds weigh alike) and 94 % to 96 % with 5
and 8, over eight ratios of the three variances (1,500 tables each). With 2 seeds it is 95 % while the seeds' standard
error is at most half of the problems', and down to 88 % where it is three to six times as large. The unbiased estimator
(summands less the interaction) covers more unevenly at three seeds, since its degrees of freedom are hardly known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr

from stapo_results.errors import BadInput
from stapo_results.statistics.estimates import LEVEL, average, clustered, mean_variance, quantile_t


@dataclass(frozen=True)
class Crossed:
    """A mean over problems and training seeds with an interval for both choices.

    Attributes:
        mean: unweighted over benchmarks, problems and seeds.
        se: sqrt(se_problems^2 + se_seeds^2); NaN with a single seed or a single problem.
        low, high: t interval with `df` degrees of freedom.
        se_problems: standard error over problems, of their means over seeds.
        se_seeds: standard error over seeds, of their means over problems.
        df: degrees of freedom by Welch and Satterthwaite; NaN where the standard error is 0 or NaN.
        seeds: the mean of each seed, in the columns' order.
    """

    mean: float
    se: float
    low: float
    high: float
    se_problems: float
    se_seeds: float
    df: float
    seeds: tuple[float, ...]


def _interval(mean: float, parts: Sequence[tuple[float, int]]) -> tuple[float, float, float, float]:
    """(se, df, low, high) from independent variances with their degrees of freedom."""
    total = math.fsum(v for v, _ in parts)
    if math.isnan(total):
        return math.nan, math.nan, math.nan, math.nan
    if total == 0:
        return 0.0, math.nan, mean, mean
    df = 1 / math.fsum((v / total) ** 2 / n for v, n in parts)
    half = quantile_t(LEVEL, df) * math.sqrt(total)
    return math.sqrt(total), df, mean - half, mean + half


def crossed(strata: Sequence[ArrayLike], *, fractions: bool = False) -> Crossed:
    """Mean over benchmarks, problems and seeds; its interval holds the variance of problems and of seeds.

    Problems are drawn independently in each benchmark; a seed is one model, so its deviations are averaged over the
    benchmarks before they are squared.

    Args:
        strata: a matrix (Q, S) a benchmark; Q may differ, the columns are the same seeds in the same order.
        fractions: the values are scores: the interval is cut at 0 and 1, and where every value is 0 (or 1) it is the
            exact bound of `statistics.clustered`, not a point.

    Raises:
        BadInput: no matrix, an empty one, matrices with different numbers of seeds, or a value that is not finite.
    """
    matrices = [np.asarray(s, dtype=np.float64) for s in strata]
    shapes = [m.shape for m in matrices]
    if not matrices or any(m.ndim != 2 or m.size == 0 for m in matrices) or len({s[1] for s in shapes}) != 1:
        raise BadInput("each benchmark needs a matrix of problems x seeds", found=shapes, expected="(Q, S), one S")
    if not all(np.isfinite(m).all() for m in matrices):
        raise BadInput("a value of the matrix is not finite", found="NaN or infinite", expected="every value present")
    k, seeds = len(matrices), shapes[0][1]
    by_seed = np.array([math.fsum(math.fsum(m[:, s]) / len(m) for m in matrices) / k for s in range(seeds)])
    mean = math.fsum(by_seed) / seeds
    problems = [(mean_variance(m.mean(axis=1))[1] / k**2, len(m) - 1) for m in matrices]
    between = mean_variance(by_seed)[1]
    se, df, low, high = _interval(mean, [*problems, (between, seeds - 1)])
    if fractions:
        if se == 0 and mean in (0.0, 1.0):
            exact = average([clustered(m.mean(axis=1)) for m in matrices])
            low, high = exact.low, exact.high
        elif not math.isnan(se):
            low, high = max(0.0, low), min(1.0, high)
    se_problems = math.sqrt(math.fsum(v for v, _ in problems))
    return Crossed(mean, se, low, high, se_problems, math.sqrt(between), df, tuple(by_seed.tolist()))


def over_seeds(values_S: Sequence[float]) -> Crossed:
    """Mean of one number a training run (an entropy, a share) with the t interval over seeds; no problems enter.

    Raises:
        BadInput: no value, or one that is not finite.
    """
    values = np.asarray(values_S, dtype=np.float64)
    if values.ndim != 1 or values.size == 0 or not np.isfinite(values).all():
        raise BadInput("each seed needs one finite number", found=list(values_S), expected="(S,)")
    mean, variance = mean_variance(values)
    se, df, low, high = _interval(mean, [(variance, len(values) - 1)])
    return Crossed(mean, se, low, high, 0.0, math.sqrt(variance), df, tuple(values.tolist()))


def t_test_p(found: Crossed) -> float:
    """Two-sided p-value of "the mean is 0" by the t test whose interval `found` holds.

    NaN without a standard error; where that is 0, 1 for a mean of 0 and else 0.
    """
    if math.isnan(found.se):
        return math.nan
    if found.se == 0:
        return 1.0 if found.mean == 0 else 0.0
    return float(2 * stdtr(found.df, -abs(found.mean) / found.se))
