"""The machine of a run: its GPUs, its CPU slots, its disk; of a Ray cluster each node."""

from __future__ import annotations

import logging
import math
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from huggingface_hub import constants

from stapo_results import runs, safe_path
from stapo_results.errors import BadInput, message_of
from stapo_results.memory import usable_memory
from stapo_results.provenance import check_installed, installed, usable_cores, visible_cards
from stapo_results.throughput import CARDS, card_named
from stapo_training.start import estimate
from stapo_training.start.estimate import GIB
from stapo_training.start.resolvers import cpu_slots

_BUSY_GIB = 2.0  # a driver and a display hold less
_MOST_IN_USE = 0.95  # of a machine's memory, by Ray's own default
_LOGS_GIB = 1.0  # metrics and what veRL and Ray log
_ANSWER_SECONDS = 120  # of a node that starts a process
_SESSION_GIB = 1.0  # what Ray keeps of a session in its own folder


@dataclass(frozen=True)
class Node:
    """One machine.

    gpus: cards that a run may use; on a cluster's node without any, the number that `ray start` was told.
    cpus: cores of this machine; of a cluster's node its Ray's CPU slots.
    card, card_gib: the key of `throughput.CARDS` and the GiB of the smallest card. memory: GiB that are free.
    busy: the cards that another program uses.
    """

    host: str
    gpus: int
    cpus: int
    card: str | None = None
    card_gib: float | None = None
    memory: float = math.inf
    busy: Sequence[str] = ()


