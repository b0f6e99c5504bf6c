"""Gives every rollout request its own seed and place, so that the order of arrival decides nothing."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import ray
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap, register
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.experimental.reward_loop.reward_loop import RewardLoopWorker
from verl.trainer.ppo.v1 import agent_loop_tq
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ
from verl.utils import tensordict_utils as tu
from verl.workers.rollout.llm_server import LLMServerClient, LLMServerManager

from stapo_results.schema import SETTINGS
from stapo_results.seeds import derive_seed
from stapo_training.verl_ext.platform import settle
from stapo_training.verl_ext.rollout import NAME as CPU_ROLLOUT
from stapo_training.verl_ext.rollout import SERVER
from stapo_training.verl_ext.server import ORDER_KEY, CpuRolloutServer
from stapo_training.verl_ext.step_tokens import stop_tokens

AGENT_NAME = "stapo_single_turn"
_CACHED_PROMPTS = 4096
_GATHER_SECONDS = 0.02


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


@register(AGENT_NAME)
class SeededAgentLoop(SingleTurnAgentLoop):
    """veRL's single-turn loop with a seed from (run seed, step, problem, train or val or val-SETTING, sample).

    One instance serves all samples of a worker, so nothing of a sample may be kept in it.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._prompts: dict[str, list[int]] = {}
        self._stops = stop_tokens(self.tokenizer, self.config.actor_rollout_ref.model.path)
        self._of_engine = engine_parameters(self.rollout_config.name)

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any) -> Any:
        split, setting = "val" if kwargs["stapo_validate"] else "train", kwargs["stapo_setting"]
        step, sample = int(kwargs["global_steps"]), int(kwargs["session_id"])
        problem = str(kwargs["extra_info"]["problem_id"])
        groups = self.config.algorithm.get("filter_groups")
        if groups and groups.enable and split == "train":  # a step may meet a problem twice
            problem = f"{problem} {kwargs['uid']}"
        split += f"-{setting}" if setting else ""
        seed = derive_seed(self.rollout_config.seed, step, problem, split, sample)
        params = dict(sampling_params, seed=seed, stop_token_ids=self._stops, **self._of_engine)
        if setting:
            params["temperature"], params["top_p"] = SETTINGS[setting]
        if self.rollout_config.name == CPU_ROLLOUT:
            n = int(kwargs["stapo_samples"])
            place = int(kwargs["stapo_row"]) * n + sample
            params[ORDER_KEY] = [f"{split}-{step}-{kwargs['stapo_call']}", place, int(kwargs["stapo_rows"]) * n]
        return await super().run(params, priority=priority, **kwargs)  # type: ignore[safe-super]

    async def ct_build_initial_tokens(  # type: ignore[override]  # veRL's callers name all but the messages
        self, messages: list[dict], **kwargs: Any
    ) -> list[int]:
        """veRL's, once a prompt instead of once a sample."""
        if any(kwargs.get(k) for k in ("tools", "images", "videos", "audios")):
            return await super().ct_build_initial_tokens(messages, **kwargs)
        key = json.dumps(messages)
        if key not in self._prompts:
            if len(self._prompts) > _CACHED_PROMPTS:
                self._prompts.clear()
            self._prompts[key] = await super().ct_build_initial_tokens(messages, **kwargs)
        return list(self._prompts[key])


class BatchedWrites:
    """TransferQueue's client with the puts of one moment sent as one: 256 round trips a step become a few."""

    def __init__(self, queue: Any):
        self._queue = queue
        self._waiting: list[tuple[list[str], list[dict], list[dict], str, asyncio.Future]] = []
        self._flushes: set[asyncio.Task] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    async def async_kv_batch_put(
        self, keys: list[str], fields: list[dict], tags: list[dict], partition_id: str
    ) -> None:
        """As TransferQueue's, but with the rows as dictionaries; returns when the batch they joined is stored."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((keys, fields, tags, partition_id, future))
        if len(self._waiting) == 1:
            task = asyncio.create_task(self._flush())
            self._flushes.add(task)  # the event loop holds none; the batch before may still wait for its put
            task.add_done_callback(self._flushes.discard)
        await future

    async def _flush(self) -> None:
        await asyncio.sleep(_GATHER_SECONDS)
        waiting, self._waiting = self._waiting, []
        for partition in sorted({w[3] for w in waiting}):
            part = [w for w in waiting if w[3] == partition]
            try:
                await self._queue.async_kv_batch_put(
                    keys=[k for w in part for k in w[0]],
                    fields=tu.list_of_dict_to_tensordict([f for w in part for f in w[1]]),
                    tags=[t for w in part for t in w[2]],
                    partition_id=partition,
                )
            except Exception as e:  # noqa: BLE001  # goes to every sample that waits for this put
                for w in part:
                    w[4].set_exception(e)
            else:
                for w in part:
                    w[4].set_result(None)


# veRL declares the worker as a Ray actor; its plain class is what `ray.remote` keeps
_Worker: Any = AgentLoopWorkerTQ.__ray_metadata__.modified_class  # type: ignore[attr-defined]


class _Inline:
    """An event loop whose executor is the caller: two threads' hand-overs a sample take longer than the reward."""

    async def run_in_executor(self, executor: Any, call: Any) -> Any:
        return call()


class _LocalReward:
    """A reward worker in this process behind the call that veRL makes on a Ray handle."""

    def __init__(self, worker: RewardLoopWorker):
        self.compute_score = self
        self._worker = worker
        manager: Any = worker.reward_manager
        manager.loop = _Inline()

    def remote(self, data: Any) -> Any:
        return self._worker.compute_score(data)


