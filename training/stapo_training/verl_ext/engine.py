"""veRL's FSDP engine with a token selector in its training pass (`selection`)."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id, get_device_name, get_torch_device
from verl.workers.engine.fsdp import transformer_impl

from stapo_training.methods import ProxyConfig, SelectorConfig
from stapo_training.selection.logit_statistics import Form
from stapo_training.selection.token_stats import response_positions
from stapo_training.token_log.writer import TokenLogConfig
from stapo_training.verl_ext import attention
from stapo_training.verl_ext.advantages import PROXY, with_proxy
from stapo_training.verl_ext.logits import LogitReading, PackedLogits
from stapo_training.verl_ext.mini_batch import Batch, RankTokens, TrainedStep, gather, set_values
from stapo_training.verl_ext.selection import MiniBatchSelection
from stapo_training.verl_ext.token_log_part import ROW, LogRecorder

_VeRLEngine: Any = transformer_impl.FSDPEngineWithLMHead  # veRL's registering decorator hides the class's type


class SelectingEngine(_VeRLEngine):
    """FSDP with a selector; without one (`selector` None) it is veRL's engine but for entropies in float32."""

    selector: SelectorConfig | None = None
    logits_form: Form = "eager"
    token_log: TokenLogConfig | None = None
    proxy: ProxyConfig = ProxyConfig()
    """With min_p above 0 the old-log-prob pass leaves PROXY."""
    clip: tuple[float, float, float] | None = None
    """The policy loss's (low, high, clip_ratio_c), for the token log; None where it clips otherwise or not at all."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        # veRL writes the override there too, and a checkpoint's config.json would name what is known here alone
        vars(self.model_config.hf_config).pop("attn_implementation", None)
        self.now = TrainedStep()
        self._recorder: LogRecorder | None = None  # during a training pass, what watches it

    def prepare_model_inputs(self, micro_batch: Batch) -> tuple[dict, dict]:
        """veRL's inputs; for our attention also where a packed row's sequences begin, once for all layers."""
        inputs, settings = super().prepare_model_inputs(micro_batch)
        if self.module.config._attn_implementation == attention.NAME and inputs["attention_mask"] is None:
            inputs |= attention.boundaries(inputs["position_ids"])
        return inputs, settings

    def prepare_model_outputs(
        self, output: Any, output_args: dict, micro_batch: Batch, logits_processor_func: Any
    ) -> dict:
        """veRL's outputs; entropies without gradient are ours, in float32; a recorder sees what passes."""
        wanted = bool(tu.get_non_tensor_data(data=micro_batch, key="calculate_entropy", default=False))
        ours = wanted and not torch.is_grad_enabled()
        if ours:
            micro_batch = micro_batch.copy()
            tu.assign_non_tensor(micro_batch, calculate_entropy=False)
        log = self._recorder
        reading = LogitReading(
            self.logits_form, entropy=ours or (log is not None and log.wants_entropy), collision=log is not None
        )
        # veRL calls its module's function by this name once a micro-batch; its own takes one softmax a token, in a loop
        transformer_impl.logprobs_from_logits = reading
        result = super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)
        offsets = micro_batch["input_ids"].offsets()
        packed = partial(PackedLogits, output.logits, output_args, offsets)
        unpacked = partial(self._gather_and_unpad_packed, pad_size=output_args.get("pad_size", 0))
        if ours and self.proxy.min_p:
            response = micro_batch["response_mask"].offsets()
            here = packed(response_positions(offsets, response), micro_batch["responses"].values())
            result[PROXY] = torch.nested.nested_tensor_from_jagged(here.proxy_logprob(self.proxy.min_p), response)
        if ours:
            result["entropy"] = torch.nested.nested_tensor_from_jagged(unpacked(reading.entropy_N), offsets)
        if log is not None:
            at = response_positions(offsets, micro_batch["response_mask"].offsets())
            logprob_M = result["log_probs"].values().detach()[at].float()
            entropy_M = unpacked(reading.entropy_N)[at] if log.wants_entropy else None
            here = packed(at, micro_batch["responses"].values())
            log.record(micro_batch[ROW], logprob_M, entropy_M, unpacked(reading.collision_N)[at], here)
        return result

    def forward_backward_batch(self, data: Batch, loss_function: Any, forward_only: bool = False) -> Any:
        s = self.selector
        if forward_only:
            return self._passed(data, loss_function, forward_only)
        if self.proxy.min_p:
            loss_function = partial(with_proxy, loss_function)
        # veRL's rollout correction rewrites response_mask alone; the normaliser has to follow it, with every method
        data["loss_mask"] = data["response_mask"]
        if s is None or not (s.selects or self.token_log):
            return self._passed(data, loss_function)
        began, now = time.perf_counter(), self.now
        now.mini_batch += 1
        tokens, group, judged = RankTokens(data, s, get_device_id()), self.get_data_parallel_group(), None
        keep_N = tokens.response_N
        if s.selects:
            selection = MiniBatchSelection(tokens, s, group, f"step {now.number}, mini-batch {now.mini_batch}")
            judged, chosen, now.metrics = selection.select(
                lambda: self.statistics_pass(data, tokens.offsets),
                old_is_current=now.old_is_current and now.mini_batch == 1,
            )
            keep_N = chosen.keep_N
            set_values(data, "response_mask", keep_N)
            data["loss_mask"] = data["response_mask"]  # numerator and denominator count the kept alone
            now.metrics["seconds"] = time.perf_counter() - began
        if self.token_log is None:
            return self._passed(data, loss_function)
        data[ROW] = torch.arange(len(data), device=tokens.offsets.device)
        self._recorder = LogRecorder(tokens, judged, s, self.token_log, data["responses"].values())
        try:
            outputs = self._passed(data, loss_function)
            now.logged.append(self._recorder.part(now, self.clip, data, keep_N, lambda v: gather(v, group)))
        finally:
            self._recorder = None
        return outputs

    def _passed(self, data: Batch, loss_function: Any, forward_only: bool = False) -> Any:
        if get_device_name() == "cpu":
            get_torch_device().empty_cache()  # what the pass before left free this one would not fill
        return super().forward_backward_batch(data, loss_function, forward_only)

    def statistics_pass(self, data: Batch, response_offsets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and entropies (N,) of a batch's response tokens under the current policy, by a forward
        pass without gradients."""
        view = data.copy()  # the same tensors under a key table of its own
        config = self.engine_config
        tu.assign_non_tensor(
            view,
            calculate_entropy=True,
            compute_loss=False,
            use_dynamic_bsz=config.use_dynamic_bsz,
            max_token_len_per_gpu=config.infer_max_token_len_per_gpu,
            micro_batch_size_per_gpu=config.infer_micro_batch_size_per_gpu,
        )
        self.module.eval()
        output = self.infer_batch(view, loss_function=None)["model_output"]
        self.module.train()
        at = response_positions(output["log_probs"].offsets(), response_offsets)
        return output["log_probs"].values()[at].float(), output["entropy"].values()[at].float()
