"""The gradient norm of one token: its decomposition and the theorem's two bounds. Pure functions, float64.

Every squared norm is |w|^2 times a factor that the distribution alone decides; the functions give the factor. What the
paper assumes without saying so, and docs/theory.md shows by number: J is one token's clipped surrogate, without KL term
and without the normaliser (a constant factor); the logits are those that the softmax sees, after the temperature; the
old policy, the advantage and the mask are constants.
"""

from __future__ import annotations

import math

import torch

from stapo_training.theory.distribution import Distributions


def weight(
    logprob_N: torch.Tensor, old_logprob_N: torch.Tensor, advantage_N: torch.Tensor, low: float, high: float
) -> torch.Tensor:
    """The weight w (N,) of Theorem prop:grad_bounds: rho A, and 0 where the clip cuts the gradient off.

    w = 0 for A > 0 and rho > 1 + high, or A < 0 and rho < 1 - low. Lemma lem:grad_norm_decomp prints one epsilon for
    both (GRPO's clip). At the edge itself J has a kink; the paper takes the unclipped side.
    """
    ratio_N = (logprob_N - old_logprob_N).exp()
    cut_N = ((advantage_N > 0) & (ratio_N > 1 + high)) | ((advantage_N < 0) & (ratio_N < 1 - low))
    return torch.where(cut_N, 0.0, ratio_N * advantage_N)


def norm_factor(d: Distributions, target_N: torch.Tensor) -> torch.Tensor:
    """||grad_a J||^2 / |w|^2 (N,): (1 - p)^2 + sum of the other tokens' pi^2.

    Lemma lem:grad_norm_decomp, Eq. grad_norm_decomp, in the form of its proof's second line. Equal to 1 - 2 p + sum of
    pi^2, of which nothing is left at p -> 1 in finite precision (`printed_factor`).
    """
    k_N1 = target_N.unsqueeze(-1)
    gap_N = d.complement_NV.gather(-1, k_N1).squeeze(-1)
    return gap_N.square() + d.probability_NV.scatter(-1, k_N1, 0.0).square().sum(-1)


def norm_factors(d: Distributions) -> torch.Tensor:
    """`norm_factor` with every token as the target: (N, V). Its mean over tokens drawn from pi is 1 - sum of pi^2."""
    square_NV, top_N1 = d.probability_NV.square(), d.logprob_NV.argmax(-1, keepdim=True)
    others_N1 = square_NV.scatter(-1, top_N1, 0.0).sum(-1, keepdim=True)
    rest_NV = (d.collision_N.unsqueeze(-1) - square_NV).scatter(-1, top_N1, others_N1)
    return d.complement_NV.square() + rest_NV


def printed_factor(probability_N: torch.Tensor, collision_N: torch.Tensor) -> torch.Tensor:
    """1 - 2 p + sum of pi^2 (N,), Eq. grad_norm_decomp as printed: what statistics of a run give.

    Its absolute error is the precision of p and of the sum: tokens with a small (1 - p)^2 have no correct digit.
    """
    return 1 - 2 * probability_N + collision_N


def c_v(vocabulary: int) -> float:
    """C_V = (V - 1) / (V (ln V)^2) of Theorem prop:grad_bounds; the largest constant with which the bound holds, since
    the uniform distribution attains it.

    Raises:
        ValueError: V < 2.
    """
    if vocabulary < 2:
        raise ValueError(f"C_V needs a vocabulary of two or more, not {vocabulary}")
    return (vocabulary - 1) / (vocabulary * math.log(vocabulary) ** 2)


def lower_factor(complement_N: torch.Tensor, entropy_N: torch.Tensor) -> torch.Tensor:
    """1 - 2 p + e^-H (N,), Theorem prop:grad_bounds, from 1 - p and H. Says nothing where it is below 0."""
    return 2 * complement_N + torch.expm1(-entropy_N)


def upper_factor(complement_N: torch.Tensor, entropy_N: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """2 - 2 p - C_V H^2 (N,), Theorem prop:grad_bounds, from 1 - p and H."""
    return 2 * complement_N - c_v(vocabulary) * entropy_N.square()
