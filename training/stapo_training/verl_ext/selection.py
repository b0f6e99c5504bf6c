"""Where S2T (Silencing Spurious Tokens) is decided: statistics -> mask -> training -> log, for one mini-batch.

Algorithm 1 of STAPO (2602.15620) selects over a mini-batch before its gradient, so its statistics come first: from the
old-log-prob pass, or from a forward pass. `speculative` has the two ways that decide while the training pass runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from verl.utils.device import get_device_id

from stapo_results.errors import RunFailed
from stapo_training.selection.selectors import INFINITY, Selection
from stapo_training.selection.token_stats import TokenStats
from stapo_training.verl_ext import token_log_part
from stapo_training.verl_ext.mini_batch import Batch, Decide, Outputs, Recorder, SelectionParts, gather, set_values

WhilePassing = Callable[["MiniBatchTraining"], tuple[Outputs, Selection]]


class MiniBatchTraining:
    """One mini-batch, trained with a selector; leaves its gradient in the parameters.

    Attributes:
        engine: the SelectingEngine; data and loss: what veRL handed to it; metrics: what is logged of the selection.
        recorder, old: the current policy's statistics, the old policy's (None where its pass left no entropy).
    """

    def __init__(self, engine: Any, data: Batch, loss: Callable):
        self.engine, self.data, self.loss = engine, data, loss
        self.selector = engine.selector
        self.group = engine.get_data_parallel_group()
        self.recorder = Recorder(data, self.selector, engine.token_log, get_device_id())
        self.old = self.recorder.old_stats(data)
        self.metrics: dict[str, float] = {}
        self._pass_seconds = 0.0

    def train(self, while_passing: WhilePassing | None = None) -> Outputs:
        """Train the mini-batch, and log it.

        Args:
            while_passing: what trains and selects at once (`speculative`); None: the mask is known first.

        Raises:
            RunFailed: statistics are not finite or not there, or no token is kept.
        """
        began = time.perf_counter()
        if not self.selector.selects:
            outputs = self.train_pass()
            self._log(self.recorder.response_N)
            return outputs
        if while_passing is not None:
            outputs, chosen = while_passing(self)
        else:
            stats: Any = self.old if self.selector.policy == "old" else self._current_statistics()
            self.check(stats)
            chosen = self.select(stats)
            self.tokens_per_kept(chosen)
            set_values(self.data, "response_mask", chosen.keep_N)
            self.data["loss_mask"] = self.data["response_mask"]  # numerator and denominator count the kept alone
            self.recorder.judged = stats
            outputs = self.train_pass()
        self.metrics |= self._counts(chosen)
        self._log(chosen.keep_N)
        self.metrics["seconds"] = time.perf_counter() - began - self._pass_seconds
        return outputs

    def _current_statistics(self) -> TokenStats:
        """The old policy's in a step's first mini-batch, whose weights are the same; else those of a forward pass."""
        if self.engine.old_is_current and self.engine.mini_batch == 1 and self.old is not None:
            self.recorder.fill(self.old.logprob_N, self.old.entropy_N)
        else:
            self.recorder.fill(*self.engine.statistics_pass(self.data, self.recorder.offsets))
        return self.recorder.stats().clone()  # the training pass records its own

    def select(self, stats: TokenStats) -> Selection:
        """The selection of the mini-batch over all ranks, or, with scope `response`, of each response by itself."""
        if self.selector.scope != "response":
            return self.selector.select(stats, pool=lambda v: gather(v, self.group))
        parts = SelectionParts(self.recorder.response_N)
        for row in torch.arange(len(self.data), device=self.recorder.offsets.device).split(1):
            index = self.recorder.index(row)
            parts.add(index, self.selector.select(stats.take(index)))
        return parts.joined(self.group)

    def train_pass(self, decide: Decide | None = None) -> Outputs:
        """veRL's training pass; what it computes anyway is recorded where something asks for it.

        Args:
            decide: what each micro-batch keeps; None where the mini-batch has its mask.
        """
        recorded = decide is not None or self.recorder.log is not None
        began = time.perf_counter()
        outputs = self.engine.verl_pass(self.data, self.loss, self.recorder if recorded else None, decide)
        self._pass_seconds = time.perf_counter() - began
        if recorded and self.selector.selects:
            self.check(self.recorder.stats())
            self.recorder.filled = True
        return outputs

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

    def tokens_per_kept(self, chosen: Selection) -> float:
        """Response tokens for each kept one; raises without a kept one."""
        tokens, kept = self.total(self.recorder.response_N), self.total(chosen.keep_N)
        if not kept:
            raise RunFailed(
                f"{self._where()}: no token is kept, so that the loss has nothing to divide by",
                found=f"0 of {tokens:.0f} response tokens",
                expected="at least one",
                next_step="lower selector.q or selector.tau_p",
            )
        return tokens / kept

    def _where(self) -> str:
        return f"step {self.engine.step}, mini-batch {self.engine.mini_batch} on rank {dist.get_rank(self.group)}"

    def _counts(self, chosen: Selection) -> dict[str, float]:
        """Sums over ranks. A threshold that is not finite (no candidate, q = 0 or 1) is left out of the means."""
        r = self.recorder
        tokens, kept = self.total(r.response_N), self.total(chosen.keep_N)
        logged = {"tokens": tokens, "kept_tokens": kept, "silenced_tokens": tokens - kept}
        logged["candidate_tokens"] = self.total(chosen.candidate_N)
        if abs(chosen.threshold) != INFINITY:
            logged["threshold"] = chosen.threshold
        if r.filled:
            logged["current_entropy"] = self.total(r.entropy_N.double()[r.response_N]) / max(tokens, 1.0)
        return logged

    def _log(self, keep_N: torch.Tensor) -> None:
        if self.recorder.log is not None:
            part = token_log_part.finish(self.engine, self.data, self.recorder, keep_N, lambda v: gather(v, self.group))
            self.engine.logged.append(part)
