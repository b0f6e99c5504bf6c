"""Time and disk of one training and of one evaluation: of a CPU's models as recorded, of the paper's by formula.

The formula (`stapo_results.throughput`) starts from the paper's stated budget, the machines, the models and the number
of samples.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from stapo_repro import labels, paper
from stapo_repro.read import below, run_part
from stapo_results import throughput
from stapo_results.benchmarks import registry
from stapo_results.methods import methods
from stapo_results.schema import Run
from stapo_results.shapes import KNOWN, Shape, shape_from
from stapo_results.sizes import MINI
from stapo_results.store import read_json
from stapo_results.throughput import CARDS, Step

GIB = 2**30
STATE = 12  # bytes a parameter of a checkpoint: fp32 weights, AdamW's two fp32 moments
EXPORT = 2  # bytes a parameter of an export in bf16, and of the hub's weights
LOGS_GIB = 3.0  # of a training of the paper: 1 of metrics and logs, 2 at most of the token log
BYTES_A_TOKEN = 5  # of a response in a record, with its share of fields: four letters a token, and the line around them
KEPT = 3  # checkpoints, as configs/base.yaml has it
STEPS = 30  # of the miniature, as configs/size/mini.yaml has them
DISK_GIB = {"train": 0.1}  # of the miniature: two checkpoints, export, token log
_REAL_STATE_GIB, _REAL_GIB = 5.5, 3.0  # of Qwen2.5-Coder-0.5B: a checkpoint; weights and export
REAL_TRAINING_GIB = 16.4  # the least that a training of it plans without a GPU: bfloat16, the quick form
TRAINING_GIB = 3.0  # resident memory of all processes of a training of the miniature; 2.9 is the most on record
SHORTEST = 20  # steps; a shorter training says how long starting takes


def shape_of(size: str) -> Shape:
    """Of one of the paper's models."""
    known = paper.budget()["models"][size]["id"]
    return shape_from(KNOWN[known], known)


@dataclass(frozen=True)
class Machine:
    """A `hardware=` of the training wing: GPUs in all, the card to plan with, GPUs a rollout replica by size."""

    gpus: int
    card: str
    parallel: dict[str, int] = field(default_factory=dict)

    def tensor_parallel(self, size: str) -> int:
        return self.parallel.get(size, 1)


MACHINES = {
    "1gpu": Machine(1, "H100"),
    "8gpu": Machine(8, "H100", {"qwen3-14b": 2}),
    "64gpu": Machine(64, "H20", {"qwen3-14b": 2}),
}


class Cost(NamedTuple):
    """What a training or an evaluation takes.

    hours: of wall time, None where nothing is known. gpus: of the machine; GPU hours count idle ones too. disk: GiB at
    most. basis: "measured: ..." or "formula: ..." with its sum.
    """

    hours: float | None
    gpus: int
    disk: float
    basis: str


Seconds = dict[tuple[str, str], list[float]]
"""(kind, method) -> wall seconds of a step of each finished training, or of each whole evaluation."""


def recorded(roots: Sequence[Path], skip: Sequence[str] = ()) -> Seconds:
    """Whole trainings and evaluations of the miniature below the roots. Raises: RecordError for a broken record."""
    known = defaultdict[tuple[str, str], list[float]](list)
    for path in (path for root in roots for path in below(root, "run.json", skip)):
        run = read_json(path, Run)
        trains = run.kind == "train"
        config = run_part(run) if trains else run.config
        steps = config.get("steps") or 0
        full_length = steps >= SHORTEST if trains else run.kind == "eval" and not config.get("limit")
        once = run.status == "done" and not run.resumptions  # a second start counts twice
        if once and run.wall_seconds and full_length and config.get("size") == MINI:
            known[run.kind, config.get("method") or ""].append(run.wall_seconds / (steps if trains else 1))
    return known


def on_cpu(known: Seconds, kind: str, method: str, steps: int = 1) -> Cost:
    """A training of so many steps, or an evaluation, of the miniature: the median of those on record.

    Where its method is on none, other methods' are taken; the testbed's models are of its size.
    """
    disk = DISK_GIB.get(kind, 0.0)
    seconds = known.get((kind, method)) or [s for (k, _), values in known.items() if k == kind for s in values]
    if not seconds:
        return Cost(None, 0, disk, "not known")
    hours = steps * statistics.median(seconds) / 3600
    return Cost(hours, 0, disk, f"measured: median of {len(seconds)} recorded runs")


def passes(method: str) -> tuple[bool, bool]:
    """Whether a selection has a forward pass of its own, in 3 of 4 mini-batches, and the update asks a reference
    model; another q or tau_p changes neither."""
    definition = methods()[(paper.variant(method) or (method,))[0]].get("definition", {})
    return "selector" in definition, "kl" in definition


def training(method: str, size: str, machine: Machine, steps: int, keep: int = 0) -> Cost:
    """The training of one of the paper's models.

    Args:
        keep: checkpoints that are kept beside the best, 0 for the training's own number; an old one goes when the new
            one is complete.
    """
    shape = shape_of(size)
    saved = math.ceil(steps / paper.setting("checkpoint_every"))
    most = min(saved, (keep or KEPT) + 2) + 1  # the best, and one being written; of the timed ones the newest
    disk = (most * STATE + 2 * EXPORT) * shape.parameters / GIB + LOGS_GIB
    sequences = paper.setting("prompts") * paper.setting("responses")
    lengths = throughput.lengths_of(paper.setting("response_limit"))
    own_pass, reference = passes(method)
    parallel = machine.tensor_parallel(size)
    step = Step(shape, sequences, lengths, reference=reference, own_pass=0.75 * own_pass, tensor_parallel=parallel)
    seconds = step.seconds(CARDS[machine.card], machine.gpus)
    basis = f"formula for {machine.card}, {seconds:.0f} s a step: {step.words(machine.card, machine.gpus)}"
    return Cost(seconds * steps / 3600, machine.gpus, disk, basis)


def real_training(keep: int = 0) -> Cost:
    """The training of a real model on a CPU: its disk. `stapo-train run --dry-run` plans its time.

    Args:
        keep: checkpoints that are kept, 0 for the training's own number, which is 1.
    """
    most = (keep or 1) + 2  # the newest timed one, and one being written
    return Cost(None, 0, most * _REAL_STATE_GIB + _REAL_GIB, "not known")


def evaluation(method: str, size: str, machine: Machine, settings: int, *, judged: bool) -> Cost:
    """The evaluation of a model at the paper's benchmarks and so many settings; a base model is fetched for it."""
    judge, card = paper.budget()["judge"], CARDS[machine.card]
    benchmarks = [registry()[name] for name in labels.PAPER_BENCHMARKS]
    count = sum(b.rows * b.samples for b in benchmarks) * settings
    shape, lengths = shape_of(size), throughput.lengths_of(paper.setting("evaluation_limit"))
    disk = BYTES_A_TOKEN * count * lengths.mean / GIB
    if method == labels.BASE:
        disk += EXPORT * shape.parameters / GIB
    samples = Step(shape, count, lengths, tensor_parallel=machine.tensor_parallel(size))
    generating = samples.sampling(card, machine.gpus)
    asked = 2 * judge["parameters"] * count * judge["question_tokens"]
    judging = asked / (card.tflops * 1e12 * throughput.EFFICIENCY) if judged else 0.0
    basis = f"formula for {machine.card}, {count:,} samples: generation {generating:.0f} s"
    basis += f" + judge at most {judging:.0f} s" if judged else ""
    return Cost((generating + judging) / 3600, machine.gpus, disk, f"{basis}; {throughput.UNCERTAINTY}")