class SeededAgentLoopWorker(_Worker):
    """veRL's worker with less overhead: veRL's own takes longer than a small model's sampling.

    The loop is built once (veRL instantiates it through Hydra for every sample), results are stored in batches, and
    with `reward.num_workers=0` veRL's own reward worker computes the reward here.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._loop: SeededAgentLoop | None = None
        agent_loop_tq.tq = BatchedWrites(agent_loop_tq.tq)
        agent_loop_tq.list_of_dict_to_tensordict = list  # BatchedWrites makes one TensorDict of many samples' rows
        if not self.reward_loop_worker_handles and not self.config.reward.reward_model.enable:
            self.reward_loop_worker_handles = [_LocalReward(RewardLoopWorker(self.config))]

    async def all_done(self) -> None:
        """Return when every sample that was asked for is stored: asking once costs less than asking how far it is."""
        await asyncio.gather(*self.background_tasks)

    async def _run_agent_loop(
        self,
        sampling_params: dict[str, Any],
        trajectory: dict[str, Any],
        *,
        agent_name: str,
        trace: bool = True,
        **kwargs: Any,
    ) -> Any:
        if trace or agent_name != AGENT_NAME:
            return await super()._run_agent_loop(
                sampling_params, trajectory, agent_name=agent_name, trace=trace, **kwargs
            )
        if self._loop is None:
            self._loop = SeededAgentLoop(
                trainer_config=DictConfigWrap(config=self.config),
                server_manager=self.llm_client,
                tokenizer=self.tokenizer,
                processor=self.processor,
                hf_model_type=self.hf_model_type,
                dataset_cls=self.dataset_cls,
                data_config=DictConfigWrap(self.config.data),
                tools=ToolListWrap(self.tools),
            )
        output = await self._loop.run(sampling_params, **kwargs)
        return await self._agent_loop_postprocess(output, trajectory["validate"], **kwargs)


class _Here:
    """A coroutine function of this process behind the `remote` of a Ray handle."""

    def __init__(self, call: Any):
        self.remote = call


class _LocalClient(LLMServerClient):
    """veRL's client of a server in this process: no balancer is asked before and after every request."""

    def __init__(self, config: Any, server: CpuRolloutServer):
        super().__init__(config)
        self._server = SimpleNamespace(generate=_Here(server.generate))

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        return CPU_ROLLOUT, self._server

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        pass


class SamplingWorker(SeededAgentLoopWorker):
    """The only agent-loop worker of a CPU run, with the rollout server in its process."""

    def __init__(self, config: Any):
        super().__init__(config, None, None, [])
        rollout = config.actor_rollout_ref.rollout
        extra = rollout.engine_kwargs[CPU_ROLLOUT]
        self._server = CpuRolloutServer(
            model_path=config.actor_rollout_ref.model.path,
            response_length=rollout.response_length,
            prompt_length=rollout.prompt_length,
            max_batch=rollout.max_num_seqs,
            threads=int(extra.threads),
            group_timeout_s=float(extra.group_timeout_s),
        )
        self.llm_client = _LocalClient(config, self._server)
        settle()

    async def ready(self) -> None: ...

    async def load_weights(self, parts: list, global_steps: int | None = None) -> None:
        await self._server.load_weights(parts, global_steps)

    # veRL's replica calls these around a weight update; a CPU server has no memory to hand back
    async def _nothing(self, **_: Any) -> None: ...

    sleep = wake_up = clear_kv_cache = release_kv_cache = resume_kv_cache = _nothing
    resume_generation = start_profile = stop_profile = _nothing

    async def abort_all_requests(self, **_: Any) -> dict[str, Any]:
        return {"aborted_count": 0, "request_ids": []}


class OneServerManager(LLMServerManager):
    """veRL's manager of the only server: no balancer's process is started."""

    async def _init_global_load_balancer(self) -> None:
        self.global_load_balancer = None


def start_worker(config: Any) -> Any:
    """Start the only agent-loop worker of a CPU run without waiting: imports of several processes overlap that way.

    Returns:
        The Ray handle; the caller keeps it, since Ray ends an actor that nobody refers to.
    """
    return ray.remote(SamplingWorker).options(name=SERVER).remote(config)


class SeededAgentLoopManager(AgentLoopManagerTQ):
    """Numbers the rows of a batch before veRL spreads them over its agent-loop workers."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(SeededAgentLoopWorker)
        self._calls = 0
        self.setting = ""
        """The decoding setting of a validation pass; "" for val_kwargs."""

    async def _init_agent_loop_workers(self) -> None:
        if self.rollout_config.name != CPU_ROLLOUT:
            await super()._init_agent_loop_workers()
            return
        self.agent_loop_workers = [ray.get_actor(SERVER)]

    def wait(self) -> None:
        """Until all samples that were asked for are stored."""
        ray.get([worker.all_done.remote() for worker in self.agent_loop_workers])

    def generate_sequences(self, prompts: Any) -> None:
        validate = bool(prompts["validate"]) if "validate" in prompts else False
        rows = len(prompts)
        n = self.rollout_config.val_kwargs.n if validate else self.rollout_config.n
        self._calls += 1
        tu.assign_non_tensor_data(prompts, "stapo_call", self._calls)  # a step may ask several times
        tu.assign_non_tensor_data(prompts, "stapo_validate", validate)
        tu.assign_non_tensor_data(prompts, "stapo_setting", self.setting)
        tu.assign_non_tensor_data(prompts, "stapo_rows", rows)
        tu.assign_non_tensor_data(prompts, "stapo_samples", n)
        tu.assign_non_tensor_stack(prompts, "stapo_row", list(range(rows)))
        super().generate_sequences(prompts)
