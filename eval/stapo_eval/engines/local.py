"""One loaded model in this process: the engine itself, or the one inside a replica."""

from __future__ import annotations

from stapo_eval.engines.base import LocalEngine
from stapo_eval.models import ModelFiles


def load(
    kind: str, model: ModelFiles, *, threads: int = 0, dtype: str = "auto", rows: int = 0, tensor_parallel: int = 1
) -> LocalEngine:
    """Load a model with transformers (`hf`) or vLLM (`vllm`); either is imported here and not before.

    Raises:
        BadInput: not installed here, or a model without a chat template.
    """
    if kind == "hf":
        from stapo_eval.engines.hf import HfEngine

        return HfEngine(model, threads=threads, dtype=dtype, rows=rows)
    from stapo_eval.engines.vllm import VllmEngine

    return VllmEngine(model, dtype=dtype, tensor_parallel=tensor_parallel)
