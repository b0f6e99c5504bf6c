"""What is there: GPUs of this machine or of a Ray cluster's nodes, host memory, free disk."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from stapo_results.errors import BadInput
from stapo_results.provenance import nvidia_smi, usable_cores
from stapo_training.run.preflight.memory import GIB, MASTER, MOMENTS
from stapo_training.run.resolvers import run_slots

_FIELDS = "index,name,memory.total,memory.used,driver_version"
DRIVER = 580
"""The oldest driver that runs CUDA 13, for which requirements/gpu.txt has its packages; .ci/needs-gpu has it too."""
_SHM = Path("/dev/shm")
_SHM_GIB = 1.0  # a container's default is 64 MiB: NCCL and vLLM's workers share memory there
_BUSY_GIB = 2.0  # a driver and a display hold less
_LOGS_GIB = 1.0  # metrics and what veRL and Ray log


@dataclass(frozen=True)
class Gpu:
    """One card: total and used memory in GiB, the version of its driver."""

    index: int
    name: str
    total: float
    used: float
    driver: str = ""


@dataclass(frozen=True)
class Node:
    """One machine: the cards that a run may use, its free memory in GiB; what it lacks, each with its cure.

    slots: the GPUs that its Ray gives away, which on a node without any are a number that `ray start` was told.
    cpus: the cores of this machine; of a cluster's node its Ray's CPU slots.
    """

    host: str
    gpus: Sequence[Gpu]
    memory: float
    lacks: Sequence[tuple[str, str]] = ()
    slots: int = 0
    cpus: int = 0


def parse_smi(text: str) -> list[Gpu]:
    """The cards in nvidia-smi's CSV of `_FIELDS`, but those that do not say their memory (shared or broken)."""
    rows = [[p.strip() for p in line.split(",")] for line in text.splitlines()]
    numbers = [r for r in rows if len(r) == 5 and r[0].isdigit() and r[2].isdigit() and r[3].isdigit()]
    return [Gpu(int(i), name, int(total) / 1024, int(used) / 1024, driver) for i, name, total, used, driver in numbers]


def visible(gpus: Sequence[Gpu], chosen: str | None) -> list[Gpu]:
    """The cards that CUDA_VISIBLE_DEVICES leaves (None: not set). CUDA ignores what follows an unknown number."""
    if chosen is None:
        return list(gpus)
    names, by_index = [name.strip() for name in chosen.split(",")], {str(g.index): g for g in gpus}
    if names[0].startswith(("GPU-", "MIG-")):  # nvidia-smi's index names no UUID: the list counts at its length
        return list(gpus[: len(names)])
    known = [name in by_index for name in names]
    return [by_index[name] for name in names[: known.index(False) if False in known else None]]


def this_node() -> Node:
    """This machine."""
    text, memory, lacks = _describe()
    gpus = visible(parse_smi(text), os.environ.get("CUDA_VISIBLE_DEVICES"))
    return Node(socket.gethostname(), gpus, memory / GIB, lacks, cpus=usable_cores())


def cluster_nodes(address: str) -> list[Node]:
    """The living nodes of a running Ray cluster, each asked for its cards (no more than Ray gives away) and memory.

    A node that has died meanwhile is left out: Ray notices a death with some delay.

    Raises:
        BadInput: no cluster answers at `address`, or a living node cannot say what it has.
    """
    import ray
    from ray.exceptions import RayError

    try:
        host, _, port = address.rpartition(":")
        if host and port.isdigit():  # Ray itself tries for minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    # Ray raises ConnectionError where "auto" finds no cluster, RuntimeError or its own where the token is another
    except (OSError, ValueError, RuntimeError, RayError) as e:
        raise BadInput(
            "no Ray cluster answers",
            found=f"ray_kwargs.ray_init.address={address}: {str(e).splitlines()[0]}",
            expected="a running cluster",
            next_step="ray start --head   on the first node, ray start --address=HOST:6379   on the others; if it "
            "runs, give this shell the nodes' RAY_AUTH_MODE and token (docs/cluster.md)",
        ) from None
    try:
        answers = [_ask(ray, node) for node in ray.nodes() if node["Alive"]]
        return [node for node in answers if node is not None]
    finally:
        ray.shutdown()


