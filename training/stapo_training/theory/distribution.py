"""Softmax distributions in float64 whose small numbers keep their digits: 1 - p, entropy, collision probability.

The paper's statements are compared at p -> 1 too, where 1 - p taken as a difference has lost everything: here the most
probable token is set apart and the rest is summed by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Distributions:
    """N softmax distributions over V tokens, float64.

    logprob_NV: log pi, nats. probability_NV: pi. complement_NV: 1 - pi. entropy_N: Shannon's, nats. collision_N: sum of
    pi^2. impurity_N: 1 - sum of pi^2 (the proof's L, Gini impurity), summed as pi (1 - pi).
    """

    logprob_NV: torch.Tensor
    probability_NV: torch.Tensor
    complement_NV: torch.Tensor
    entropy_N: torch.Tensor
    collision_N: torch.Tensor
    impurity_N: torch.Tensor

    @property
    def vocabulary(self) -> int:
        """|V|, the number of logits that the softmax runs over."""
        return self.logprob_NV.shape[-1]


def _relative_to_top(logits_NV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(logits less the largest (N, V), index of the largest (N, 1), sum of exp over the others (N, 1))."""
    top_N1 = logits_NV.detach().argmax(-1, keepdim=True)
    y_NV = logits_NV - logits_NV.gather(-1, top_N1)
    others_N1 = y_NV.exp().scatter(-1, top_N1, 0.0).sum(-1, keepdim=True)
    return y_NV, top_N1, others_N1


def softmax(logits_NV: torch.Tensor) -> Distributions:
    """The distributions of logits (N, V) and their statistics, in float64. A logit of -inf is a probability of 0.

    Raises:
        ValueError: fewer than two tokens: C_V divides by (ln V)^2.
    """
    if logits_NV.shape[-1] < 2:
        raise ValueError(f"a vocabulary of {logits_NV.shape[-1]}; the statements need two tokens or more")
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
        (probability_NV * complement_NV).sum(-1),
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
