"""Several engines on Ray: actors over the GPUs and nodes of a cluster that pull from one queue.

Only requests and their ends travel, and only the driver writes records. With the engine hf a replica takes a fixed
batch, so the samples are the same for any number of replicas.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from stapo_eval.engines.base import Engine, LocalEngine, Spec, load_tokenizer
from stapo_eval.engines.requests import Finished, Key, Request
from stapo_eval.models import ModelFiles, find_model
from stapo_results.errors import BadInput, RunFailed


class Replica:
    """One engine in an actor's process."""

    def __init__(self, local: type[LocalEngine], model: ModelFiles, how: Mapping[str, Any]):
        if not model.folder.is_dir():  # another node
            found = find_model(model.given, model.commit)
            if found.weights_sha256 != model.weights_sha256:
                raise BadInput(f"{model.given} is another model on another node", found=found.weights_sha256)
            model = found
        self.engine = local(model, **how)  # type: ignore[call-arg]  # each has arguments of its own

    def spec(self) -> Spec:
        return self.engine.spec

    def work(self, fresh: list[Request]) -> list[Finished]:
        """Accept `fresh`, and work until something is finished."""
        if fresh:
            self.engine.submit(fresh)
        return self.engine.poll()


class RayEngine(Engine):
    """`copies` of a local engine behind the interface of one; `how` is what each is made with."""

    def __init__(self, local: type[LocalEngine], model: ModelFiles, how: Mapping[str, Any], copies: int, address: str):
        self.replicas: dict[int, Any] = {}  # Ray's handles
        self.joined = _connect(address)
        try:
            self.tokenizer = load_tokenizer(model)
            self._start(local, model, how, copies)
        except BaseException:
            self.close()
            raise

    def _start(self, local: type[LocalEngine], model: ModelFiles, how: Mapping[str, Any], copies: int) -> None:
        import ray
        import ray.exceptions

        room = ray.cluster_resources()
        gpus = how.get("tensor_parallel", 1) if room.get("GPU") else 0
        cores = 1 if gpus else max(1, how.get("threads", 1))
        if copies * gpus > room.get("GPU", 0) or copies * cores > room["CPU"]:  # the actors would wait for ever
            raise BadInput(
                f"the cluster has no room for {copies} replicas",
                found=f"{room.get('GPU', 0):g} GPUs, {room['CPU']:g} CPUs",
                expected=f"{gpus} GPUs and {cores} CPUs each",
                next_step="a lower --replicas, fewer --threads, or more nodes",
            )
        # Any: Ray's stubs take the decorated class for a function
        actor: Any = ray.remote(num_gpus=gpus, num_cpus=cores, max_restarts=0, max_task_retries=0)(Replica)
        self.replicas = {i: actor.remote(local, model, how) for i in range(copies)}
        try:
            spec, *others = set(ray.get([r.spec.remote() for r in self.replicas.values()]))
        except ray.exceptions.RayError as e:
            raise _cause(e) from None
        if others:
            raise BadInput("the replicas differ", found="; ".join(map(str, (spec, *others))))
        self.loaded(spec)

    def stream(self, requests: Sequence[Request], done: Collection[Key]) -> Iterator[list[Finished]]:
        import ray
        import ray.exceptions

        errors, queue = self.schedule(requests, done)
        if errors:
            yield errors
        calls: dict[Any, int] = {}  # Ray's reference to the work in progress -> its replica
        running: dict[int, dict[Key, Request]] = {i: {} for i in self.replicas}
        while True:
            for i in self.replicas.keys() - calls.values():
                fresh = queue.take(self.spec.places - len(running[i]))
                running[i] |= {r.key: r for r in fresh}
                if running[i]:
                    calls[self.replicas[i].work.remote(fresh)] = i
            if not calls:
                return
            began = time.perf_counter()
            (call,), _ = ray.wait(list(calls), num_returns=1)
            self.busy += time.perf_counter() - began
            i = calls.pop(call)
            try:
                finished: list[Finished] = ray.get(call)
            except ray.exceptions.RayTaskError as e:
                raise _cause(e) from None
            except ray.exceptions.RayActorError as e:
                del self.replicas[i]
                if not self.replicas:
                    raise RunFailed("every replica was lost", found=_last_line(e)) from None
                self.notes.append(f"replica {i} was lost; the others did its work")
                print(f"{self.notes[-1]}: {len(running[i])} requests\n{e}", file=sys.stderr, flush=True)
                queue.give_back(list(running[i].values()))
                continue
            for f in finished:
                del running[i][f.request.key]
                queue.finished(f.request, f.response_tokens)
            if missing := [f for f in finished if f.request.key not in done]:
                yield missing

    def close(self) -> None:
        """End the replicas; a cluster that this process did not join stays joined."""
        import ray

        for replica in self.replicas.values():
            ray.kill(replica)
        if self.joined:
            ray.shutdown()


def _connect(address: str) -> bool:
    """Join a Ray cluster, or start one on this machine; returns whether this process joined it here.

    Raises:
        BadInput: Ray is not installed, or there is no cluster at the address.
    """
    address = address or os.environ.get("RAY_ADDRESS", "local")
    if address == "local":
        # Ray's servers then listen on loopback only. The name is Ray's; it is read when Ray is imported.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray

        if ray.is_initialized():
            return False
        ray.init(address=address, log_to_driver=False, include_dashboard=False)
    except (ImportError, ConnectionError, ValueError, RuntimeError) as e:
        raise BadInput(
            f"no Ray cluster could be joined at {address}",
            found=_last_line(e),
            next_step="ray start --head on that machine, leave out --ray-address, or --replicas 1",
        ) from None
    return True


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def _cause(error: Exception) -> Exception:
    """The error of ours that a Ray error carries, else a RunFailed with its last line."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, (BadInput, RunFailed)) else RunFailed("a replica failed", found=_last_line(error))
