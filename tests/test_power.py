"""Bounds from N and row counts: literal numbers with their arithmetic, and the inequality behind them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stapo_results.statistics import Design, difference_se, minimal_detectable, sampling_se, sign_flip_p
from stapo_results.statistics.crossed import crossed, over_seeds, t_test_p
from stapo_results.statistics.power import detectable, runs_for_equivalence, runs_needed, t_power, tost_p


def test_bounds_by_hand():
    # (.25 + .25) / 30 = .01666667; over 32 samples .00052083
    one = difference_se([Design(0.5, 0.5, problems=30, samples=32)])
    assert one.sampling == pytest.approx(0.02282177, abs=1e-8)
    assert one.unpaired == pytest.approx(0.12909944, abs=1e-8)


def test_bounds_of_an_average_by_hand():
    # the above, and (.16 + .24) / 100 = .004, over 4 samples .001
    # sampling sqrt(.00152083) / 2 = .03899786 / 2; unpaired sqrt(.02066667) / 2 = .14375906 / 2
    two = difference_se([Design(0.5, 0.5, 30, 32), Design(0.2, 0.4, 100, 4)])
    assert two.sampling == pytest.approx(0.01949893, abs=1e-8)
    assert two.unpaired == pytest.approx(0.07187953, abs=1e-8)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.integers(1, 64))
def test_a_score_varies_between_the_two_bounds(chances, samples):
    """Draw a problem, then N answers: Var = E[p (1 - p)] / N + Var(p), whatever the chances are."""
    p = np.array(chances)
    mean = float(p.mean())
    variance = float((p * (1 - p)).mean()) / samples + float(p.var())
    single = difference_se([Design(mean, 0.0, problems=1, samples=samples)])
    assert single.sampling**2 <= variance + 1e-12
    assert variance <= single.unpaired**2 + 1e-12


def test_minimal_detectable_by_hand():
    # z(.975) + z(.8) = 1.95996398 + .84162123; at power one half the second is 0
    assert minimal_detectable(1.0) == pytest.approx(2.80158521, abs=1e-8)
    assert minimal_detectable(2.0, power=0.5) == pytest.approx(3.91992797, abs=1e-8)
    assert minimal_detectable(0.0) == 0.0


def test_sampling_se_by_hand():
    # sample variances .5 0 0: within 1/6, over 3 x 2 samples 1/36
    assert sampling_se([[1, 0], [1, 1], [0, 0]]) == pytest.approx(1 / 6)
    assert math.isnan(sampling_se([[1, math.nan], [1, 1]]))


def test_t_test_by_hand():
    # seeds 0 and 2: mean 1, SE 1, one degree of freedom: P(|t| > 1) = 1/2
    assert t_test_p(over_seeds([0.0, 2.0])) == pytest.approx(0.5)
    assert t_test_p(over_seeds([0.5, 0.5])) == 0.0
    assert t_test_p(over_seeds([0.0, 0.0])) == 1.0
    assert math.isnan(t_test_p(over_seeds([1.0])))


@given(st.lists(st.lists(st.floats(-1, 1), min_size=3, max_size=3), min_size=2, max_size=8))
def test_p_is_below_five_percent_where_the_interval_leaves_zero_out(values):
    c = crossed([values])
    p = t_test_p(c)
    if min(abs(c.low), abs(c.high)) > 1e-9 and c.se > 1e-9:
        assert (p < 0.05) == (c.low > 0 or c.high < 0)


def test_drawn_signs_are_the_bits_of_the_stream():
    """Eight problems are summed at once; here every sign is one bit by itself."""
    d = np.array([(-1) ** i * (i % 7 + 1) / 8 for i in range(83)]) + 0.09
    resamples, words = 4000, 2  # 83 signs need 11 bytes: two words of 8
    raw = np.random.PCG64(3).random_raw(resamples * words)
    bits = (raw.reshape(resamples, words, 1) >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    signs = 1 - 2 * bits.reshape(resamples, 64 * words)[:, :83].astype(int)
    hits = int(np.sum(np.abs(signs @ d) >= abs(d.sum()) - 1e-9))
    assert 0 < hits < resamples
    assert sign_flip_p(d, resamples=resamples, seed=3) == (1 + hits) / (1 + resamples)


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
    assert [tost_p(over_seeds([2.0, 2.0]), m) for m in (2.5, 1.5)] == [0.0, 1.0]
    assert math.isnan(tost_p(over_seeds([2.0]), 5.0))


def test_runs_for_an_equivalence_by_hand():
    # n = 11, sd = margin: sqrt 11 - t(.95, 10) = 3.316625 - 1.812461 = 1.504164; 2 P(T10 < 1.504) - 1 = .8365
    # n = 10: 3.162278 - 1.833113 = 1.329165; P(T9 < 1.329) = .8918: .7835
    assert runs_for_equivalence(1.0, 1.0) == 11
    assert runs_for_equivalence(1.0, 0.0) == 2
