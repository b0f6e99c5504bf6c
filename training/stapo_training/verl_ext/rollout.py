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
_MAX_CONCURRENCY = 4096  # a whole step's requests wait in the server at once


def _actor_name(replica_rank: int) -> str:
    return f"{NAME}_server_{replica_rank}"


def start_server(config: Any) -> Any:
    """Start the server's process without waiting for it: imports of several processes overlap that way.

    Args:
        config: the whole resolved configuration.

    Returns:
        The Ray handle; the caller keeps it, since Ray ends an actor that nobody refers to.
    """
    rollout = config.actor_rollout_ref.rollout
    extra = rollout.engine_kwargs[NAME]
    return (
        ray.remote(CpuRolloutServer)
        .options(name=_actor_name(0), num_cpus=0, max_concurrency=_MAX_CONCURRENCY)
        .remote(
            model_path=config.actor_rollout_ref.model.path,
            response_length=rollout.response_length,
            prompt_length=rollout.prompt_length,
            max_batch=rollout.max_num_seqs,
            threads=int(extra.threads),
            group_timeout_s=float(extra.group_timeout_s),
        )
    )


class CpuRolloutReplica(RolloutReplica):
    """Finds the server that `start_server` began."""

    async def launch_servers(self) -> None:
        server: Any = ray.get_actor(_actor_name(self.replica_rank))
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
            server: Any = ray.get_actor(_actor_name(self.replica_rank))
            await server.load_weights.remote(parts, global_steps)


def register() -> None:
    """Make `rollout.name=stapo_cpu` known to veRL in this process."""
    from verl.workers.rollout import base
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    RolloutReplicaRegistry.register(NAME, lambda: CpuRolloutReplica)
    # veRL 0.9.1 offers no call for adapters: its registry is this module's dictionary
    base._ROLLOUT_REGISTRY[NAME, "async"] = f"{__name__}.{CpuRolloutAdapter.__name__}"
