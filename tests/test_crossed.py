"""Problems crossed with seeds: literal numbers with their arithmetic, and the cases without an interval."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stapo_results.errors import BadInput
from stapo_results.statistics.crossed import crossed, over_seeds

# Problem means over seeds .2 .5 .8: squares .18, variance of the mean .18 / 6 = .03.
# Seed means .4 .6: squares .02, variance of the mean .02 / 2 = .01.
BY_HAND = [[0.1, 0.3], [0.4, 0.6], [0.7, 0.9]]


def test_both_variances_by_hand():
    c = crossed([BY_HAND])
    assert c.mean == pytest.approx(0.5)
    assert c.se_problems == pytest.approx(math.sqrt(0.03))
    assert c.se_seeds == pytest.approx(0.1)
    assert c.se == pytest.approx(0.2)  # sqrt(.03 + .01)
    # (.04)^2 / (.03^2 / 2 + .01^2 / 1) = .0016 / .00055
    assert c.df == pytest.approx(2.909090909)
    assert c.seeds == (pytest.approx(0.4), pytest.approx(0.6))
    # t(.975, 2.909091) = 3.23945 (t_2 is 4.3027, t_3 3.1824): half width .64789
    assert c.high - c.mean == pytest.approx(0.64789, abs=1e-5)
    assert c.mean - c.low == pytest.approx(c.high - c.mean)


def test_a_seed_is_one_model_on_all_benchmarks():
    # seed means .4 .6 on one benchmark and .6 .4 on the other: averaged .5 .5, no variance between seeds;
    # problems: .03 / 4 from each
    mirrored = [[x, y] for y, x in BY_HAND]
    c = crossed([BY_HAND, mirrored])
    assert c.se_seeds == pytest.approx(0.0, abs=1e-12)
    assert c.se == pytest.approx(math.sqrt(0.015))
    assert c.df == pytest.approx(4.0)  # two equal parts of two degrees of freedom each
    # t(.975, 4) = 2.7764451 times .12247449
    assert (c.low, c.high) == (pytest.approx(0.5 - 0.3400437, abs=1e-6), pytest.approx(0.5 + 0.3400437, abs=1e-6))
    # the same benchmark twice: the seeds' variance stays .01, that of the problems halves
    assert crossed([BY_HAND, BY_HAND]).se == pytest.approx(math.sqrt(0.015 + 0.01))


def test_one_seed_has_a_mean_and_no_interval():
    c = crossed([[[0.25], [0.75]]])
    assert c.mean == 0.5
    assert all(math.isnan(x) for x in (c.se, c.low, c.high, c.df))
    one = over_seeds([0.02])
    assert one.mean == 0.02
    assert math.isnan(one.low)


def test_nothing_right_anywhere_is_not_certainty():
    c = crossed([[[0.0, 0.0, 0.0]] * 30], fractions=True)
    # 1 - .025 ** (1 / 30)
    assert (c.low, c.high) == (0.0, pytest.approx(0.1157033, abs=1e-7))
    difference = crossed([[[0.0, 0.0, 0.0]] * 30])
    assert (difference.low, difference.high) == (0.0, 0.0)


def test_over_seeds_by_hand():
    # .1 .2 .6: mean .3, squares .14, variance of the mean .14 / 6; t(.975, 2) = 4.3026527
    c = over_seeds([0.1, 0.2, 0.6])
    assert c.se == pytest.approx(0.15275252)
    assert (c.low, c.high) == (pytest.approx(0.3 - 0.6572410, abs=1e-6), pytest.approx(0.3 + 0.6572410, abs=1e-6))


@pytest.mark.parametrize("strata", [[], [[0.5, 0.5]], [[[0.5, 0.5]], [[0.5]]], [[[0.5, math.nan]]], [[]]])
def test_what_is_no_full_matrix_is_refused(strata):
    with pytest.raises(BadInput):
        crossed(strata)


def test_a_run_without_its_number_is_refused():
    with pytest.raises(BadInput, match="one finite number"):
        over_seeds([0.1, math.nan])


@pytest.mark.parametrize(
    ("seeds", "spread", "least", "most"), [(2, 0.06, 93.5, 96.5), (2, 0.7, 86.0, 89.5), (3, 0.6, 91.0, 94.5)]
)
def test_how_often_the_interval_holds_the_truth(seeds, spread, least, most):
    """What the module and docs/statistics.md say of coverage. 64 problems with a spread of 1: the standard error over
    problems is 0.125, over seeds a third of it, four and three times as much."""
    draw = np.random.default_rng(0)
    tables = draw.standard_normal((3000, 64, 1)) + spread * draw.standard_normal((3000, 1, seeds))
    held = [c.low <= 0 <= c.high for c in (crossed([t]) for t in tables)]
    assert least < 100 * np.mean(held) < most
