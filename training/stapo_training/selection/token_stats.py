"""Per-token statistics of a mini-batch: what a selector looks at, and how it is computed from logits.

Pure functions on tensors; verl_ext/mini_batch.py feeds them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch

from stapo_results.errors import RunFailed
from stapo_training.selection.logit_statistics import statistics


@dataclass(frozen=True)
class TokenStats:
    """Statistics of N tokens under one policy, each a vector (N,).

    logprob_N: log pi(y_t | ...), nats. entropy_N: H(pi(. | ...)), nats. advantage_N: group-relative advantage of the
    token's response. response_N: bool, False for padding and for tokens that the environment wrote. key_N: a number in
    [0, 1) that belongs to the token wherever it is computed (`token_keys`); only the random selector needs it. right_N:
    bool, whether the response's reward is above 0; only `among=right` needs it.
    """

    logprob_N: torch.Tensor
    entropy_N: torch.Tensor
    advantage_N: torch.Tensor
    response_N: torch.Tensor
    key_N: torch.Tensor | None = None
    right_N: torch.Tensor | None = None

    def problem(self, where: str) -> RunFailed | None:
        """The error of a response token whose log-probability, entropy or advantage is not finite; None without one.

        A NaN would otherwise compare as False and keep its token. `where` names step and rank.
        """
        for name in ("logprob_N", "entropy_N", "advantage_N"):
            bad = ~torch.isfinite(getattr(self, name)) & self.response_N
            if bad.any():
                return RunFailed(
                    f"{where}: the {name[:-2]} of {int(bad.sum())} response tokens is not finite",
                    found=getattr(self, name)[bad][:3].tolist(),
                    expected="finite numbers",
                    next_step="the policy has diverged: go back to an earlier checkpoint, lower the learning rate",
                )
        return None

    def take(self, index: torch.Tensor | slice) -> TokenStats:
        """The statistics of some of the tokens, in memory of their own where `index` is a tensor."""
        some = {f.name: v[index] for f in fields(self) if (v := getattr(self, f.name)) is not None}
        return TokenStats(**some)


@dataclass(frozen=True)
class TokenDistribution:
    """The next-token distributions at T tokens, float32.

    logprob_T: log of the chosen token's probability, nats. entropy_T, collision_T: as in
    `LogitStatistics`.
    top_id_TK: the K most probable tokens, int64; of equal ones the lower id comes first. top_logprob_TK: theirs, nats.
    """

    logprob_T: torch.Tensor
    entropy_T: torch.Tensor
    collision_T: torch.Tensor
    top_id_TK: torch.Tensor
    top_logprob_TK: torch.Tensor


@torch.no_grad()
def token_distribution(logits_TV: torch.Tensor, chosen_T: torch.Tensor, k: int) -> TokenDistribution:
    """What logits of any floating type say at T tokens; the k most probable of V. All of them are upcast at once: hand
    over some hundred tokens at a time."""
    z = logits_TV.float()
    logprob_TV, statistics_T = z.log_softmax(-1), statistics(z, chosen_T)
    top = logprob_TV.topk(k, -1)
    by_id = top.indices.sort(-1)  # equal ones in the order of their ids
    by_size = top.values.gather(-1, by_id.indices).sort(dim=-1, descending=True, stable=True)
    return TokenDistribution(
        logprob_TV.gather(-1, chosen_T.unsqueeze(-1)).squeeze(-1),
        statistics_T.entropy_N,
        statistics_T.collision_N,
        by_id.values.gather(-1, by_size.indices),
        by_size.values,
    )


def proxy_logprob(logits_NV: torch.Tensor, chosen_N: torch.Tensor, min_p: float) -> torch.Tensor:
    """The chosen tokens' log-probabilities (N,) among the tokens whose probability is at least `min_p` of the largest
    one's; -inf for a token that is not among them (Lp-Reg's proxy, Huang et al. 2025, 2510.03222)."""
    z = logits_NV.float()
    z = z.masked_fill(z < z.amax(-1, keepdim=True) + math.log(min_p), -math.inf)
    return z.gather(-1, chosen_N.unsqueeze(-1)).squeeze(-1) - z.logsumexp(-1)


def spans(starts_B: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor:
    """The positions start, start + 1, ..., start + length - 1 of B spans, one after the other: (sum of lengths,)."""
    ends_B = lengths_B.cumsum(0)
    within = torch.arange(int(lengths_B.sum()), device=starts_B.device)
    return within + torch.repeat_interleave(starts_B - (ends_B - lengths_B), lengths_B)


def response_positions(sequence_offsets: torch.Tensor, response_offsets: torch.Tensor) -> torch.Tensor:
    """Where in packed sequences (prompt, then response) the logits stand that predict the N response tokens: (N,).

    Offsets are (B + 1,), as a jagged tensor has them; a token is predicted one position before it stands.
    """
    lengths_B = response_offsets.diff()
    return spans(sequence_offsets[1:] - lengths_B - 1, lengths_B)


_MASK53 = (1 << 53) - 1


def _mix(x: torch.Tensor) -> torch.Tensor:
    """The finaliser of splitmix64 on int64, whose products wrap as unsigned ones do."""
    x = (x ^ (x >> 30 & (1 << 34) - 1)) * -4658895280553007687
    x = (x ^ (x >> 27 & (1 << 37) - 1)) * -7723592293110705685
    return x ^ (x >> 31 & (1 << 33) - 1)


def token_keys(
    ids: torch.Tensor, sequence_offsets: torch.Tensor, response_offsets: torch.Tensor, seed: int
) -> torch.Tensor:
    """A uniform number in [0, 1) for each of N response tokens, (N,) float64, from the seed and the sequence alone.

    The rank, the micro-batch and the order of the sequences have no part in it. Two sequences with the same tokens get
    the same numbers.
    """
    lengths_B = sequence_offsets.diff()
    rows = torch.repeat_interleave(torch.arange(len(lengths_B), device=ids.device), lengths_B)
    within = torch.arange(len(ids), device=ids.device) - sequence_offsets[:-1][rows]
    sequence_B = torch.zeros_like(lengths_B).index_add_(0, rows, _mix(_mix(ids.long() + 1) + within))
    response_B = response_offsets.diff()
    position_N = spans(torch.zeros_like(response_B), response_B)
    start_N = torch.repeat_interleave(_mix(sequence_B + _mix(torch.full_like(sequence_B, seed + 1))), response_B)
    return (_mix(start_N + position_N) >> 11 & _MASK53).double() / (1 << 53)
