"""Registers the CPU rollout (`rollout.name=stapo_cpu`) with veRL: one server for all ranks, weights by Ray's store."""

from __future__ import annotations

import os
from typing import Any

import ray
import torch
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica

NAME = "stapo_cpu"
SERVER = "stapo_agent_loop"
"""The Ray actor that samples: the agent loop's only worker has the server in its process (`agent_loop.SamplingWorker`),
which saves a process's imports at the start and a call through Ray for every sample."""


class CpuRolloutReplica(RolloutReplica):
    """Finds the worker that `agent_loop.start_worker` began."""

    async def launch_servers(self) -> None:
        self._server_handle: Any = ray.get_actor(SERVER)
        await self._server_handle.ready.remote()
        self.servers = [self._server_handle]
        self._server_address = f"{NAME}-{self.replica_rank}:0"


class CpuRolloutAdapter(BaseRollout):
    """The trainer's side: gathers weights on every rank and hands them to the server from the first."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1):
        super().__init__(config, model_config, device_mesh)
        ranks = self.config.tensor_model_parallel_size * self.config.data_parallel_size
        self.sends = int(os.environ["RANK"]) % ranks == 0

    async def resume(self, tags: Any) -> None:
        pass

    async def release(self) -> None:
        pass

    @torch.no_grad()
    async def update_weights(  # type: ignore[override]  # veRL's callers name all but the weights
        self, weights: Any, global_steps: int | None = None, **_: Any
    ) -> None:
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
            server: Any = ray.get_actor(SERVER)
            await server.load_weights.remote(parts, global_steps)


def register() -> None:
    """Make `rollout.name=stapo_cpu` known to veRL in this process."""
    from verl.workers.rollout import base
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    RolloutReplicaRegistry.register(NAME, lambda: CpuRolloutReplica)
    # veRL 0.9.1 offers no call for adapters: its registry is this module's dictionary
    base._ROLLOUT_REGISTRY[NAME, "async"] = f"{__name__}.{CpuRolloutAdapter.__name__}"
