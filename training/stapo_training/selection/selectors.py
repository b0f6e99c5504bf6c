"""Token selectors: pure functions from per-token statistics to a keep mask.

A method of the paper is a set of loss settings plus one of these. The statistics of a mini-batch are flat vectors over
its N response tokens on this rank; what has to be known of all ranks (a quantile) goes through `pool`, which
concatenates a vector over the ranks of the data-parallel group. With the default `pool` the N tokens are the whole
mini-batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from stapo_training.selection.token_stats import TokenStats

Pool = Callable[[torch.Tensor], torch.Tensor]
INFINITY = float("inf")


def alone(values: torch.Tensor) -> torch.Tensor:
    """The pool of a single rank: the values themselves."""
    return values


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
        return -INFINITY
    if q == 1.0:
        return INFINITY
    sorted_M = values_M.double().sort().values
    position = (sorted_M.numel() - 1) * q
    low = int(position)
    high = min(low + 1, sorted_M.numel() - 1)
    lower, upper = float(sorted_M[low]), float(sorted_M[high])
    return lower + (upper - lower) * (position - low)


def rare_in_correct(stats: TokenStats, tau_p: float) -> torch.Tensor:
    """The candidates of S2T (N,): response tokens with advantage > 0 and probability < tau_p.

    STAPO, Eq. (indicator_s2t), the first two of its three conditions. Needs no entropy.
    """
    return stats.response_N & (stats.advantage_N > 0) & (stats.logprob_N.double().exp() < tau_p)


def keep_all(stats: TokenStats, *, pool: Pool = alone) -> Selection:
    """Every response token (GRPO, JustRL)."""
    nothing_N = torch.zeros_like(stats.response_N)
    return Selection(stats.response_N.clone(), nothing_N, -INFINITY)


def _ranked(stats: TokenStats, candidate_N: torch.Tensor, tau_p: float, among: str) -> torch.Tensor:
    """The tokens (N,) whose entropies make a quantile: the candidates, or all rare tokens of right responses.

    Raises:
        ValueError: when these are asked for, and the statistics do not know right responses.
    """
    if among == "positive":
        return candidate_N
    if stats.right_N is None:
        raise ValueError("among=right needs TokenStats.right_N")
    return stats.response_N & stats.right_N & (stats.logprob_N.double().exp() < tau_p)


def silence_spurious(
    stats: TokenStats, *, tau_p: float, q: float, among: str = "positive", pool: Pool = alone
) -> Selection:
    """S2T: silence tokens with advantage > 0, probability < tau_p and entropy < the q-quantile.

    STAPO, Eq. (indicator_s2t) and Algorithm 1: the quantile is that of the entropies of the low-probability tokens of
    the correct responses of the mini-batch; `among` says which these are. One candidate alone is kept (its entropy is
    not below its own quantile); ties at the quantile are kept. q = 1 silences every candidate (JustRL-FullMask).
    """
    candidate_N = rare_in_correct(stats, tau_p)
    threshold = quantile(pool(stats.entropy_N[_ranked(stats, candidate_N, tau_p, among)]), q)
    silenced_N = candidate_N & (stats.entropy_N.double() < threshold)
    return Selection(stats.response_N & ~silenced_N, candidate_N, threshold)


def silence_spurious_wrong(stats: TokenStats, *, tau_p: float, q: float, pool: Pool = alone) -> Selection:
    """S2T for wrong responses: advantage < 0 in the place of > 0, the rest as in `silence_spurious`.

    STAPO names tokens of incorrect responses as future work and gives no rule; this is its own, mirrored.
    """
    return silence_spurious(replace(stats, advantage_N=-stats.advantage_N), tau_p=tau_p, q=q, pool=pool)


def silence_low_probability(stats: TokenStats, *, tau_p: float, pool: Pool = alone) -> Selection:
    """FullMask: silence every token with advantage > 0 and probability < tau_p (STAPO's ablation JustRL-FullMask)."""
    candidate_N = rare_in_correct(stats, tau_p)
    return Selection(stats.response_N & ~candidate_N, candidate_N, INFINITY)


def silence_high_entropy(
    stats: TokenStats, *, tau_p: float, q: float, among: str = "positive", pool: Pool = alone
) -> Selection:
    """Silence tokens with advantage > 0, probability < tau_p and entropy > the (1 - q)-quantile.

    STAPO's ablation: the mirror image of S2T, with the same share of the candidates silenced. q = 0 silences nothing,
    q = 1 every candidate; one candidate alone and ties at the quantile are kept.
    """
    candidate_N = rare_in_correct(stats, tau_p)
    pooled = pool(stats.entropy_N[_ranked(stats, candidate_N, tau_p, among)])
    threshold = quantile(pooled, 1.0 - q) if pooled.numel() else INFINITY
    silenced_N = candidate_N & (stats.entropy_N.double() > threshold)
    return Selection(stats.response_N & ~silenced_N, candidate_N, threshold)


def silence_random(stats: TokenStats, *, tau_p: float, q: float, pool: Pool = alone) -> Selection:
    """Silence floor(q x candidates) of the tokens with advantage > 0 and probability < tau_p, chosen by their keys.

    STAPO's ablation. The candidates with the smallest `key_N` (`token_stats.token_keys`) are silenced; keys belong to
    tokens, so that neither ranks nor order matter. Candidates whose keys tie with the first one kept are kept with it.

    Raises:
        ValueError: when the statistics carry no keys.
    """
    if stats.key_N is None:
        raise ValueError("silence_random needs TokenStats.key_N")
    candidate_N = rare_in_correct(stats, tau_p)
    sorted_M = pool(stats.key_N[candidate_N]).double().sort().values
    count = int(q * sorted_M.numel() + 1e-9)  # 0.7 x 10 = 7.000000000000001 and 0.29 x 100 = 28.999999999999996
    threshold = float(sorted_M[count]) if count < sorted_M.numel() else INFINITY
    silenced_N = candidate_N & (stats.key_N < threshold)
    return Selection(stats.response_N & ~silenced_N, candidate_N, threshold)


def top_entropy(stats: TokenStats, *, share: float, pool: Pool = alone) -> Selection:
    """Keep the `share` of response tokens with the highest entropy (20-Entropy: 0.2; Wang et al. 2025, 2506.01939).

    Keeps ceil(share x tokens), at least one, as its published code does; tokens that tie with the last one are kept
    with it, so that the order of the tokens decides nothing.
    """
    if not 0.0 < share <= 1.0:
        raise ValueError(f"share = {share} is not in (0, 1]")
    pooled = pool(stats.entropy_N[stats.response_N])
    # the subtraction keeps 0.2 * 5 = 1.0000000000000002 at one token
    count = max(1, -int(-(share * pooled.numel() - 1e-9) // 1))
    threshold = float(pooled.topk(count).values[-1]) if pooled.numel() else -INFINITY
    keep_N = stats.response_N & (stats.entropy_N.double() >= threshold)
    return Selection(keep_N, stats.response_N.clone(), threshold)
