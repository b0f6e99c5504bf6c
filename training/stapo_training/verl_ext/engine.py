"""veRL's FSDP engine with a token selector in its training pass: chooses a plan and lets it train (`plans`)."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from stapo_training.methods import SelectorConfig
from stapo_training.selection.token_stats import TokenStats, response_positions
from stapo_training.token_log.rows import Part
from stapo_training.token_log.writer import TokenLogConfig
from stapo_training.verl_ext import attention
from stapo_training.verl_ext.logits import PackedLogits
from stapo_training.verl_ext.mini_batch import ROW, Batch, RecordingLoss, StatisticsBuffer, gather
from stapo_training.verl_ext.plans.base import Outputs, Plan
from stapo_training.verl_ext.plans.guessed import GuessedPlan
from stapo_training.verl_ext.plans.local import LocalPlan
from stapo_training.verl_ext.plans.masked import MaskedPlan
from stapo_training.verl_ext.plans.two_pass import TwoPassPlan
from stapo_training.verl_ext.token_log_buffer import Clip, TokenLogBuffer

PLANS: dict[str, type[Plan]] = {
    "masked": MaskedPlan,
    "two_pass": TwoPassPlan,
    "local": LocalPlan,
    "guessed": GuessedPlan,
}

PROXY = "proxy_log_probs"
"""The field of the responses' log-probabilities among the tokens that min-p keeps."""

_VeRLEngine: Any = FSDPEngineWithLMHead  # veRL's registering decorator hides the class's type


class SelectingEngine(_VeRLEngine):
    """FSDP with a selector; without one (`selector` None) it is veRL's engine but for entropies in float32."""

    selector: SelectorConfig | None = None
    last_threshold: float | None = None
    """The threshold of the step's mini-batch before; the worker clears it when a step begins."""
    step = 0
    mini_batch = 0
    """Where the training stands, for messages and the token log; the worker sets both."""
    token_log: TokenLogConfig | None = None
    min_p: float = 0.0
    """Above 0 the old-log-prob pass leaves PROXY: `ProxyConfig`."""
    clip: Clip | None = None
    """What the policy loss clips, for the token log (`TokenLogBuffer`)."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        # veRL writes the override there too, and a checkpoint's config.json would name what is known here alone
        vars(self.model_config.hf_config).pop("attn_implementation", None)
        self.logged: list[Part] = []  # this rank's part of the step's token log, a mini-batch each
        self.selection_metrics: dict[str, float] = {}  # of the last mini-batch

    def prepare_model_inputs(self, micro_batch: Batch) -> tuple[dict, dict]:
        """veRL's inputs; for our attention also where a packed row's sequences begin, once for all layers."""
        inputs, settings = super().prepare_model_inputs(micro_batch)
        if self.module.config._attn_implementation == attention.NAME and inputs["attention_mask"] is None:
            inputs |= attention.boundaries(inputs["position_ids"])
        return inputs, settings

    def prepare_model_outputs(
        self, output: Any, output_args: dict, micro_batch: Batch, logits_processor_func: Any
    ) -> dict:
        """veRL's outputs; entropies without gradient are ours, in float32; a RecordingLoss sees what passes."""
        wanted = bool(tu.get_non_tensor_data(data=micro_batch, key="calculate_entropy", default=False))
        fused = bool(tu.get_non_tensor_data(data=micro_batch, key="use_fused_kernels", default=False))
        ours = wanted and not fused and not torch.is_grad_enabled()
        if ours:
            micro_batch = micro_batch.copy()
            tu.assign_non_tensor(micro_batch, calculate_entropy=False)
        result = super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)
        offsets = micro_batch["input_ids"].offsets()
        sharded = self.use_ulysses_sp
        unsharded = partial(self._gather_and_unpad_packed, pad_size=output_args["pad_size"]) if sharded else None
        packed = partial(PackedLogits, output.logits, output_args, offsets, gather=unsharded)
        if ours and self.min_p:
            response = micro_batch["response_mask"].offsets()
            here = packed(response_positions(offsets, response), micro_batch["responses"].values())
            result[PROXY] = torch.nested.nested_tensor_from_jagged(here.proxy_logprob(self.min_p), response)
        if ours:
            every = torch.arange(int(offsets[-1]), device=offsets.device)
            flat = packed(every, every).entropy()
            result["entropy"] = torch.nested.nested_tensor_from_jagged(flat, offsets)
        if isinstance(logits_processor_func, RecordingLoss):
            position_M = response_positions(offsets, micro_batch["response_mask"].offsets())
            logits_processor_func.observe(
                micro_batch[ROW],
                result["log_probs"].values().detach()[position_M].float(),
                packed(position_M, micro_batch["responses"].values()),
            )
        return result

    def forward_backward_batch(self, data: Batch, loss_function: Any, forward_only: bool = False) -> Any:
        s = self.selector
        if forward_only:
            return super().forward_backward_batch(data, loss_function, forward_only)
        # veRL's rollout correction rewrites response_mask alone; the normaliser has to follow it, with every method
        data["loss_mask"] = data["response_mask"]
        if s is None or not (s.selects or self.token_log):
            return super().forward_backward_batch(data, loss_function, forward_only)
        began = time.perf_counter()
        self.mini_batch += 1
        data[ROW] = torch.arange(len(data), device=data["response_mask"].device)
        if not s.selects:
            return self._train_all(data, loss_function)
        plan = PLANS[s.plan](self, data, loss_function)
        outputs = plan.train()
        self.selection_metrics = plan.metrics | {"seconds": time.perf_counter() - began - plan.pass_seconds}
        return outputs

    def verl_pass(self, data: Batch, loss: Any) -> Outputs:
        """veRL's forward and backward pass over a batch; its gradients are added to those that are there."""
        return super().forward_backward_batch(data, loss, forward_only=False)

    def _train_all(self, data: Batch, loss: Any) -> Outputs:
        """veRL's own training of a method that silences nothing; what it trains is logged."""
        assert self.selector is not None
        buffer = StatisticsBuffer(data, self.selector, get_device_id())
        log = self.token_log_buffer(data, None)
        outputs = self.verl_pass(data, RecordingLoss(loss, buffer, log))
        assert log is not None
        self.log_tokens(log, data, buffer, buffer.response_N)
        return outputs

    def token_log_buffer(self, data: Batch, judged: TokenStats | None) -> TokenLogBuffer | None:
        """What collects a mini-batch's part of the token log; None where none is kept."""
        if self.token_log is None:
            return None
        assert self.selector is not None
        return TokenLogBuffer(data, self.token_log, self.selector, self.clip, judged, get_device_id())

    def log_tokens(self, log: TokenLogBuffer, data: Batch, buffer: StatisticsBuffer, keep_N: torch.Tensor) -> None:
        """Add a mini-batch of which `keep_N` was trained to the step's token log."""
        group = self.get_data_parallel_group()
        part = log.finish(data, buffer.stats(), keep_N, lambda v: gather(v, group), self.step, self.mini_batch)
        self.logged.append(part)
