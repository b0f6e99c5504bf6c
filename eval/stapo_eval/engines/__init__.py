"""Engines that answer requests; torch, vllm and ray are imported when an engine is made."""

from __future__ import annotations

import sys
from typing import Any

from stapo_eval.decoding import Chat
from stapo_eval.engines.base import Engine, Finished, Key, Request, key_of
from stapo_eval.engines.options import EngineOptions, check_options, cluster_of, copies_of
from stapo_eval.models import ModelFiles
from stapo_results.errors import BadInput, RunFailed, message_of

__all__ = ["Engine", "EngineOptions", "Finished", "Key", "Request", "key_of", "make_engine"]


def make_engine(
    kind: str,
    model: ModelFiles,
    *,
    threads: int = 0,
    dtype: str = "auto",
    rows: int = 0,
    options: EngineOptions | None = None,
    chat: Chat | None = None,
) -> Engine:
    """Load a model into an engine, or into several behind one (`copies_of`).

    Args:
        chat: what goes with each message; a judge has none.

    Raises:
        BadInput: unknown engine, one that is not installed here, or a model that it cannot load.
    """
    options = options or EngineOptions()
    check_options(kind, options)
    try:
        if kind == "openai":
            from stapo_eval.engines.endpoint import EndpointEngine

            return EndpointEngine(model, options, chat)
        how: dict[str, Any] = {"dtype": dtype, "max_model_len": options.max_model_len}
        if kind == "hf":
            import torch

            from stapo_eval.engines.hf import HfEngine as Local

            how |= {"threads": threads, "rows": rows}
            if torch.cuda.is_available():
                print(
                    "note: --engine hf is made for a CPU; --engine vllm takes every GPU here",
                    file=sys.stderr,
                    flush=True,
                )
        else:
            from stapo_eval.engines.vllm import VllmEngine as Local

            how |= {"tensor_parallel": options.tensor_parallel, "arguments": options.vllm_arguments}
        copies, cluster = copies_of(kind, options), cluster_of(options)
        if kind == "vllm":
            where = f"{copies or 'all'} x {options.tensor_parallel} GPUs (--replicas); " if copies or cluster else ""
            print(f"vllm: {where}loading and compiling take minutes", file=sys.stderr, flush=True)
        if copies > 1 or (cluster and (copies or kind == "vllm")):
            from stapo_eval.engines.ray import RayEngine

            engine: Engine = RayEngine(Local, model, how, copies, cluster)
        else:
            engine = Local(model, **how)
        engine.chat = chat or engine.chat
        return engine
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, TypeError) as e:
        if isinstance(e, (BadInput, ModuleNotFoundError)) or (isinstance(e, RunFailed) and e.next_step):
            raise
        raise BadInput(
            f"the engine {kind} cannot load {model.given}",
            found=message_of(e),
            next_step="check the folder's config.json and tokenizer files"
            + (
                "; where memory is short: a lower --max-tokens or --max-model-len, a higher --tensor-parallel, "
                "--vllm gpu_memory_utilization=SHARE, or end what else has the GPU"
                if kind == "vllm"
                else ""
            ),
        ) from e
