"""The paper's formulas about one token, as pure functions in float64 whose small numbers keep their digits.

Near p = 1 the difference 1 - p cancels to nothing. So 1 - p is the sum of the other tokens' probabilities, without the
most probable token.

Every squared norm is |w|^2 times a factor that the distribution alone decides; the functions give the factor. What the
paper assumes without saying so: J is one token's clipped surrogate, without KL term and without the normaliser (a
constant factor); the logits are those that the softmax sees, after the temperature; the old policy, the advantage and
the mask are constants.

Lemma lemma:entropy_pg_general is about one context by itself, whose logits are the parameters; results are for a step
of size 1 (the derivative): a step of size eta changes the entropy by eta times it, up to eta^2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from stapo_training.token_log.rows import clipped


@dataclass(frozen=True)
class Distributions:
    """N softmax distributions over V tokens, float64.

    logprob_NV: log pi, nats. probability_NV: pi. complement_NV: 1 - pi. entropy_N: Shannon's, nats. collision_N: sum of
    pi^2.
    """

    logprob_NV: torch.Tensor
    probability_NV: torch.Tensor
    complement_NV: torch.Tensor
    entropy_N: torch.Tensor
    collision_N: torch.Tensor


def _relative_to_top(logits_NV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(logits less the largest (N, V), index of the largest (N, 1), sum of exp over the others (N, 1))."""
    top_N1 = logits_NV.detach().argmax(-1, keepdim=True)
    y_NV = logits_NV - logits_NV.gather(-1, top_N1)
    others_N1 = y_NV.exp().scatter(-1, top_N1, 0.0).sum(-1, keepdim=True)
    return y_NV, top_N1, others_N1


def softmax(logits_NV: torch.Tensor) -> Distributions:
    """The distributions of logits (N, V) and their statistics, in float64. A logit of -inf is a probability of 0."""
    y_NV, top_N1, others_N1 = _relative_to_top(logits_NV.double())
    logprob_NV = y_NV - others_N1.log1p()
    probability_NV = logprob_NV.exp()
    complement_NV = (-logprob_NV.expm1()).scatter(-1, top_N1, others_N1 / (1 + others_N1))
    information_NV = torch.where(probability_NV > 0, probability_NV * logprob_NV, 0.0)
    return Distributions(
        logprob_NV,
        probability_NV,
        complement_NV,
        0.0 - information_NV.sum(-1),
        probability_NV.square().sum(-1),
    )


def entropy(logits_NV: torch.Tensor) -> torch.Tensor:
    """The entropy (N,) in nats as a function that autograd differentiates; the logits are finite.

    With y = a - a_top and S the sum of exp y over the others: log(1 + S) - (sum of y exp y) / (1 + S).
    """
    y_NV, top_N1, others_N1 = _relative_to_top(logits_NV)
    # the top's own term is 0, but its derivative is not: it would drown those of the others
    moment_N1 = (y_NV * y_NV.exp()).scatter(-1, top_N1, 0.0).sum(-1, keepdim=True)
    return (others_N1.log1p() - moment_N1 / (1 + others_N1)).squeeze(-1)


def target_logprob(logits_NV: torch.Tensor, target_N: torch.Tensor) -> torch.Tensor:
    """log pi (N,) of one token of each distribution, differentiable, with its digits kept as pi -> 1.

    log pi_k = log sigmoid(a_k - logsumexp of the others). `log_softmax` gives 1 - pi_k in its gradient as a difference.
    """
    k_N1 = target_N.unsqueeze(-1)
    others_N = logits_NV.scatter(-1, k_N1, -torch.inf).logsumexp(-1)
    return F.logsigmoid(logits_NV.gather(-1, k_N1).squeeze(-1) - others_N)


