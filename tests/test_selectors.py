"""Selectors against numbers worked out by hand, and the properties that no example shows."""

import itertools
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stapo_results import token_log
from stapo_results.errors import BadInput
from stapo_training.methods import SELECTORS, SelectorConfig, selector_from
from stapo_training.selection.selectors import (
    Selection,
    keep_all,
    quantile,
    silence_high_entropy,
    silence_low_probability,
    silence_random,
    silence_spurious,
    silence_spurious_wrong,
    top_entropy,
)
from stapo_training.selection.token_stats import TokenStats

ROOT = Path(__file__).parents[1]


def stats(p: list[float], h: list[float], a: list[float], r: list[int] | None = None, key=None) -> TokenStats:
    return TokenStats(
        logprob_N=torch.tensor(p).log(),
        entropy_N=torch.tensor(h),
        advantage_N=torch.tensor(a),
        response_N=torch.tensor(r if r is not None else [1] * len(p), dtype=torch.bool),
        key_N=None if key is None else torch.tensor(key, dtype=torch.float64),
    )


def kept(selection: Selection) -> list[int]:
    return selection.keep_N.int().tolist()


# tokens 0 to 3 are right responses' candidates, 5 to 8 wrong ones'; 4 is too probable, 10 has no advantage, 11 is
# outside the response. The 0.75-quantile of 0.1, 0.2, 0.3, 0.5 is 0.3 + 0.25 x 0.2 = 0.35, the 0.25-quantile 0.175.
P = [0.001, 0.0015, 0.0001, 0.0019, 0.00201, 0.001, 0.0015, 0.0001, 0.0019, 0.9, 0.001, 0.001]
H = [0.1, 0.2, 0.3, 0.5, 0.01, 0.1, 0.2, 0.3, 0.5, 0.01, 0.01, 9.0]
ADVANTAGE = [0.5] * 5 + [-0.5] * 4 + [0.5, 0.0, 0.5]
RESPONSE = [1] * 11 + [0]
KEY = [0.9, 0.2, 0.4, 0.1, *[0.01] * 8]
RIGHT, WRONG, NEITHER = {0, 1, 2, 3}, {5, 6, 7, 8}, set()
BY_HAND = {  # name -> candidates, silenced, threshold
    "keep_all": (NEITHER, NEITHER, -math.inf),
    "silence_spurious": (RIGHT, {0, 1, 2}, 0.35),
    "silence_spurious_wrong": (WRONG, {5, 6, 7}, 0.35),
    "silence_low_probability": (RIGHT, RIGHT, math.inf),
    "silence_high_entropy": (RIGHT, {1, 2, 3}, 0.175),
    "silence_random": (RIGHT, {1, 2, 3}, 0.9),  # the floor(0.75 x 4) smallest keys
    "top_entropy": (set(range(11)), set(range(11)) - {2, 3, 7, 8}, 0.3),  # 0.2 x 11 is three; two tie with the third
}


@pytest.mark.parametrize("name", SELECTORS)
def test_every_selector_by_hand_with_its_parameters_from_the_configuration(name: str) -> None:
    tokens = stats(P, H, ADVANTAGE, RESPONSE, KEY)
    chosen = SelectorConfig(name=name, tau_p=0.002, q=0.75, share=0.2).select(tokens)
    candidates, silenced, threshold = BY_HAND[name]
    assert set(chosen.candidate_N.nonzero().flatten().tolist()) == candidates
    assert set((tokens.response_N & ~chosen.keep_N).nonzero().flatten().tolist()) == silenced
    assert chosen.threshold == pytest.approx(threshold, abs=1e-7)
    assert not chosen.keep_N[11]


def test_the_tokens_of_the_quantile_by_hand() -> None:
    """Two rare tokens of a right response with A > 0, and three of one whose prompt has right responses alone (A = 0).
    The median of {0.2, 0.4} is 0.3; that of {0.2, 0.4, 0.5, 0.6, 0.7} is 0.5; of these A > 0 has 0.2 and 0.4."""
    five = [0.001] * 5
    s = replace(stats(five, [0.2, 0.4, 0.5, 0.6, 0.7], [0.5, 0.5, 0.0, 0.0, 0.0]), right_N=torch.ones(5) > 0)
    found = {
        (name, among): SelectorConfig(name=name, tau_p=0.002, q=0.5, among=among).select(s)
        for name in ("silence_spurious", "silence_high_entropy")
        for among in ("positive", "right")
    }
    assert {k: (kept(v), v.threshold) for k, v in found.items()} == {
        ("silence_spurious", "positive"): ([0, 1, 1, 1, 1], pytest.approx(0.3)),
        ("silence_spurious", "right"): ([0, 0, 1, 1, 1], pytest.approx(0.5)),
        ("silence_high_entropy", "positive"): ([1, 0, 1, 1, 1], pytest.approx(0.3)),
        ("silence_high_entropy", "right"): ([1, 1, 1, 1, 1], pytest.approx(0.5)),
    }
    assert all(v.candidate_N.tolist() == [True, True, False, False, False] for v in found.values())
    with pytest.raises(ValueError, match="right_N"):
        silence_spurious(stats(five, five, five), tau_p=0.002, q=0.5, among="right")


