"""Spearman's rank correlation with an interval over clusters."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stapo_results.statistics.estimates import LEVEL
from stapo_results.statistics.resampling import uniform_indices

_RESAMPLES = 1_000  # each draw ranks all values anew


def rank_correlation(x_N: ArrayLike, y_N: ArrayLike, cluster_N: ArrayLike) -> tuple[float, float, float]:
    """(Spearman's rho, low, high): midranks at ties, a 95 % percentile interval by a bootstrap over clusters.

    Args:
        cluster_N: of each value, such as its prompt. A draw takes whole clusters and ranks what it took.

    Returns:
        NaN three times where all x or all y are equal; NaN for the ends where there are fewer than two clusters.
    """
    clusters, cluster = np.unique(np.asarray(cluster_N), return_inverse=True)
    x, y = (np.unique(np.asarray(v), return_inverse=True)[1] for v in (x_N, y_N))
    rho = _weighted(x, y, np.ones(len(cluster)))
    if len(clusters) < 2 or math.isnan(rho):
        return rho, math.nan, math.nan
    stream = np.random.PCG64(0)
    draws = np.empty(_RESAMPLES)
    for b in range(_RESAMPLES):
        times_C = np.bincount(uniform_indices(stream, len(clusters), len(clusters)), minlength=len(clusters))
        draws[b] = _weighted(x, y, times_C[cluster].astype(np.float64))
    low, high = np.nanquantile(draws, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
    return rho, float(low), float(high)


def _weighted(x_N: NDArray[np.int64], y_N: NDArray[np.int64], times_N: NDArray[np.float64]) -> float:
    """Pearson's correlation of midranks, each value counted so many times; x and y as places among their own values."""
    total = times_N.sum()
    centred = []
    for place_N in (x_N, y_N):
        at_value = np.bincount(place_N, times_N)
        rank_N = (np.cumsum(at_value) - at_value / 2)[place_N]
        centred.append(rank_N - total / 2)  # the mean of midranks, whatever the ties
    a_N, b_N = centred
    squares = (times_N * a_N * a_N).sum() * (times_N * b_N * b_N).sum()
    return float((times_N * a_N * b_N).sum() / math.sqrt(squares)) if squares > 0 else math.nan
