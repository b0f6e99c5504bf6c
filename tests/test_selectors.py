"""Selectors against numbers worked out by hand, and the properties that no example shows."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stapo_results.errors import BadInput, RunFailed
from stapo_training.methods import selector_from
from stapo_training.selectors import (
    Selection,
    keep_all,
    quantile,
    silence_spurious,
    top_entropy,
)
from stapo_training.token_stats import TokenStats


def stats(p: list[float], h: list[float], a: list[float], r: list[int] | None = None) -> TokenStats:
    return TokenStats(
        logprob_N=torch.tensor(p).log(),
        entropy_N=torch.tensor(h),
        advantage_N=torch.tensor(a),
        response_N=torch.tensor(r if r is not None else [1] * len(p), dtype=torch.bool),
    )


def kept(selection: Selection) -> list[int]:
    return selection.keep_N.int().tolist()


def test_s2t_by_hand() -> None:
    # tokens 0-3 are candidates with entropies 0.1, 0.2, 0.3, 0.5: the 0.75-quantile is 0.3 + 0.25 * 0.2 = 0.35
    s = stats(
        p=[0.001, 0.0015, 0.0001, 0.0019, 0.00201, 0.001, 0.9, 0.001],
        h=[0.1, 0.2, 0.3, 0.5, 0.01, 0.01, 0.01, 0.01],
        a=[0.5, 0.5, 0.5, 0.5, 0.5, -0.5, 0.5, 0.0],
    )
    chosen = silence_spurious(s, tau_p=0.002, q=0.75)
    assert chosen.candidate_N.int().tolist() == [1, 1, 1, 1, 0, 0, 0, 0]  # p < tau_p and A > 0
    assert chosen.threshold == pytest.approx(0.35, abs=1e-7)
    assert kept(chosen) == [0, 0, 0, 1, 1, 1, 1, 1]


def test_a_token_outside_the_response_is_neither_candidate_nor_kept() -> None:
    s = stats([0.001, 0.001], [0.1, 0.2], [1.0, 1.0], [0, 1])
    chosen = silence_spurious(s, tau_p=0.002, q=1.0)
    assert chosen.candidate_N.int().tolist() == [0, 1]
    assert kept(chosen) == [0, 0]


@pytest.mark.parametrize(
    ("q", "expected"),
    [
        (0.0, [1, 1, 1]),  # threshold -inf: nothing
        (1.0, [0, 0, 0]),  # threshold +inf: every candidate (FullMask)
        (0.5, [0, 1, 1]),  # median 0.2; strictly below it
    ],
)
def test_ends_and_middle_of_q(q: float, expected: list[int]) -> None:
    s = stats([0.001] * 3, [0.1, 0.2, 0.3], [1.0] * 3)
    assert kept(silence_spurious(s, tau_p=0.002, q=q)) == expected


def test_no_candidate_silences_nothing() -> None:
    s = stats([0.5, 0.5], [0.1, 0.2], [1.0, 1.0])
    chosen = silence_spurious(s, tau_p=0.002, q=0.75)
    assert kept(chosen) == [1, 1]
    assert chosen.threshold == -math.inf


def test_no_correct_response_silences_nothing() -> None:
    assert kept(silence_spurious(stats([0.001] * 2, [0.1, 0.2], [-1.0] * 2), tau_p=0.002, q=0.75)) == [1, 1]


def test_one_candidate_is_kept() -> None:
    assert kept(silence_spurious(stats([0.001, 0.9], [0.1, 0.2], [1.0] * 2), tau_p=0.002, q=0.75)) == [1, 1]


def test_ties_at_the_quantile_are_kept() -> None:
    assert kept(silence_spurious(stats([0.001] * 4, [0.2] * 4, [1.0] * 4), tau_p=0.002, q=0.75)) == [1, 1, 1, 1]


def test_a_response_can_be_silenced_whole() -> None:
    s = stats([0.001, 0.001, 0.001], [0.1, 0.1, 0.9], [1.0] * 3)
    assert kept(silence_spurious(s, tau_p=0.002, q=0.75)) == [0, 0, 1]  # quantile 0.5 of {0.1, 0.1, 0.9}: 0.5


def test_top_entropy_by_hand() -> None:
    h = [0.9, 0.1, 0.5, 0.3, 0.7, 0.2, 0.6, 0.4, 0.8, 0.05]
    assert kept(top_entropy(stats([0.5] * 10, h, [1.0] * 10), share=0.2)) == [1, 0, 0, 0, 0, 0, 0, 0, 1, 0]
    # 0.2 of 6 tokens is 1.2: two are kept
    assert sum(kept(top_entropy(stats([0.5] * 6, h[:6], [1.0] * 6), share=0.2))) == 2
    # exactly a fifth is not rounded up by floating point
    assert sum(kept(top_entropy(stats([0.5] * 5, h[:5], [1.0] * 5), share=0.2))) == 1
    assert sum(kept(top_entropy(stats([0.5], [0.3], [1.0]), share=0.2))) == 1


def test_top_entropy_ranks_response_tokens_only_and_keeps_ties() -> None:
    s = stats([0.5] * 5, [9.0, 0.4, 0.4, 0.1, 0.2], [1.0] * 5, [0, 1, 1, 1, 1])
    assert kept(top_entropy(s, share=0.25)) == [0, 1, 1, 0, 0]


def test_keep_all_is_the_response() -> None:
    assert kept(keep_all(stats([0.001] * 3, [0.1] * 3, [1.0] * 3, [1, 0, 1]))) == [1, 0, 1]


@given(st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=60), st.floats(0.001, 0.999))
def test_quantile_is_numpys(values: list[float], q: float) -> None:
    expected = float(np.quantile(np.array(values, dtype=np.float64), q))
    assert quantile(torch.tensor(values, dtype=torch.float32), q) == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_quantile_beyond_the_limit_of_torch() -> None:
    n = 2**24 + 3  # torch.quantile refuses more than 2**24 values
    values = torch.arange(n, dtype=torch.float64).flip(0)
    assert quantile(values, 0.75) == 0.75 * (n - 1)


TOKENS = st.lists(
    st.tuples(
        st.sampled_from([0.0005, 0.001, 0.0019, 0.002, 0.1, 0.9]),
        st.floats(0, 5, width=32),
        st.sampled_from([-1.0, 0.0, 1.0]),
        st.booleans(),
    ),
    min_size=1,
    max_size=40,
)


@given(TOKENS, st.randoms(use_true_random=False), st.floats(0, 1))
def test_order_decides_nothing(tokens, random, q) -> None:
    order = list(range(len(tokens)))
    random.shuffle(order)
    for select in (lambda s: silence_spurious(s, tau_p=0.002, q=q), lambda s: top_entropy(s, share=0.2)):
        straight = kept(select(stats(*map(list, zip(*tokens, strict=True)))))
        shuffled = kept(select(stats(*map(list, zip(*(tokens[i] for i in order), strict=True)))))
        assert shuffled == [straight[i] for i in order]


@given(TOKENS, st.integers(0, 40), st.floats(0, 1))
def test_ranks_decide_nothing(tokens, cut, q) -> None:
    """Two ranks that pool their candidates decide as one rank that holds all tokens."""
    whole = stats(*map(list, zip(*tokens, strict=True)))
    cut = min(cut, len(tokens))
    halves = [
        TokenStats(whole.logprob_N[s], whole.entropy_N[s], whole.advantage_N[s], whole.response_N[s])
        for s in (slice(0, cut), slice(cut, None))
    ]
    pooled = whole.entropy_N[silence_spurious(whole, tau_p=0.002, q=q).candidate_N]
    parts = [kept(silence_spurious(h, tau_p=0.002, q=q, pool=lambda _: pooled)) for h in halves]
    assert parts[0] + parts[1] == kept(silence_spurious(whole, tau_p=0.002, q=q))


def test_a_value_that_is_not_finite_is_an_error_that_names_the_place() -> None:
    bad = stats([0.5, 0.5], [0.1, math.nan], [1.0, 1.0])
    with pytest.raises(RunFailed, match=r"(?s)step 3 on rank 1: the entropy of 1 response tokens is not finite.*next:"):
        bad.check("step 3 on rank 1")
    stats([0.5, 0.5], [0.1, math.nan], [1.0, 1.0], [1, 0]).check("padding may hold anything")


@pytest.mark.parametrize(
    "config",
    [
        {"name": "s2t"},
        {"name": "keep_all", "q": 1.5},
        {"name": "keep_all", "tau": 0.1},
        {"name": "keep_all", "tau_p": 0},
    ],
)
def test_a_wrong_selector_is_refused_by_key(config: dict) -> None:
    with pytest.raises(BadInput, match=r"actor_rollout_ref\.selector\."):
        selector_from(config)
