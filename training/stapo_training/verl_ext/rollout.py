"""Registers the CPU rollout (`rollout.name=stapo_cpu`) with veRL: one server for all ranks, weights by Ray's store."""

from __future__ import annotations

import os
from typing import Any

import ray
import torch
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica

from stapo_training.verl_ext.server import CpuRolloutServer

NAME = "stapo_cpu"


def _actor_name(namespace_key: str, replica_rank: int) -> str:
    return f"{NAME}_{namespace_key}_{replica_rank}"


class CpuRolloutReplica(RolloutReplica):
    """Starts the server actor."""

    async def launch_servers(self) -> None:
        extra = self.config.engine_kwargs.get(NAME, {})
        server = (
            ray.remote(CpuRolloutServer)
            .options(name=_actor_name("server", self.replica_rank), num_cpus=0, max_concurrency=self.max_concurrency)
            .remote(
                model_path=self.model_config.path,
                response_length=self.config.response_length,
                prompt_length=self.config.prompt_length,
                max_batch=self.config.max_num_seqs,
                threads=int(extra.get("threads", 1)),
                group_timeout_s=float(extra.get("group_timeout_s", 600)),
            )
        )
        await server.ready.remote()
        self.servers = [server]
        self._server_handle = server
        self._server_address = f"{NAME}-{self.replica_rank}:0"


class CpuRolloutAdapter(BaseRollout):
    """The trainer's side: gathers weights on every rank and hands them to the server from the first."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1):
        super().__init__(config, model_config, device_mesh)
        ranks = self.config.tensor_model_parallel_size * self.config.data_parallel_size
        rank = int(os.environ["RANK"])
        self.replica_rank = rank // ranks if replica_rank == -1 else replica_rank
        self.sends = rank % ranks == 0

    async def resume(self, tags: Any) -> None:
        pass

    async def release(self) -> None:
        pass

    @torch.no_grad()
    async def update_weights(self, weights: Any, global_steps: int | None = None, **_: Any) -> None:
        limit = self.config.checkpoint_engine.update_weights_bucket_megabytes << 20
        parts, bucket, size = [], {}, 0
        for name, tensor in weights:  # every rank iterates: building a tensor is a collective call
            if not self.sends:
                continue
            bucket[name] = tensor.detach().cpu().contiguous()
            size += tensor.numel() * tensor.element_size()
            if size >= limit:
                parts.append(ray.put(bucket))
                bucket, size = {}, 0
        if self.sends:
            parts.append(ray.put(bucket))
            server = ray.get_actor(_actor_name("server", self.replica_rank))
            await server.load_weights.remote(parts, global_steps)


def register() -> None:
    """Make `rollout.name=stapo_cpu` known to veRL in this process."""
    from verl.workers.rollout import base
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    RolloutReplicaRegistry.register(NAME, lambda: CpuRolloutReplica)
    # veRL 0.9.1 offers no call for adapters: its registry is this module's dictionary
    base._ROLLOUT_REGISTRY[NAME, "async"] = f"{__name__}.{CpuRolloutAdapter.__name__}"
