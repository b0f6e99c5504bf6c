"""What the plans share: the training pass, sums over ranks, masks and normalisers, and what is logged."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from verl.utils.device import get_device_id
from verl.utils.metric import AggregationType, Metric

from stapo_results.errors import RunFailed
from stapo_training.methods import SelectorConfig
from stapo_training.selection.selectors import INFINITY, Selection
from stapo_training.selection.token_stats import TokenStats
from stapo_training.verl_ext.mini_batch import (
    Batch,
    Decide,
    MaskingLoss,
    MicroBatchSelections,
    RecordingLoss,
    StatisticsBuffer,
    gather,
    old_statistics,
    set_mask,
)
from stapo_training.verl_ext.token_log_buffer import TokenLogBuffer

Outputs = dict[str, Any]
"""What veRL's training pass returns: `loss` and `metrics`, lists over micro-batches."""


class Plan(ABC):
    """Trains one mini-batch with a selector; an object a mini-batch.

    Attributes:
        engine: the SelectingEngine. data, loss: what veRL handed to it.
        buffer: the current policy's statistics, once a pass has made them.
        old: the old policy's; None where the old-log-prob pass left no entropy. judged: the same where the selector
            judges by them, else None.
        metrics: what is logged of the selection.
        pass_seconds: what the training pass took.
    """

    def __init__(self, engine: Any, data: Batch, loss: Callable):
        self.engine, self.data, self.loss = engine, data, loss
        self.selector: SelectorConfig = engine.selector
        self.group = engine.get_data_parallel_group()
        self.buffer = StatisticsBuffer(data, self.selector, get_device_id())
        self.old = self._old_statistics()
        self.judged = self.old if self.selector.policy == "old" else None
        self.metrics: dict[str, float] = {}
        self.pass_seconds = 0.0
        self._log: TokenLogBuffer | None = None

    @abstractmethod
    def train(self) -> Outputs:
        """Leave the mini-batch's gradient in the parameters; fill `metrics`."""

    def _old_statistics(self) -> TokenStats | None:
        """The old policy's statistics, checked where the selector rests on them."""
        old = old_statistics(self.data, self.selector, get_device_id())
        if self.selector.policy != "old":
            return old
        if old is None:
            raise RunFailed(
                "selector.policy=old needs the old policy's entropies, and the batch has none",
                found=sorted(map(str, self.data.keys())),
                expected="the field entropy of veRL's old-log-prob pass",
                next_step="switch algorithm.rollout_correction.bypass_mode off, or set selector.policy=current",
            )
        self.check(old)
        return old

    # the training pass

    def train_pass(self, decide: Decide | None = None, judged: TokenStats | None = None) -> Outputs:
        """veRL's training pass; what it computes anyway is recorded where something asks for it.

        Args:
            decide: what each micro-batch keeps; None where `mask` has been called.
            judged: the statistics that the selector judged by; None: those of this pass.
        """
        loss = self.loss
        self._log = self.engine.token_log_buffer(self.data, judged)
        recorded = decide is not None or self._log is not None
        if decide is not None:
            loss = MaskingLoss(self.loss, self.buffer, self._log, decide=decide)
        elif recorded:
            loss = RecordingLoss(self.loss, self.buffer, self._log)
        began = time.perf_counter()
        outputs = self.engine.verl_pass(self.data, loss)
        self.pass_seconds = time.perf_counter() - began
        if recorded:
            self.check(self.buffer.stats())
            self.buffer.filled = True
        return outputs

    def mask(self, chosen: Selection) -> None:
        """Before the training pass: numerator and denominator of the loss count what is kept alone."""
        self._check_kept(self.total(self.buffer.response_N), self.total(chosen.keep_N))
        set_mask(self.data, chosen.keep_N)
        self.data["loss_mask"] = self.data["response_mask"]

    def divide(self, outputs: Outputs, chosen: Selection) -> None:
        """After it: from a mean over all response tokens to one over the kept, of gradients, losses, summed metrics."""
        tokens, kept = self.total(self.buffer.response_N), self.total(chosen.keep_N)
        self._check_kept(tokens, kept)
        factor = tokens / kept
        for p in self.engine.module.parameters():
            if p.grad is not None:
                p.grad.mul_(factor)
        outputs["loss"] = [x * factor for x in outputs["loss"]]
        for metric in outputs["metrics"].values():
            if isinstance(metric, Metric) and metric.aggregation == AggregationType.SUM:
                metric.values = [v * factor for v in metric.values]

    # over the ranks

    def select(self, stats: TokenStats) -> Selection:
        """The selection of the mini-batch over all ranks, or, with scope `response`, of each response by itself."""
        if self.selector.scope == "response":
            parts = MicroBatchSelections(self.selector, self.buffer, None)
            for row in torch.arange(len(self.data), device=self.buffer.offsets.device).split(1):
                index = self.buffer.index(row)
                parts.select(stats.take(index), index)
            return parts.joined()
        return self.selector.select(stats, pool=lambda v: gather(v, self.group))

    def total(self, values_N: torch.Tensor) -> float:
        """The sum over all tokens of all ranks."""
        total = values_N.sum().double()
        dist.all_reduce(total, group=self.group)
        return float(total)

    def check(self, stats: TokenStats) -> None:
        """Raise on all ranks when one has a value that is not finite: alone it would leave the others waiting."""
        problem = stats.problem(self._where())
        if self.total(torch.tensor([problem is not None], device=stats.logprob_N.device)):
            raise problem or RunFailed(
                f"{self._where()}: another rank has statistics that are not finite", next_step="see that rank's error"
            )

    def _check_kept(self, tokens: float, kept: float) -> None:
        if not kept:
            raise RunFailed(
                f"{self._where()}: no token is kept, so that the loss has nothing to divide by",
                found=f"0 of {tokens:.0f} response tokens",
                expected="at least one",
                next_step="lower selector.q or selector.tau_p",
            )

    def _where(self) -> str:
        return f"step {self.engine.step}, mini-batch {self.engine.mini_batch} on rank {dist.get_rank(self.group)}"

    # what is logged

    def finish(self, chosen: Selection) -> None:
        """Log what was selected: metrics, and the token log."""
        self.metrics |= self._counts(chosen)
        if self._log is not None:
            self.engine.log_tokens(self._log, self.data, self.buffer, chosen.keep_N)

    def _counts(self, chosen: Selection) -> dict[str, float]:
        """Sums over ranks. A threshold that is not finite (no candidate, q = 0 or 1) is left out of the means."""
        b = self.buffer
        tokens, kept = self.total(b.response_N), self.total(chosen.keep_N)
        logged = {
            "tokens": tokens,
            "kept_tokens": kept,
            "silenced_tokens": tokens - kept,
            "candidate_tokens": self.total(chosen.candidate_N),
        }
        if abs(chosen.threshold) != INFINITY:
            logged["threshold"] = chosen.threshold
        if b.filled:
            logged["current_entropy"] = self.total(b.entropy_N.double()[b.response_N]) / max(tokens, 1.0)
        return logged