def two_level(
    vocabulary: int, count_M: torch.Tensor, mass_M: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(entropy, collision probability, impurity) (M,) of M two-valued distributions over the vocabulary.

    `count` tokens share `mass` equally, the others share the rest: with the uniform ones the only kind of stationary
    point that the proof of the upper bound has to exclude (app:grad_bounds_proof).
    """
    count_M, mass_M = count_M.double(), mass_M.double()
    rest_M, others_M = 1 - mass_M, vocabulary - count_M
    entropy_M = -(torch.xlogy(mass_M, mass_M / count_M) + torch.xlogy(rest_M, rest_M / others_M))
    collision_M = mass_M.square() / count_M + rest_M.square() / others_M
    impurity_M = mass_M * (1 - mass_M / count_M) + rest_M * (1 - rest_M / others_M)
    return entropy_M, collision_M, impurity_M


def weight(
    logprob_N: torch.Tensor, old_logprob_N: torch.Tensor, advantage_N: torch.Tensor, low: float, high: float
) -> torch.Tensor:
    """The weight w (N,) of Theorem prop:grad_bounds: rho A, and 0 where the clip cuts the gradient off.

    w = 0 for A > 0 and rho > 1 + high, or A < 0 and rho < 1 - low. Lemma lem:grad_norm_decomp prints one epsilon for
    both (GRPO's clip). At the edge itself J has a kink; the paper takes the unclipped side.
    """
    ratio_N = (logprob_N - old_logprob_N).exp()
    cut_N = torch.from_numpy(clipped(advantage_N.numpy(), ratio_N.numpy(), low, high))
    return torch.where(cut_N, 0.0, ratio_N * advantage_N)


def norm_factor(d: Distributions) -> torch.Tensor:
    """||grad_a J||^2 / |w|^2 with every token as the target (N, V): (1 - p)^2 + sum of the other tokens' pi^2.

    Lemma lem:grad_norm_decomp, Eq. grad_norm_decomp, in the form of its proof's second line. Equal to 1 - 2 p + sum of
    pi^2 (`token_log.rows.norm_factor`), of which nothing is left at p -> 1 in finite precision. Its mean over tokens
    drawn from pi is 1 - sum of pi^2.
    """
    square_NV, top_N1 = d.probability_NV.square(), d.logprob_NV.argmax(-1, keepdim=True)
    others_N1 = square_NV.scatter(-1, top_N1, 0.0).sum(-1, keepdim=True)
    rest_NV = (d.collision_N.unsqueeze(-1) - square_NV).scatter(-1, top_N1, others_N1)
    return d.complement_NV.square() + rest_NV


def c_v(vocabulary: int) -> float:
    """C_V = (V - 1) / (V (ln V)^2) of Theorem prop:grad_bounds; the largest constant with which the bound holds, since
    the uniform distribution attains it. V is 2 or more.
    """
    return (vocabulary - 1) / (vocabulary * math.log(vocabulary) ** 2)


def lower_factor(complement_N: torch.Tensor, entropy_N: torch.Tensor) -> torch.Tensor:
    """1 - 2 p + e^-H (N,), Theorem prop:grad_bounds, from 1 - p and H. Says nothing where it is below 0."""
    return 2 * complement_N + torch.expm1(-entropy_N)


def upper_factor(complement_N: torch.Tensor, entropy_N: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """2 - 2 p - C_V H^2 (N,), Theorem prop:grad_bounds, from 1 - p and H."""
    return 2 * complement_N - c_v(vocabulary) * entropy_N.square()


def natural_step(d: Distributions, advantage_NV: torch.Tensor) -> torch.Tensor:
    """The natural gradient of E[A] in the logits (N, V): A - E[A].

    It solves F x = grad with F = diag(pi) - pi pi^T. So does every x + c; the lemma's terms belong to this choice,
    their sum to all.
    """
    return advantage_NV - (d.probability_NV * advantage_NV).sum(-1, keepdim=True)


def lemma_terms(d: Distributions, advantage_NV: torch.Tensor) -> torch.Tensor:
    """The right side of Lemma lemma:entropy_pg_general for every token (N, V), per unit of eta:
    -pi (log pi - E[log pi]) (A - E[A]).

    Assumes an advantage for every token of the vocabulary. The first three factors are dH/da, positive for tokens rarer
    than e^-H. The terms' sum, -Cov(log pi, A), is the derivative along `natural_step`; one term is the part that moves
    through that token's own logit.
    """
    gradient_NV = -d.probability_NV * (d.logprob_NV + d.entropy_N.unsqueeze(-1))
    return gradient_NV * natural_step(d, advantage_NV)
