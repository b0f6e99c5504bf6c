"""Shares of tokens with intervals over clusters of them. Dimensions: N tokens, C clusters, B bootstrap draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stapo_results.statistics import LEVEL, resampled_sums

Array = NDArray[np.float64]
Clusters = Literal["prompts", "mini-batches"]
_ENDS = (0.5 - LEVEL / 2, 0.5 + LEVEL / 2)


@dataclass(frozen=True)
class Interval:
    """A number with its 95 % interval; None where it is not defined, or nothing varies between the draws."""

    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Share(Interval):
    """part / whole as a fraction, with a 95 % percentile interval by a bootstrap over clusters.

    Where the share is 0 or 1 the draws have no spread. The interval then ends at 1 - 0.025^(1 / clusters) from there,
    the exact bound for the mean of as many draws from [0, 1] that all were 0, as in `statistics.clustered`.

    Attributes:
        part, whole: sums, such as tokens.
        clusters: how many have any of the whole. With fewer than two there is no interval.
        over: what the clusters are.
    """

    part: float
    whole: float
    clusters: int
    over: Clusters


def percentiles(value: float, draws: NDArray[np.float64]) -> Interval:
    """A value with the percentile interval of its draws; NaN is no number."""
    known = draws[~np.isnan(draws)]
    if np.isnan(value) or not len(known) or known.max() == known.min():
        return Interval(None if np.isnan(value) else value, None, None)
    return Interval(value, *map(float, np.quantile(known, _ENDS)))


class Sums:
    """Named sums a cluster (C,), and the same sums of every draw of clusters (B,), the draws the same for all names."""

    def __init__(self, cluster_N: NDArray[np.int64], columns: Mapping[str, ArrayLike], over: Clusters):
        """Add up N values a column by cluster (numbered from 0) and draw.

        Clusters that have nothing in any column are left out: they move no ratio.
        """
        count = int(cluster_N.max()) + 1 if len(cluster_N) else 0
        sums = [np.bincount(cluster_N, weights=np.asarray(v, np.float64), minlength=count) for v in columns.values()]
        sums_CK = np.stack(sums, axis=1)
        sums_CK = sums_CK[sums_CK.any(axis=1)]
        if not len(sums_CK):
            sums_CK = np.zeros((1, len(sums)))
        self._by_cluster: dict[str, Array] = dict(zip(columns, sums_CK.T, strict=True))
        self._drawn: dict[str, Array] = dict(zip(columns, resampled_sums(sums_CK).T, strict=True))
        self._over: Clusters = over

    def share(self, part: str, whole: str) -> Share:
        """One column's sum over another's. Draws without any of the whole do not count."""
        a, b = self._by_cluster[part].sum(), self._by_cluster[whole].sum()
        clusters = int(np.count_nonzero(self._by_cluster[whole]))
        low = high = None
        if clusters > 1:
            low, high = map(float, np.nanquantile(self._ratio(part, whole), _ENDS))
            if a in (0.0, b):
                bound = 1.0 - _ENDS[0] ** (1.0 / clusters)
                low, high = (0.0, bound) if a == 0.0 else (1.0 - bound, 1.0)
        return Share(float(a / b) if b else None, low, high, float(a), float(b), clusters, self._over)

    def difference(self, first: tuple[str, str], second: tuple[str, str]) -> Interval:
        """One (part, whole) minus another, paired draw by draw."""
        one, other = self.share(*first), self.share(*second)
        if one.value is None or other.value is None:
            return Interval(None, None, None)
        draws = self._ratio(*first) - self._ratio(*second)
        varies = min(one.clusters, other.clusters) > 1 and np.nanmax(draws) > np.nanmin(draws)
        ends = map(float, np.nanquantile(draws, _ENDS)) if varies else (None, None)
        return Interval(one.value - other.value, *ends)

    def _ratio(self, part: str, whole: str) -> Array:
        below = self._drawn[whole]
        return np.divide(self._drawn[part], below, out=np.full(len(below), np.nan), where=below > 0)
