"""A veRL mini-batch as a selector needs it: masks, numbers gathered over ranks, statistics recorded in passing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from stapo_training.methods import SelectorConfig
from stapo_training.selection.selectors import INFINITY, Selection
from stapo_training.selection.token_stats import TokenStats, spans, token_keys
from stapo_training.verl_ext.logits import PackedLogits
from stapo_training.verl_ext.token_log_buffer import TOP, TokenLogBuffer

Batch = Any
"""A TensorDict of veRL's: jagged tensors, one row a sequence, and settings. Its own type says nothing of either."""
ROW = "selector_row"
"""The key under which micro-batches carry their sequences' rows in the mini-batch."""
Decide = Callable[[TokenStats, torch.Tensor], torch.Tensor]
"""(the statistics of a micro-batch's M tokens, their index in the mini-batch) -> the tokens to keep, (M,)."""


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


def old_statistics(data: Batch, selector: SelectorConfig, device: Any) -> TokenStats | None:
    """The old policy's statistics of a batch, as the old-log-prob pass left them; None where it left no entropy."""
    if data.get("entropy") is None:
        return None
    return TokenStats(
        logprob_N=data["old_log_probs"].values().float().to(device),
        entropy_N=data["entropy"].values().float().to(device),
        advantage_N=data["advantages"].values().float().to(device),
        response_N=data["response_mask"].values().bool().to(device),
        key_N=_keys(data, selector, device),
    )


def _keys(data: Batch, selector: SelectorConfig, device: Any) -> torch.Tensor | None:
    if not selector.needs_keys:
        return None
    ids = data["input_ids"]
    return token_keys(ids.values(), ids.offsets(), data["response_mask"].offsets(), selector.seed).to(device)


def set_values(data: Batch, field: str, values_N: torch.Tensor) -> None:
    """Replace a jagged field by flat values over its tokens."""
    old = data[field]
    # not nested_tensor_from_jagged: without known lengths, padding it pads to the sum of the lengths
    rows = values_N.to(old.dtype).to(old.device).split(old.offsets().diff().tolist())
    data[field] = torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


def set_mask(data: Batch, keep_N: torch.Tensor) -> None:
    """Replace `response_mask` by a flat mask over its tokens."""
    set_values(data, "response_mask", keep_N)


class StatisticsBuffer:
    """The current policy's statistics of a mini-batch's N response tokens, filled as passes make them."""

    def __init__(self, data: Batch, selector: SelectorConfig, device: Any):
        mask = data["response_mask"]
        self.offsets = mask.offsets().to(device)
        self.response_N = mask.values().bool().to(device)
        self.advantage_N = data["advantages"].values().float().to(device)
        self.key_N = _keys(data, selector, device)
        self.logprob_N = torch.full_like(self.advantage_N, float("nan"))  # TokenStats.problem finds an unseen token
        self.entropy_N = torch.zeros_like(self.advantage_N)
        self.filled = False

    def index(self, rows_B: torch.Tensor) -> torch.Tensor:
        """Where the response tokens of some rows stand."""
        return spans(self.offsets[rows_B], self.offsets[rows_B + 1] - self.offsets[rows_B])

    def stats(self) -> TokenStats:
        """What was recorded; the same memory."""
        return TokenStats(self.logprob_N, self.entropy_N, self.advantage_N, self.response_N, self.key_N)


class MicroBatchSelections:
    """Each micro-batch's selection of its own, put together over the mini-batch.

    old: the old policy's statistics where the selector judges by these; None: those that pass.
    """

    def __init__(self, selector: SelectorConfig, buffer: StatisticsBuffer, old: TokenStats | None):
        self.selector, self.old = selector, old
        self._keep_N = torch.zeros_like(buffer.response_N)
        self._candidate_N = torch.zeros_like(buffer.response_N)
        self._thresholds: list[float] = []

    def select(self, stats: TokenStats, index: torch.Tensor) -> torch.Tensor:
        """A `Decide`: the tokens that a micro-batch keeps."""
        own = self.selector.select(stats if self.old is None else self.old.take(index))
        self._keep_N[index], self._candidate_N[index] = own.keep_N, own.candidate_N
        self._thresholds.append(own.threshold)
        return own.keep_N

    def joined(self) -> Selection:
        """All of them as one selection; its threshold is the mean of theirs."""
        finite = [t for t in self._thresholds if abs(t) != INFINITY]
        return Selection(self._keep_N, self._candidate_N, sum(finite) / len(finite) if finite else INFINITY)


@dataclass
class RecordingLoss:
    """veRL's loss unchanged, called with every micro-batch after `observe` has recorded its statistics.

    log: where a token log is kept, its buffer.
    """

    loss: Callable
    buffer: StatisticsBuffer
    log: TokenLogBuffer | None = None
    index: torch.Tensor = field(init=False)
    """Where the micro-batch's tokens stand in the mini-batch."""

    def observe(self, rows_B: torch.Tensor, logprob_M: torch.Tensor, logits: PackedLogits) -> None:
        """Record a micro-batch's log-probabilities and entropies, and what is to be logged."""
        b, self.index = self.buffer, self.buffer.index(rows_B)
        b.logprob_N[self.index] = logprob_M
        every = b.response_N[self.index]
        if self.log is None:
            b.entropy_N[self.index[every]] = logits.entropy(every)
        else:
            found = logits.entropy_and_collision(every)
            b.entropy_N[self.index[every]], self.log.collision_N[self.index[every]] = found
            wanted = self.log.wanted(self.stats(), self.index)
            if wanted.any():
                self.log.keep_top(self.index[wanted], *logits.most_probable(wanted, TOP))

    def stats(self) -> TokenStats:
        """The micro-batch's statistics so far."""
        return self.buffer.stats().take(self.index)

    def __call__(self, model_output: dict, data: Batch, dp_group: Any = None) -> tuple[torch.Tensor, dict]:
        return self.loss(model_output=model_output, data=data, dp_group=dp_group)


@dataclass
class MaskingLoss(RecordingLoss):
    """veRL's loss behind a mask that is decided micro-batch by micro-batch."""

    decide: Decide = field(kw_only=True)
    keep_M: torch.Tensor = field(init=False)

    def observe(self, rows_B: torch.Tensor, logprob_M: torch.Tensor, logits: PackedLogits) -> None:
        super().observe(rows_B, logprob_M, logits)
        self.keep_M = self.decide(self.stats(), self.index)

    def __call__(self, model_output: dict, data: Batch, dp_group: Any = None) -> tuple[torch.Tensor, dict]:
        masked = data.copy()
        set_mask(masked, self.keep_M)
        return self.loss(model_output=model_output, data=masked, dp_group=dp_group)
