"""veRL's workers on the selecting engine."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import OffloadPolicy
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_name, get_torch_device, get_vendor
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from stapo_results import token_log
from stapo_results.errors import RunFailed
from stapo_results.store import write_atomic
from stapo_training.methods import AdvantageConfig, advantage_from, proxy_from, selector_from
from stapo_training.token_log.writer import TokenLogConfig, write_step
from stapo_training.verl_ext import advantages
from stapo_training.verl_ext.engine import SelectingEngine
from stapo_training.verl_ext.mini_batch import TrainedStep, gather
from stapo_training.verl_ext.platform import fix_arithmetic, settle
from stapo_training.verl_ext.vllm_plugin import own_socket
from stapo_training.verl_ext.waiting import TIED


@functools.cache  # the actor and the reference worker live in one process; veRL refuses a second registration
def register_engine() -> None:
    """Put the selecting engine where veRL looks for its own.

    On a GPU veRL prefers an engine that is registered for the card's vendor, which leaves its own in place.
    """
    register = functools.partial(EngineRegistry.register, model_type="language_model", backend=["fsdp2"])
    if get_device_name() != "cpu":
        register(device=get_device_name(), vendor=get_vendor())(SelectingEngine)
        return
    # The reference model's parameters would be offloaded to pinned host memory; here they are host memory.
    transformer_impl.CPUOffloadPolicy = lambda pin_memory: OffloadPolicy()
    register(device="cpu")(SelectingEngine)


STEP = "stapo_step"
"""The key under which the trainer tells its workers the step."""
OLD_IS_CURRENT = "stapo_old_is_current"
"""The key under which it tells them that the old-log-prob pass ran with the weights with which the step begins."""


class SelectingTrainingWorker(TrainingWorker):
    """TrainingWorker on the selecting engine; `selector` None is veRL unchanged."""

    engine: Any  # the SelectingEngine that register_engine has put in veRL's place

    def __init__(self, config: Any):
        register_engine()
        if get_device_name() == "cpu" and not dist.is_initialized():
            # veRL would ask for "cpu:gloo,cpu:gloo", which torch refuses; it leaves an existing group alone
            dist.init_process_group("gloo")
        super().__init__(config)
        self._log_header: token_log.LogHeader | None = None
        self._log_bytes: int | None = None
        self.advantage = AdvantageConfig()

    def follow(self, config: Any) -> None:
        """Train by the method of an `actor_rollout_ref` from now on."""
        self.engine.selector, self.engine.proxy = selector_from(config.selector), proxy_from(config)
        self.advantage = advantage_from(config)

    def train_mini_batch(self, data: Any) -> Any:
        """All optimizer steps of a rollout step; sets what its mini-batches share."""
        engine = self.engine
        advantages.before_step(data, self.advantage, self._pool)
        number: Any = tu.get_non_tensor_data(data=data, key=STEP, default=0)
        current: Any = tu.get_non_tensor_data(data=data, key=OLD_IS_CURRENT, default=False)
        engine.now = TrainedStep(number, current)
        output = super().train_mini_batch(data)
        if engine.token_log is not None:
            self._write_log()
        return output

    def _pool(self, values_M: torch.Tensor) -> torch.Tensor:
        return gather(values_M, self.engine.get_data_parallel_group())

    def log_tokens(self, config: TokenLogConfig, actor: Any) -> None:
        """Keep a token log from now on (mode `off`: none); the first rank writes it at the end of each step.

        actor: `actor_rollout_ref.actor`, for what its loss clips.
        """
        engine = self.engine
        if config.mode == "off":
            return
        loss = actor.policy_loss.loss_mode
        clip = (actor.clip_ratio_low, actor.clip_ratio_high, actor.clip_ratio_c)
        engine.token_log, engine.clip = config, clip if loss == "vanilla" else None
        if dist.get_rank() == 0:
            tokenizer = self.model_config.tokenizer.backend_tokenizer.to_str()
            write_atomic(Path(config.folder) / token_log.TOKENIZER, tokenizer)
            s = engine.selector
            self._log_header = token_log.LogHeader(
                mode=config.mode,
                selector=s.name,
                tau_p=s.tau_p,
                q=s.q,
                vocabulary=self.model_config.hf_config.vocab_size,
                policy=s.policy if s.selects else "current",
                loss=loss,
                watch=config.watch,
                useful=config.useful,
            )

    def _write_log(self) -> None:
        group = self.engine.get_data_parallel_group()
        parts: list[Any] | None = [None] * dist.get_world_size(group) if dist.get_rank(group) == 0 else None
        dist.gather_object(self.engine.now.logged, parts, group=group, group_dst=0)
        if self._log_header is not None and parts is not None:
            log, every = self.engine.token_log, [p for of_rank in parts for p in of_rank]
            self._log_bytes = write_step(
                Path(log.folder),
                self.engine.now.number,
                every,
                self._log_header,
                most_rows=log.most_rows,
                largest_gib=log.largest_gib,
                before=self._log_bytes,
            )

    def train_batch(self, data: Any) -> Any:
        """The optimizer steps of one mini-batch: one, or Lopti's two."""
        parts = advantages.updates(data, self.advantage, self.engine.proxy, self._pool)
        return advantages.joined([self._one_step(part) for part in parts])

    def _one_step(self, data: Any) -> Any:
        """One optimizer step on one mini-batch, with what its selection logs."""
        now = self.engine.now
        now.metrics = {}
        output = super().train_batch(data)
        metrics = now.metrics
        if metrics:
            normaliser = float(tu.get(data, "batch_num_tokens"))
            if normaliser != metrics["kept_tokens"]:
                raise RunFailed(
                    "the loss was not divided by the number of kept tokens",
                    found=normaliser,
                    expected=metrics["kept_tokens"],
                    next_step="this veRL version counts its normaliser elsewhere: use verl==0.9.1 (requirements/)",
                )
        if metrics and output is not None:
            logged = tu.get(output, "metrics")
            logged.update({f"selector/{k}": v for k, v in metrics.items()})
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
            fix_arithmetic(int(os.environ.get("STAPO_TRAIN_THREADS", "1")))
        super().init_model()
        parts: list[Any] = [self.actor, self.ref]
        for part in filter(None, parts):
            part.engine.logits_form = self.config.logits_form
        if self.actor is not None:
            if not isinstance(self.actor.engine, SelectingEngine):
                raise RunFailed(
                    "veRL chose an engine that cannot select tokens",
                    found=type(self.actor.engine).__name__,
                    expected="SelectingEngine",
                    next_step="set actor.strategy=fsdp2, and leave VERL_ENGINE_DEVICE and VERL_ENGINE_VENDOR unset",
                )
            self.actor.follow(self.config)
            self.actor.log_tokens(TokenLogConfig.model_validate(dict(self.config.token_log)), self.config.actor)
        if address := getattr(self.rollout, "zmq_handle", ""):  # of vLLM's servers alone
            setattr(self.rollout, "zmq_handle", own_socket(address))  # noqa: B010  of one kind of rollout
        if get_device_name() == "cpu":
            settle()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)  # type: ignore[attr-defined]
    def full_weights(self) -> dict[str, torch.Tensor]:
        """The model's whole weights in its own names and in the rollout's type; empty on every rank but the first."""
        get_torch_device().empty_cache()  # the rollout works next
        weights, _ = self.actor.engine.get_per_tensor_param()
        first, dtype = dist.get_rank() == 0, getattr(torch, self.config.rollout.dtype)
        tied = self.actor.model_config.hf_config.tie_word_embeddings  # a second name of the embedding
        # every rank iterates: building a tensor is a collective call
        return {
            name: tensor.detach().to("cpu", dtype).contiguous()
            for name, tensor in weights
            if first and not (tied and name == TIED)
        }
