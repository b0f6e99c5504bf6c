"""A veRL mini-batch as selectors and the token log need it: its masks, and numbers gathered over ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from stapo_training.methods import SelectorConfig
from stapo_training.selection.token_stats import TokenStats, spans, token_keys
from stapo_training.token_log.rows import LogPart

Batch = Any
"""A TensorDict of veRL's: jagged tensors, one row a sequence, and settings. Its own type says nothing of either."""


@dataclass
class TrainedStep:
    """The step that is being trained, as this rank has it.

    Attributes:
        old_is_current: whether the batch's old statistics are of the weights with which the step begins.
        mini_batch: number of the last that began, from 1.
        logged: this rank's part of the token log, a mini-batch each. metrics: of the last mini-batch's selection.
    """

    number: int = 0
    old_is_current: bool = False
    mini_batch: int = 0
    logged: list[LogPart] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)


def gather(values_M: torch.Tensor, group: Any) -> torch.Tensor:
    """The concatenation over the group's ranks, in rank order, of vectors of different lengths."""
    ranks = dist.get_world_size(group)
    if ranks == 1:
        return values_M
    length = torch.tensor([values_M.numel()], device=values_M.device)
    lengths = [torch.zeros_like(length) for _ in range(ranks)]
    dist.all_gather(lengths, length, group=group)
    longest = max(1, *(int(n) for n in lengths))
    padded = values_M.new_zeros(longest)
    padded[: values_M.numel()] = values_M
    parts = [torch.empty_like(padded) for _ in range(ranks)]
    dist.all_gather(parts, padded, group=group)
    return torch.cat([p[: int(n)] for p, n in zip(parts, lengths, strict=True)])


def set_values(data: Batch, field: str, values_N: torch.Tensor) -> None:
    """Replace a jagged field by flat values over its tokens."""
    old = data[field]
    # not nested_tensor_from_jagged: without known lengths, padding it pads to the sum of the lengths
    rows = values_N.to(old.dtype).to(old.device).split(old.offsets().diff().tolist())
    data[field] = torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


class RankTokens:
    """A mini-batch's N response tokens on this rank: what the batch says of them.

    Attributes:
        offsets: (B + 1,), where each sequence's response begins. response_N, advantage_N, key_N, right_N: as in
            TokenStats. old: the old policy's statistics; None where its pass left no entropy.
    """

    def __init__(self, data: Batch, selector: SelectorConfig, device: Any):
        mask, ids = data["response_mask"], data["input_ids"]
        self.offsets = mask.offsets().to(device)
        self.response_N = mask.values().bool().to(device)
        self.advantage_N = data["advantages"].values().float().to(device)
        self.key_N: torch.Tensor | None = None
        if selector.needs_keys:
            self.key_N = token_keys(ids.values(), ids.offsets(), mask.offsets(), selector.seed).to(device)
        self.right_N: torch.Tensor | None = None
        if selector.among == "right":  # the reward stands at one of the response's tokens
            right_B = torch.stack([r.sum() > 0 for r in data["rm_scores"].unbind()]).to(device)
            self.right_N = right_B.repeat_interleave(self.offsets.diff())
        self.old: TokenStats | None = None
        if data.get("entropy") is not None:
            self.old = self.stats(*(data[k].values().float().to(device) for k in ("old_log_probs", "entropy")))

    def index(self, rows_B: torch.Tensor) -> torch.Tensor:
        """The places among the N tokens of the response tokens of some rows."""
        return spans(self.offsets[rows_B], self.offsets[rows_B + 1] - self.offsets[rows_B])

    def stats(self, logprob_N: torch.Tensor, entropy_N: torch.Tensor) -> TokenStats:
        """The statistics under a policy that gives these."""
        return TokenStats(logprob_N, entropy_N, self.advantage_N, self.response_N, self.key_N, self.right_N)
