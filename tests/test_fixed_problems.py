"""Differences over fixed problems: literals by hand, coverage by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stapo_results.errors import BadInput
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


def test_samples_paired_by_hand():
    second = [[1, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]]
    d = fixed.by_sample(SCORES, second)
    # differences 0100, 0001, 0100: mean 3/12; variance of each row 1/4, so sqrt(3 / 4 / 4 / 9) = 0.144338
    assert (d.difference, d.se) == (0.25, pytest.approx(0.144338, abs=1e-6))
    assert d.p == 0.25  # of 8 patterns of signs, + + + and - - -


def test_the_same_samples_differ_by_nothing_and_one_sided_problems_claim_no_interval():
    assert fixed.by_sample(SCORES, SCORES, same_responses=True) == fixed.Fixed(0.0, 0.0, 0.0, 0.0, 1.0)
    # other responses of 6 x 2: up to 1 - 0.05^(1/12) = 0.220922 of them may differ
    d = fixed.by_sample([[0, 0]] * 6, [[0, 0]] * 6)
    assert (d.low, d.high, d.p) == (pytest.approx(-0.220922, abs=1e-6), pytest.approx(0.220922, abs=1e-6), 1.0)
    # the second problem is lost in all four samples: no spread, and 2 of 16 patterns of signs are as extreme
    d = fixed.by_sample(SCORES, [SCORES[0], [0] * 4, SCORES[2]])
    assert (d.difference, d.se, d.p) == (pytest.approx(1 / 3), 0.0, 0.125)
    assert math.isnan(d.low)
    with pytest.raises(BadInput):
        fixed.by_sample(SCORES, [row[:2] for row in SCORES])


def test_a_part_of_the_samples_by_hand():
    d = fixed.first_samples(SCORES, 2)
    # first two: 1, 1, 1/2 -> 5/6, minus 7/12; variance 0.0162037 x (4 / 2 - 1)
    assert (d.difference, d.se) == (pytest.approx(0.25), pytest.approx(math.sqrt(7 / 12 / 36)))
    # the third problem lost: 2/3 - 7/12. Samples count 1/2 again - 1/4 once: variances 1/12, 0, 1/16 (x 1/4, x 2), the
    # rest 7/12 / 36 / 2 as above
    d = fixed.first_samples(SCORES, 2, [*SCORES[:2], [0] * 4])
    assert d.difference == pytest.approx(1 / 12)
    assert d.se == pytest.approx(math.sqrt((1 / 12 + 1 / 16) / 4 / 9 * 2 + 7 / 12 / 36 / 2))
    with pytest.raises(BadInput):
        fixed.first_samples(SCORES, 4)


def test_two_runs_by_hand():
    d = fixed.independent(SCORES, [[1, 0], [1, 1], [0, 0]])
    # the second: variance 1/2 of one problem, / 2 / 9 = 0.0277778; with 0.0162037 -> SE 0.209718
    assert (d.difference, d.se) == (pytest.approx(1 / 12), pytest.approx(0.209718, abs=1e-6))


@given(st.lists(st.lists(st.integers(0, 1), min_size=3, max_size=3), min_size=2, max_size=6), st.randoms())
def test_order_of_problems_and_the_sign(rows, random):
    other = [row[::-1] for row in rows]
    d, back = fixed.by_sample(rows, other), fixed.by_sample(other, rows)
    assert (back.difference, back.p, back.low) == (
        -d.difference,
        pytest.approx(d.p),
        pytest.approx(-d.high, nan_ok=True),
    )
    order = list(range(len(rows)))
    random.shuffle(order)
    again = fixed.by_sample([rows[i] for i in order], [other[i] for i in order])
    assert again.se == pytest.approx(d.se, nan_ok=True)
    assert again.difference == pytest.approx(d.difference)


# problems, shape of their chances, our samples and theirs: as AIME is evaluated, and as MATH500 is
DESIGNS = {"few problems": (30, 0.6, 0.6, 32, 10), "few samples": (200, 3.0, 0.3, 4, 3)}


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("power", [1, 3])
@pytest.mark.parametrize("way", ["printed spread", "no spread", "two runs", "by sample", "part"])
def test_the_interval_covers(design, way, power):
    """400 draws of the same problems, with chances from certain to even; theirs are the same, or their third power."""
    problems, a, b, n, k = DESIGNS[design]
    rng = np.random.default_rng(7)
    chances, hits, draws = rng.beta(a, b, (problems, 1)), 0, 400
    true = 0.0 if way == "part" else float((chances - chances**power).mean())
    for _ in range(draws):
        ours = rng.random((problems, n)) < chances
        again, theirs = (rng.random((problems, x)) < chances**power for x in (n, k))
        if way == "printed spread":
            by_seed = theirs.mean(axis=0)
            d = fixed.against_printed(ours, by_seed.mean(), k, by_seed.std(ddof=1))
        elif way == "no spread":
            d = fixed.against_printed(ours, theirs.mean(), k)
        elif way == "part":
            d = fixed.first_samples(ours, n // 2)
        else:
            d = fixed.independent(ours, theirs) if way == "two runs" else fixed.by_sample(ours, again)
        hits += d.low <= true <= d.high
    assert 0.92 <= hits / draws <= (1 if way == "no spread" else 0.98)  # without a spread theirs is a bound
