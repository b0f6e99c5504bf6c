"""Where and how an engine runs. None of it is part of what a run is: the samples' identity does not depend on it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import takewhile
from urllib.parse import urlsplit

import tyro

from stapo_eval.engines.base import LocalEngine
from stapo_eval.models import ModelFiles
from stapo_results import provenance
from stapo_results.errors import BadInput

KINDS = ("hf", "vllm", "openai")


@dataclass(frozen=True)
class EngineOptions:
    """Flags of `stapo-eval run` that every engine is made with."""

    url: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Address of an OpenAI-compatible endpoint, http://HOST:PORT/v1. Several share the work (repeat it, or commas)."""
    served_model: str = ""
    """How the endpoint calls the model; if empty, --model, or the only one there if --model is a folder."""
    concurrency: int = 64
    """Requests in flight at each address."""
    timeout: float = 3600.0
    """Seconds that an endpoint may take for one response."""
    patience: float = 300.0
    """Seconds without an answer from any address after which the run ends."""
    key_variable: str = "OPENAI_API_KEY"
    """Environment variable with the endpoint's key; the key stands in no record."""
    replicas: int = 0
    """Copies of the engine as actors on Ray, which share one queue; if 0, with vllm as many as the visible GPUs hold,
    else one. One copy needs no Ray, unless --ray-address or $RAY_ADDRESS names where."""
    ray_address: str = ""
    """Ray cluster, HOST:PORT or auto; if empty, $RAY_ADDRESS, else one of its own on this machine."""
    tensor_parallel: int = 1
    """GPUs that share one copy of the model (vllm)."""

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses one by one."""
        return tuple(u.strip() for several in self.url for u in several.split(",") if u.strip())


def check_options(kind: str, options: EngineOptions) -> None:
    """Raises BadInput for options that contradict each other or the engine."""
    if kind not in KINDS:
        raise BadInput("this engine does not exist", found=kind, expected=", ".join(KINDS))
    remote = kind == "openai"
    for wrong, what, next_step in (
        (remote and not options.urls, "the engine openai needs an address", "--url http://HOST:PORT/v1"),
        (remote and options.replicas, "--replicas starts engines, an endpoint has its own", "several --url instead"),
        (not remote and options.urls, "--url is for the engine openai", "--engine openai"),
        (kind != "vllm" and options.tensor_parallel > 1, "--tensor-parallel is for the engine vllm", "--engine vllm"),
        (len(set(options.urls)) < len(options.urls), "an address stands twice in --url", "give each once"),
    ):
        if wrong:
            raise BadInput(what, found=f"--engine {kind}", next_step=next_step)
    for name, least in (("replicas", 0), ("concurrency", 1), ("tensor_parallel", 1), ("timeout", 1), ("patience", 0)):
        if getattr(options, name) < least:
            raise BadInput(f"--{name.replace('_', '-')} is at least {least}", found=getattr(options, name))
    for url in options.urls:
        check_url(url)


def visible_gpus(chosen: str | None, listed: int) -> int:
    """How many GPUs this process may use.

    Args:
        chosen: CUDA_VISIBLE_DEVICES, read as CUDA does up to the first name that is no card's or a second time there;
            None if it is not set.
        listed: how many cards the driver lists.
    """
    names = [str(i) for i in range(listed)] if chosen is None else [x.strip() for x in chosen.split(",")]
    valid = takewhile(lambda x: x.startswith(("GPU-", "MIG-")) or (x.isdigit() and int(x) < listed), names)
    once = takewhile(lambda pair: pair[1] not in names[: pair[0]], enumerate(valid))
    return len(list(once)) if listed else 0


def copies_of(kind: str, options: EngineOptions, gpus: int | None = None) -> int:
    """Copies of an engine: as asked, else with vllm as many as the GPUs hold; 0 where nothing says how many.

    Args:
        gpus: how many there are; if None, the visible ones of this machine.
    """
    if options.replicas or kind != "vllm":
        return options.replicas
    if gpus is None:
        cards = provenance.nvidia_smi("name").splitlines()
        gpus = visible_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"), len(cards))
    return gpus // options.tensor_parallel


def check_url(url: str) -> None:
    """Raises BadInput for a malformed address, or one that would carry a secret into the records."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInput("this is no address of an endpoint", found=url, next_step="--url http://HOST:PORT/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise BadInput(
            "an address is recorded, so it holds no user, password or query",
            found=f"{parts.scheme}://{parts.hostname}",
            next_step="put the key into an environment variable: --key-variable NAME",
        )


def key_of(options: EngineOptions) -> str:
    """The endpoint's key, "" where the variable is not set.

    Raises:
        BadInput: it holds what no key holds; the value itself is not shown.
    """
    key = os.environ.get(options.key_variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise BadInput(
            f"${options.key_variable} holds characters that no key has",
            expected="printable ASCII, its value is not shown",
        )
    return key


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