def test_the_pages_effect_of_the_tokens_of_the_quantile() -> None:
    """From bins, at their middles: rare are those below log10 p = -2.75, the edge under tau_p."""
    log = token_log.read(ROOT / "results/records/miniature/train/stapo-s0")
    assert log is not None
    h = {name: log.histogram[name].to_numpy() for name in token_log.HISTOGRAM}
    rare, middle = h["log10_p"] < np.searchsorted(token_log.LOG10_P_EDGES, -2.75), token_log.ENTROPY_EDGES + 0.0625
    for first, last in ((1, 5), (6, 15), (16, 30)):
        distances, moved, candidates = [], 0, 0
        for step, number in itertools.product(range(first, last + 1), range(1, 5)):
            here = rare & (h["step"] == step) & (h["mini_batch"] == number)
            positive, both = (
                np.repeat(middle[h["entropy"][at]], h["tokens"][at])
                for at in (here & (h["sign"] > 0), here & (h["sign"] >= 0))
            )
            if len(positive):
                one, other = np.quantile(positive, 0.75), np.quantile(both, 0.75)
                distances.append(abs(one - other))
                moved += ((positive < one) != (positive < other)).sum()
                candidates += len(positive)
        row = f"| {first} to {last} | {np.mean(distances):.2f} | {100 * moved / candidates:.1f} % |"
        assert row in (ROOT / "docs/methods.md").read_text()


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


def with_keys(tokens: list[tuple]) -> TokenStats:
    keys = [((7 * i + 3) % 41) / 41 for i in range(len(tokens))]  # all different
    return stats(*map(list, zip(*tokens, strict=True)), key=keys)


def selectors(q: float) -> list:
    return [
        partial(silence_spurious, tau_p=0.002, q=q),
        partial(silence_spurious_wrong, tau_p=0.002, q=q),
        partial(silence_high_entropy, tau_p=0.002, q=q),
        partial(silence_random, tau_p=0.002, q=q),
        partial(silence_low_probability, tau_p=0.002),
        partial(top_entropy, share=0.2),
        keep_all,
    ]


@given(TOKENS, st.randoms(use_true_random=False), st.floats(0, 1))
def test_order_decides_nothing(tokens, random, q) -> None:
    whole = with_keys(tokens)
    order = list(range(len(tokens)))
    random.shuffle(order)
    for select in selectors(q):
        straight = kept(select(whole))
        assert kept(select(whole.take(torch.tensor(order)))) == [straight[i] for i in order]


@given(TOKENS, st.integers(0, 40), st.floats(0, 1))
def test_ranks_decide_nothing(tokens, cut, q) -> None:
    """Two ranks that pool decide as one rank that holds all tokens."""
    whole = with_keys(tokens)
    cut = min(cut, len(tokens))
    for select in selectors(q):
        pooled: list[torch.Tensor] = []
        expected = select(whole, pool=lambda v, pooled=pooled: pooled.append(v) or v)
        parts = [
            select(whole.take(part), pool=lambda v, pooled=pooled: pooled[0])
            for part in (slice(0, cut), slice(cut, None))
        ]
        assert kept(parts[0]) + kept(parts[1]) == kept(expected)


FOUR = {"p": [0.001] * 4, "h": [0.1, 0.2, 0.3, 0.5], "a": [1.0] * 4}


def test_the_random_ablation_by_hand() -> None:
    s = stats(**FOUR, key=[0.9, 0.2, 0.4, 0.1])
    assert kept(silence_random(s, tau_p=0.002, q=0.5)) == [1, 0, 1, 0]  # the two smallest keys
    assert kept(silence_random(s, tau_p=0.002, q=0.74)) == [1, 0, 1, 0]  # floor(2.96) = 2
    with pytest.raises(ValueError, match="key_N"):
        silence_random(stats(**FOUR), tau_p=0.002, q=0.5)


@pytest.mark.parametrize("select", [silence_spurious, silence_high_entropy, silence_random])
def test_degenerate_cases(select) -> None:
    def run(p: list[float], h: list[float], a: list[float], q: float) -> list[int]:
        return kept(select(stats(p, h, a, key=[0.1 * (i + 1) for i in range(len(p))]), tau_p=0.002, q=q))

    assert run([0.5, 0.5], [0.1, 0.2], [1.0, 1.0], 0.75) == [1, 1]  # no candidate
    assert run([0.001] * 2, [0.1, 0.2], [-1.0] * 2, 0.75) == [1, 1]  # no correct response
    assert run([0.001, 0.9], [0.1, 0.2], [1.0] * 2, 0.75) == [1, 1]  # one candidate: floor(0.75) = 0 silenced
    assert run([0.001] * 3, [0.1, 0.2, 0.3], [1.0] * 3, 0.0) == [1, 1, 1]
    assert run([0.001] * 3, [0.1, 0.2, 0.3], [1.0] * 3, 1.0) == [0, 0, 0]
    nothing = select(stats([0.5], [0.1], [1.0], key=[0.5]), tau_p=0.002, q=0.75)
    assert math.isinf(nothing.threshold)
    if select is not silence_random:
        assert run([0.001] * 4, [0.2] * 4, [1.0] * 4, 0.75) == [1, 1, 1, 1]  # ties


def test_a_value_that_is_not_finite_is_an_error_that_names_the_place() -> None:
    bad = stats([0.5, 0.5], [0.1, math.nan], [1.0, 1.0])
    problem = bad.problem("step 3 on rank 1")
    assert problem is not None
    assert "step 3 on rank 1: the entropy of 1 " in str(problem)
    padding = stats([0.5, 0.5], [0.1, math.nan], [1.0, 1.0], [1, 0])
    assert padding.problem("padding may hold anything") is None


@pytest.mark.parametrize(
    "config",
    [
        {"name": "s2t"},
        {"name": "keep_all", "tau": 0.1},
        {"name": "keep_all", "tau_p": 0},
        {"name": "silence_spurious", "scope": "micro_batch"},
        {"name": "silence_spurious", "among": "wrong"},
        {"name": "silence_spurious", "policy": "rollout"},
    ],
)
def test_a_wrong_selector_is_refused_by_key(config: dict) -> None:
    with pytest.raises(BadInput) as caught:
        selector_from(config)
    assert "actor_rollout_ref.selector." in str(caught.value)
