"""The CPU rollout server: samples a whole step's requests as fixed batches, in the agent loop's process.

Free of veRL imports, so that it can be used and tested without veRL.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

ORDER_KEY = "stapo_order"
"""Key in the sampling parameters: [group, position, size], put there by `agent_loop.SeededAgentLoop`."""


@dataclass
class TokenOutput:
    """The attributes of veRL's rollout output (verl.workers.rollout.replica.TokenOutput), without importing veRL."""

    token_ids: list[int]
    log_probs: list[float] | None = None
    routed_experts: Any = None
    stop_reason: str | None = None
    num_preempted: int | None = None
    extra_fields: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Request:
    position: int
    prompt: list[int]
    seed: int
    future: asyncio.Future


class CpuRolloutServer:
    """Samples with transformers on the CPU.

    Requests name their group (one training step or one validation), their place in it and the group's size. Sampling
    starts when the group is complete and runs in order of place in batches of fixed size: arrival order, which Ray does
    not promise, cannot reach a result.

    Args:
        model_path: Hugging Face directory; its configuration is read, weights come from the trainer.
        max_batch: rows sampled together.
        threads: torch threads.
        group_timeout_s: how long a group may be incomplete before the step fails; sampling has no limit.
    """

    def __init__(
        self,
        model_path: str,
        response_length: int,
        prompt_length: int,
        max_batch: int,
        threads: int,
        group_timeout_s: float,
    ):
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]  # nothing reads it; filling takes time
        self.config = AutoConfig.from_pretrained(model_path, attn_implementation="sdpa")
        self.model = AutoModelForCausalLM.from_config(self.config).float().eval()
        self.response_length, self.prompt_length, self.max_batch = response_length, prompt_length, max_batch
        self.group_timeout_s = group_timeout_s
        # always the same thread: products round by the number of OpenMP's threads, which each thread has for itself
        self.thread = ThreadPoolExecutor(1, "sampling", torch.set_num_threads, (threads,))
        self.groups: dict[str, list[_Request]] = {}
        self.limits: dict[str, asyncio.TimerHandle] = {}
        self.global_steps: int | None = None

    async def load_weights(self, parts: list, global_steps: int | None = None) -> None:
        state: dict[str, Any] = {}
        for part in await asyncio.gather(*parts):
            state.update(part)
        result = self.model.load_state_dict(state, strict=False)
        tied = {"lm_head.weight"} if self.config.tie_word_embeddings else set()
        if result.unexpected_keys or set(result.missing_keys) - tied:
            raise RuntimeError(
                f"the trainer's weights do not fit the rollout's model: missing {result.missing_keys}, "
                f"unexpected {result.unexpected_keys}"
            )
        self.model.tie_weights()
        self.global_steps = global_steps

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        if self.global_steps is None:
            raise RuntimeError("a request came before the trainer's weights")
        group, position, size = sampling_params[ORDER_KEY]
        loop = asyncio.get_running_loop()
        request = _Request(position, list(prompt_ids), int(sampling_params["seed"]), loop.create_future())
        if group not in self.groups:
            self.groups[group] = []
            self.limits[group] = loop.call_later(self.group_timeout_s, self._give_up, group, size)
        waiting = self.groups[group]
        waiting.append(request)
        if len(waiting) == size:
            del self.groups[group]
            self.limits.pop(group).cancel()  # sampling may take as long as it takes
            await self._run(sorted(waiting, key=lambda r: r.position), sampling_params)
        result = await request.future
        return TokenOutput(
            token_ids=result.token_ids,
            log_probs=result.logprobs if sampling_params.get("logprobs") else None,
            stop_reason="completed",
            extra_fields={"global_steps": self.global_steps},
        )

    def _give_up(self, group: str, size: int) -> None:
        """Fail the requests of a group that is still incomplete at its limit."""
        del self.limits[group]
        waiting = self.groups.pop(group)
        error = RuntimeError(
            f"rollout group {group}: {len(waiting)} of {size} requests came within {self.group_timeout_s:g} s; "
            "a sample's task died or hangs: see its error above"
        )
        for request in waiting:
            if not request.future.done():
                request.future.set_exception(error)

    async def _run(self, requests: list[_Request], params: dict[str, Any]) -> None:
        from stapo_results.generation import generate

        pad = self.config.pad_token_id
        for start in range(0, len(requests), self.max_batch):
            batch = requests[start : start + self.max_batch]
            longest = max(len(r.prompt) for r in batch)
            limit = min(self.response_length, self.prompt_length + self.response_length - longest)
            try:
                sample = partial(
                    generate,
                    self.model,
                    [r.prompt for r in batch],
                    [r.seed for r in batch],
                    max_new_tokens=limit,
                    temperature=float(params.get("temperature", 1.0)),
                    top_p=float(params.get("top_p", 1.0)),
                    top_k=int(params.get("top_k", -1)),
                    stop_token_ids=params["stop_token_ids"],
                    pad_token_id=params["stop_token_ids"][0] if pad is None else pad,
                )
                results = await asyncio.get_running_loop().run_in_executor(self.thread, sample)
            except Exception as e:  # noqa: BLE001  # every waiting request gets the error; none may hang
                for r in requests:
                    if not r.future.done():
                        r.future.set_exception(e)
                return
            for r, result in zip(batch, results, strict=True):
                if not r.future.done():  # a caller that was cancelled takes its future along
                    r.future.set_result(result)
