"""The CPU rollout (`rollout.name=stapo_cpu`): the trainer's process samples, and no server is started."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from verl import DataProto
from verl.trainer.ppo.reward import load_reward_manager
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

from stapo_results.errors import RunFailed
from stapo_results.generation import Drawing, generate
from stapo_results.memory import empty_heap, return_memory
from stapo_results.schema import SETTINGS
from stapo_results.seeds import derive_seed
from stapo_training.reward import SAMPLE_SEED
from stapo_training.verl_ext.platform import fix_arithmetic
from stapo_training.verl_ext.step_tokens import stop_tokens
from stapo_training.verl_ext.waiting import TIED

NAME = "stapo_cpu"
_STORED = ("uid", "session_id", "data_source", "reward_model", "extra_info")
"""What trainer, validation and token log read of a sample's row in the data."""
_log = logging.getLogger(__name__)


def sample_seed(config: Any, row: Mapping[str, Any], validate: bool, setting: str) -> int:
    """The seed of a sample from (run seed, step, problem, train or val or val-SETTING, sample)."""
    split, problem = "val" if validate else "train", str(row["extra_info"]["problem_id"])
    groups = config.algorithm.get("filter_groups")
    if groups and groups.enable and not validate:  # a step may meet a problem twice
        problem = f"{problem} {row['uid']}"
    split += f"-{setting}" if setting else ""
    seed, step = config.actor_rollout_ref.rollout.seed, int(row["global_steps"])
    return derive_seed(seed, step, problem, split, int(row["session_id"]))


class _Threads(ThreadPoolExecutor):
    """Threads that end with the process. For one of a usual pool, which a reward function may keep for ever, the end
    of the process would wait."""

    def __init__(self, most: int = 8):
        super().__init__(most)
        self.asked: queue.SimpleQueue[tuple[Future, Any]] = queue.SimpleQueue()
        for _ in range(most):
            threading.Thread(target=self._work, daemon=True).start()

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future:
        future: Future = Future()
        self.asked.put((future, partial(fn, *args, **kwargs)))
        return future

    def _work(self) -> None:
        while True:
            future, call = self.asked.get()
            try:
                future.set_result(call())
            except BaseException as e:  # noqa: BLE001  the caller gets whatever a reward function raises
                future.set_exception(e)


