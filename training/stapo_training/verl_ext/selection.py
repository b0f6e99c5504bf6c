"""A mini-batch inside veRL as a selector needs it: statistics in passing, masked losses, what is run again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.metric import AggregationType, Metric

from stapo_training.methods import SelectorConfig
from stapo_training.selection.redo import Redo
from stapo_training.selection.selectors import INFINITY, Selection
from stapo_training.selection.token_stats import TokenStats, spans, token_keys
from stapo_training.verl_ext.logits import PackedLogits
from stapo_training.verl_ext.token_watch import TOP, TokenWatch

Batch = Any
"""A TensorDict of veRL's: jagged tensors, one row a sequence, and settings. Its own type says nothing of either."""
ROW = "selector_row"
"""The key under which micro-batches carry their sequences' rows in the mini-batch."""
_FULL = ("input_ids", "position_ids")
_RESPONSE = ("responses", "advantages", "old_log_probs", "ref_log_prob", "rollout_is_weights")
_SETTINGS = (
    "temperature",
    "global_batch_size",
    "use_remove_padding",
    "use_fused_kernels",
    "use_dynamic_bsz",
    "max_token_len_per_gpu",
    "micro_batch_size_per_gpu",
    "pad_token_id",
)


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


def set_mask(data: Batch, keep_N: torch.Tensor) -> None:
    """Replace `response_mask` by a flat mask over its tokens."""
    mask = data["response_mask"]
    kept = keep_N.to(mask.dtype).to(mask.device)
    # not nested_tensor_from_jagged: without known lengths, padding it pads to the sum of the lengths
    rows = kept.split(mask.offsets().diff().tolist())
    data["response_mask"] = torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


class Watch:
    """What is known of a mini-batch's tokens while its micro-batches pass: buffers over its N response tokens."""

    def __init__(self, data: Batch, selector: SelectorConfig, device: Any):
        mask = data["response_mask"]
        self.selector = selector
        self.offsets = mask.offsets().to(device)
        self.response_N = mask.values().bool().to(device)
        self.advantage_N = data["advantages"].values().float().to(device)
        self.key_N = _keys(data, selector, device)
        self.logprob_N = torch.full_like(self.advantage_N, float("nan"))  # an unseen token fails TokenStats.check
        self.entropy_N = torch.zeros_like(self.advantage_N)

    def index(self, rows_B: torch.Tensor) -> torch.Tensor:
        """Where the response tokens of some rows stand in the buffers."""
        return spans(self.offsets[rows_B], self.offsets[rows_B + 1] - self.offsets[rows_B])

    def stats(self) -> TokenStats:
        return TokenStats(self.logprob_N, self.entropy_N, self.advantage_N, self.response_N, self.key_N)


class Decision:
    """What a training pass keeps of each of its micro-batches.

    That is the mask `known` where there is one; else each micro-batch's own (plan `local`), or what lies on the right
    side of `guess`, a threshold. The micro-batches' own masks are recorded too where their agreement is logged.
    """

    def __init__(
        self,
        selector: SelectorConfig,
        watch: Watch,
        old: TokenStats | None,
        known: Selection | None,
        guess: float | None,
    ):
        self.selector, self.known, self.guess = selector, known, guess
        self.old = old if selector.policy == "old" else None
        self.local_keep_N = torch.zeros_like(watch.response_N)
        self._local_candidate_N = torch.zeros_like(watch.response_N)
        self._thresholds: list[float] = []

    def __call__(self, stats: TokenStats, index: torch.Tensor) -> torch.Tensor:
        s = self.selector
        if s.plan == "local" or s.log_agreement:
            own = s.select(stats if self.old is None else self.old.take(index))
            self.local_keep_N[index], self._local_candidate_N[index] = own.keep_N, own.candidate_N
            self._thresholds.append(own.threshold)
        if self.known is not None:
            return self.known.keep_N[index]
        return self.local_keep_N[index] if s.plan == "local" else s.select(stats, threshold=self.guess).keep_N

    def local(self) -> Selection:
        """The micro-batches' own selections as one; its threshold is the mean of theirs."""
        finite = [t for t in self._thresholds if abs(t) != INFINITY]
        return Selection(self.local_keep_N, self._local_candidate_N, sum(finite) / len(finite) if finite else INFINITY)


