"""veRL's training worker with a token selector in front of every optimizer step.

`train_batch` is called once a mini-batch. Before it, one forward pass of the current policy without gradients gives
every token's log-probability and entropy; the selector decides over all ranks; then both masks are replaced:
`response_mask` is the numerator of the loss, and the engine counts the denominator (`batch_num_tokens`) from
`loss_mask`. Replacing only one would change the step size silently.
"""

from __future__ import annotations

import functools
import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import OffloadPolicy
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_name
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker
from verl.workers.utils.padding import response_from_nested

from stapo_results.errors import RunFailed
from stapo_training.methods import SelectorConfig, selector_from
from stapo_training.selectors import Selection, TokenStats, alone
from stapo_training.verl_ext import rollout

rollout.register()


@functools.cache  # the actor and the reference worker live in one process; veRL refuses a second registration
def register_cpu_engine() -> None:
    """veRL registers its FSDP engine for cuda and npu; FSDP2 runs on the CPU unchanged."""
    from verl.workers.engine import EngineRegistry
    from verl.workers.engine.fsdp import transformer_impl

    # Without flash-attention's kernel veRL takes one logsumexp a token, in a Python loop: half of a CPU update.
    transformer_impl.logprobs_from_logits = logprobs_from_logits
    # The reference model's parameters would be offloaded to pinned host memory; here they are host memory.
    transformer_impl.CPUOffloadPolicy = lambda pin_memory: OffloadPolicy()
    EngineRegistry.register(model_type="language_model", backend=["fsdp2"], device="cpu")(
        transformer_impl.FSDPEngineWithLMHead
    )


def logprobs_from_logits(logits: torch.Tensor, labels: torch.Tensor, inplace_backward: bool = True) -> torch.Tensor:
    """log softmax(logits)[label]: logits (..., V), labels (...) -> (...). veRL's function of the same name, whole."""
    return logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1) - torch.logsumexp(logits, dim=-1)


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


