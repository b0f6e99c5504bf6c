"""The CPU rollout server against one call of the sampling function, without Ray and veRL."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import pytest
import torch

SIZE, BATCH, STOPS = 12, 8, [5]


@pytest.fixture
def server(tmp_path: Path) -> Any:
    from transformers import AutoModelForCausalLM, Qwen3Config

    from stapo_training.verl_ext.server import CpuRolloutServer

    heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 64}
    Qwen3Config(**heads, **sizes, tie_word_embeddings=True, pad_token_id=0).save_pretrained(tmp_path)
    deterministic, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    fills = torch.utils.deterministic.fill_uninitialized_memory
    made = CpuRolloutServer(str(tmp_path), 9, 10, BATCH, threads=2, group_timeout_s=60)
    torch.manual_seed(3)
    trained = AutoModelForCausalLM.from_config(made.config)

    async def part() -> dict[str, torch.Tensor]:
        return dict(trained.state_dict())

    async def load() -> None:
        await made.load_weights([part()], 7)

    asyncio.run(load())
    yield made
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = fills
    torch.set_num_threads(threads)


def _requests() -> list[dict[str, Any]]:
    draw = random.Random(4)
    prompts = [[draw.randrange(6, 64) for _ in range(draw.randrange(1, 8))] for _ in range(SIZE)]
    params = {"temperature": 1.0, "logprobs": True, "stop_token_ids": STOPS}
    return [
        {"prompt_ids": p, "sampling_params": params | {"seed": 100 + i, "stapo_order": ["train-1", i, SIZE]}}
        for i, p in enumerate(prompts)
    ]


def _ask(server: Any, order: list[int]) -> list[tuple[list[int], list[float]]]:
    async def ask() -> list[Any]:
        requests = _requests()
        tasks = {i: asyncio.create_task(server.generate(f"r{i}", **requests[i])) for i in order}
        return [await tasks[i] for i in range(SIZE)]

    return [(o.token_ids, o.log_probs) for o in asyncio.run(ask())]


def test_the_order_of_arrival_changes_no_bit_of_what_the_fixed_batches_sample(server: Any) -> None:
    from stapo_results.generation import generate

    requests, expected = _requests(), []
    for start in range(0, SIZE, BATCH):
        batch = requests[start : start + BATCH]
        prompts, seeds = [r["prompt_ids"] for r in batch], [r["sampling_params"]["seed"] for r in batch]
        limit = min(9, 19 - max(map(len, prompts)))
        settings: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "stop_token_ids": STOPS, "pad_token_id": 0}
        expected += generate(server.model, prompts, seeds, max_new_tokens=limit, **settings)
    wanted = [(g.token_ids, g.logprobs) for g in expected]
    shuffled = random.Random(5).sample(range(SIZE), SIZE)
    assert _ask(server, list(range(SIZE))) == _ask(server, shuffled) == wanted


def test_everything_is_sampled_in_one_thread(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that runs its first product may have another number of OpenMP threads, and so other roundings."""
    import threading

    from stapo_results import generation

    seen, real = set(), generation.generate

    def noting(*args: Any, **kwargs: Any) -> Any:
        seen.add(threading.get_ident())
        return real(*args, **kwargs)

    monkeypatch.setattr(generation, "generate", noting)
    for _ in range(3):
        _ask(server, list(range(SIZE)))
    assert len(seen) == 1


def test_a_request_before_the_weights_is_refused(server: Any) -> None:
    server.global_steps = None
    with pytest.raises(RuntimeError, match="before the trainer's weights"):
        asyncio.run(server.generate("r", **_requests()[0]))


def test_the_limit_of_an_incomplete_group_does_not_cover_its_sampling(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stapo_results import generation

    real = generation.generate
    monkeypatch.setattr(generation, "generate", lambda *a, **k: (time.sleep(0.15), real(*a, **k))[1])
    server.group_timeout_s = 0.1  # two batches sample for 0.3 s
    assert len(_ask(server, list(range(SIZE)))) == SIZE


def test_an_incomplete_group_fails_all_its_requests_at_the_limit(server: Any) -> None:
    server.group_timeout_s = 0.1

    async def ask() -> list[Any]:
        requests = [server.generate(f"r{i}", **_requests()[i]) for i in range(SIZE - 1)]
        return await asyncio.gather(*requests, return_exceptions=True)

    errors = asyncio.run(ask())
    assert {type(e) for e in errors} == {RuntimeError}
    assert all(f"{SIZE - 1} of {SIZE} requests" in str(e) for e in errors)
    assert server.groups == {}