@dataclass
class WatchingLoss:
    """veRL's loss unchanged, called with every micro-batch after `observe` has seen its statistics."""

    loss: Callable
    watch: Watch
    log: TokenWatch | None = None
    index: torch.Tensor = field(init=False)
    """Where the micro-batch's tokens stand in the mini-batch."""

    def observe(self, rows_B: torch.Tensor, logprob_M: torch.Tensor, logits: PackedLogits) -> None:
        """Record a micro-batch's log-probabilities, the entropies that the selector wants, and what is to be logged."""
        w, self.index = self.watch, self.watch.index(rows_B)
        w.logprob_N[self.index] = logprob_M
        if self.log is None:
            wanted = w.selector.wants_entropy(self.stats())
            w.entropy_N[self.index[wanted]] = logits.entropy(wanted)
            return
        every = w.response_N[self.index]
        found = logits.entropy_and_collision(every)
        w.entropy_N[self.index[every]], self.log.collision_N[self.index[every]] = found
        wanted = self.log.wanted(self.stats(), self.index)
        if wanted.any():
            self.log.see(self.index[wanted], *logits.most_probable(wanted, TOP))

    def stats(self) -> TokenStats:
        """The micro-batch's statistics so far."""
        return self.watch.stats().take(self.index)

    def __call__(self, model_output: dict, data: Batch, dp_group: Any = None) -> tuple[torch.Tensor, dict]:
        return self.loss(model_output=model_output, data=data, dp_group=dp_group)


@dataclass
class SelectingLoss(WatchingLoss):
    """veRL's loss behind a mask that is decided micro-batch by micro-batch.

    decide: (a micro-batch's statistics, their index in the mini-batch) -> the tokens to keep.
    """

    decide: Callable[[TokenStats, torch.Tensor], torch.Tensor] = field(kw_only=True)
    keep_N: torch.Tensor = field(init=False)
    """What was decided so far, over the mini-batch's tokens."""

    def __post_init__(self) -> None:
        self.keep_N = torch.zeros_like(self.watch.response_N)

    def observe(self, rows_B: torch.Tensor, logprob_M: torch.Tensor, logits: PackedLogits) -> None:
        super().observe(rows_B, logprob_M, logits)
        self.keep_N[self.index] = self.decide(self.stats(), self.index)

    def __call__(self, model_output: dict, data: Batch, dp_group: Any = None) -> tuple[torch.Tensor, dict]:
        masked = data.copy()
        set_mask(masked, self.keep_N[self.index])
        return self.loss(model_output=model_output, data=masked, dp_group=dp_group)


@dataclass
class RedoLoss:
    """The loss of the tokens that a guess silenced wrongly, minus that of those it kept wrongly, over N tokens."""

    loss: Callable
    tokens: float

    def __call__(self, model_output: dict, data: Batch, dp_group: Any = None) -> tuple[torch.Tensor, dict]:
        signed = []
        for name in ("added", "removed"):
            masked = data.copy()
            tu.assign_non_tensor(masked, batch_num_tokens=self.tokens)
            masked["response_mask"] = data[name]
            signed.append(self.loss(model_output=model_output, data=masked, dp_group=dp_group))
        (added, sums), (removed, minus) = signed
        return added - removed, {
            k: Metric(value=m.aggregate() - minus[k].aggregate(), aggregation=m.aggregation)
            for k, m in sums.items()
            if isinstance(m, Metric) and m.aggregation == AggregationType.SUM
        }


def cut(data: Batch, plan: Redo, offsets: torch.Tensor, count: int) -> Batch:
    """The sequences of a correction, each cut behind its last token that counts, filled up to `count` sequences.

    All ranks have to run equally many; the filling is the shortest prompt with one response token and an empty mask.
    """
    prompts = data["prompts"].offsets().diff().tolist()
    answered = [r for r, n in enumerate(data["responses"].offsets().diff().tolist()) if n]
    filling = [min(answered, key=lambda r: prompts[r])] * (count - len(plan.row_R))
    rows = plan.row_R.tolist() + filling
    lengths = plan.tokens_R.tolist() + [1] * len(filling)
    real = [True] * len(plan.row_R) + [False] * len(filling)
    starts = offsets.tolist()

    def nested(parts: list[torch.Tensor]) -> torch.Tensor:
        return torch.nested.as_nested_tensor(parts, layout=torch.jagged)

    fields = {}
    for name in ("prompts", *_FULL, *_RESPONSE):
        if data.get(name) is not None:
            whole = data[name].unbind()
            extra = {"prompts": None, **dict.fromkeys(_FULL, 1), **dict.fromkeys(_RESPONSE, 0)}[name]
            fields[name] = nested(
                [
                    whole[r] if extra is None else whole[r][: extra * prompts[r] + n]
                    for r, n in zip(rows, lengths, strict=True)
                ]
            )
    mask = data["response_mask"]
    for name, flat in (("added", plan.added_N), ("removed", plan.removed_N)):
        signs = flat.to(mask.dtype).to(mask.device)
        fields[name] = nested(
            [signs[starts[r] : starts[r] + n] * on for r, n, on in zip(rows, lengths, real, strict=True)]
        )
    fields["response_mask"] = fields["loss_mask"] = fields["added"]
    parts = TensorDict(fields, batch_size=count)
    known = {k: v for k in _SETTINGS if (v := tu.get_non_tensor_data(data=data, key=k, default=None)) is not None}
    tu.assign_non_tensor(parts, calculate_entropy=False, **known)
    return parts
