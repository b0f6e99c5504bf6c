"""What a design can tell from noise, and a rank correlation.

What the evaluation needs too is `stapo_results.statistics`. Nothing here reads a record or rounds a number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri
from scipy.stats import rankdata

from stapo_results.resampling import LEVEL, uniform_indices
from stapo_results.statistics import Number

POWER = 0.8
ALPHA = 0.05
_RANK_RESAMPLES = 1_000  # each draw ranks all values anew


@dataclass(frozen=True)
class Design:
    """Two models on one benchmark: their mean scores (fractions), its problems, and the samples a problem."""

    first: float
    second: float
    problems: int
    samples: int


def difference_se(designs: Sequence[Design]) -> tuple[float, float]:
    """Bounds of the standard error of two models' difference, averaged over benchmarks unweighted.

    Let p_q be a model's chance on problem q, p their mean, N the samples a problem. A problem's score has the variance
    p (1 - p) / N + Var(p_q) (1 - 1 / N), and Var(p_q) lies between 0 and p (1 - p).

    Returns:
        (sampling, unpaired): problems alike in difficulty, so that only the sampling of answers is left; each problem
        always right or always wrong, and the models' problems independent. A comparison paired by problem lies below
        `sampling` where twice the covariance of the models' chances is above 1 - 1 / N of the sum of their variances,
        and above `unpaired` only where the models are right on opposite problems.
    """
    spread = [(d.first * (1 - d.first) + d.second * (1 - d.second)) / d.problems for d in designs]
    k = len(designs)
    sampling = math.fsum(v / d.samples for v, d in zip(spread, designs, strict=True))
    return math.sqrt(sampling) / k, math.sqrt(math.fsum(spread)) / k


def significant(difference: float, se: float) -> bool:
    """Whether a two-sided test at `ALPHA` finds the difference, by the normal approximation."""
    return abs(difference) > float(ndtri(1 - ALPHA / 2)) * se


def minimal_detectable(se: float) -> float:
    """The true difference that a two-sided test at `ALPHA` finds with probability `POWER`.

    (z(1 - alpha / 2) + z(power)) SE, by the normal approximation without the far tail (Bloom 1995, Evaluation Review
    19(5)): 2.8016 SE.
    """
    return float(ndtri(1 - ALPHA / 2) + ndtri(POWER)) * se


def rank_correlation(x_N: ArrayLike, y_N: ArrayLike, cluster_N: ArrayLike) -> Number:
    """Spearman's rho: midranks at ties, a 95 % percentile interval by a bootstrap over clusters.

    Not known where all x or all y are equal; without an interval where there are fewer than two clusters.

    Args:
        cluster_N: of each value, such as its prompt. A draw takes whole clusters and ranks what it took.
    """
    clusters, cluster = np.unique(np.asarray(cluster_N), return_inverse=True)
    both = np.array([x_N, y_N], dtype=np.float64)
    rho = _spearman(both)
    if len(clusters) < 2 or math.isnan(rho):
        return Number(mean=rho)
    stream = np.random.PCG64(0)
    draws = np.empty(_RANK_RESAMPLES)
    for b in range(_RANK_RESAMPLES):
        times_C = np.bincount(uniform_indices(stream, len(clusters), len(clusters)), minlength=len(clusters))
        draws[b] = _spearman(np.repeat(both, times_C[cluster], axis=1))
    low, high = np.nanquantile(draws, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2]).tolist()
    return Number(mean=rho, low=low, high=high)


def _spearman(both: NDArray[np.float64]) -> float:
    with np.errstate(invalid="ignore"):  # NaN where all of one are equal
        return float(np.corrcoef(rankdata(both, axis=1))[0, 1])
