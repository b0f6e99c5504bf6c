"""Every method's loss written out for one mini-batch, without micro-batches, ranks or veRL: what training has to equal.

`stapo-train check` holds the real worker against it. The values come from the registry (`methods.yaml`), not from
the method's overlay, so that a slip in an overlay is a difference. Masks are numpy's, independent of `selectors`.
Shapes: N response tokens one after the other, of S sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np
import torch

from stapo_results.errors import BadInput
from stapo_training.methods import Definition, SelectorConfig
from stapo_training.selection import objectives
from stapo_training.selection.own import is_own
from stapo_training.selection.token_stats import TokenStats


@dataclass(frozen=True)
class TokensByHand:
    """The statistics of a mini-batch: logprob_N carries the gradient; entropy_N and key_N are float64.

    every_NV: the log-probabilities of all tokens of the vocabulary; chosen_N: those that were sampled.

    reward_S: +1 or -1; group_S: the prompt of each sequence; sequence_N: the sequence of each token. longest: response
    tokens that a sequence may have.
    """

    logprob_N: torch.Tensor
    old_N: torch.Tensor
    reference_N: torch.Tensor
    rollout_N: torch.Tensor
    entropy_N: np.ndarray
    key_N: np.ndarray
    every_NV: torch.Tensor
    chosen_N: torch.Tensor
    sequence_N: torch.Tensor
    reward_S: torch.Tensor
    group_S: torch.Tensor
    longest: int

    def take(self, at_N: np.ndarray) -> TokensByHand:
        """The tokens at which a bool vector is true, of the same sequences."""
        return replace(self, **{f.name: getattr(self, f.name)[at_N] for f in fields(self) if "_N" in f.name})


def advantages(d: Definition, tokens: TokensByHand) -> torch.Tensor:
    """(N,): each response's advantage at each of its tokens, reweighted by the old policy where the method says so."""
    found_S = torch.where(tokens.reward_S > 0, d.positive, -1.0)  # W-REINFORCE's
    if d.advantage != "w_reinforce":
        for group in tokens.group_S.unique():
            in_group_S = tokens.group_S == group
            reward_G = tokens.reward_S[in_group_S]
            with_std = objectives.group_advantage(reward_G)
            found_S[in_group_S] = with_std if d.advantage == "grpo" else reward_G - reward_G.mean()
    old_p_N = tokens.old_N.exp()
    found_N = found_S[tokens.sequence_N] * (1 - d.reweight * (1 - old_p_N))
    if d.amplify > 1 and tokens.entropy_N.mean() < d.target_entropy:  # the old policy's is near it
        right_N = found_N > 0
        end = np.sort(old_p_N[right_N].numpy())[int(np.ceil(d.rarest * int(right_N.sum()) - 1e-9)) - 1]
        found_N = found_N * torch.where(right_N & (old_p_N <= float(end)), d.amplify, 1.0)
    return found_N


