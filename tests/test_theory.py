"""The paper's formulas against numbers by hand, autograd, finite steps and every distribution hypothesis finds."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stapo_training.selection.objectives import clipped_surrogate
from stapo_training.theory.formulas import (
    Distributions,
    c_v,
    entropy,
    entropy_gradient,
    lemma_terms,
    lower_factor,
    natural_step,
    norm_factor,
    norm_factors,
    softmax,
    target_logprob,
    upper_factor,
    weight,
)
from stapo_training.token_log.rows import norm_factor as norm_factor_as_printed

LN2 = math.log(2)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def of(*probabilities: float) -> Distributions:
    """One distribution with these probabilities."""
    return softmax(tensor(*probabilities).log()[None])


def close(found: torch.Tensor | float, expected: torch.Tensor | float, rtol: float = 1e-12) -> None:
    found, expected = (torch.as_tensor(x, dtype=torch.float64) for x in (found, expected))
    torch.testing.assert_close(found, expected, rtol=rtol, atol=1e-300)


# three quarters and one quarter: H = 2 ln 2 - 0.75 ln 3, sum of squares 10/16
H_QUARTER = 2 * LN2 - 0.75 * math.log(3)


def test_statistics_by_hand() -> None:
    d = of(0.75, 0.25)
    close(d.entropy_N, tensor(H_QUARTER), 1e-14)
    close(d.collision_N, tensor(0.625))
    close(d.complement_NV, tensor(0.25, 0.75)[None])
    masked = softmax(tensor(0.0, 0.0, -math.inf)[None])
    close(masked.entropy_N, tensor(LN2))
    close(masked.probability_NV, tensor(0.5, 0.5, 0.0)[None])


def test_what_is_left_next_to_a_certain_token_keeps_its_digits() -> None:
    d = softmax(tensor(0.0, -50.0, -60.0)[None])
    rest = math.exp(-50) + math.exp(-60)
    close(d.complement_NV[0, 0], rest)
    close(d.entropy_N, tensor(rest + 50 * math.exp(-50) + 60 * math.exp(-60)))
    close(norm_factor(d, torch.tensor([0])), tensor(rest**2 + math.exp(-100) + math.exp(-120)))
    printed = norm_factor_as_printed(d.logprob_NV[0, :1].numpy(), d.collision_N.numpy())
    assert float(printed[0]) == 0.0  # the printed form has none left


@pytest.mark.parametrize(
    ("probabilities", "target", "factor"),
    [
        ((0.75, 0.25), 0, 0.125),  # 0.25^2 + 0.25^2
        ((0.75, 0.25), 1, 1.125),
        ((0.5, 0.3, 0.2), 2, 0.98),  # 0.8^2 + 0.5^2 + 0.3^2
        ((0.5, 0.3, 0.2), 0, 0.38),
    ],
)
def test_decomposition_by_hand(probabilities: tuple[float, ...], target: int, factor: float) -> None:
    d = of(*probabilities)
    close(norm_factor(d, torch.tensor([target])), tensor(factor))
    printed = norm_factor_as_printed(d.logprob_NV[0, target : target + 1].numpy(), d.collision_N.numpy())
    close(torch.from_numpy(printed), tensor(factor))
    close(norm_factors(d)[:, target], tensor(factor))


def test_weights_by_hand() -> None:
    # (rho, A, w) with clip 0.2 and 0.28: inside, above and below it, for both signs
    cases = [(1.0, 2.0, 2.0), (1.3, 2.0, 0.0), (1.27, 2.0, 2.54), (0.5, 2.0, 1.0)]
    cases += [(0.79, -1.0, 0.0), (0.81, -1.0, -0.81), (3.0, -1.0, -3.0), (1.0, 0.0, 0.0)]
    ratio, advantage, expected = (tensor(*x) for x in zip(*cases, strict=True))
    close(weight(ratio.log(), torch.zeros_like(ratio), advantage, 0.2, 0.28), expected)


def test_bounds_by_hand() -> None:
    close(c_v(2), 1 / (2 * LN2**2))
    close(c_v(4), 3 / (4 * (2 * LN2) ** 2))
    gap, h = tensor(0.75), tensor(H_QUARTER)  # the token with probability 0.25
    close(lower_factor(gap, h), 0.5 + tensor(0.75**0.75 * 0.25**0.25))
    close(upper_factor(gap, h, 2), 1.5 - tensor(H_QUARTER**2 / (2 * LN2**2)))


@pytest.mark.parametrize("vocabulary", [2, 151_936])
def test_a_uniform_distribution_attains_both_bounds(vocabulary: int) -> None:
    d = softmax(torch.zeros(1, vocabulary))
    value, gap = norm_factor(d, torch.tensor([0])), d.complement_NV[:, 0]
    close(value, tensor(1 - 1 / vocabulary))
    close(lower_factor(gap, d.entropy_N), value, 1e-14)
    close(upper_factor(gap, d.entropy_N, vocabulary), value, 1e-14)


def logits(vocabulary: int, spread: float, seed: int, ties: bool) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    drawn = spread * torch.randn(1, vocabulary, generator=g, dtype=torch.float64)
    return drawn.round() if ties else drawn


drawn = st.builds(
    logits,
    st.integers(2, 400) | st.just(5_000),
    st.sampled_from([0.0, 1e-6, 0.1, 1.0, 5.0, 40.0, 1e4]),
    st.integers(0, 10**6),
    st.booleans(),
)


@settings(max_examples=150)
@given(drawn, st.integers(0, 10**6))
def test_the_bounds_hold_everywhere(logits_1V: torch.Tensor, at: int) -> None:
    d = softmax(logits_1V)
    target = torch.tensor([at % d.vocabulary])
    value, gap = norm_factor(d, target), d.complement_NV[:, target[0]]
    torch.testing.assert_close(norm_factors(d)[:, target[0]], value, rtol=1e-9, atol=1e-300)
    assert float(lower_factor(gap, d.entropy_N) - value) <= 1e-12 * float(value)
    assert float(value - upper_factor(gap, d.entropy_N, d.vocabulary)) <= 1e-12 * float(value)


@settings(max_examples=100)
@given(
    st.builds(logits, st.integers(2, 300), st.sampled_from([0.1, 1.0, 5.0]), st.integers(0, 10**6), st.booleans()),
    st.integers(0, 10**6),
    st.sampled_from([0.3, 0.79, 0.81, 1.0, 1.27, 1.29, 4.0]),
    st.sampled_from([-2.47, -0.35, 0.0, 0.94, 2.47]),
)
def test_the_decomposition_equals_autograd_through_log_softmax(
    logits_1V: torch.Tensor, at: int, ratio: float, advantage: float
) -> None:
    a = logits_1V.clone().requires_grad_()
    target = torch.tensor([at % a.shape[-1]])
    logprob = a.log_softmax(-1)[:, target[0]]
    old = logprob.detach() - math.log(ratio)
    (gradient,) = torch.autograd.grad(-clipped_surrogate(logprob, old, tensor(advantage), 0.2, 0.28).sum(), a)
    w = weight(logprob.detach(), old, tensor(advantage), 0.2, 0.28)
    close(w.square() * norm_factor(softmax(logits_1V), target), gradient.square().sum(-1), 1e-8)


@given(drawn, st.integers(0, 10**6))
def test_the_differentiable_forms_are_the_same_numbers(logits_1V: torch.Tensor, at: int) -> None:
    d, target = softmax(logits_1V), torch.tensor([at % logits_1V.shape[-1]])
    torch.testing.assert_close(entropy(logits_1V), d.entropy_N, rtol=1e-9, atol=1e-300)
    torch.testing.assert_close(target_logprob(logits_1V, target), d.logprob_NV[:, target[0]], rtol=1e-9, atol=1e-300)


# dH/da of two tokens with p, q: -+ p q ln(p / q); here 0.75 x 0.25 x ln 3
SLOPE = 0.1875 * math.log(3)


def test_entropy_changes_by_hand() -> None:
    d = of(0.75, 0.25)
    close(entropy_gradient(d), tensor(-SLOPE, SLOPE)[None])
    advantage = tensor(1.0, -1.0)[None]  # mean 0.5
    close(natural_step(d, advantage), tensor(0.5, -1.5)[None])
    close(lemma_terms(d, advantage), tensor(-0.5 * SLOPE, -1.5 * SLOPE)[None])


def test_the_step_is_the_natural_gradient() -> None:
    """The Fisher matrix's pseudo-inverse gives the same step up to a constant, which moves no probability."""
    g = torch.Generator().manual_seed(1)
    d = softmax(torch.randn(1, 6, generator=g, dtype=torch.float64))
    advantage = torch.randn(1, 6, generator=g, dtype=torch.float64)
    p = d.probability_NV[0]
    gradient = p * (advantage[0] - p @ advantage[0])
    minimal = torch.linalg.pinv(torch.diag(p) - torch.outer(p, p)) @ gradient
    step = natural_step(d, advantage)[0]
    torch.testing.assert_close(minimal, step - step.mean(), rtol=0, atol=1e-12)
    total = lemma_terms(d, advantage).sum()
    close(total, entropy_gradient(d)[0] @ minimal, 1e-10)
    covariance = p @ (d.logprob_NV[0] * advantage[0]) - (p @ d.logprob_NV[0]) * (p @ advantage[0])
    close(total, -covariance, 1e-10)
