"""Gives every rollout request its own seed, so that the order of arrival decides nothing."""

from __future__ import annotations

from typing import Any

import ray
from verl.experimental.agent_loop.agent_loop import register
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ
from verl.utils import tensordict_utils as tu

from stapo_results.schema import SETTINGS
from stapo_training.verl_ext.rollout import LocalRollout, sample_seed
from stapo_training.verl_ext.step_tokens import stop_tokens


def engine_parameters(rollout: str) -> dict[str, Any]:
    """Sampling parameters of one rollout engine alone.

    veRL's vLLM server hands them to vLLM's SamplingParams and reads token ids and log-probabilities of the last answer;
    by default vLLM decodes the text and wakes the server at every token. veRL counts a request as admitted at its first
    answer, here the only one: an abort would wait for it, up to 60 s. The synchronous trainer aborts none.
    """
    if rollout != "vllm":
        return {}
    from vllm.sampling_params import RequestOutputKind  # type: ignore[import-not-found]

    return {"detokenize": False, "output_kind": RequestOutputKind.FINAL_ONLY}


@register("stapo_single_turn")
class SeededAgentLoop(SingleTurnAgentLoop):
    """veRL's single-turn loop with a seed of its own for every sample (`sample_seed`) and all stop tokens."""

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any) -> Any:
        setting = kwargs["stapo_setting"]
        seed = sample_seed(self.config, kwargs, kwargs["stapo_validate"], setting)
        stops = stop_tokens(self.tokenizer, self.config.actor_rollout_ref.model.path)
        params = dict(sampling_params, seed=seed, stop_token_ids=stops, **engine_parameters(self.rollout_config.name))
        if setting:
            params["temperature"], params["top_p"] = SETTINGS[setting]
        return await super().run(params, priority=priority, **kwargs)  # type: ignore[safe-super]


# veRL declares the worker as a Ray actor; its plain class is what `ray.remote` keeps
_Worker: Any = AgentLoopWorkerTQ.__ray_metadata__.modified_class  # type: ignore[attr-defined]


class SeededAgentLoopWorker(_Worker):
    """veRL's, of this module: a process that unpickles it registers the loop."""


class SeededAgentLoopManager(AgentLoopManagerTQ):
    """Tells the loops what they are asked for: a training step, or a validation pass at a setting."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(SeededAgentLoopWorker)
        self.setting = ""
        """The decoding setting of a validation pass; "" for val_kwargs."""
        self.problems: dict[str, str] = {}
        """The problem of each prompt id that was asked for; who waits for the answers empties it."""

    @classmethod
    def create(cls, *, llm_client: Any, **rest: Any) -> Any:
        """A manager of agent loops; a LocalRollout manages itself."""
        return llm_client if isinstance(llm_client, LocalRollout) else super().create(llm_client=llm_client, **rest)

    def generate_sequences(self, prompts: Any) -> None:
        validate = bool(prompts["validate"]) if "validate" in prompts else False
        tu.assign_non_tensor_data(prompts, "stapo_validate", validate)
        tu.assign_non_tensor_data(prompts, "stapo_setting", self.setting)
        rows = zip(tu.get(prompts, "uid"), tu.get(prompts, "extra_info"), strict=True)
        self.problems |= {str(uid): str(info["problem_id"]) for uid, info in rows}
        super().generate_sequences(prompts)
