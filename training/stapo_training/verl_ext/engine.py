"""veRL's FSDP engine with a token selector in its training pass.

A mini-batch is trained in one of four ways (`SelectorConfig.plan`):

masked    the mask is known before the pass (statistics of the old policy)
two_pass  a forward pass without gradients gives the statistics of the current policy: the reference
local     each micro-batch selects for itself while it is trained
guessed   the exact mask of the current policy without the extra forward pass (`form: speculative`)

`response_mask` is the numerator of veRL's loss; the engine counts the denominator from `loss_mask`. `masked` and
`two_pass` replace both before the pass. `local` and `guessed` learn the mask while the pass runs: parameters do not
change within a mini-batch and the loss is a sum over tokens, so they divide by all N response tokens, record
probability and entropy in passing, and multiply the gradients by N / kept before they are clipped. A guess puts a few
candidates on the wrong side of the threshold; a second forward and backward pass over just their sequences, cut behind
their last such token, adds or subtracts their gradients. What comes out is the two-pass gradient up to rounding.

The guess is the threshold that this very mini-batch has under the old policy, whose statistics the old-log-prob pass
left behind; where it left none, the threshold of the mini-batch before in the same step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id
from verl.utils.metric import AggregationType, Metric
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from stapo_results.errors import RunFailed
from stapo_training.methods import SelectorConfig
from stapo_training.selection import redo
from stapo_training.selection.selectors import INFINITY, Selection
from stapo_training.selection.token_stats import TokenStats, response_positions
from stapo_training.token_log.rows import Part
from stapo_training.token_log.writer import TokenLogConfig
from stapo_training.verl_ext.logits import PackedLogits
from stapo_training.verl_ext.selection import (
    ROW,
    Batch,
    Decision,
    RedoLoss,
    SelectingLoss,
    Watch,
    WatchingLoss,
    cut,
    gather,
    old_statistics,
    set_mask,
)
from stapo_training.verl_ext.token_watch import Clip, TokenWatch

_VeRLEngine: Any = FSDPEngineWithLMHead  # veRL's registering decorator hides the class's type


class SelectingEngine(_VeRLEngine):
    """FSDP with a selector; without one (`selector` None) it is veRL's engine but for entropies in float32."""

    selector: SelectorConfig | None = None
    batch_threshold: float | None = None
    """The whole batch's threshold under the old policy (scope `batch`); the worker sets it."""
    last_threshold: float | None = None
    """The threshold of the step's mini-batch before; the worker clears it when a step begins."""
    step = 0
    mini_batch = 0
    """Where the training stands, for messages and the token log; the worker sets both."""
    token_log: TokenLogConfig | None = None
    clip: Clip | None = None
    """What the policy loss clips, for the token log (`TokenWatch`)."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.logged: list[Part] = []  # this rank's part of the step's token log, a mini-batch each
        self.selection_metrics: dict[str, float] = {}  # of the last mini-batch

    # statistics from logits

    def prepare_model_outputs(
        self, output: Any, output_args: dict, micro_batch: Batch, logits_processor_func: Any
    ) -> dict:
        """veRL's outputs; entropies without gradient are ours, in float32; a SelectingLoss sees what passes."""
        wanted = bool(tu.get_non_tensor_data(data=micro_batch, key="calculate_entropy", default=False))
        fused = bool(tu.get_non_tensor_data(data=micro_batch, key="use_fused_kernels", default=False))
        ours = wanted and not fused and not torch.is_grad_enabled()
        if ours:
            micro_batch = micro_batch.copy()
            tu.assign_non_tensor(micro_batch, calculate_entropy=False)
        result = super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)
        offsets = micro_batch["input_ids"].offsets()
        packed = partial(
            PackedLogits,
            output.logits,
            output_args,
            offsets,
            gather=partial(self._gather_and_unpad_packed, pad_size=output_args["pad_size"])
            if self.use_ulysses_sp
            else None,
        )
        if ours:
            every = torch.arange(int(offsets[-1]), device=offsets.device)
            flat = packed(every, every).entropy()
            result["entropy"] = torch.nested.nested_tensor_from_jagged(flat, offsets)
        if isinstance(logits_processor_func, WatchingLoss):
            position_M = response_positions(offsets, micro_batch["response_mask"].offsets())
            logits_processor_func.observe(
                micro_batch[ROW],
                result["log_probs"].values().detach()[position_M].float(),
                packed(position_M, micro_batch["responses"].values()),
            )
        return result

    # training

    def forward_backward_batch(self, data: Batch, loss_function: Any, forward_only: bool = False) -> Any:
        s = self.selector
        if forward_only or s is None or not (s.selects or self.token_log):
            return super().forward_backward_batch(data, loss_function, forward_only)
        began = time.perf_counter()
        self.mini_batch += 1
        data[ROW] = torch.arange(len(data), device=data["response_mask"].device)
        watch = Watch(data, s, get_device_id())
        if not s.selects:
            return self._train_all(data, loss_function, watch)
        # veRL's rollout correction rewrites response_mask alone; the normaliser has to follow it
        data["loss_mask"] = data["response_mask"]
        old = self._old(data)
        known = self._known_before(data, watch, old)
        judged = old if s.policy == "old" else watch.stats().clone() if s.plan == "two_pass" else None
        log = self._token_watch(data, judged)
        guess = self._guess(old) if s.plan == "guessed" else None
        decide = Decision(s, watch, old, known, guess)
        if known is not None:
            self._mask(data, watch, known)
        watched = known is None or s.log_agreement or log is not None
        loss: Any = SelectingLoss(loss_function, watch, log, decide=decide) if watched else loss_function
        seconds = time.perf_counter() - began
        outputs = super().forward_backward_batch(data, loss, forward_only=False)
        began = time.perf_counter()
        if watched:
            self._check(watch.stats())
        chosen = known or (decide.local() if s.plan == "local" else self._pooled(watch.stats()))
        metrics: dict[str, float] = {}
        if guess is not None:
            metrics |= self._redo(data, loss_function, outputs, watch, loss.keep_N, chosen.keep_N)
            if abs(guess) != INFINITY and abs(chosen.threshold) != INFINITY:
                metrics["guess_error"] = abs(guess - chosen.threshold)
        if known is None:
            self._divide(outputs, self._total(watch.response_N), self._total(chosen.keep_N))
        if s.log_agreement:
            metrics |= self._agreement(watch, old, decide.local_keep_N)
        metrics |= self._counts(watch, chosen, entropies=s.log_entropy and (watched or s.plan == "two_pass"))
        if log is not None:
            self._log_tokens(log, data, watch, chosen.keep_N)
        if s.policy == "current" and s.scope == "mini_batch":
            self.last_threshold = chosen.threshold
        metrics["seconds"] = seconds + time.perf_counter() - began
        self.selection_metrics = metrics
        return outputs

    def _train_all(self, data: Batch, loss_function: Any, watch: Watch) -> Any:
        """veRL's own training of a method that silences nothing; what it trains is logged."""
        log = self._token_watch(data, None)
        outputs = super().forward_backward_batch(data, WatchingLoss(loss_function, watch, log), forward_only=False)
        assert log is not None
        self._log_tokens(log, data, watch, watch.response_N)
        return outputs

    def _token_watch(self, data: Batch, judged: TokenStats | None) -> TokenWatch | None:
        if self.token_log is None:
            return None
        assert self.selector is not None
        return TokenWatch(data, self.token_log, self.selector, self.clip, judged, get_device_id())

    def _log_tokens(self, log: TokenWatch, data: Batch, watch: Watch, keep_N: torch.Tensor) -> None:
        group = self.get_data_parallel_group()
        part = log.finish(data, watch.stats(), keep_N, lambda v: gather(v, group), self.step, self.mini_batch)
        self.logged.append(part)

    def _mask(self, data: Batch, watch: Watch, known: Selection) -> None:
        """Numerator and denominator of the loss count what is kept alone."""
        self._check_kept(self._total(watch.response_N), self._total(known.keep_N))
        set_mask(data, known.keep_N)
        data["loss_mask"] = data["response_mask"]

    def _known_before(self, data: Batch, watch: Watch, old: TokenStats | None) -> Selection | None:
        """The selection of the plans that have one before the training pass."""
        s = self.selector
        assert s is not None
        if s.plan == "masked":
            assert old is not None
            return self._pooled(old, self.batch_threshold if s.scope == "batch" else None)
        if s.plan == "two_pass":
            self._forward(data, watch)
            self._check(watch.stats())
            return self._pooled(watch.stats())
        return None

    def _old(self, data: Batch) -> TokenStats | None:
        """The old policy's statistics, checked where the selector rests on them; None where the batch has none."""
        assert self.selector is not None
        old = old_statistics(data, self.selector, get_device_id())
        if self.selector.policy != "old":
            return old
        if old is None:
            raise RunFailed(
                "selector.policy=old needs the old policy's entropies, and the batch has none",
                found=sorted(map(str, data.keys())),
                expected="the field entropy of veRL's old-log-prob pass",
                next_step="switch algorithm.rollout_correction.bypass_mode off, or set selector.policy=current",
            )
        self._check(old)
        return old

    def _forward(self, data: Batch, watch: Watch) -> None:
        """One pass of the current policy without gradients: fills the watch."""
        view = data.copy()  # the same tensors under a key table of its own
        engine = self.engine_config
        tu.assign_non_tensor(
            view,
            calculate_entropy=True,
            compute_loss=False,
            use_dynamic_bsz=engine.use_dynamic_bsz,
            max_token_len_per_gpu=engine.infer_max_token_len_per_gpu,
            micro_batch_size_per_gpu=engine.infer_micro_batch_size_per_gpu,
        )
        self.module.eval()
        output = self.infer_batch(view, loss_function=None)["model_output"]
        self.module.train()
        position_N = response_positions(output["log_probs"].offsets(), watch.offsets)
        watch.logprob_N[:] = output["log_probs"].values()[position_N].float()
        watch.entropy_N[:] = output["entropy"].values()[position_N].float()

    def _guess(self, old: TokenStats | None) -> float:
        if old is not None:
            return self._pooled(old).threshold
        return -INFINITY if self.last_threshold is None else self.last_threshold

    def _redo(
        self, data: Batch, loss: Any, outputs: dict, watch: Watch, guessed_N: torch.Tensor, keep_N: torch.Tensor
    ) -> dict[str, float]:
        """Add to the gradients what the guess left out, take away what it added; what that took.

        redone_share: tokens run again, of all. redone_longest: those of the rank that ran most, of a rank's tokens; all
        ranks wait for it.
        """
        plan = redo.plan(guessed_N, keep_N, watch.offsets)
        sequences = torch.tensor([len(plan.row_R)], device=watch.offsets.device)
        dist.all_reduce(sequences, op=dist.ReduceOp.MAX, group=self.get_data_parallel_group())
        most = int(sequences)
        if most == 0:
            return {"redone_share": 0.0, "redone_longest": 0.0}
        size = most
        if not tu.get_non_tensor_data(data=data, key="use_dynamic_bsz", default=True):
            size = min(most, int(data["micro_batch_size_per_gpu"]))
        parts = cut(data, plan, watch.offsets, -(-most // size) * size)
        tu.assign_non_tensor(parts, micro_batch_size_per_gpu=size)
        tokens = self._total(watch.response_N)
        again = super().forward_backward_batch(parts, RedoLoss(loss, tokens), forward_only=False)
        outputs["loss"] += again["loss"]
        for key, metric in again["metrics"].items():
            outputs["metrics"][key].extend(metric)
        longest = plan.tokens_R.sum()
        dist.all_reduce(longest, op=dist.ReduceOp.MAX, group=self.get_data_parallel_group())
        ranks = self.get_data_parallel_size()
        return {"redone_share": self._total(plan.tokens_R) / tokens, "redone_longest": float(longest) * ranks / tokens}

    def _divide(self, outputs: dict, tokens: float, kept: float) -> None:
        """From a mean over all response tokens to one over the kept: gradients, losses and summed metrics."""
        self._check_kept(tokens, kept)
        factor = tokens / kept
        for p in self.module.parameters():
            if p.grad is not None:
                p.grad.mul_(factor)
        outputs["loss"] = [x * factor for x in outputs["loss"]]
        for metric in outputs["metrics"].values():
            if isinstance(metric, Metric) and metric.aggregation == AggregationType.SUM:
                metric.values = [v * factor for v in metric.values]

    # over the ranks

    def _pooled(self, stats: TokenStats, threshold: float | None = None) -> Selection:
        assert self.selector is not None
        group = self.get_data_parallel_group()
        return self.selector.select(stats, pool=lambda v: gather(v, group), threshold=threshold)

    def _total(self, values_N: torch.Tensor) -> float:
        total = values_N.sum().double()
        dist.all_reduce(total, group=self.get_data_parallel_group())
        return float(total)

    def _where(self) -> str:
        rank = dist.get_rank(self.get_data_parallel_group())
        return f"step {self.step}, mini-batch {self.mini_batch} on rank {rank}"

    def _check(self, stats: TokenStats) -> None:
        """Raise on all ranks when one has a value that is not finite: alone it would leave the others waiting."""
        problem = stats.problem(self._where())
        if self._total(torch.tensor([problem is not None], device=stats.logprob_N.device)):
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

    def _counts(self, watch: Watch, chosen: Selection, entropies: bool) -> dict[str, float]:
        """Sums over ranks. A threshold that is not finite (no candidate, q = 0 or 1) is left out of the means."""
        tokens, kept = self._total(watch.response_N), self._total(chosen.keep_N)
        logged = {
            "tokens": tokens,
            "kept_tokens": kept,
            "silenced_tokens": tokens - kept,
            "candidate_tokens": self._total(chosen.candidate_N),
        }
        if abs(chosen.threshold) != INFINITY:
            logged["threshold"] = chosen.threshold
        if entropies:
            logged["current_entropy"] = self._total(watch.entropy_N.double()[watch.response_N]) / max(tokens, 1.0)
        return logged

    def _agreement(self, watch: Watch, old: TokenStats | None, local_keep_N: torch.Tensor) -> dict[str, float]:
        """The Jaccard index, over all ranks, of the tokens that each cheaper variant silences with Algorithm 1's."""
        exact = self._pooled(watch.stats())
        variants: dict[str, Callable[[], torch.Tensor]] = {"micro_batch": lambda: local_keep_N}
        if self.last_threshold is not None:
            variants["last_threshold"] = lambda: self._pooled(watch.stats(), self.last_threshold).keep_N
        if old is not None:
            variants["old"] = lambda: self._pooled(old).keep_N
            if self.batch_threshold is not None:
                variants["batch"] = lambda: self._pooled(old, self.batch_threshold).keep_N
        silenced_N, logged = watch.response_N & ~exact.keep_N, {}
        for name, keep_N in variants.items():
            other_N = watch.response_N & ~keep_N()
            either = self._total(silenced_N | other_N)
            logged[f"agreement/{name}"] = self._total(silenced_N & other_N) / either if either else 1.0
        return logged
