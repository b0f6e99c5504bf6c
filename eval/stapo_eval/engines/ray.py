"""Several engines on Ray: actors over the GPUs and nodes of a cluster behind one queue.

Only requests and their ends travel, and only the driver writes records.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stapo_eval.engines.base import Engine, EngineSpec, Finished, Key, Request, load_tokenizer
from stapo_eval.models import ModelFiles, find_model
from stapo_results import safe_path
from stapo_results.errors import BadInput, RunFailed, StapoError, last_lines, message_of
from stapo_results.provenance import check_installed, installed


class Replica:
    """One engine in an actor's process."""

    def load(
        self, local: type[Engine], model: ModelFiles, how: Mapping[str, Any], code: Mapping[str, str]
    ) -> EngineSpec:
        """Load the engine, by the `code` of the command: not in __init__, whose errors Ray carries without cause."""
        check_installed(code)
        if not model.folder.is_dir():  # another node
            files = find_model(model.given, model.commit)
            if files.weights_sha256 != model.weights_sha256:
                raise BadInput(f"{model.given} is another model on another node", found=files.weights_sha256)
            model = files
        try:
            self.engine = local(model, **how)  # type: ignore[call-arg]  # each has arguments of its own
        except Exception as e:
            raise _explained(e) from e
        return self.engine.spec

    def work(self, fresh: list[Request]) -> tuple[list[Finished], int]:
        """Accept `fresh`, and work as the engine's `poll` does; returns its `under_way`, too."""
        try:
            for request in fresh:
                self.engine.submit(request)
            return self.engine.poll(), self.engine.under_way
        except Exception as e:
            raise _explained(e) from e


def _explained(error: Exception) -> Exception:
    """An actor's error with what its processes wrote to stderr before: Ray keeps that in a file."""
    if isinstance(error, BadInput):
        return error
    log = Path("/proc/self/fd/2")
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    # the first cause stands far above the tracebacks that follow from it
    named = [line for line in text.splitlines()[:-15] if re.search(r"\b\w*(Error|Exception): ", line)]
    parts = filter(None, (last_lines("\n".join(named)), last_lines(text), message_of(error)))
    return RunFailed("a replica failed", found="\n".join(parts))


