"""Sums over clusters of tokens and their shares, with intervals by draws of whole clusters.

Dimensions: N tokens, C clusters of them, K columns, B bootstrap draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stapo_results.resampling import LEVEL, RESAMPLES, resampled_sums
from stapo_results.statistics import Number

Array = NDArray[np.float64]
_ENDS = (0.5 - LEVEL / 2, 0.5 + LEVEL / 2)


def interval(values: Array, clusters: int = 2) -> Number:
    """The first of (1 + B,) values with the percentile interval of the others, draws of clusters; NaN is no number."""
    value, drawn = float(values[0]), values[1:][~np.isnan(values[1:])]
    if np.isnan(value):
        return Number()
    if clusters < 2 or not len(drawn) or drawn.max() == drawn.min():
        return Number(mean=value)
    low, high = np.quantile(drawn, _ENDS).tolist()
    return Number(mean=value, low=low, high=high)


class Sums:
    """Named sums over clusters, and the same over every draw of clusters, the draws the same for all names.

    Attributes:
        of: name -> (1 + B,) the sum, then that of every draw.
        clusters: name -> how many clusters have any of it.
        over: what the clusters are.
    """

    def __init__(
        self,
        cluster_N: NDArray[np.int64],
        columns: Mapping[str, ArrayLike],
        over: str = "prompts",
        resamples: int = RESAMPLES,
    ):
        """Add up N values a column by cluster (numbered from 0) and draw; a cluster without any moves no ratio."""
        count = int(cluster_N.max(initial=-1)) + 1
        by_cluster = [np.bincount(cluster_N, np.asarray(v, np.float64), count) for v in columns.values()]
        sums_CK = np.stack(by_cluster, axis=1)
        sums_CK = sums_CK[sums_CK.any(axis=1)] if sums_CK.any() else np.zeros((1, len(by_cluster)))
        drawn_BK = resampled_sums(sums_CK, resamples=resamples)
        self.of = {name: np.append(sums_CK[:, k].sum(), drawn_BK[:, k]) for k, name in enumerate(columns)}
        self.clusters = {name: int(np.count_nonzero(sums_CK[:, k])) for k, name in enumerate(columns)}
        self.over = over

    def ratio(self, part: str, whole: str) -> Array:
        """(1 + B,) one column's sum over another's; NaN without any of the whole."""
        below = self.of[whole]
        return np.divide(self.of[part], below, out=np.full(len(below), np.nan), where=below > 0)

    def share(self, part: str, whole: str) -> Number:
        """One column's sum over another's, with no interval from fewer than two clusters.

        Where the share is 0 or 1 the draws have no spread. The interval then ends at 1 - 0.025^(1 / clusters) from
        there, the exact bound for the mean of as many draws from [0, 1] that all were 0, as in `statistics.clustered`.
        """
        a, b, clusters = float(self.of[part][0]), float(self.of[whole][0]), self.clusters[whole]
        share = replace(interval(self.ratio(part, whole), clusters), part=a, whole=b, over=self.over)
        if clusters < 2 or a not in (0.0, b):
            return share
        bound = 1.0 - _ENDS[0] ** (1.0 / clusters)
        return replace(share, low=0.0, high=bound) if a == 0.0 else replace(share, low=1.0 - bound, high=1.0)

    def difference(self, first: tuple[str, str], second: tuple[str, str]) -> Number:
        """One (part, whole) minus another, paired draw by draw.

        Where a share is 0 or 1 its draws have no spread. The distances of both shares from their own ends then add up
        in squares (Newcombe 1998, method 10; Zou and Donner 2008), as if the shares were independent. A quotient that
        is no share is never 0, nor is its part its whole.
        """
        fewest = min(self.clusters[first[1]], self.clusters[second[1]])
        d = interval(self.ratio(*first) - self.ratio(*second), fewest)
        a, b = self.share(*first), self.share(*second)
        if not (a.has_interval and b.has_interval) or not any(x.part in (0.0, x.whole) for x in (a, b)):
            return d
        low, high = math.hypot(a.mean - a.low, b.high - b.mean), math.hypot(a.high - a.mean, b.mean - b.low)
        return replace(d, low=d.mean - low, high=d.mean + high)
