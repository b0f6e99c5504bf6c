"""How one policy gradient step changes the entropy of a distribution, to first order in the step's size.

Lemma lemma:entropy_pg_general. One context by itself, whose logits are the parameters; all results are for a step of
size 1 (the derivative), so that a step of size eta changes the entropy by eta times it, up to eta^2.
"""

from __future__ import annotations

import torch

from stapo_training.theory.distribution import Distributions


def surprise(d: Distributions) -> torch.Tensor:
    """log pi(y) - E[log pi] = log pi(y) + H (N, V): the lemma's second factor. Negative for tokens rarer than e^-H."""
    return d.logprob_NV + d.entropy_N.unsqueeze(-1)


def entropy_gradient(d: Distributions) -> torch.Tensor:
    """dH/da (N, V) = -pi (log pi + H)."""
    return -d.probability_NV * surprise(d)


def natural_step(d: Distributions, advantage_NV: torch.Tensor) -> torch.Tensor:
    """The natural gradient of E[A] in the logits (N, V): A - E[A].

    It solves F x = grad with F = diag(pi) - pi pi^T. So does every x + c; the lemma's terms belong to this choice,
    their sum to all.
    """
    return advantage_NV - (d.probability_NV * advantage_NV).sum(-1, keepdim=True)


def lemma_terms(d: Distributions, advantage_NV: torch.Tensor) -> torch.Tensor:
    """The right side of Lemma lemma:entropy_pg_general for every token (N, V), per unit of eta:
    -pi (log pi - E[log pi]) (A - E[A]).

    Assumes an advantage for every token of the vocabulary. Their sum, -Cov(log pi, A), is the derivative along
    `natural_step`; one term is the part that moves through that token's own logit.
    """
    return entropy_gradient(d) * natural_step(d, advantage_NV)


def sampled_gradient_change(d: Distributions, target_N: torch.Tensor, advantage_N: torch.Tensor) -> torch.Tensor:
    """The derivative (N,) when the sampled token alone drives a plain gradient step, as training's losses do.

    The step is A (e_k - pi): -A [pi_k (log pi_k + H) - E[pi (log pi + H)]]. The last term, what the softmax takes from
    the other tokens, is not in the lemma; it is the covariance of pi and log pi, never negative.
    """
    own_NV = d.probability_NV * surprise(d)
    own_N = own_NV.gather(-1, target_N.unsqueeze(-1)).squeeze(-1)
    return -advantage_N * (own_N - (d.probability_NV * own_NV).sum(-1))
