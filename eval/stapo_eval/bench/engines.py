"""Engines on one model against `transformers.generate`, called by hand with the batch size that suits it best.

Both sides sample answers to the same sums at temperature 1 up to the same length. They draw different tokens, so that
every time is one of 1,000 response tokens. `share` is the arithmetic that the responses need, two operations a weight
and token (prompts once, the output matrix at response tokens alone), over what a product of square float32 matrices
reaches in the same seconds: padding, attention, sampling and waiting are what is left. vLLM computes the beginning that
prompts share once, so that its share is somewhat too high. Each repeat has other prompts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from stapo_eval.decoding import Decoding, prompt
from stapo_eval.engines import Request, make_engine
from stapo_eval.models import find_model
from stapo_results.benching import timed_row
from stapo_results.errors import RunFailed
from stapo_results.schema import BenchRow
from stapo_results.seeds import derive_seed

if TYPE_CHECKING:
    from stapo_eval.engines.hf import HfEngine

BASELINE = "transformers.generate, its best batch size"
Tokens = tuple[int, int]
"""Prompt tokens and response tokens that were worked on."""


@dataclass(frozen=True)
class Size:
    """Sums, samples of each, tokens of the longest response, batch sizes by hand, repeats."""

    problems: int = 32
    samples: int = 4
    max_tokens: int = 64
    batches: tuple[int, ...] = (16, 32, 64, 128)
    repeats: int = 3
    engines: tuple[str, ...] = ("hf",)


QUICK = Size(problems=4, samples=2, max_tokens=8, batches=(4, 8), repeats=1)


def by_hand(engine: HfEngine, requests: Sequence[Request], rows: int) -> Tokens:
    """transformers.generate in left-padded batches of the prompts in their order."""
    import torch

    worked = 0
    for batch in (requests[i : i + rows] for i in range(0, len(requests), rows)):
        longest = max(len(r.prompt) for r in batch)
        padding = [longest - len(r.prompt) for r in batch]
        ids = torch.tensor([[engine.pad] * n + list(r.prompt) for n, r in zip(padding, batch, strict=True)])
        mask = torch.tensor([[0] * n + [1] * len(r.prompt) for n, r in zip(padding, batch, strict=True)])
        model: Any = engine.model
        with torch.no_grad():
            out = model.generate(
                input_ids=ids, attention_mask=mask, do_sample=True, temperature=1.0, top_p=1.0, top_k=0,
                max_new_tokens=batch[0].decoding.max_tokens, eos_token_id=engine.stop, pad_token_id=engine.pad,
            )  # fmt: skip
        for row in out[:, longest:].tolist():
            ends = [i for i, token in enumerate(row) if token in engine.stop]
            worked += ends[0] + 1 if ends else len(row)
    return sum(len(r.prompt) for r in requests), worked


def matrix_rate(threads: int, n: int = 2048, repeats: int = 5) -> float:
    """Floating-point operations a second of a product of two (n, n) float32 matrices, the fastest of `repeats`."""
    import torch

    torch.set_num_threads(threads)
    a, b = torch.randn(n, n), torch.randn(n, n)
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        torch.mm(a, b)
        seconds.append(time.perf_counter() - began)
    return 2 * n**3 / min(seconds)


def rows(
    model: str, threads: int, size: Size | None = None, say: Callable[[str], None] = print
) -> tuple[list[BenchRow], dict[str, str]]:
    """Every batch size by hand and every engine, each timed once in every repeat.

    Raises:
        BadInput: no such model, or an engine that is not installed.
        RunFailed: an engine that failed on a request.
    """
    import torch

    size = size or Size()
    files = find_model(model)
    engines = {kind: make_engine(kind, files, threads=threads) for kind in dict.fromkeys(("hf", *size.engines))}
    hf: Any = engines["hf"]
    decoding = Decoding(1.0, 1.0, size.max_tokens)

    def asked_in(repeat: int) -> list[Request]:
        texts = [prompt(f"What is {11 + i + 10 * repeat} plus {25 + 2 * i}?") for i in range(size.problems)]
        prompts = [tuple(hf.encode(text)) for text in texts]
        return [Request("bench", f"{i}", k, derive_seed(0, "engines", f"{repeat}-{i}", k), ids, decoding)
                for i, ids in enumerate(prompts) for k in range(size.samples)]  # fmt: skip

    def of_engine(kind: str, requests: Sequence[Request]) -> Tokens:
        done = [f for piece in engines[kind].stream(requests, ()) for f in piece]
        if failed := [f.error for f in done if f.finish_reason == "error"]:
            raise RunFailed(f"the engine {kind} failed", found=failed[0], next_step="try it with stapo-eval run")
        return sum(f.prompt_length for f in done), sum(f.response_tokens for f in done)

    ways: dict[str, Callable[[Sequence[Request]], Tokens]] = {
        f"transformers.generate, batches of {n}": lambda requests, n=n: by_hand(hf, requests, n) for n in size.batches
    }
    ways |= {f"engine {kind}": partial(of_engine, kind) for kind in size.engines}
    weights = sum(p.numel() for p in hf.model.parameters())
    head = hf.model.get_output_embeddings().weight.numel()
    body = weights - hf.model.get_input_embeddings().weight.numel()
    body -= 0 if hf.model.config.tie_word_embeddings else head
    rate = matrix_rate(threads)
    torch.manual_seed(0)
    by_hand(hf, asked_in(0)[: min(size.batches)], min(size.batches))  # what every first call needs once
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
    for repeat in range(size.repeats):
        requests = asked_in(repeat)
        for name, way in ways.items():
            began = time.perf_counter()
            asked, worked = way(requests)
            seconds = time.perf_counter() - began
            operations = 2 * body * (asked + worked) + 2 * head * worked
            found[name].append((1000 * seconds / worked, worked / seconds, operations / seconds / rate))
            say(f"repeat {repeat + 1}/{size.repeats}, {name}: {worked / seconds:.0f} tokens a second")
    for engine in engines.values():
        engine.close()
    hand = [name for name in ways if not name.startswith("engine")]
    best = [seconds for seconds, _, _ in found[min(hand, key=lambda name: min(found[name]))]]
    labels = {
        "model": files.revision,
        "responses": f"{size.problems * size.samples}",
        "max_tokens": f"{size.max_tokens}",
        "parameters": f"{weights}",
        "threads": f"{threads}",
        "gflops": f"{rate / 1e9:.1f}",
    }
    return [
        timed_row(name, [s for s, _, _ in runs], best,
                  values={"tokens_per_second": min(runs)[1], "share": min(runs)[2]})
        for name, runs in found.items()
    ], labels  # fmt: skip
