"""Gives every rollout request a seed and a place of its own, so that arrival order decides nothing."""

from __future__ import annotations

from typing import Any

import ray
from verl.experimental.agent_loop.agent_loop import register
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ
from verl.utils import tensordict_utils as tu

from stapo_results.seeds import derive_seed
from stapo_training.verl_ext.rollout import NAME as CPU_ROLLOUT
from stapo_training.verl_ext.server import ORDER_KEY

AGENT_NAME = "stapo_single_turn"


@register(AGENT_NAME)
class SeededAgentLoop(SingleTurnAgentLoop):
    """veRL's single-turn loop with a seed from (run seed, step, problem, train or val, sample index)."""

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any) -> Any:
        split = "val" if kwargs["stapo_validate"] else "train"
        step, sample = int(kwargs["global_steps"]), int(kwargs["session_id"])
        problem = str(kwargs["extra_info"]["problem_id"])
        params = dict(sampling_params, seed=derive_seed(self.rollout_config.seed, step, problem, split, sample))
        if self.rollout_config.name == CPU_ROLLOUT:
            n = int(kwargs["stapo_samples"])
            place = int(kwargs["stapo_row"]) * n + sample
            params[ORDER_KEY] = [f"{split}-{step}", place, int(kwargs["stapo_rows"]) * n]
        return await super().run(params, priority=priority, **kwargs)


# veRL declares the worker as a Ray actor; its plain class is what `ray.remote` keeps
_Worker: type = AgentLoopWorkerTQ.__ray_metadata__.modified_class  # type: ignore[attr-defined]


class SeededAgentLoopWorker(_Worker):
    """veRL's worker, from this module, so that its process has imported (and so registered) the loop above."""


class SeededAgentLoopManager(AgentLoopManagerTQ):
    """Numbers the rows of a batch before veRL spreads them over its agent-loop workers."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(SeededAgentLoopWorker)

    def generate_sequences(self, prompts: Any) -> None:
        validate = bool(prompts["validate"]) if "validate" in prompts else False
        rows = len(prompts)
        n = self.rollout_config.val_kwargs.n if validate else self.rollout_config.n
        tu.assign_non_tensor_data(prompts, "stapo_validate", validate)
        tu.assign_non_tensor_data(prompts, "stapo_rows", rows)
        tu.assign_non_tensor_data(prompts, "stapo_samples", n)
        tu.assign_non_tensor_stack(prompts, "stapo_row", list(range(rows)))
        super().generate_sequences(prompts)
