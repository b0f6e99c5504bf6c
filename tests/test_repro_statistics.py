"""Bounds, power, a printed score, rank correlation: literal numbers with their arithmetic, coverage by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stapo_repro.statistics import Design, difference_se, minimal_detectable, rank_correlation, significant
from stapo_results.statistics import over_seeds
from studies.power import detectable, runs_for_equivalence, runs_needed, t_power, tost_interval, tost_p


def test_bounds_of_an_average_by_hand():
    # (.25 + .25) / 30 = .01666667, over 32 samples .00052083; (.16 + .24) / 100 = .004, over 4 samples .001
    # sampling sqrt(.00152083) / 2 = .03899786 / 2; unpaired sqrt(.02066667) / 2 = .14375906 / 2
    two = difference_se([Design(0.5, 0.5, 30, 32), Design(0.2, 0.4, 100, 4)])
    assert two == pytest.approx((0.01949893, 0.07187953), abs=1e-8)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.integers(1, 64))
def test_a_score_varies_between_the_two_bounds(chances, samples):
    """Draw a problem, then N answers: Var = E[p (1 - p)] / N + Var(p), whatever the chances are."""
    p = np.array(chances)
    mean = float(p.mean())
    variance = float((p * (1 - p)).mean()) / samples + float(p.var())
    sampling, unpaired = difference_se([Design(mean, 0.0, problems=1, samples=samples)])
    assert sampling**2 <= variance + 1e-12
    assert variance <= unpaired**2 + 1e-12


def test_significance_by_hand():
    # 10.26 and 6.27 points by 3.2752 and 3.3788: 3.13 and 1.86 standard errors
    assert significant(10.26, 3.2752)
    assert not significant(6.27, 3.3788)


def test_minimal_detectable_by_hand():
    # z(.975) + z(.8) = 1.95996398 + .84162123
    assert minimal_detectable(1.0) == pytest.approx(2.80158521, abs=1e-8)
    assert minimal_detectable(0.0) == 0.0


def test_runs_that_a_t_test_needs_are_those_of_the_tables():
    """Cohen's tables and G*Power, one sample or paired, two-sided 5 %, power 80 %: 199, 34, 15 and 10 runs."""
    assert [runs_needed(d, 1.0) for d in (0.2, 0.5, 0.8, 1.0)] == [199, 34, 15, 10]
    # G*Power at n = 34 and d = 0.5: .8078
    assert t_power(0.5, 1 / math.sqrt(34), 33) == pytest.approx(0.8078, abs=1e-4)
    assert runs_needed(1.0, 0.0) == 2
    assert runs_needed(0.001, 1.0) is None
    # a stricter test needs more
    assert runs_needed(1.0, 1.0, alpha=0.05 / 14) == 19


def test_the_detectable_difference_is_the_power_turned_round():
    least = detectable(1.0, 7)
    assert t_power(least, 1.0, 7) == pytest.approx(0.8, abs=1e-9)
    # with many runs the normal approximation: z(.975) + z(.8) = 2.8016
    assert detectable(2.0, 1e6) == pytest.approx(minimal_detectable(2.0), rel=1e-5)
    assert math.isnan(detectable(math.nan, math.nan))


def test_equivalence_by_hand():
    # values 1 2 3: mean 2, SE 1 / sqrt 3, df 2; margin 5: t = -3 sqrt 3 = -5.196; P(T < t) with 2 degrees of freedom is
    # 1/2 + t / (2 sqrt(2 + t^2)) = .5 - 5.19615 / (2 x 5.385165) = .0175494
    found = over_seeds([1.0, 2.0, 3.0])
    assert tost_p(found, 5.0) == pytest.approx(0.0175494, abs=1e-7)
    assert tost_p(over_seeds([-3.0, -2.0, -1.0]), 5.0) == pytest.approx(0.0175494, abs=1e-7)
    # the 90 % interval 2 +- 2.919986 / sqrt 3 = 0.314 to 3.686: equivalent from a margin of 3.686 on
    assert tost_p(found, 3.686) < 0.05 < tost_p(found, 3.685)
    assert tost_interval(found) == pytest.approx((0.314, 3.686), abs=5e-4)
    assert tost_interval(over_seeds([2.0, 2.0])) == (2.0, 2.0)
    assert [tost_p(over_seeds([2.0, 2.0]), m) for m in (2.5, 1.5)] == [0.0, 1.0]
    assert math.isnan(tost_p(over_seeds([2.0]), 5.0))


def test_runs_for_an_equivalence_by_hand():
    # n = 11, sd = margin: sqrt 11 - t(.95, 10) = 3.316625 - 1.812461 = 1.504164; 2 P(T10 < 1.504) - 1 = .8365
    # n = 10: 3.162278 - 1.833113 = 1.329165; P(T9 < 1.329) = .8918: .7835
    assert runs_for_equivalence(1.0, 1.0) == 11
    assert runs_for_equivalence(1.0, 0.0) == 2


def test_rank_correlation_by_hand() -> None:
    assert rank_correlation([1, 2, 3, 4], [1, 3, 2, 4], [0, 0, 0, 0]).mean == pytest.approx(0.8)  # 1 - 6 x 2 / (4 x 15)
    # midranks 1.5 1.5 3 against 1 2 3: covariance 1.5, squares 1.5 and 2
    found = rank_correlation([5, 5, 9], [1, 2, 3], [0, 0, 0])
    assert found.mean == pytest.approx(1.5 / math.sqrt(3))
    assert not found.has_interval
    assert not rank_correlation([1, 1], [1, 2], [0, 1]).known


def test_a_rank_correlations_interval_is_over_clusters() -> None:
    """Draws aa and bb hold one direction each, ab and ba both: +1, -1 and 0 ("1 2" against "1 2" and "2 1", tied)."""
    found = rank_correlation([1, 2, 1, 2], [1, 2, 2, 1], ["a", "a", "b", "b"])
    assert (found.mean, found.low, found.high) == (0.0, pytest.approx(-1.0), pytest.approx(1.0))
