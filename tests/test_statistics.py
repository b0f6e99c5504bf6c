"""Literal numbers worked out by hand (the arithmetic stands beside them) and properties."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stapo_results.errors import BadInput
from stapo_results.resampling import bootstrap, resampled_sums, sign_flip_p
from stapo_results.statistics import (
    Number,
    average,
    clustered,
    crossed,
    holm,
    majority_at_k,
    over_seeds,
    paired,
    paired_average,
    parse_verdicts,
    pass_at_k,
    problem_means,
    sampling_se,
    variance_components,
)

NAN = math.nan
binary = st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=3, max_size=3), min_size=2, max_size=12)


def test_p_is_not_below_what_an_interval_with_bounds_holds() -> None:
    flat, other = np.zeros((30, 3)), np.array([[0.1, 0.12, 0.11]] * 30) + np.linspace(-0.02, 0.02, 30)[:, None]
    alone, both = crossed([other]), crossed([flat, other])
    assert alone.p < 0.01
    assert (both.low < 0 < both.high, both.p) == (True, pytest.approx(0.05))


def test_clustered_by_hand():
    # problem means .4 .5 .6 .5; squares sum to .02; .02 / (4 * 3) = .00166667; root .04082483; t(.975, 3) = 3.1824463
    scores = [[1, 1, 0, 0, 0], [1, 1, 0, 0, NAN], [1, 1, 1, 0, 0], [1, 0, NAN, NAN, NAN]]
    e = clustered(scores)
    assert e.mean == pytest.approx(0.5)
    assert e.se == pytest.approx(0.04082483, abs=1e-8)
    assert (e.low, e.high) == (pytest.approx(0.5 - 0.12992283, abs=1e-7), pytest.approx(0.5 + 0.12992283, abs=1e-7))
    assert (e.problems, e.samples, e.missing) == (4, 5, 4)
    assert problem_means([parse_verdicts("11-0"), parse_verdicts("----")])[0] == pytest.approx(2 / 3)


def test_nothing_right_in_thirty_problems_is_not_certainty():
    # 1 - .025 ** (1 / 30) = .11570
    e = clustered([[0] * 32] * 30)
    assert (e.mean, e.se, e.low) == (0.0, 0.0, 0.0)
    assert e.high == pytest.approx(0.1157033, abs=1e-7)
    assert clustered([[1]] * 30).low == pytest.approx(1 - 0.1157033, abs=1e-7)
    zeros = [[0.0, 0.0, 0.0]] * 30
    scores, difference, equal = crossed([zeros], fractions=True), crossed([zeros]), paired_average([[0.0] * 30])
    assert [(c.low, c.high, c.p) for c in (scores, difference, equal)] == [(0, e.high, 1), *[(-e.high, e.high, 1)] * 2]
    # every problem better by a half: .11570 of the way to -1 and to 1
    half = paired_average([[0.5] * 30])
    assert (half.low, half.high) == (pytest.approx(0.5 - 0.1157033 * 1.5), pytest.approx(0.5 + 0.1157033 * 0.5))
    # beside another benchmark the half of it is added by squares
    beside, alone = paired_average([[0.0] * 30, [0.1, 0.11]]), paired_average([[0.1, 0.11]])
    assert beside.high - beside.mean == pytest.approx(math.hypot(alone.high - alone.mean, 0.1157033) / 2)


@given(binary)
def test_copies_of_samples_do_not_shrink_the_interval(scores):
    """sqrt(p (1 - p) / (n N)) would: it counts samples of one problem as independent problems."""
    once, thrice = clustered(scores), clustered([row * 3 for row in scores])
    assert thrice.se == pytest.approx(once.se, abs=1e-12)
    assert thrice.high == pytest.approx(once.high, abs=1e-12)


def estimate(mean: float, se: float, low: float, high: float, missing: int = 0) -> Number:
    return Number(mean=mean, se=se, low=low, high=high, problems=11, samples=8, missing=missing)


def test_average_by_hand():
    # mean (.2 + .6) / 2; SE sqrt(.03^2 + .04^2) / 2 = .025
    # df = .0025^2 / (.03^4 / 10 + .04^4 / 10) = 18.546; t between t18 = 2.1009 and t19 = 2.0930
    a = estimate(0.2, 0.03, 0.1, 0.3)
    b = estimate(0.6, 0.04, 0.5, 0.7, missing=1)
    e = average([a, b])
    assert (e.mean, e.problems, e.missing) == (pytest.approx(0.4), 22, 1)
    assert e.se == pytest.approx(0.025)
    assert 2.0930 * 0.025 < e.high - e.mean < 2.1009 * 0.025


def test_average_with_parts_that_have_no_spread():
    # beside a half width of t10 x .04 / 2 = 2.2281 x .02 = .04456 a bound of .3 / 2: sqrt(.04456^2 + .15^2) = .15648
    flat, other = estimate(0.0, 0.0, 0.0, 0.3), estimate(0.6, 0.04, 0.5, 0.7)
    e = average([flat, other])
    assert (e.mean - e.low, e.high - e.mean) == (pytest.approx(0.04456, abs=1e-5), pytest.approx(0.15648, abs=1e-5))
    # all wrong: sqrt(.3^2 + .4^2) / 2; all right, all wrong: each bound on its own side
    e = average([flat, estimate(0.0, 0.0, 0.0, 0.4)])
    assert (e.se, e.low, e.high) == (0.0, 0.0, pytest.approx(0.25))
    e = average([flat, estimate(1.0, 0.0, 0.8, 1.0)])
    assert (e.low, e.high) == (pytest.approx(0.4), pytest.approx(0.65))


def test_average_of_hard_benchmarks_holds_the_truth():
    """Six of 30 problems that a model solves once in a hundred; most of them are all wrong."""
    draw, held = np.random.default_rng(0), {"with": 0, "without": 0}
    for _ in range(100):
        chance_BQ = draw.beta(0.02, 1.98, (6, 30, 1))
        parts = [clustered(scores) for scores in (draw.random((6, 30, 2)) < chance_BQ).astype(float)]
        bare = [replace(p, low=p.mean, high=p.mean) for p in parts]
        for name, found in (("with", average(parts)), ("without", average(bare))):
            held[name] += found.low <= 0.01 <= found.high
    assert held["with"] > 95
    assert 80 < held["without"] < 90


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_average_of_hard_benchmarks_holds_the_truth_for_several_seeds(seeds):
    draw = np.random.default_rng(0)
    held = 0
    for _ in range(300):
        chance_BQ = draw.beta(0.02, 1.98, (6, 30, 1))
        scores = (draw.random((6, 30, seeds)) < chance_BQ).astype(float)
        c = crossed(list(scores), fractions=True)
        held += c.low <= 0.01 <= c.high
    assert held > 0.95 * 300


def test_bootstrap():
    # a resample of {0, 1} has mean 0 (1/4), 1/2 (1/2), 1 (1/4): both tails reach the ends
    assert bootstrap([[0, 1]]) == (0.0, 1.0)
    # recorded: the raw PCG64 stream is stable, so a change here changes every table
    assert bootstrap([[i / 31 for i in range(32)]]) == (0.39818548387096775, 0.6038306451612903)


def test_sign_flips_counted_out():
    assert sign_flip_p([1, 2, 3]) == 0.25  # only +++ and --- reach 6: 2 of 8
    assert sign_flip_p([4, 1, 1, -1]) == 0.5  # sums 7 (1), 5 (3), 3 (3), 1 (1), each twice: 8 of 16 reach 5
    assert sign_flip_p([1, 2, -3]) == 1.0
    assert sign_flip_p([0, 0, 0.5]) == 1.0  # zeros say nothing; one difference alone never does
    assert sign_flip_p([0, 0]) == 1.0
    # 20 equal differences: the exact p is 2 / 2^20; drawn it is (1 + hits) / 10001 and never 0
    assert sign_flip_p([0.5] * 20) == pytest.approx(1 / 10001)


def test_paired_by_hand():
    # differences .5 0 .25: mean .25; squares .125; SE sqrt(.125 / 6) = .1443376; t(.975, 2) = 4.3026527
    d = paired({"a": 1, "b": 0.5, "c": 0.5}, {"c": 0.25, "b": 0.5, "a": 0.5})
    assert d.mean == pytest.approx(0.25)
    assert d.se == pytest.approx(0.1443376, abs=1e-7)
    assert d.high == pytest.approx(0.25 + 0.6210345, abs=1e-6)
    assert d.sign_flip == 0.5  # of the non-zero .5 and .25: +.75 and -.75 out of four sums


def test_paired_average_by_hand():
    # means .2 and .1, squared SEs .02 / 2 = .01 and .08 / 6 = .0133333: SE sqrt(.0233333) / 2 = .0763763
    # df = .0233333^2 / (.01^2 / 1 + .0133333^2 / 2) = 2.88235, t(.975) between t2 = 4.3027 and t3 = 3.1824
    # weighted: .025 .075 and -.0166667 .0166667 .05, sum .15 of .1833333 in all: a pattern is as extreme when what it
    # takes away is at most .0166667: none or one of the two small ones, both ways: 6 of 32
    c = paired_average([[0.1, 0.3], [-0.1, 0.1, 0.3]])
    assert c.mean == pytest.approx(0.15)
    assert c.se == pytest.approx(0.0763763, abs=1e-7)
    assert 3.1824 * 0.0763763 < c.high - c.mean < 4.3027 * 0.0763763
    assert c.mean - c.low == pytest.approx(c.high - c.mean)
    assert c.sign_flip == 6 / 32
    assert c.problems == 5


def test_holm_by_hand():
    # sorted .01 .03 .04 times 3 2 1 = .03 .06 .04, made monotone
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_pass_at_k_by_hand():
    # n = 4: c = 1 -> 1 - C(3,2)/C(4,2) = .5; c = 2 -> 1 - 1/6; c = 0 -> 0
    assert pass_at_k([[1, 0, 0, 0], [1, 1, 0, 0], [0] * 4], 2) == pytest.approx((0.5 + 5 / 6 + 0) / 3)
    assert pass_at_k([[0, 0, 0, 1]], 4) == 1.0


def test_missing_samples_never_flatter():
    assert math.isnan(pass_at_k([[1, NAN]], 1))
    assert math.isnan(pass_at_k([[1, 1]], 4))  # k above N
    assert math.isnan(majority_at_k([["3", "3"]], [[1, NAN]], 2))
    assert math.isnan(majority_at_k([["3", "3"]], [[1, 1]], 3))


def test_majority_by_hand():
    answers = [["3", "4", "4", None], ["7", "8", "7", "8"], [None] * 4]
    scores = [[1, 0, 0, 0], [1, 0, 1, 0], [0] * 4]
    # 4 leads and is wrong: 0; 7 and 8 tie: .5; no vote: 0
    assert majority_at_k(answers, scores, 4) == pytest.approx(0.5 / 3)
    # blocks of 2: (3 4 tie .5, 4 wrong 0) = .25; (7 8 tie .5, twice) = .5; 0
    assert majority_at_k(answers, scores, 2) == pytest.approx(0.75 / 3)
    assert majority_at_k(answers, scores, 1) == pytest.approx(clustered(scores).mean)


def test_variance_by_hand():
    # sample variances .5 0 0: within 1/6; means .5 1 0: variance .25; minus (1/6) / 2 = 1/6
    assert variance_components([[1, 0], [1, 1], [0, 0]]) == pytest.approx((1 / 6, 1 / 6))
    # alike problems: the means differ by less than chance alone gives
    assert variance_components([[1, 0], [0, 1]])[1] == 0.0
    # within 1/6, over 3 x 2 samples 1/36
    assert sampling_se([[1, 0], [1, 1], [0, 0]]) == pytest.approx(1 / 6)
    assert math.isnan(sampling_se([[1, NAN], [1, 1]]))


def test_draws_of_two_clusters_and_their_chances():
    """Clusters (1, 10) and (3, 0): the four draws give (2, 20), (4, 10) twice, (6, 0)."""
    drawn = resampled_sums([[1, 10], [3, 0]], resamples=40_000)
    kinds, counts = np.unique(drawn, axis=0, return_counts=True)
    assert kinds.tolist() == [[2, 20], [4, 10], [6, 0]]
    # standard errors of the shares 1/4 and 1/2: 0.0022 and 0.0025
    np.testing.assert_allclose(counts / 40_000, [0.25, 0.5, 0.25], atol=0.0125)


def test_sums_over_draws_do_not_depend_on_the_number_of_threads():
    """A library of matrix products splits long sums among its threads; a table made of them would differ by machine."""
    code = (
        "import hashlib, numpy as np; from stapo_results.resampling import resampled_sums; "
        "v = 1 / np.arange(3.0, 3 + 379 * 14).reshape(379, 14); "
        "print(hashlib.sha256(resampled_sums(v, resamples=2000).tobytes()).hexdigest())"
    )
    said = set()
    for threads in ("1", "3"):
        environment = os.environ | {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
        said.add(done.stdout)
    assert len(said) == 1


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
    assert (c.mean - c.low, c.high) == (pytest.approx(0.64789, abs=1e-5), 1.0)


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


@pytest.mark.parametrize(
    ("seeds", "spread", "least", "most"), [(2, 0.06, 93.5, 96.5), (2, 0.7, 86.0, 89.5), (3, 0.6, 91.0, 94.5)]
)
def test_how_often_the_interval_holds_the_truth(seeds, spread, least, most):
    """What docs/statistics.md says of coverage. 64 problems with a spread of 1: the standard error over
    problems is 0.125, over seeds a third of it, four and three times as much."""
    draw = np.random.default_rng(0)
    tables = draw.standard_normal((3000, 64, 1)) + spread * draw.standard_normal((3000, 1, seeds))
    held = [c.low <= 0 <= c.high for c in (crossed([t]) for t in tables)]
    assert least < 100 * np.mean(held) < most


def test_drawn_signs_are_the_bits_of_the_stream():
    """Eight problems are summed at once; here every sign is one bit by itself."""
    d = np.array([(-1) ** i * (i % 7 + 1) / 8 for i in range(83)]) + 0.09
    resamples, words = 4000, 2  # 83 signs need 11 bytes: two words of 8
    raw = np.random.PCG64(0).random_raw(resamples * words)
    bits = (raw.reshape(resamples, words, 1) >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    signs = 1 - 2 * bits.reshape(resamples, 64 * words)[:, :83].astype(int)
    hits = int(np.sum(np.abs(signs @ d) >= abs(d.sum()) - 1e-9))
    assert 0 < hits < resamples
    assert sign_flip_p(d, resamples=resamples) == (1 + hits) / (1 + resamples)


def test_over_seeds_by_hand():
    # .1 .2 .6: mean .3, squares .14, variance of the mean .14 / 6; t(.975, 2) = 4.3026527
    c = over_seeds([0.1, 0.2, 0.6])
    assert [(n.low, n.high) for n in (c.within(0, 1), c.within(-1, 0.9))] == [(0.0, c.high), (c.low, 0.9)]
    assert not over_seeds([0.5]).within(0, 1).has_interval
    assert c.se == pytest.approx(0.15275252)
    assert (c.low, c.high) == (pytest.approx(0.3 - 0.6572410, abs=1e-6), pytest.approx(0.3 + 0.6572410, abs=1e-6))
    # seeds 0 and 2: mean 1, SE 1, one degree of freedom: P(|t| > 1) = 1/2
    assert [over_seeds(values).p for values in ([0.0, 2.0], [0.5, 0.5], [0.0, 0.0])] == [pytest.approx(0.5), 0.0, 1.0]
    for one in (over_seeds([0.5]), crossed([[[0.25], [0.75]]])):
        assert one.mean == 0.5
        assert all(math.isnan(x) for x in (one.se, one.low, one.high, one.df, one.p))


@pytest.mark.parametrize(
    "call",
    [
        lambda: clustered([]),
        lambda: clustered([[50.0, 60.0]]),
        lambda: over_seeds([0.1, NAN]),
        lambda: paired({"a": 1, "b": 0}, {"a": 1}),
        lambda: crossed([]),
        lambda: crossed([[[0.5, 0.5]], [[0.5]]]),
        lambda: crossed([[[0.5, NAN]]]),
    ],
)
def test_scores_that_would_mislead_are_refused(call):
    with pytest.raises(BadInput):
        call()