class RayEngine(Engine):
    """`copies` of a local engine behind the interface of one; `how` is what each is made with."""

    def __init__(self, local: type[Engine], model: ModelFiles, how: Mapping[str, Any], copies: int, address: str):
        self.replicas: dict[int, Any] = {}  # Ray's handles
        self.joined = _connect(address)
        try:
            self.tokenizer = load_tokenizer(model)
            self._start(local, model, how, copies)
        except BaseException:
            self.close()
            raise

    def _start(self, local: type[Engine], model: ModelFiles, how: Mapping[str, Any], copies: int) -> None:
        import ray
        import ray.exceptions

        nodes = [(n["Resources"].get("GPU", 0), n["Resources"].get("CPU", 0)) for n in ray.nodes() if n["Alive"]]
        gpus = how.get("tensor_parallel", 1) if any(cards for cards, _ in nodes) else 0
        cores = 1 if gpus else max(1, how.get("threads", 1))
        room = sum(int(min(cards // gpus if gpus else math.inf, cpus // cores)) for cards, cpus in nodes)
        self.copies = copies = copies or int(sum(cards // max(1, gpus) for cards, _ in nodes))
        if not (copies or gpus):
            raise BadInput("the cluster has no GPU", found=f"{len(nodes)} nodes", next_step="--replicas NUMBER")
        if not copies or copies > room:  # the actors would wait for ever
            raise BadInput(
                f"the cluster has no room for {copies or 'a'} replica{'s' * (copies > 1)}",
                found="; ".join(f"a node with {cards:g} GPUs, {cpus:g} CPUs" for cards, cpus in nodes),
                expected=f"{gpus} GPUs and {cores} CPUs on one node for each",
                next_step="--replicas NUMBER, fewer --threads, a lower --tensor-parallel, or more nodes",
            )
        if ray.available_resources().get("GPU", 0) < copies * gpus:
            print("the cluster's GPUs are in use: waiting for them", file=sys.stderr, flush=True)
        # Any: Ray's stubs take the decorated class for a function
        actor: Any = ray.remote(num_gpus=gpus, num_cpus=cores, max_restarts=0, max_task_retries=0)(Replica)
        self.replicas = {i: actor.remote() for i in range(copies)}
        try:
            loading = [r.load.remote(local, model, how, installed()) for r in self.replicas.values()]
            specs: list[EngineSpec] = ray.get(loading)
        except ray.exceptions.RayError as e:
            raise _cause(e) from None
        # machines differ in memory; replicas of one machine look at the same free memory
        if len({replace(spec, places=1) for spec in specs}) > 1:
            raise BadInput("the replicas differ", found="; ".join(map(str, specs)))
        self.places = {i: spec.places for i, spec in enumerate(specs)}
        self.loaded(replace(specs[0], places=sum(self.places.values())))
        self.held: dict[int, dict[Key, Request]] = {i: {} for i in self.replicas}  # what each has to answer
        self.fresh: defaultdict[int, list[Request]] = defaultdict(list)  # of that, what was not sent yet
        self.making: dict[int, int] = {}  # tokens of each that are under way
        self.calls: dict[Any, int] = {}  # Ray's reference to the work in progress -> its replica

    def submit(self, request: Request) -> None:
        i = min(self.held, key=lambda i: len(self.held[i]) / self.places[i])
        self.held[i][request.key] = request
        self.fresh[i].append(request)

    def poll(self) -> list[Finished]:
        """What a replica has finished, which may be nothing. What a lost one held is submitted again.

        Raises:
            RunFailed: every replica was lost.
        """
        import ray
        import ray.exceptions

        while True:
            for i in self.held.keys() - self.calls.values():
                if self.held[i]:
                    self.calls[self.replicas[i].work.remote(self.fresh.pop(i, []))] = i
            (call,), _ = ray.wait(list(self.calls), num_returns=1)
            i = self.calls.pop(call)
            try:
                finished: list[Finished]
                finished, self.making[i] = ray.get(call)
            except ray.exceptions.RayError as e:  # its engine died, or its process
                ray.kill(self.replicas.pop(i))
                if not self.replicas:
                    raise RunFailed("every replica was lost", found=message_of(e)) from None
                lost, cause = self.held.pop(i), _cause(e)
                self.making.pop(i, None)
                self.notes.append(f"replica {i} was lost; the others did its work")
                print(f"{self.notes[-1]}: {len(lost)} requests\n{cause}", file=sys.stderr, flush=True)
                self.spec = replace(self.spec, places=sum(self.places[i] for i in self.held))
                for request in lost.values():
                    self.submit(request)
                continue
            for f in finished:
                del self.held[i][f.request.key]
            self.under_way = sum(self.making.values())
            return finished

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
    address = address or "local"
    if address == "local":
        # Ray's servers then listen on loopback only. The name is Ray's; it is read when Ray is imported.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    cure = "ray start --head on that machine, leave out --ray-address, or --replicas 1"
    what = f"no Ray cluster could be joined at {address}"
    try:
        import ray
        from ray.exceptions import RayError
    except ImportError as e:
        raise BadInput(what, found=message_of(e), next_step=cure) from None
    if ray.is_initialized():
        return False
    try:
        ray.init(address=address, job_config=safe_path.ray_job(), log_to_driver=False, include_dashboard=False)
    except (ConnectionError, ValueError, RuntimeError, RayError) as e:  # its own where the token is another
        raise BadInput(what, found=message_of(e), next_step=cure) from None
    return True


def _cause(error: Exception) -> StapoError:
    """The error of ours that a Ray error carries, else one with its message."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, StapoError) else RunFailed("a replica failed", found=message_of(error))
