"""Shares of sums over clusters, and their intervals, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stapo_repro.tokens.shares import Sums


def test_intervals_of_two_clusters_are_those_of_their_four_draws() -> None:
    """Of a 2 of 2, of b 1 of 3: draws aa, ab, ba, bb are 2/2, 3/5, 3/5, 1/3. Minus 1 of 2 and 1 of 3."""
    sums = Sums(np.array([0, 1]), {"part": [2, 1], "whole": [2, 3], "other": [1, 1]})
    share = sums.share("part", "whole")
    assert (share.mean, share.low, share.high) == (0.6, pytest.approx(1 / 3), 1.0)
    d = sums.difference(("part", "whole"), ("other", "whole"))
    np.testing.assert_allclose([d.mean, d.low, d.high], [0.2, 0.0, 0.5], atol=1e-15)


def test_a_share_without_spread_has_the_bound_of_its_clusters() -> None:
    sums = Sums(np.arange(3), {"all": np.ones(3)})
    share = sums.share("all", "all")
    assert share.mean == share.high == 1.0
    assert share.low == pytest.approx(0.025 ** (1 / 3))  # 0.2924
    one = Sums(np.zeros(1, np.int64), {"all": np.ones(1)}).share("all", "all")
    assert (one.mean, one.has_interval) == (1.0, False)


def test_a_difference_from_a_share_of_zero_has_that_shares_own_bound() -> None:
    """Ten clusters of ten tokens: of every second one four are in the first share, of none one is in the second."""
    cluster = np.repeat(np.arange(10), 10)
    first = np.where(cluster % 2, 0, np.tile([1, 1, 1, 1, 0, 0, 0, 0, 0, 0], 10))
    sums = Sums(cluster, {"a": first, "b": np.zeros(100), "all": np.ones(100)})
    bound = 1 - 0.025 ** (1 / 10)  # 0.308
    a = sums.share("a", "all")
    d = sums.difference(("a", "all"), ("b", "all"))
    assert (d.mean, d.low, d.high) == pytest.approx((0.2, 0.2 - math.hypot(0.2 - a.low, bound), a.high))
    d = sums.difference(("b", "all"), ("a", "all"))
    assert (d.mean, d.low, d.high) == pytest.approx((-0.2, -a.high, math.hypot(0.2 - a.low, bound) - 0.2))
    d = sums.difference(("all", "all"), ("b", "all"))  # of 1 from 0
    assert (d.mean, d.low, d.high) == pytest.approx((1.0, 1.0 - math.hypot(bound, bound), 1.0))
    d = sums.difference(("b", "all"), ("b", "all"))
    assert (d.mean, d.low, d.high) == pytest.approx((0.0, -bound, bound))