class SelectingTrainingWorker(TrainingWorker):
    """TrainingWorker whose mini-batches pass through a selector; `selector` None is veRL unchanged."""

    selector: SelectorConfig | None = None
    checks_normaliser = True
    """False where the loss does not divide by tokens (GRPO's mean of sequence means)."""

    def __init__(self, config: Any):
        if get_device_name() == "cpu":
            register_cpu_engine()
            if not dist.is_initialized():
                # veRL would ask for "cpu:gloo,cpu:gloo", which torch refuses; it leaves an existing group alone
                dist.init_process_group("gloo")
        super().__init__(config)
        self.mini_batches_seen = 0

    def _statistics(self, data: Any) -> TokenStats:
        view = data.copy()  # the same tensors under a key table of its own
        engine = self.engine_config
        tu.assign_non_tensor(
            view,
            calculate_entropy=True,
            compute_loss=False,
            use_remove_padding=engine.use_remove_padding,
            use_dynamic_bsz=engine.use_dynamic_bsz,
            max_token_len_per_gpu=engine.infer_max_token_len_per_gpu,
            micro_batch_size_per_gpu=engine.infer_micro_batch_size_per_gpu,
            use_fused_kernels=engine.use_fused_kernels,
        )
        with torch.no_grad(), self.engine.eval_mode(disable_auto_offload=True):
            output = self.engine.infer_batch(view, loss_function=None)["model_output"]
        mask = data["response_mask"]
        logprob_N, entropy_N = (
            response_from_nested(output[k], mask).values().float() for k in ("log_probs", "entropy")
        )
        return TokenStats(
            logprob_N=logprob_N,
            entropy_N=entropy_N,
            advantage_N=data["advantages"].values().float().to(logprob_N.device),
            response_N=mask.values().bool().to(logprob_N.device),
        )

    def _select(self, data: Any, stats: TokenStats) -> Selection:
        assert self.selector is not None
        group = self.engine.get_data_parallel_group()
        if self.selector.scope == "mini_batch":
            return self.selector.select(stats, pool=lambda v: gather(v, group))
        return self._select_by_micro_batch(data, stats)

    def _select_by_micro_batch(self, data: Any, stats: TokenStats) -> Selection:
        """One selection a micro-batch, with the split that the engine is about to make."""
        assert self.selector is not None
        rows = len(data)
        if self.engine_config.use_dynamic_bsz:
            raise RunFailed(
                "the micro_batch scope needs micro-batches of a fixed number of sequences",
                found="actor.use_dynamic_bsz=true",
                expected="false",
                next_step="set actor_rollout_ref.actor.use_dynamic_bsz=false or selector.scope=mini_batch",
            )
        size = self.engine_config.micro_batch_size_per_gpu
        bounds = data["response_mask"].offsets().tolist()
        keep_N, candidate_N = torch.zeros_like(stats.response_N), torch.zeros_like(stats.response_N)
        thresholds = []
        for first in range(0, rows, size):
            part = slice(bounds[first], bounds[min(first + size, rows)])
            chosen = self.selector.select(
                TokenStats(
                    stats.logprob_N[part], stats.entropy_N[part], stats.advantage_N[part], stats.response_N[part]
                ),
                pool=alone,
            )
            keep_N[part], candidate_N[part] = chosen.keep_N, chosen.candidate_N
            thresholds.append(chosen.threshold)
        return Selection(keep_N, candidate_N, sum(thresholds) / len(thresholds))

    def _replace_masks(self, data: Any) -> dict[str, float]:
        """Run the selector on a mini-batch, replace both masks in `data`, return what is logged (sums over ranks)."""
        began = time.perf_counter()
        stats = self._statistics(data)
        stats.check(f"mini-batch {self.mini_batches_seen} on rank {self.rank}")
        chosen = self._select(data, stats)
        new = chosen.keep_N.to(data["response_mask"].dtype).to(data["response_mask"].device)
        nested = torch.nested.nested_tensor_from_jagged(new, data["response_mask"].offsets())
        data["response_mask"] = nested
        data["loss_mask"] = nested
        response_N, keep_N = stats.response_N, chosen.keep_N
        sums = torch.stack(
            [
                response_N.sum(),
                keep_N.sum(),
                chosen.candidate_N.sum(),
                stats.entropy_N.double()[response_N].sum(),
            ]
        ).double()
        dist.all_reduce(sums, group=self.engine.get_data_parallel_group())
        tokens, kept, candidates, entropy = sums.tolist()
        threshold = chosen.threshold
        return {
            "selector/tokens": tokens,
            "selector/kept_tokens": kept,
            "selector/silenced_tokens": tokens - kept,
            "selector/candidate_tokens": candidates,
            # a mean over mini-batches has no use for an infinite threshold (no candidate, q = 0 or 1)
            "selector/threshold": threshold if abs(threshold) != float("inf") else 0.0,
            "selector/current_entropy": entropy / max(tokens, 1.0),
            "timing_selector": time.perf_counter() - began,
        }

    def train_batch(self, data: Any) -> Any:
        """One optimizer step on one mini-batch, with the selector's masks."""
        if self.selector is None or not self.selector.needs_statistics:
            self.mini_batches_seen += 1
            return super().train_batch(data)
        metrics = self._replace_masks(data)
        output = super().train_batch(data)
        self.mini_batches_seen += 1
        normaliser = float(tu.get(data, "batch_num_tokens"))
        if self.checks_normaliser and normaliser != metrics["selector/kept_tokens"]:
            raise RunFailed(
                "the loss was not divided by the number of kept tokens",
                found=normaliser,
                expected=metrics["selector/kept_tokens"],
                next_step="this veRL version counts its normaliser elsewhere: use verl==0.9.1 (requirements/)",
            )
        if output is not None:
            logged = tu.get(output, "metrics")
            logged.update(metrics)
            tu.assign_non_tensor(output, metrics=logged)
        return output


class StapoWorker(ActorRolloutRefWorker):
    """veRL's actor, rollout and reference worker with the selecting training worker inside."""

    actor_worker_cls = SelectingTrainingWorker
    ref_worker_cls = SelectingTrainingWorker

    actor: Any  # the class above

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[attr-defined]  # veRL makes its modes at run time
    def init_model(self) -> None:
        if get_device_name() == "cpu":
            torch.set_num_threads(int(os.environ.get("STAPO_TRAIN_THREADS", "1")))
            torch.use_deterministic_algorithms(True)
        super().init_model()
        if self.actor is not None:
            self.actor.selector = selector_from(self.config.selector)
            self.actor.checks_normaliser = self.config.actor.loss_agg_mode == "token-mean"
