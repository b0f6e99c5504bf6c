"""Differences over fixed problems: literals by hand, coverage by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stapo_results.statistics import fixed

# problem variances (unbiased) 1/3, 0, 1/4 and means 1/2, 1, 1/4
SCORES = [[1, 1, 0, 0], [1, 1, 1, 1], [0, 1, 0, 0]]


def test_noise_by_hand():
    found = fixed.noise(SCORES)
    # (1/3 + 1/4) / 4 / 9; df = (7/12)^2 / ((1/9 + 1/16) / 3) = 0.340278 x 3 / 0.173611
    assert found.variance == pytest.approx(7 / 12 / 36)
    assert found.df == pytest.approx(5.88)
    assert all(math.isnan(fixed.noise(x).variance) for x in ([[1], [0]], [[1, math.nan], [0, 1]]))


def test_against_a_printed_spread_by_hand():
    # ours 7/12; variance 0.0162037 + 0.06^2 / 9 = 0.0004 -> SE 0.128855
    # df = 0.0166037^2 / (0.0162037^2 / 5.88 + 0.0004^2 / 8) = 0.000275683 / 0.0000446733 = 6.17109
    d = fixed.against_printed(SCORES, 0.5, 9, 0.06)
    assert (d.difference, d.se) == (pytest.approx(1 / 12), pytest.approx(0.128855, abs=1e-6))
    # t(0.975, 6.171) = 2.43107 (between 2.44691 for 6 and 2.36462 for 7)
    half = (d.high - d.low) / 2 / d.se
    assert 2.42 < half < 2.44691
    assert (d.low + d.high) / 2 == pytest.approx(1 / 12)


def test_without_a_printed_spread_theirs_is_at_most_that_of_equal_problems():
    # 0.0162037 + 0.5 x 0.5 / 2 / 3 = 0.0416667 -> SE 0.240563; df 0.0578704^2 / (0.0162037^2 / 5.88) = 75.0
    d = fixed.against_printed(SCORES, 0.5, 2)
    assert d.se == pytest.approx(0.240563, abs=1e-6)
    assert (d.high - d.low) / 2 / d.se == pytest.approx(1.9921, abs=1e-3)  # t(0.975, 75)
    # printed 100 of 6 samples counts as 5 of 6: 5/36 / 6
    assert fixed.against_printed(SCORES, 1.0, 2).se == pytest.approx(math.sqrt(7 / 12 / 36 + 5 / 216))


@pytest.mark.parametrize("ours", [0.0, 1.0])
def test_all_wrong_or_all_right_against_a_printed_score_differs(ours):
    # ours has no spread; 0.526 x 0.474 / 32 / 30 = 0.000259713, SE 0.0161156
    d = fixed.against_printed([[ours] * 32] * 30, 0.526, 32)
    assert (d.difference, d.se) == (pytest.approx(ours - 0.526), pytest.approx(0.0161156, abs=1e-6))
    assert (d.high - d.low) / 2 / d.se == pytest.approx(1.959964, abs=1e-5)
    assert d.p < 1e-9


def test_an_unknown_number_of_samples_leaves_no_interval():
    unknown = fixed.against_printed(SCORES, 0.5, 0)
    assert unknown.difference == pytest.approx(1 / 12)
    assert all(math.isnan(x) for x in (unknown.se, unknown.low, unknown.high, unknown.p))


# problems, shape of their chances, our samples and theirs: as AIME is evaluated, and as MATH500 is
DESIGNS = {"few problems": (30, 0.6, 0.6, 32, 10), "few samples": (200, 3.0, 0.3, 4, 3)}


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("power", [1, 3])
@pytest.mark.parametrize("way", ["printed spread", "no spread"])
def test_the_interval_covers(design, way, power):
    """400 draws of the same problems, with chances from certain to even; theirs are the same, or their third power."""
    problems, a, b, n, k = DESIGNS[design]
    rng = np.random.default_rng(7)
    chances, hits, draws = rng.beta(a, b, (problems, 1)), 0, 400
    true = float((chances - chances**power).mean())
    for _ in range(draws):
        ours = rng.random((problems, n)) < chances
        theirs = rng.random((problems, k)) < chances**power
        if way == "printed spread":
            by_seed = theirs.mean(axis=0)
            d = fixed.against_printed(ours, by_seed.mean(), k, by_seed.std(ddof=1))
        else:
            d = fixed.against_printed(ours, theirs.mean(), k)
        hits += d.low <= true <= d.high
    assert 0.92 <= hits / draws <= (1 if way == "no spread" else 0.98)  # without a spread theirs is a bound