def _ask(ray: Any, node: dict[str, Any]) -> Node | None:
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    # no GPU is reserved, so Ray hides them all: nvidia-smi lists them nevertheless
    asked = ray.remote(_describe).options(num_cpus=0, scheduling_strategy=place).remote()
    try:
        text, memory, lacks = ray.get(asked, timeout=300)
    except RayError as e:
        if node["NodeID"] not in {n["NodeID"] for n in ray.nodes() if n["Alive"]}:
            return None
        raise BadInput(
            "a node of the Ray cluster does not run what it is asked",
            found=f"{node['NodeManagerHostname']}: {(str(e).strip().splitlines() or [type(e).__name__])[-1]}",
            expected="this suite and its packages on every node",
            next_step="pip install as docs/cluster.md has it, and ray start, on that node; or ray stop there",
        ) from None
    offered = int(node["Resources"].get("GPU", 0))
    cpus = int(node["Resources"].get("CPU", 0))
    return Node(node["NodeManagerHostname"], parse_smi(text)[:offered], memory / GIB, lacks, offered, cpus)


def _describe() -> tuple[str, int, list[tuple[str, str]]]:
    return nvidia_smi(_FIELDS), psutil.virtual_memory().available, lacking()


def lacking() -> list[tuple[str, str]]:
    """(what this machine lacks for a run on its GPUs, the cure)."""
    found = []
    compiler = os.environ.get("CC")
    if not any(shutil.which(c) for c in ([compiler] if compiler else ["gcc", "clang", "cc"])):
        found.append(("C compiler, which Triton starts at run time", "apt-get install gcc"))
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}-dev"
        found.append(("Python.h, which Triton compiles against", f"apt-get install {version}"))
    shared = psutil.disk_usage(str(_SHM)).total / GIB if _SHM.is_dir() else 0.0
    if shared < _SHM_GIB:
        cure = "start the container with --ipc=host, or with --shm-size=16g"
        found.append((f"{_SHM_GIB:g} GiB of {_SHM} (it has {shared:.2f})", cure))
    return found


def check_driver(nodes: Sequence[Node]) -> None:
    """Raises: BadInput: naming each node whose driver is too old."""
    if old := [f"{n.host}: {g.driver}" for n in nodes for g in n.gpus[:1] if _major(g.driver) < DRIVER]:
        raise BadInput(
            "the driver is too old for the packages' CUDA 13",
            found="; ".join(old),
            expected=f"{DRIVER} or newer on every node",
            next_step=f"install NVIDIA's driver {DRIVER} or newer, and start the machine again",
        )


def check_tools(nodes: Sequence[Node]) -> None:
    """Raises: BadInput: naming each node with GPUs and what it lacks beside them."""
    if missing := [(n.host, *lack) for n in nodes if n.gpus for lack in n.lacks]:
        raise BadInput(
            "a node lacks what a run on GPUs needs",
            found="; ".join(f"{host}: no {what}" for host, what, _ in missing),
            next_step="; ".join(dict.fromkeys(cure for _, _, cure in missing)),
        )


def _major(version: str) -> int:
    first = version.split(".")[0]
    return int(first) if first.isdigit() else 0


def check_gpus(nodes: list[Node], asked_nodes: int, per_node: int) -> float:
    """GiB of the smallest card that a run would use.

    Args:
        nodes: this machine, or a cluster's.
        asked_nodes, per_node: trainer.nnodes and trainer.n_gpus_per_node.

    Raises:
        BadInput: fewer cards than asked, or one that something else uses.
    """
    used = [n for n in nodes if len(n.gpus) >= per_node]
    if len(used) < asked_nodes:
        raise BadInput(
            "too few GPUs" if any(n.gpus for n in nodes) else "no GPU found",
            found=", ".join(f"{n.host}: {len(n.gpus)}" for n in nodes) + " (nvidia-smi, CUDA_VISIBLE_DEVICES, Ray)",
            expected=f"{asked_nodes} node(s) with {per_node} GPU(s) each",
            next_step="start on such machines or choose another hardware=; without a GPU: size=mini hardware=cpu",
        )
    busy = [(n.host, g) for n in used for g in n.gpus if g.used > _BUSY_GIB]
    if busy:  # Ray gives cards away by number, without looking at who uses them
        raise BadInput(
            "another program uses a GPU",
            found="; ".join(f"{host} GPU {g.index}: {g.used:.1f} of {g.total:.1f} GiB" for host, g in busy[:4]),
            expected="every GPU that Ray may choose free",
            next_step="nvidia-smi names the process: end it, or hide the card with CUDA_VISIBLE_DEVICES",
        )
    return min(g.total for n in used for g in n.gpus)