class LocalRollout:
    """Samples with transformers in order of prompt and sample, in batches of `max_num_seqs` rows.

    It is veRL's server manager, client and agent loop manager in one. A call of `generate_sequences` returns when all
    its samples and their rewards are stored.
    """

    def __init__(self, config: Any):
        from transformers import AutoModelForCausalLM

        self.config, self.rollout, path = config, config.actor_rollout_ref.rollout, config.actor_rollout_ref.model.path
        fix_arithmetic(int(self.rollout.engine_kwargs[NAME].threads))
        return_memory()  # of a layer's weights, when they are packed
        model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
        self.model_config, tokenizer = model.hf_config, model.tokenizer  # with actor_rollout_ref.model.override_config
        dtype = getattr(torch, self.rollout.dtype)
        self.model = AutoModelForCausalLM.from_config(self.model_config, attn_implementation="sdpa", dtype=dtype).eval()
        self.stops = stop_tokens(tokenizer, path)
        self.builder = create_continuous_token_builder(
            tokenizer,
            hf_model_type=self.model_config.model_type,
            chat_template_kwargs=config.data.get("apply_chat_template_kwargs", {}),
        )
        self.rewards: Any = load_reward_manager(config, tokenizer)
        self.rewards.loop.set_default_executor(_Threads())
        self.weights_of: int | None = None
        self.setting = ""
        """The decoding setting of a validation pass; "" for val_kwargs."""

    @classmethod
    def create_empty(cls, config: Any) -> LocalRollout:
        """What veRL calls instead of starting servers."""
        return cls(config)

    def get_client(self) -> LocalRollout:
        return self

    def get_replicas(self) -> list:
        return []

    def start_profile(self) -> None:
        """No server can be profiled."""

    stop_profile = start_profile

    def load_weights(self, state: Mapping[str, torch.Tensor], step: int) -> None:
        """Take the trainer's weights after this step.

        Raises:
            RunFailed: they are another model's.
        """
        result = self.model.load_state_dict(state, strict=False)
        tied = {TIED} if self.model_config.tie_word_embeddings else set()
        if result.unexpected_keys or set(result.missing_keys) - tied:
            raise RunFailed(
                "the trainer's weights do not fit the rollout's model",
                found=f"missing {result.missing_keys[:3]}, unexpected {result.unexpected_keys[:3]}",
                expected=f"the tensors of {self.config.actor_rollout_ref.model.path}",
                next_step="leave out overrides of the model's architecture (actor_rollout_ref.model.override_config)",
            )
        self.model.tie_weights()
        self.weights_of = step

    def generate_sequences(self, prompts: Any) -> None:
        """Sample, score and store n responses to every prompt.

        A response without a reward is left out, and its prompt counts as failed.

        Args:
            prompts: veRL's TensorDict; a row of the data each, with `uid`.
        """
        columns = {key: tu.get(prompts, key) for key in sorted(prompts.keys())}
        step, validate = int(columns.pop("global_steps")), bool(columns.pop("validate", False))
        settings, partition = (self.rollout.val_kwargs, "val") if validate else (self.rollout, "train")
        rows, tokens = [], []
        for values in zip(*columns.values(), strict=True):
            row: dict[str, Any] = {**dict(zip(columns, values, strict=True)), "global_steps": step}
            ids = self.builder.build_initial_tokens(list(row["raw_prompt"]))
            rows += [row | {"session_id": i} for i in range(settings.n)]
            tokens += [ids] * settings.n
        seeds = [sample_seed(self.config, row, validate, self.setting) for row in rows]
        responses = self._sample(seeds, tokens, settings)
        keys, fields, tags = [], [], []
        status = dict.fromkeys((row["uid"] for row in rows), "finished")
        rewards = self._scored(rows, responses, [] if validate else seeds)
        for row, prompt, response, reward in zip(rows, tokens, responses, rewards, strict=True):
            if isinstance(reward, BaseException):
                _log.error("no reward for sample %d of prompt %s", row["session_id"], row["uid"], exc_info=reward)
                status[row["uid"]] = "failure"
                continue
            keys.append(f"{row['uid']}_{row['session_id']}_0")
            fields.append({k: row[k] for k in _STORED} | _tensors(prompt, response, reward))
            sizes = {"prompt_len": len(prompt), "response_len": len(response.token_ids)}
            steps = {"global_steps": step, "min_global_steps": self.weights_of, "max_global_steps": self.weights_of}
            tags.append({"status": "success", "seq_len": sum(sizes.values())} | sizes | steps)
        if keys:
            tq.kv_batch_put(keys=keys, partition_id=partition, fields=tu.list_of_dict_to_tensordict(fields), tags=tags)
        ended = [{"is_prompt": True, "status": s, "global_steps": step} for s in status.values()]
        tq.kv_batch_put(keys=list(status), partition_id=partition, tags=ended)

    def _sample(self, seeds: list[int], prompts: list[list[int]], settings: Any) -> list[Any]:
        temperature, top_p = SETTINGS[self.setting] if self.setting else (settings.temperature, settings.top_p)
        responses = generate(
            self.model,
            prompts,
            seeds,
            Drawing(float(temperature), float(top_p), int(settings.top_k)),
            max_new_tokens=self.rollout.response_length,
            stop_token_ids=self.stops,
            rows=self.rollout.max_num_seqs,
        )
        empty_heap()  # the worker works next
        return responses

    def _scored(self, rows: list[dict], responses: list[Any], seeds: list[int]) -> list[Any]:
        """The reply of veRL's reward manager to each response, or the exception that it raised.

        Args:
            seeds: of a training's samples, for the reward; none of a validation.

        Raises:
            RunFailed: none has come for `run.rollout_limit_s` seconds.
        """
        limit = float(self.config.run.rollout_limit_s)

        async def all_of_them() -> list[Any]:
            known = [{SAMPLE_SEED: seed} for seed in seeds] or [{}] * len(rows)
            each = zip(rows, responses, known, strict=True)
            asked = [asyncio.ensure_future(self.rewards.run_single(_asked(row, r, more))) for row, r, more in each]
            waiting = set(asked)
            while waiting:
                done, waiting = await asyncio.wait(waiting, timeout=limit)
                if not done:
                    late = [row["extra_info"]["problem_id"] for row, a in zip(rows, asked, strict=True) if a in waiting]
                    problems = ", ".join(list(dict.fromkeys(late))[:3])
                    raise RunFailed(
                        f"the reward function has given no reward for {limit:g} s",
                        found=f"waiting for {len(late)} of {len(rows)} rewards; problems {problems}",
                        expected="a reward within run.rollout_limit_s",
                        next_step="correct reward.custom_reward_function; the same command resumes from the last "
                        "checkpoint, with run.rollout_limit_s=N where it only takes longer",
                    )
            return [a.exception() or a.result() for a in asked]

        return self.rewards.loop.run_until_complete(all_of_them())


def _asked(row: Mapping[str, Any], response: Any, more: Mapping[str, Any]) -> DataProto:
    """A response as veRL's reward managers read it; extra_info is a copy, since they write into it."""
    ids = torch.tensor([response.token_ids])
    info = {k: v for k, v in row["extra_info"].items() if k != SAMPLE_SEED} | dict(more)  # a validation has no noise
    values = {k: np.array([v], dtype=object) for k, v in {**row, "extra_info": info}.items()}
    return DataProto.from_dict({"responses": ids, "attention_mask": torch.ones_like(ids)}, values)


def _tensors(prompt: list[int], response: Any, reward: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that veRL's `AgentLoopWorkerTQ` stores of one response."""
    ids, count = torch.tensor(response.token_ids), len(response.token_ids)
    mask, scores = torch.ones(count, dtype=torch.int64), torch.zeros(count)
    scores[-1] = reward["reward_score"]
    return {
        "prompts": torch.tensor(prompt),
        "responses": ids,
        "response_mask": mask,
        "loss_mask": mask,
        "input_ids": torch.cat([torch.tensor(prompt), ids]),
        "position_ids": torch.arange(len(prompt) + count),
        "rollout_log_probs": torch.tensor(response.logprobs, dtype=torch.float32),
        "rm_scores": scores,
        "num_turns": 2,
        "extra_fields": {"reward_extra_info": reward["reward_extra_info"]},
    }
