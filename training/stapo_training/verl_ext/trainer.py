"""The trainer mode `stapo`: veRL's synchronous trainer with our worker, stable ids, a metrics record and safe saves."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import ray
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu

from stapo_training.run_folder import RunFolder
from stapo_training.verl_ext import agent_loop, rollout
from stapo_training.verl_ext.worker import StapoWorker

rollout.register()

MODE = "stapo"
_POLL_SECONDS = 0.02


class OrderedReplayBuffer:
    """veRL's buffer, which hands out trajectories in the order of their arrival, in the order of their keys."""

    def __init__(self, buffer: ReplayBuffer):
        self._buffer = buffer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._buffer, name)

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> Any:
        """veRL's `sample`, then sorted by (prompt id, sample, part)."""
        batch, metrics = self._buffer.sample(
            global_steps=global_steps, partition_id=partition_id, batch_size=batch_size
        )
        order = sorted(range(len(batch.keys)), key=lambda i: _key_order(batch.keys[i]))
        batch.keys, batch.tags = [batch.keys[i] for i in order], [batch.tags[i] for i in order]
        return batch, metrics


def _key_order(key: str) -> tuple[str, int, int]:
    uid, session, index = key.rsplit("_", 2)
    return uid, int(session), int(index)


@register_trainer(MODE)
class StapoTrainer(PPOTrainerSync):
    """Synchronous training whose result is a function of configuration and seed.

    - prompts get stable ids (`step`-`row`) instead of uuid4
    - trajectories are used in the order of these ids
    - a step's metrics are on disk before its checkpoint counts, so that a resumed run has no gap
    """

    def __init__(self, config: Any):
        # veRL chooses its buffer and its checks by this name; any other than "sync" means the asynchronous ones
        config.trainer.v1.trainer_mode = "sync"
        super().__init__(config)
        if config.actor_rollout_ref.rollout.name == rollout.NAME:
            self._early_worker = agent_loop.start_worker(config)
        self.folder = RunFolder(Path(config.run.out), deterministic=config.run.deterministic)
        self._save_due = False
        self._step_began = time.perf_counter()

    def _build_replay_buffer(self) -> Any:
        buffer = super()._build_replay_buffer()
        buffer.poll_interval = _POLL_SECONDS  # veRL's 2 s outlast a step of a small model
        return OrderedReplayBuffer(buffer)

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in (Role.Actor, Role.ActorRollout, Role.ActorRolloutRef):
            if role in self.role_worker_mapping:
                self.role_worker_mapping[role] = ray.remote(StapoWorker)

    def get_llm_client(self) -> Any:
        replicas = self.llm_server_manager.get_replicas()
        if self.config.actor_rollout_ref.rollout.name != rollout.NAME:
            return super().get_llm_client()
        (replica,) = replicas  # one server for all ranks (hardware/cpu.yaml)
        return agent_loop.DirectClient(self.config, replica._server_address, replica._server_handle)

    def _fetch_one_gen_batch(self) -> Any:
        batch = super()._fetch_one_gen_batch()
        ids = [f"{self.global_steps:08d}-{row:06d}" for row in range(len(batch))]
        tu.assign_non_tensor_stack(batch, "uid", ids)
        return batch

    def _validate(self) -> dict[str, float]:
        metrics = super()._validate()
        self._validation = _accuracy(metrics)
        if self.global_steps == 0:
            self.folder.log_step(0, {"accuracy": self._validation}, {})
        return metrics

    def _val_metrics_update(  # type: ignore[override]  # called with these four by position
        self, data_sources: list, sample_uids: list, reward_extra_infos_dict: dict, sample_turns: list, **_: Any
    ) -> dict[str, float]:
        """The mean accuracy a data source, under veRL's name.

        veRL adds best@n and maj@n by a bootstrap from an unseeded generator: 4 s a validation of the miniature, and
        another value every time. The harness computes both exactly.
        """
        accuracy: dict[str, list[float]] = {}
        for source, correct in zip(data_sources, reward_extra_infos_dict["acc"], strict=True):
            accuracy.setdefault(source, []).append(float(correct))
        n = self.config.actor_rollout_ref.rollout.val_kwargs.n
        return {f"val-core/{s}/acc/mean@{n}": sum(v) / len(v) for s, v in sorted(accuracy.items())}

    def _save_checkpoint(self) -> None:
        self._save_due = True  # written by _compute_metrics, after the step's metrics

    def _compute_metrics(self, batch: Any, metrics: dict, timing_raw: dict, global_steps: int, epoch: int) -> None:
        super()._compute_metrics(batch, metrics, timing_raw, global_steps=global_steps, epoch=epoch)
        values, times = split_metrics(metrics)
        now = time.perf_counter()
        times["seconds"], self._step_began = now - self._step_began, now
        self.folder.log_step(global_steps, values, times)
        self.folder.report(global_steps, self.total_training_steps, values, times["seconds"])
        if self._save_due:
            self._save_due = False
            super()._save_checkpoint()
            self.folder.complete_checkpoint(global_steps)


def _accuracy(validation: dict[str, float]) -> float:
    """The mean accuracy over the validation problems, from veRL's `val-core/<source>/acc/mean@n`."""
    found = [float(v) for k, v in validation.items() if k.startswith("val-core/") and "/acc/mean@" in k]
    if len(found) != 1:
        raise KeyError(f"one validation accuracy expected, found {len(found)} in {sorted(validation)}")
    return found[0]


def split_metrics(metrics: dict[str, Any]) -> tuple[dict[str, float], dict[str, float]]:
    """veRL's metrics of a step as (values, times): what a run decides, and what the machine decides.

    The names that every run has are added to the values: reward, entropy, silenced_share, candidate_share,
    response_tokens, grad_norm, and accuracy at validation steps. Shares are of all response tokens.
    """
    values, times = {}, {}
    for name, value in metrics.items():
        number = float(value)
        if not math.isfinite(number):
            raise FloatingPointError(f"{name} is {number}: the run has diverged")
        machine = name.startswith(("timing", "perf/", "training/rollout_probs")) or "/perf/" in name or "timing" in name
        (times if machine else values)[name] = number
    tokens = values.get("actor/selector/tokens", 0.0)
    values["reward"] = values["critic/rewards/mean"]
    values["entropy"] = values["actor/entropy"]
    values["silenced_share"] = values.get("actor/selector/silenced_tokens", 0.0) / tokens if tokens else 0.0
    values["candidate_share"] = values.get("actor/selector/candidate_tokens", 0.0) / tokens if tokens else 0.0
    values["response_tokens"] = values["response_length/mean"]
    values["grad_norm"] = values["actor/grad_norm"]
    validation = {k: v for k, v in values.items() if k.startswith("val-core/")}
    if validation:
        values["accuracy"] = _accuracy(validation)
    return values, times


__all__ = ["MODE", "StapoTrainer", "agent_loop", "split_metrics"]