def check_slots(nodes: Sequence[Node], asked_nodes: int, per_node: int) -> None:
    """Raises: BadInput: fewer nodes than asked have a slot for each of a node's ranks; Ray would wait for ever."""
    if sum(n.slots >= per_node for n in nodes) < asked_nodes:
        raise BadInput(
            "too few nodes for the run's ranks",
            found=", ".join(f"{n.host}: {n.slots}" for n in nodes) or "no node",
            expected=f"{asked_nodes} nodes with {per_node} slots each",
            next_step=f"ray start ... --num-gpus={per_node}   on each node: without GPUs a slot is a number",
        )


def check_cores(config: Any, nodes: Sequence[Node]) -> str | None:
    """A warning where this machine has fewer cores than the CPU slots that Ray is told: the run starts, and is slow.

    Raises:
        BadInput: Ray has fewer slots than veRL takes (`resolvers.cpu_slots`), which then waits for ever.
    """
    ray, ranks = config.ray_kwargs.ray_init, int(config.trainer.n_gpus_per_node)
    units = int(config.transfer_queue.backend.SimpleStorage.num_data_storage_units)
    needed, told = run_slots(config, len(nodes) or 1), ray.get("num_cpus")
    asked = int(config.trainer.nnodes) if ray.get("address") else 1  # without one there is no other node to ask
    slots = [n.cpus if told is None else int(told) for n in nodes]
    on_any = -(-units // (len(nodes) or 1))  # a node without ranks has its storage units
    each = f"{needed} slots: 3 for each of {ranks} rank(s), {on_any} storage unit(s), a controller"
    if sum(s >= needed for s in slots) < asked or min(slots, default=0) < on_any:
        start = f"ray start ... --num-cpus={needed} on each node with ranks, {on_any} on another: a slot is a number"
        raise BadInput(
            "too few CPU slots: veRL would wait for ever",
            found=", ".join(f"{n.host}: {s}" for n, s in zip(nodes, slots, strict=True)) or "no node",
            expected=f"{asked} node(s) with {each}",
            next_step=start if ray.get("address") else f"ray_kwargs.ray_init.num_cpus={needed}",
        )
    if config.trainer.device == "cpu" or ray.get("address") or nodes[0].cpus >= needed:
        return None
    return f"{nodes[0].cpus} cores for {ranks} GPU(s), {needed - nodes[0].cpus} fewer than {each}: it will be slow"


@dataclass(frozen=True)
class Checkpoints:
    """What a run writes: GiB of one checkpoint, how many are made and kept, GiB of logs at most, and the free GiB."""

    each: float
    made: int
    kept: int
    logs: float
    free: float

    @property
    def whole(self) -> float:
        """GiB at most: an old checkpoint goes when the new one is complete, so for a moment there is one more."""
        return min(self.made, self.kept + 1) * self.each + self.logs


def plan_checkpoints(config: Any, parameters: int, folder: Path) -> Checkpoints:
    """The checkpoints of a run, as veRL writes them: model and optimizer are fp32, hf_model is made of the same."""
    bytes_of = {"model": MASTER, "optimizer": MOMENTS, "hf_model": MASTER}
    size = sum(bytes_of.get(c, 0) for c in config.actor_rollout_ref.actor.checkpoint.save_contents)
    every, keep = int(config.trainer.save_freq), config.trainer.max_actor_ckpt_to_keep
    made = -(-int(config.run.steps) // every) if every > 0 else 0  # the last step is always saved
    log = config.actor_rollout_ref.token_log
    logs = _LOGS_GIB + (0.0 if log.mode == "off" else log.largest_gib)
    there = next(p for p in (folder, *folder.parents) if p.exists())
    free = psutil.disk_usage(str(there)).free / GIB
    return Checkpoints(size * parameters / GIB, made, min(made, keep) if keep else made, logs, free)


def check_disk(c: Checkpoints, where: object) -> None:
    """Two checkpoints must fit: a new one is written before an old one is deleted, and a killed save leaves a part.

    Raises:
        BadInput: with the arithmetic.
    """
    need = 2 * c.each + c.logs
    if c.free < need:
        raise BadInput(
            f"too little disk is free for {where}",
            found=f"{c.free:.2f} GiB",
            expected=f"at least {need:.2f} GiB: two checkpoints of {c.each:.2f} GiB and {c.logs:g} GiB of logs",
            next_step="free some space or choose another run.out",
        )
