"""Where and how an engine runs. Part of what a run is are `served_model`, and what may cut or change a response."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import tyro

from stapo_results.errors import BadInput

KINDS = ("hf", "vllm", "openai")
_FIXED = {"model", "tokenizer", "dtype", "seed", "trust_remote_code", "load_format", "tensor_parallel_size",
          "max_model_len", "logprobs_mode"}  # fmt: skip
_LEAST = {"max_model_len": 0, "replicas": 0, "concurrency": 1, "tensor_parallel": 1, "timeout": 1, "patience": 0}


@dataclass(frozen=True)
class EngineOptions:
    """Flags of `stapo-eval run` that every engine is made with."""

    url: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Address of an OpenAI-compatible endpoint, http://HOST:PORT/v1. Several share the work (repeat it, or commas)."""
    served_model: str = ""
    """How the endpoint calls the model; if empty, --model, or the only one there if --model is a folder."""
    concurrency: int = 64
    """Requests in flight at each address."""
    max_model_len: int = 0
    """Tokens that prompt and response may have together; if 0, what is asked for, as far as the model has positions,
    or what the endpoint's list of models says."""
    vllm: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """KEY=VALUE, an argument of vLLM's engine such as gpu_memory_utilization=0.8 (JSON or text; repeat it). A judge on
    vllm has it too."""
    timeout: float = 3600.0
    """Seconds that an endpoint may take for one response."""
    patience: float = 300.0
    """Seconds without an answer from any address after which the run ends."""
    key_variable: str = "OPENAI_API_KEY"
    """Environment variable with the endpoint's key; no record holds the key."""
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
        return tuple(u.strip().rstrip("/") for several in self.url for u in several.split(",") if u.strip())

    @property
    def vllm_arguments(self) -> dict[str, Any]:
        """The arguments of --vllm by name; raises as `key_values`."""
        return key_values("vllm", self.vllm, _FIXED)


def key_values(flag: str, given: Sequence[str], fixed: Collection[str]) -> dict[str, Any]:
    """The values of KEY=VALUE by name, JSON or text; raises BadInput for what is none, or is one of the fixed."""
    values = {}
    for key, equals, value in (x.partition("=") for x in given):
        if not equals or key in fixed or key in values or value in ("True", "False", "None"):  # texts, so all true
            expected = f"KEY=VALUE, each KEY once, true, false or null as in JSON; none of {', '.join(sorted(fixed))}"
            raise BadInput(f"--{flag} does not take this", found=key + equals + value, expected=expected)
        try:
            values[key] = json.loads(value)
        except ValueError:
            values[key] = value
    return values


def at_least(options: EngineOptions, name: str, least: int) -> None:
    """Raises BadInput for an option below the least value that it has a meaning for."""
    if (given := getattr(options, name)) < least:
        flag = f"--{name.replace('_', '-')}"
        raise BadInput(f"{flag} is too small", found=given, expected=f"{least} or more", next_step=f"leave out {flag}")


def check_options(kind: str, options: EngineOptions) -> None:
    """Raises BadInput for options that contradict each other or the engine, and for an address with a secret in it."""
    remote, urls = kind == "openai", options.urls
    for wrong, what, next_step in (
        (kind not in KINDS, "this engine does not exist", f"one of {', '.join(KINDS)}"),
        (remote and not urls, "the engine openai needs an address", "--url http://HOST:PORT/v1"),
        (remote and options.replicas, "--replicas starts engines, an endpoint has its own", "several --url instead"),
        (not remote and urls, "--url is for the engine openai", "--engine openai"),
        (kind != "vllm" and options.vllm, "--vllm is for the engine vllm", "--engine vllm"),
        (kind != "vllm" and options.tensor_parallel > 1, "--tensor-parallel is for the engine vllm", "--engine vllm"),
        (len(set(urls)) < len(urls), "duplicate address in --url", "give each once"),
    ):
        if wrong:
            raise BadInput(what, found=f"--engine {kind}", next_step=next_step)
    for name, least in _LEAST.items():
        at_least(options, name, least)
    _ = options.vllm_arguments
    for parts in map(urlsplit, urls):
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts[3] or parts[4]:
            raise BadInput(
                "this is no address of an endpoint",
                found=f"{parts.scheme}://{parts.hostname}",
                expected="http://HOST:PORT/v1 without user, password or query, since it is recorded",
                next_step="put the key into an environment variable: --key-variable NAME",
            )


def cluster_of(options: EngineOptions) -> str:
    """Where the Ray cluster is that was named, "" where none was."""
    return options.ray_address or os.environ.get("RAY_ADDRESS", "")


def copies_of(kind: str, options: EngineOptions) -> int:
    """Copies of an engine: as asked, else with vllm as many as this machine's visible GPUs hold.

    0 where nothing says: one, or with vllm on a cluster as many as its GPUs hold (`stapo_eval.engines.ray`).
    """
    if options.replicas or kind != "vllm" or cluster_of(options):
        return options.replicas
    import torch

    # of CUDA_VISIBLE_DEVICES, else all; CUDA itself is not started
    return torch.cuda.device_count() // options.tensor_parallel
