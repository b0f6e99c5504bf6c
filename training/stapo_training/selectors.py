"""Token selectors: pure functions from per-token statistics to a keep mask.

A method of the paper is a set of loss settings plus one of these. The statistics of a mini-batch are flat vectors over
its N response tokens on this rank; what has to be known of all ranks (a quantile) goes through `pool`, which
concatenates a vector over the ranks of the data-parallel group. With the default `pool` the N tokens are the whole
mini-batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from stapo_results.errors import RunFailed

Pool = Callable[[torch.Tensor], torch.Tensor]


def alone(values: torch.Tensor) -> torch.Tensor:
    """The pool of a single rank: the values themselves."""
    return values


@dataclass(frozen=True)
class TokenStats:
    """Statistics of N tokens under one policy, each a vector (N,).

    logprob_N: log pi(y_t | ...), nats. entropy_N: H(pi(. | ...)), nats. advantage_N: group-relative advantage of the
    token's response. response_N: bool, False for padding and for tokens that the environment wrote.
    """

    logprob_N: torch.Tensor
    entropy_N: torch.Tensor
    advantage_N: torch.Tensor
    response_N: torch.Tensor

    def check(self, where: str) -> None:
        """Raise if a response token has a log-probability, entropy or advantage that is not finite.

        Raises:
            RunFailed: naming `where` (step and rank); a NaN would otherwise compare as False and keep its token.
        """
        for name in ("logprob_N", "entropy_N", "advantage_N"):
            bad = ~torch.isfinite(getattr(self, name)) & self.response_N
            if bad.any():
                raise RunFailed(
                    f"{where}: the {name[:-2]} of {int(bad.sum())} response tokens is not finite",
                    found=getattr(self, name)[bad][:3].tolist(),
                    expected="finite numbers",
                    next_step="the policy has diverged: go back to an earlier checkpoint, lower the learning rate",
                )


@dataclass(frozen=True)
class Selection:
    """What a selector decided: the tokens to keep (N,), the candidates it chose among (N,), the threshold used."""

    keep_N: torch.Tensor
    candidate_N: torch.Tensor
    threshold: float


def quantile(values_M: torch.Tensor, q: float) -> float:
    """The linear-interpolated q-quantile of M values in float64 (numpy's default, Hyndman and Fan type 7).

    Sorts, so that it has no size limit (torch.quantile stops at 16 million). By the project's convention q = 0 gives
    -inf and q = 1 gives +inf, so that "strictly below" silences nothing and everything; no value gives -inf.
    """
    if not 0.0 <= q <= 1.0:
        raise ValueError(f"q = {q} is not in [0, 1]")
    if q == 0.0 or values_M.numel() == 0:
        return float("-inf")
    if q == 1.0:
        return float("inf")
    sorted_M = values_M.double().sort().values
    position = (sorted_M.numel() - 1) * q
    low = int(position)
    high = min(low + 1, sorted_M.numel() - 1)
    lower, upper = float(sorted_M[low]), float(sorted_M[high])
    return lower + (upper - lower) * (position - low)


def keep_all(stats: TokenStats, *, pool: Pool = alone) -> Selection:
    """Every response token (GRPO, JustRL)."""
    nothing_N = torch.zeros_like(stats.response_N)
    return Selection(stats.response_N.clone(), nothing_N, float("-inf"))


def silence_spurious(stats: TokenStats, *, tau_p: float, q: float, pool: Pool = alone) -> Selection:
    """S2T: silence tokens with advantage > 0, probability < tau_p and entropy < the q-quantile.

    STAPO, Eq. (indicator_s2t) and Algorithm 1: the quantile is that of the entropies of the low-probability tokens of
    the correct responses of the mini-batch. One candidate alone is kept (its entropy is not below its own quantile);
    ties at the quantile are kept. q = 1 silences every candidate (JustRL-FullMask).
    """
    candidate_N = stats.response_N & (stats.advantage_N > 0) & (stats.logprob_N.double().exp() < tau_p)
    threshold = quantile(pool(stats.entropy_N[candidate_N]), q)
    silenced_N = candidate_N & (stats.entropy_N.double() < threshold)
    return Selection(stats.response_N & ~silenced_N, candidate_N, threshold)


def top_entropy(stats: TokenStats, *, share: float, pool: Pool = alone) -> Selection:
    """Keep the `share` of response tokens with the highest entropy (20-Entropy: 0.2; Wang et al. 2025, 2506.01939).

    Keeps ceil(share x tokens), at least one, as its published code does; tokens that tie with the last one are kept
    with it, so that the order of the tokens decides nothing. Which tokens are ranked together (its published code: one
    micro-batch on one rank) is the caller's `pool` and slicing.
    """
    if not 0.0 < share <= 1.0:
        raise ValueError(f"share = {share} is not in (0, 1]")
    pooled = pool(stats.entropy_N[stats.response_N])
    if pooled.numel() == 0:
        return Selection(stats.response_N.clone(), stats.response_N.clone(), float("-inf"))
    # the subtraction keeps 0.2 * 5 = 1.0000000000000002 at one token
    count = max(1, -int(-(share * pooled.numel() - 1e-9) // 1))
    threshold = float(pooled.topk(count).values[-1])
    return Selection(stats.response_N & (stats.entropy_N >= threshold), stats.response_N.clone(), threshold)