def check_environment(environment: Mapping[str, str] = os.environ) -> None:
    """Raises BadInput for variables of AMD's cards, which SLURM sets on NVIDIA's too: veRL's workers refuse them beside
    CUDA_VISIBLE_DEVICES, which Ray sets, after minutes."""
    if found := [name for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES") if environment.get(name)]:
        raise BadInput(
            "veRL's workers would end at their start",
            found=", ".join(f"{name}={environment[name]}" for name in found),
            expected="neither ROCR_VISIBLE_DEVICES nor HIP_VISIBLE_DEVICES",
            next_step=f"unset {' '.join(found)}   (on every node of a cluster before `ray start`)",
        )


def this_node(environment: Mapping[str, str] = os.environ) -> Node:
    """This machine, with the cards that CUDA_VISIBLE_DEVICES leaves; one that is shared or broken has no numbers."""
    cards = visible_cards("name,memory.total,memory.used", environment)
    known = {k: (name, int(total) / 1024, int(used) / 1024) for k, (name, total, used) in cards.items()
             if total.isdigit() and used.isdigit()}  # fmt: skip
    busy = [f"GPU {k}: {used:.1f} GiB" for k, (_, _, used) in known.items() if used > _BUSY_GIB]
    smallest = min((total for _, total, _ in known.values()), default=None)
    card = next((card_named(name) for name, *_ in known.values()), None)
    return Node(socket.gethostname(), len(known), usable_cores(), card, smallest, free_memory(environment), busy)


def free_memory(environment: Mapping[str, str] = os.environ) -> float:
    """GiB that this machine's, container's or job's processes may still take before one is ended.

    Ray ends one at a share of the memory (its memory monitor; 0 ms: it has none), the kernel at a job's limit.
    """
    (total, available), share = (
        usable_memory(own=None),
        float(environment.get("RAY_memory_usage_threshold", _MOST_IN_USE)),
    )
    if environment.get("RAY_memory_monitor_refresh_ms") == "0":
        share = 1.0
    return min(available - (1.0 - share) * total, usable_memory()[1]) / GIB


def cluster_nodes(address: str) -> list[Node]:
    """The living nodes of a running Ray cluster, as Ray describes them.

    Raises:
        BadInput: no cluster answers at `address`, or a node has other code than this command, or none.
    """
    import ray
    from ray._private.services import get_ray_address_from_environment  # no public one says what "auto" means
    from ray.exceptions import RayError

    known = address
    try:
        # of "auto": the variable's, a head on this machine, or the last one that `ray start` began or joined, even dead
        known = get_ray_address_from_environment(address, None)
        host, _, port = known.rpartition(":")
        if host and port.isdigit():  # Ray itself tries for minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        job = safe_path.ray_job()
        ray.init(address=address, job_config=job, logging_level=logging.ERROR, log_to_driver=False)
    # Ray raises ConnectionError where "auto" finds no cluster, RuntimeError or its own where the token is another
    except (OSError, ValueError, RuntimeError, RayError) as e:
        raise BadInput(
            "no Ray cluster answers",
            found=f"ray_kwargs.ray_init.address={address}, {known or 'none known'}: {message_of(e)}",
            expected="a running cluster",
            next_step="ray start --head   on the first node, ray start --address=HOST:6379   on the others; if it "
            "runs, give this shell the nodes' RAY_AUTH_MODE and token (docs/cluster.md)",
        ) from None
    try:
        nodes = [n for n in ray.nodes() if n["Alive"]]
        _check_code([n["NodeID"] for n in nodes])
        return [_described(n["NodeManagerHostname"], n["Resources"]) for n in nodes]
    finally:
        ray.shutdown()


def _check_code(nodes: Sequence[str]) -> None:
    """Ask each of these nodes, by its id, for its code. Raises BadInput as `cluster_nodes`."""
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask = ray.remote(num_cpus=0, max_retries=0)(check_installed)
    places = [NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes]
    try:
        ray.get([ask.options(scheduling_strategy=p).remote(installed()) for p in places], timeout=_ANSWER_SECONDS)
    except RayError as e:
        cause = getattr(e, "cause", None)
        if isinstance(cause, BadInput):
            raise cause from None
        raise BadInput(
            f"a node of the cluster cannot run {sys.executable}",
            found=message_of(e),
            next_step="give every node the same checkout and environment (docs/cluster.md)",
        ) from None


def _described(host: str, resources: Mapping[str, float]) -> Node:
    """A cluster's node by its resources, among them `accelerator_type:H100`."""
    kinds = [card_named(key) for key in resources if key.startswith("accelerator_type:")]
    card = next(filter(None, kinds), None)
    gib = CARDS[card].gib if card else None
    if "accelerator_type:A100-40G" in resources:
        gib = 39.5
    return Node(host, int(resources.get("GPU", 0)), int(resources.get("CPU", 0)), card, gib)


def check_gpus(config: Any, nodes: Sequence[Node]) -> list[Node]:
    """The nodes that have a card (without GPUs: one of Ray's slots) for each of their ranks.

    Raises:
        BadInput: fewer nodes than asked, or a card that something else uses.
    """
    asked, each, gpu = config.trainer.nnodes, config.trainer.n_gpus_per_node, config.trainer.device != "cpu"
    used = [n for n in nodes if n.gpus >= each]
    if len(used) < asked:
        cure = "start on such machines or choose another hardware=; without a GPU: size=mini hardware=cpu"
        slots = f"ray start ... --num-gpus={each}   on each node: without GPUs a slot is a number"
        if not config.ray_kwargs.ray_init.get("address"):
            slots = "cpu.ranks=N for several ranks on this machine, hardware=cpu-2nodes for a cluster of two"
        raise BadInput(
            "too few GPUs" if gpu else "too few slots for the run's ranks",
            found=", ".join(f"{n.host}: {n.gpus}" for n in nodes) or "no node",
            expected=f"{asked} node(s) with {each} GPU(s) each",
            next_step=cure if gpu else slots,
        )
    busy = [f"{n.host} {card}" for n in used for card in n.busy]
    if busy and config.run.check_memory:
        # Ray gives cards away by number, without looking at who uses them
        raise BadInput(
            "another program uses a GPU",
            found="; ".join(busy[:4]),
            expected="every GPU that Ray may choose free",
            next_step="nvidia-smi names the process: end it, hide the card with CUDA_VISIBLE_DEVICES, or share it "
            "(run.check_memory=false, docs/gpu.md)",
        )
    return used


def check_cores(config: Any, nodes: Sequence[Node]) -> str | None:
    """A warning where this machine has fewer cores than the CPU slots that Ray is told: the run starts, and is slow.

    Raises:
        BadInput: Ray has fewer slots than veRL takes (`resolvers.cpu_slots`), which then waits for ever.
    """
    ray, ranks = config.ray_kwargs.ray_init, int(config.trainer.n_gpus_per_node)
    units = int(config.transfer_queue.backend.SimpleStorage.num_data_storage_units)
    needed, told, address = cpu_slots(ranks, units, len(nodes) or 1), ray.get("num_cpus"), ray.get("address")
    asked = int(config.trainer.nnodes) if address else 1  # without one there is no other node to ask
    slots = [n.cpus if told is None else int(told) for n in nodes]
    on_any = -(-units // (len(nodes) or 1))  # storage units are spread over all nodes, those without ranks too
    each = f"{needed} slots: 3 for each of {ranks} rank(s), {on_any} storage unit(s), a controller"
    if sum(s >= needed for s in slots) < asked or min(slots, default=0) < on_any:
        start = f"ray start ... --num-cpus={needed} on each node with ranks, {on_any} on another: a slot is a number"
        raise BadInput(
            "too few CPU slots: veRL would wait for ever",
            found=", ".join(f"{n.host}: {s}" for n, s in zip(nodes, slots, strict=True)) or "no node",
            expected=f"{asked} node(s) with {each}",
            next_step=start if address else f"ray_kwargs.ray_init.num_cpus={needed}",
        )
    if config.trainer.device == "cpu" or address or nodes[0].cpus >= needed:
        return None
    return f"{nodes[0].cpus} cores for {ranks} GPU(s), {needed - nodes[0].cpus} fewer than {each}: it will be slow"


def checkpoint_gib(config: Any, parameters: int) -> float:
    """GiB of a checkpoint, as veRL writes it: model and optimizer are fp32, hf_model is made of the same."""
    bytes_of = {"model": estimate.MASTER, "optimizer": estimate.MOMENTS, "hf_model": estimate.MASTER}
    return sum(bytes_of.get(c, 0) for c in config.actor_rollout_ref.actor.checkpoint.save_contents) * parameters / GIB


def check_disk(config: Any, each: float, fetched: float = 0.0) -> str:
    """What the disk has to hold, in a line; `each`: GiB of a checkpoint, `fetched`: of weights that are not cached yet.

    Raises:
        BadInput: no room for two: a new one is written before an old one is deleted, and a killed save leaves a part;
            or none for Ray's own files and the weights. Folders on one disk share its room.
    """
    out, every, keep = Path(config.run.out), int(config.trainer.save_freq), config.trainer.max_actor_ckpt_to_keep
    checkpoints = out / "checkpoints"  # may be a link to another disk
    log = config.actor_rollout_ref.token_log
    logs = _LOGS_GIB + (0.0 if log.mode == "off" else log.largest_gib)
    needs = [(checkpoints, 2 * each, f"two checkpoints of {each:.2f} GiB"), (out, logs, f"{logs:g} GiB of logs")]
    if not config.ray_kwargs.ray_init.get("address"):  # else Ray runs already
        folder = config.ray_kwargs.ray_init.get("_temp_dir") or os.environ.get("RAY_TMPDIR", "/tmp")
        needs.append((Path(folder), _SESSION_GIB, "Ray's files (RAY_TMPDIR)"))
    if fetched:
        needs.append((Path(constants.HF_HUB_CACHE), fetched, f"{fetched:.2f} GiB of weights from the hub (HF_HOME)"))
    disks: dict[int, list[tuple[Path, float, str]]] = {}
    for need in needs:
        disks.setdefault(runs.nearest(need[0]).stat().st_dev, []).append(need)
    for on_it in disks.values():
        room, total = psutil.disk_usage(str(runs.nearest(on_it[0][0]))).free / GIB, sum(n[1] for n in on_it)
        if room < total:
            raise BadInput(
                f"too little disk is free for {on_it[0][0]}",
                found=f"{room:.2f} GiB",
                expected=f"at least {total:.2f} GiB: {'; '.join(n[2] for n in on_it)}",
                next_step="free some space, or choose another run.out, RAY_TMPDIR or HF_HOME",
            )
    free = psutil.disk_usage(str(runs.nearest(checkpoints))).free / GIB
    if every <= 0:
        return "no checkpoint, so that nothing is left of the training (trainer.save_freq)"
    made = -(-int(config.run.steps) // every)  # the last step is always saved
    # an old one goes when the new one is complete
    most = min(made, keep + 1 + bool(config.run.keep_best)) if keep else made
    most += bool(config.run.save_minutes)  # of the timed ones the newest stays
    scarce = "; NOT ENOUGH: trainer.max_actor_ckpt_to_keep=N keeps the newest N" if most * each + logs > free else ""
    timed = f" and one every {config.run.save_minutes} minutes" if config.run.save_minutes else ""
    most_in_all = f"at most {most * each + logs:.1f} GiB; free {free:.1f} GiB{scarce}"
    return f"{made} checkpoints{timed}, each of {each:.2f} GiB, {most_in_all}"
