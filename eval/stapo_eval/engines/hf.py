"""A transformers model and the sampler of the CPU training: the default on a CPU, where it is deterministic."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from stapo_eval.engines.base import Engine, EngineSpec, Finished, Request, failed, load_tokenizer
from stapo_eval.models import ModelFiles
from stapo_results.errors import BadInput, RunFailed, message_of
from stapo_results.generation import Drawing, Sampler
from stapo_results.memory import return_memory, usable_memory
from stapo_results.shapes import positions_held, rows_held
from stapo_results.stop_tokens import stop_token_ids

MOST_ROWS = {"cpu": 64, "cuda": 512}
"""Responses at a time: on a CPU more of them would leave its caches (docs/evaluation.md)."""
_KV_BYTES = 2 << 30
"""Of keys and values on a GPU."""
_POLL_SECONDS = 5.0
"""After so long a call returns with nothing: the first response of a large model ends after minutes."""
_NEXT = "look at the model's folder and the memory; what is finished is kept"


class HfEngine(Engine):
    """A transformers model.

    Args:
        dtype: of the weights; auto: bfloat16 on a GPU, float32 on a CPU (`plan` asks for bfloat16 where that is fast).
        rows: responses at a time; 0: as many as the keys and values of `max_model_len` tokens each have room for, on a
            CPU in half the memory that is free beside the weights.
        max_model_len: the most tokens of a prompt and its response; 0: as many as the model has positions.

    Raises:
        BadInput: on a CPU, for a model that memory has no room for.
    """

    def __init__(
        self, model: ModelFiles, *, threads: int = 0, dtype: str = "auto", rows: int = 0, max_model_len: int = 0
    ):
        logging.disable_progress_bar()
        if threads:
            torch.set_num_threads(threads)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        default = torch.bfloat16 if device == "cuda" else torch.float32
        wanted = default if dtype == "auto" else getattr(torch, dtype)
        self.tokenizer = load_tokenizer(model)
        whole = AutoConfig.from_pretrained(model.folder, trust_remote_code=False)
        config = whole.get_text_config()
        heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        positions = int(config.max_position_embeddings)
        context, held = min(positions, max_model_len or positions), rows_held(rows or 1)
        position_bytes = 2 * config.num_hidden_layers * heads * head_dim * wanted.itemsize
        kv_bytes = position_bytes * positions_held(context)
        room = _KV_BYTES
        if device == "cpu":
            # without a limit no response is expected to fill all positions of a model
            room = _beside_weights(model, whole, wanted, held, position_bytes, context if max_model_len else 0) // 2
            return_memory()  # of a layer's weights, when they are packed
        self.model = AutoModelForCausalLM.from_pretrained(
            model.folder, use_safetensors=True, trust_remote_code=False, dtype=wanted
        )
        self.model.to(torch.device(device)).eval()  # type: ignore[arg-type]  # transformers' stub loses self
        self.stop = stop_token_ids(self.tokenizer, self.model.generation_config.eos_token_id)
        places = rows or min(MOST_ROWS[device], max(held, room // kv_bytes // held * held))
        self.sampler = Sampler(self.model, places, self.stop, packed_alone=True)
        self.loaded(EngineSpec("hf", self.sampler.exact, context, places))

    def submit(self, request: Request) -> None:
        prompt, d = request.prompt, request.decoding
        how, most = Drawing(d.temperature, d.top_p, d.top_k, d.min_p), min(d.max_tokens, self.context - len(prompt))
        self.sampler.add(request, prompt, request.seed, how, most)

    def poll(self) -> list[Finished]:
        """Work until a response or more have ended, or `_POLL_SECONDS` have passed.

        Raises:
            RunFailed: the model failed in a step, or on a prompt and on one that any model reads.
        """
        ended: list[Any] = []
        until = time.monotonic() + _POLL_SECONDS
        while not ended and len(self.sampler):
            try:
                ended = self.sampler.step()
            except (RuntimeError, MemoryError) as e:
                short = "memory" in str(e).lower() or isinstance(e, MemoryError)
                half, held = max(1, self.spec.places // 2), rows_held(self.spec.places)
                less = f"--batch-rows {half}" if rows_held(half) < held else "end what else uses memory"
                what, cure = "the model failed in a step", f"{less}; what is finished is kept" if short else _NEXT
                raise RunFailed(what, found=message_of(e), next_step=cure) from e
            if time.monotonic() >= until:
                break
        self.under_way = self.sampler.under_way
        finished = [self._end(request, response) for request, response in ended]
        if broken := [f.error for f in finished if f.error]:
            try:
                self.sampler.read(tuple(self.encode("1+1=")))
            except (RuntimeError, ValueError, IndexError) as e:
                what = "the model failed on a prompt, and on a prompt of one sum"
                raise RunFailed(what, found=broken[0], next_step=_NEXT) from e
        return finished

    def _end(self, request: Request, response: Any) -> Finished:
        if isinstance(response, Exception):
            return failed(request, message_of(response))
        text = self.tokenizer.decode(response.token_ids, skip_special_tokens=True)
        lengths, logprob = (len(request.prompt), len(response.token_ids)), round(sum(response.logprobs), 6)
        return Finished(request, text, response.finish_reason, *lengths, logprob)

    def close(self) -> None:
        self.sampler.close()
        del self.model, self.sampler


def _beside_weights(model: ModelFiles, config: Any, dtype: Any, rows: int, position_bytes: int, context: int) -> int:
    """Bytes that are free beside a model's weights. Refuse one that leaves too few for the keys and values of so many
    rows of so many positions: the kernel would end the process without a word."""
    free = usable_memory()[1]
    if getattr(config, "quantization_config", None):  # how many bytes a number takes is the quantizer's own affair
        weights = sum(f.stat().st_size for f in Path(model.folder).glob("*.safetensors"))
    else:
        with torch.device("meta"):
            empty = AutoModelForCausalLM.from_config(config, dtype=dtype)
        head = empty.get_output_embeddings()
        numbers = sum(p.numel() for p in empty.parameters())  # a tied head is the table
        if head is not None and head.weight is empty.get_input_embeddings().weight:
            numbers += head.weight.numel()  # it is packed beside the table
        weights = numbers * dtype.itemsize
    least = rows * position_bytes * positions_held(context)
    if weights + least > free:
        of = [f"{n / 2**30:.1f} GiB of {name}" for n, name in ((weights, "weights"), (least, "keys and values")) if n]
        cures = ["a smaller model", "--dtype bfloat16"] if dtype.itemsize > 2 else ["a smaller model"]
        if weights <= free:
            shorter = ["a lower --max-tokens (a judge: --judge-max-model-len)"] if context > positions_held(1) else []
            cures = [*shorter, *cures, *(["a lower --batch-rows"] if rows > rows_held(1) else [])]
        raise BadInput(
            "too little memory for the model",
            found=f"{' and '.join(of)} in {str(dtype).removeprefix('torch.')}",
            expected=f"at most {free / 2**30:.1f} GiB, what is free now",
            next_step=f"{', '.join(cures)}, or end what else uses memory",
        )
    return free - weights
