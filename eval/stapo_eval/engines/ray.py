"""Several engines on Ray: actors over the GPUs and nodes of a cluster that pull from one queue.

Only requests and their ends travel, and only the driver writes records. What a dead replica had in hand goes back into
the queue and is done by the others. With the engine hf a replica takes a fixed batch, so the samples are the same for
any number of replicas.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stapo_eval.engines.base import EngineSpec, LoadedEngine, load_tokenizer
from stapo_eval.engines.options import EngineOptions, load
from stapo_eval.engines.requests import Finished, Key, Request, wanted
from stapo_eval.models import ModelFiles, find_model
from stapo_results.errors import BadInput, RunFailed


class Replica:
    """One engine in an actor's process."""

    def __init__(self, kind: str, model: ModelFiles, threads: int, dtype: str, rows: int, tensor_parallel: int):
        if not model.folder.is_dir():  # another node
            found = find_model(model.given, model.commit)
            if found.weights_sha256 != model.weights_sha256:
                raise BadInput(f"{model.given} is another model on another node", found=found.weights_sha256)
            model = found
        self.engine = load(kind, model, threads=threads, dtype=dtype, rows=rows, tensor_parallel=tensor_parallel)

    def describe(self) -> tuple[EngineSpec, int, str]:
        """(what the model says of itself, process id, host)."""
        return self.engine.spec, os.getpid(), os.uname().nodename

    def work(self, fresh: list[Request]) -> list[Finished]:
        """Take `fresh` in hand and work until something is finished."""
        if fresh:
            self.engine.submit(fresh)
        return self.engine.poll()


@dataclass
class _Actor:
    handle: Any
    number: int
    pid: int
    host: str
    hand: dict[Key, Request] = field(default_factory=dict)
    call: Any = None  # Ray's reference to the work in progress


class RayEngine(LoadedEngine):
    """N replicas behind the interface of one engine."""

    def __init__(self, kind: str, model: ModelFiles, *, threads: int, dtype: str, rows: int, options: EngineOptions):
        self.actors: list[_Actor] = []
        self.mine = _connect(options.ray_address)
        try:
            self.tokenizer = load_tokenizer(model)
            self._start((kind, model, threads, dtype, rows, options.tensor_parallel), threads, options)
        except BaseException:
            self.close()
            raise

    def _start(self, arguments: tuple[Any, ...], threads: int, options: EngineOptions) -> None:
        import ray
        import ray.exceptions

        gpus = options.tensor_parallel if ray.cluster_resources().get("GPU") else 0
        cores = 1 if gpus else max(1, threads)
        _check_room(ray.cluster_resources(), options.replicas, gpus, cores)
        # Any: Ray's stubs take the decorated class for a function
        actor: Any = ray.remote(num_gpus=gpus, num_cpus=cores, max_restarts=0, max_task_retries=0)(Replica)
        handles = [actor.remote(*arguments) for _ in range(options.replicas)]
        try:
            described = ray.get([h.describe.remote() for h in handles])
        except ray.exceptions.RayError as e:
            raise _cause(e) from None
        self.actors = [
            _Actor(h, i, pid, host) for i, (h, (_, pid, host)) in enumerate(zip(handles, described, strict=True))
        ]
        specs = list(dict.fromkeys(spec for spec, _, _ in described))
        if len(specs) > 1:
            raise BadInput("the replicas differ", found="; ".join(map(str, specs)))
        self.loaded(specs[0])

    def stream(self, requests: Sequence[Request], done: Collection[Key]) -> Iterator[list[Finished]]:
        import ray
        import ray.exceptions

        errors, schedule = self.spec.schedule(requests, done)
        if errors:
            yield errors
        while True:
            for actor in self.actors:
                if actor.call is None:
                    fresh = schedule.take(wanted(len(schedule), len(self.actors), self.spec.places, len(actor.hand)))
                    actor.hand.update((r.key, r) for r in fresh)
                    if actor.hand:
                        actor.call = actor.handle.work.remote(fresh)
            calls = {a.call: a for a in self.actors if a.call is not None}
            if not calls:
                break
            began = time.perf_counter()
            (ref,), _ = ray.wait(list(calls), num_returns=1)
            self.busy += time.perf_counter() - began
            actor, calls[ref].call = calls[ref], None
            try:
                finished: list[Finished] = ray.get(ref)
            except ray.exceptions.RayActorError as e:
                schedule.give_back(actor.hand.values())
                self._lost(actor, e)
                continue
            except ray.exceptions.RayTaskError as e:
                raise _cause(e) from None
            for f in finished:
                del actor.hand[f.request.key]
                schedule.finished(f.request, f.response_tokens)
            if missing := [f for f in finished if f.request.key not in done]:
                yield missing

    def _lost(self, actor: _Actor, error: Exception) -> None:
        self.actors.remove(actor)
        self.notes.append(f"replica {actor.number} was lost; the others did its work")
        print(
            f"replica {actor.number} (process {actor.pid} on {actor.host}) was lost; "
            f"its {len(actor.hand)} requests go to the {len(self.actors)} others",
            file=sys.stderr,
            flush=True,
        )
        if not self.actors:
            raise RunFailed("every replica was lost", found=(str(error).splitlines() or [type(error).__name__])[0])

    def close(self) -> None:
        """End the replicas; a cluster that this process did not join stays joined."""
        import ray

        for actor in self.actors:
            ray.kill(actor.handle)
        if self.mine:
            ray.shutdown()


def _connect(address: str) -> bool:
    """Join a Ray cluster, or start one on this machine; returns whether this process joined it here.

    Raises:
        BadInput: Ray is not installed, or there is no cluster at the address.
    """
    address = address or os.environ.get("RAY_ADDRESS", "")
    if not address:
        # Ray's servers then listen on loopback only. The name is Ray's; it is read when Ray is imported.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
    except ImportError as e:
        raise BadInput(
            "several copies of an engine need Ray", found=e, next_step="python -m pip install ray; or --replicas 1"
        ) from None
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(address=address or "local", log_to_driver=False, include_dashboard=False)
    except (ConnectionError, ValueError, RuntimeError) as e:
        raise BadInput(
            f"there is no Ray cluster at {address}",
            found=(str(e).splitlines() or [type(e).__name__])[0],
            next_step="ray start --head on that machine, or leave out --ray-address",
        ) from None
    return True


def _check_room(resources: Mapping[str, float], replicas: int, gpus: int, cores: int) -> None:
    """Actors that do not fit would wait for ever."""
    for name, each in (("GPU", gpus), ("CPU", cores)):
        if replicas * each > (have := resources.get(name, 0)):
            raise BadInput(
                f"the cluster has no room for {replicas} replicas",
                found=f"{have:g} {name}s",
                expected=f"{replicas} x {each}",
                next_step="a lower --replicas, fewer --threads, or more nodes",
            )


def _cause(error: Exception) -> Exception:
    """The error of ours that a Ray error carries, else a RunFailed with its last line."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, (BadInput, RunFailed)):
        return cause
    return RunFailed("a replica failed", found=(str(error).strip().splitlines() or [type(error).__name__])[-1])