def kept(d: Definition, tokens: TokensByHand, advantage_N: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """(kept, candidates), bool (N,), by the policy of logprob_N and entropy_N."""
    if d.scope == "response":
        both, sequence_N = np.zeros((2, len(tokens.entropy_N)), bool), tokens.sequence_N.numpy()
        d = d.model_copy(update={"scope": "mini_batch"})
        for own_N in (sequence_N == s for s in np.unique(sequence_N)):
            both[:, own_N] = kept(d, tokens.take(own_N), advantage_N[own_N])
        return both[0], both[1]
    p, h = np.exp(tokens.logprob_N.detach().double().numpy()), tokens.entropy_N
    every = np.ones(len(p), bool)
    if d.selector == "keep_all":
        return every, ~every
    if is_own(d.selector):  # it is held against itself, over the whole mini-batch at once
        entropy_N, key_N = torch.from_numpy(h), torch.from_numpy(tokens.key_N)
        right_N = (tokens.reward_S > 0)[tokens.sequence_N]
        stats = TokenStats(tokens.logprob_N.detach(), entropy_N, advantage_N, torch.from_numpy(every), key_N, right_N)
        chosen = SelectorConfig(name=d.selector, tau_p=d.tau_p, q=d.q, share=d.share, among=d.among).select(stats)
        return chosen.keep_N.numpy(), chosen.candidate_N.numpy()
    if d.selector == "top_entropy":
        return h >= np.sort(h)[::-1][int(np.ceil(d.share * len(h) - 1e-9)) - 1], every
    sign = -1 if d.selector.endswith("_wrong") else 1
    c = (sign * advantage_N.numpy() > 0) & (p < d.tau_p)
    if not c.any():
        return every, c
    among = (tokens.reward_S > 0)[tokens.sequence_N].numpy() & (p < d.tau_p) if d.among == "right" else c
    ranked = h[among]
    rules = {
        "silence_spurious": lambda: h < (np.inf if d.q == 1 else np.quantile(ranked, d.q)),
        "silence_low_probability": lambda: every,
        "silence_high_entropy": lambda: h > (-np.inf if d.q == 1 else np.quantile(ranked, 1 - d.q)),
        "silence_random": lambda: tokens.key_N < np.append(np.sort(tokens.key_N[c]), np.inf)[int(d.q * c.sum() + 1e-9)],
    }
    if (name := d.selector.removesuffix("_wrong")) not in rules:
        raise BadInput(f"no calculation by hand of {name}", next_step=f"a line of `kept` in {__file__}")
    return ~(c & rules[name]()), c


def losses(
    d: Definition, tokens: TokensByHand, advantage_N: torch.Tensor, keep_N: torch.Tensor
) -> list[list[tuple[torch.Tensor, float]]]:
    """Of each update of the mini-batch its loss over the tokens of `keep_N`, and the same of the tokens' absolute
    losses, which says how large a difference is; several where the method draws one of them."""
    updates = [advantage_N]
    if d.isolate:
        rare_N = tokens.old_N.exp() < d.isolate
        updates = [advantage_N * rare_N, advantage_N * ~rare_N]
    kl_N = d.kl * objectives.k3(tokens.logprob_N, tokens.reference_N)

    def with_size(loss_N: torch.Tensor) -> tuple[torch.Tensor, float]:
        size = _aggregate(d, tokens, loss_N.detach().abs(), keep_N)
        return _aggregate(d, tokens, loss_N, keep_N), float(size)

    return [
        [with_size(part_N * _weights(d, tokens) + kl_N) for part_N in _token_losses(d, tokens, a_N)] for a_N in updates
    ]


def _weights(d: Definition, tokens: TokensByHand) -> torch.Tensor:
    ratio_N = (tokens.old_N - tokens.rollout_N).exp()
    within_N = (ratio_N >= 0.5) & (ratio_N <= 5.0)
    return {"none": torch.ones_like(ratio_N), "tis": ratio_N.clamp(max=2.0), "icepop": ratio_N * within_N}[d.weights]


def _token_losses(d: Definition, tokens: TokensByHand, a_N: torch.Tensor) -> list[torch.Tensor]:
    low, high = d.clip
    log_ratio_N = tokens.logprob_N - tokens.old_N
    ratio_N = log_ratio_N.exp()
    clipped_N = objectives.clipped_surrogate(tokens.logprob_N, tokens.old_N, a_N, low, high)

    def clipped() -> torch.Tensor:
        if d.truncation is None:
            return clipped_N
        return torch.where(a_N < 0, torch.minimum(clipped_N, -a_N * d.truncation), clipped_N)

    def cispo() -> torch.Tensor:
        return -ratio_N.clamp(1 - low, 1 + high).detach() * a_N * tokens.logprob_N

    def gspo() -> torch.Tensor:
        s_N = _sequence_mean(tokens, log_ratio_N).exp()
        return -torch.minimum(s_N * a_N, s_N.clamp(1 - low, 1 + high) * a_N)

    def sapo() -> torch.Tensor:
        tau_N = torch.where(a_N > 0, low, high)  # its two temperatures take the place of the clip
        return -torch.sigmoid(tau_N * (ratio_N - 1)) * 4 / tau_N * a_N

    def gmpo() -> torch.Tensor:
        sign_N = a_N.sign()
        cut_N = sign_N * torch.minimum(sign_N * log_ratio_N, sign_N * log_ratio_N.clamp(-low, high))
        return -_sequence_mean(tokens, cut_N).exp() * a_N

    def dppo() -> torch.Tensor:
        p_N, old_N = tokens.logprob_N.detach().exp(), tokens.old_N.exp()
        moved_N = p_N - old_N
        if d.loss == "dppo_kl":
            kl_N = old_N * (old_N / p_N).log() + (1 - old_N) * ((1 - old_N) / (1 - p_N)).log()
            moved_N = kl_N * moved_N.sign()
        valid_N = torch.where(a_N > 0, moved_N <= high, moved_N >= -low)
        return -a_N * ratio_N.detach().clamp(max=d.truncation) * tokens.logprob_N * valid_N

    def lp_reg() -> torch.Tensor:
        negative_N, p_NV = a_N < 0, tokens.every_NV.double().exp()
        lowest = tokens.old_N[negative_N].sort().values[: int(d.lowest * int(negative_N.sum()))]
        may_N = negative_N & (tokens.old_N <= lowest[-1] if len(lowest) > 1 else torch.zeros_like(negative_N))
        kept_NV = p_NV >= d.min_p * p_NV.amax(1, keepdim=True)
        chosen_N = torch.nn.functional.one_hot(tokens.chosen_N, p_NV.shape[1]).bool()
        proxy_N = (p_NV * (kept_NV & chosen_N)).sum(1) / (p_NV * kept_NV).sum(1)
        drawn_N = may_N & (tokens.logprob_N.detach().exp() < proxy_N)
        k3_N = objectives.k3(tokens.logprob_N, proxy_N.clamp(min=1e-30).log().float()).clamp(max=10.0)
        return torch.where(drawn_N, -a_N * ratio_N + d.toward_proxy * k3_N, clipped_N)

    if d.within_micro_batch:
        return _by_covariance(d, tokens, a_N, ratio_N, clipped_N)
    forms: dict[str, Callable[[], torch.Tensor]] = {
        "clipped": clipped, "cispo": cispo, "gspo": gspo, "sapo": sapo, "gmpo": gmpo, "dppo_tv": dppo, "dppo_kl": dppo,
        "lp_reg": lp_reg,
    }  # fmt: skip
    return [forms[d.loss]()]


def _by_covariance(
    d: Definition, tokens: TokensByHand, a_N: torch.Tensor, ratio_N: torch.Tensor, clipped_N: torch.Tensor
) -> list[torch.Tensor]:
    """Cui et al. 2025 (2505.22617), over one micro-batch so small that the share of its tokens is one token."""
    logprob_N = tokens.logprob_N.detach()
    covariance_N = (a_N - a_N.mean()) * (logprob_N - logprob_N.mean())
    if d.loss == "kl_cov":
        at = covariance_N.argmax()
        penalty_N = torch.zeros_like(a_N).index_fill(0, at, 1.0) * (tokens.logprob_N - tokens.old_N).abs()
        return [-a_N * ratio_N + penalty_N]
    cut_by_ratio_N = clipped_N > -a_N * ratio_N
    drawn_from = torch.nonzero((covariance_N > 1.0) & (covariance_N < 5.0) & ~cut_by_ratio_N).flatten()
    return [clipped_N * torch.ones_like(a_N).index_fill(0, at, 0.0) for at in drawn_from] or [clipped_N]


def _sequence_mean(tokens: TokensByHand, values_N: torch.Tensor) -> torch.Tensor:
    """Each sequence's mean, at each of its tokens: (N,)."""
    count_S = tokens.sequence_N.bincount()
    total_S = values_N.new_zeros(len(count_S)).index_add_(0, tokens.sequence_N, values_N)
    return (total_S / count_S)[tokens.sequence_N]


def _aggregate(d: Definition, tokens: TokensByHand, loss_N: torch.Tensor, keep_N: torch.Tensor) -> torch.Tensor:
    if d.aggregation == "token-mean":
        return objectives.token_mean(loss_N, keep_N)
    if d.aggregation == "seq-mean-token-mean":
        return objectives.sequence_mean(loss_N, keep_N, tokens.sequence_N)
    return (loss_N * keep_N).sum() / len(tokens.reward_S) / tokens.longest
