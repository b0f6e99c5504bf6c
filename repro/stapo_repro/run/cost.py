"""Time and disk of one training and of one evaluation: measured where a record exists, else by formula.

The formula (`stapo_results.throughput`) starts from the paper's stated budget, the machines, the models and the number
of samples.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from stapo_repro import calibrate, labels
from stapo_repro.paper import transcribed
from stapo_results import throughput
from stapo_results.benchmarks import registry
from stapo_results.errors import RecordError
from stapo_results.schema import SETTINGS, CellRecord, Run
from stapo_results.shapes import KNOWN, Shape, shape_from
from stapo_results.sizes import MINI, SMALL, has_base
from stapo_results.store import read_json
from stapo_results.throughput import CARDS, Sampling, Step, Update

GIB = 2**30
STATE = 12  # bytes a parameter of a checkpoint: fp32 weights, AdamW's two fp32 moments
EXPORT = 2  # bytes a parameter of an export in bf16, and of the hub's weights
LOGS_GIB = 3.0  # of a training: 1 of metrics and logs, 2 at most of the token log
BYTES_A_TOKEN = 5  # of a response in a record, with its share of fields: four letters a token, and the line around them
WITH_REFERENCE = ("grpo",)  # methods whose update asks a reference model
TWO_PASSES = ("entropy20", "stapo-per-response")  # methods whose selector always has a forward pass of its own
KEPT = 3  # checkpoints, as configs/base.yaml has it
STEPS = {MINI: 30, SMALL: 50}  # of the sizes that a CPU trains, as configs/size has them
SMALL_TRAINING_GIB = 4.0  # of the small model: two checkpoints, export, token log
SHORTEST = 20  # steps; a shorter training says how long starting takes


class Setting(BaseModel):
    """A value with its place in the paper; "inferred" ones are decisions of this project."""

    value: int = Field(ge=1)
    unit: str
    basis: Literal["stated", "inferred"]
    where: str


class Judge(BaseModel):
    """The verifier: parameters, and the most tokens that one question has."""

    model: str
    parameters: int
    question_tokens: int


class BaseWeights(BaseModel):
    """A base model's hub id and the commit of its weights."""

    id: str
    revision: str = Field(pattern=r"^[0-9a-f]{40}$")

    @property
    def shape(self) -> Shape:
        return shape_from(KNOWN[self.id], self.id)


class Budget(BaseModel):
    """results/paper/budget.json. `settings`: steps, prompts and responses of a step, limits in tokens, checkpoints."""

    settings: dict[str, Setting]
    judge: Judge
    models: dict[str, BaseWeights]


@cache
def load(path: Path | None = None) -> Budget:
    """The transcribed budget; raises as `paper.transcribed`."""
    return transcribed("budget.json", Budget, path)


@dataclass(frozen=True)
class Machine:
    """A `hardware=` of the training wing: GPUs in all, the card to plan with, GPUs a rollout replica by size.

    two_pass: whether a mask over rare tokens has a forward pass of its own there.
    """

    gpus: int
    card: str
    parallel: dict[str, int] = field(default_factory=dict)
    two_pass: bool = False

    def own_pass(self, method: str) -> bool:
        return method in TWO_PASSES or (self.two_pass and method in labels.RARE_TOKEN_MASKS)

    def tensor_parallel(self, size: str) -> int:
        return self.parallel.get(size, 1)


CPU = Machine(0, "")
MACHINES = {
    "1gpu": Machine(1, "H100"),
    "8gpu": Machine(8, "H100", {"qwen3-14b": 2}),
    "64gpu": Machine(64, "H20", {"qwen3-14b": 2}, two_pass=True),
}

Place = tuple[str, str]
"""(benchmark, decoding setting)"""


def places(size: str) -> tuple[Place, ...]:
    """Benchmarks and settings of a size: the paper's six, or the two of a size that a CPU trains, at both settings."""
    return tuple((b, s) for b in labels.benchmarks_of(size) for s in SETTINGS)


@dataclass(frozen=True)
class Estimate:
    """What a training or an evaluation takes.

    Attributes:
        hours: of wall time, None where nothing is known.
        gpus: of the machine; GPU hours are wall hours of all of them, idle ones included.
        disk: GiB at most.
        basis: "measured: ..." or "formula: ..." with its sum.
    """

    hours: float | None
    gpus: int
    disk: float
    basis: str

    @property
    def gpu_hours(self) -> float | None:
        return None if self.hours is None else self.hours * self.gpus


@dataclass(frozen=True)
class Measured:
    """A finished training or evaluation: wall seconds of a step, of a sample, or of the evaluation of a CPU's model."""

    kind: str
    method: str
    size: str
    card: str
    gpus: int
    seconds: float
    machine: str


def recorded(roots: Sequence[Path], skip: Sequence[str] = ()) -> list[Measured]:
    """Finished trainings and evaluations below the roots that are long enough to say how long another one takes.

    Raises:
        RecordError: a broken record, or one whose configuration lacks method, size or a training's steps.
    """
    found = []
    for path in (p for r in roots for p in sorted(r.rglob("run.json")) if p.relative_to(r).parts[0] not in skip):
        run = read_json(path, Run)
        if run.kind not in ("train", "eval") or run.status != "done" or not run.wall_seconds:
            continue
        train, trainer = run.kind == "train", run.config.get("trainer") or {}
        c = (run.config.get("run") or {}) if train else run.config
        if lacking := [k for k in ("method", "size", *(["steps"] if train else [])) if c.get(k) is None]:
            raise RecordError(f"{path}: a finished run without its labels", found=f"no {', '.join(lacking)}",
                              next_step="make the run again, or leave its folder out")  # fmt: skip
        cells = [read_json(p, CellRecord) for p in sorted(path.parent.glob("cells/*.json"))]
        graded = 0 if c.get("limit") else sum(x.n * len(x.problems) for x in cells)
        if train:
            units = c["steps"] if c["steps"] >= SHORTEST else 0
        else:
            units = min(graded, 1) if has_base(c["size"]) else graded
        cards, gpus = run.hardware.get("gpus") or [""], 0
        if cards[0]:
            spread = (c.get("tensor_parallel") or 1) * (c.get("replicas") or 1)
            gpus = trainer.get("nnodes", 1) * trainer.get("n_gpus_per_node", 1) if train else spread
        card = throughput.card_named(cards[0]) or cards[0]
        machine = f"{gpus} {card}" if gpus else f"{run.hardware.get('cores')} cores of {run.hardware.get('cpu')}"
        if units:
            found.append(Measured(run.kind, c["method"], c["size"], card, gpus, run.wall_seconds / units, machine))
    return found


def _measured(
    known: Sequence[Measured], kind: str, method: str, size: str, machine: Machine
) -> tuple[float, str] | None:
    """(seconds of a step or of a sample, how they were measured), of the same method where it is recorded."""
    same = [r for r in known if (r.kind, r.size, r.card, r.gpus) == (kind, size, machine.card, machine.gpus)]
    same = [r for r in same if r.method == method] or same
    machines = " and ".join(sorted({r.machine for r in same}))
    how = f"measured: median of {len(same)} recorded runs on {machines}"
    return (statistics.median(r.seconds for r in same), how) if same else None


def training(
    method: str, size: str, machine: Machine, steps: int, known: Sequence[Measured], keep: int = 0
) -> Estimate:
    """The training of a model. On a CPU nothing but a record says how long it takes.

    Args:
        keep: checkpoints that are kept, 0 for the training's own number; an old one goes when the new one is complete.
    """
    found = _measured(known, "train", method, size, machine)
    if has_base(size):
        return _on_cpu(found, steps, SMALL_TRAINING_GIB if size == SMALL else LOGS_GIB)
    s, shape = load().settings, load().models[size].shape
    most = min(-(-steps // s["checkpoint_every"].value), (keep or KEPT) + 1)
    disk = (most * STATE + 2 * EXPORT) * shape.parameters / GIB + LOGS_GIB
    if found is None:
        sequences, lengths = s["prompts"].value * s["responses"].value, throughput.lengths_of(s["response_limit"].value)
        update = Update(shape, sequences, lengths, reference=method in WITH_REFERENCE,
                        own_pass=machine.own_pass(method))  # fmt: skip
        step = Step(update, Sampling(shape, sequences, lengths, machine.tensor_parallel(size)))
        seconds, gpus = step.seconds(CARDS[machine.card], machine.gpus), machine.gpus
        found = seconds, f"formula, {seconds:.0f} s a step: {step.words(machine.card, gpus)}"
    return Estimate(found[0] * steps / 3600, machine.gpus, disk, found[1])


def evaluation(
    method: str, size: str, places: Sequence[Place], machine: Machine, known: Sequence[Measured],
    limit: int | None = None,
) -> Estimate:  # fmt: skip
    """The evaluation of one model at these benchmarks and settings, with the judge. The weights of a base model, and of
    a public checkpoint, are fetched for it.

    Args:
        limit: longest response in tokens. Default: the paper's.
    """
    found = _measured(known, "eval", method, size, machine)
    if has_base(size):
        return _on_cpu(found, 1, LOGS_GIB)
    budget, known_as = load(), registry()
    count = sum(known_as[b].rows * known_as[b].samples for b, _ in places)
    weights = budget.models.get(size) or calibrate.load().checkpoints[size]
    shape, lengths = weights.shape, throughput.lengths_of(limit or budget.settings["evaluation_limit"].value)
    disk = BYTES_A_TOKEN * count * lengths.mean / GIB
    disk += EXPORT * shape.parameters / GIB if method in labels.NOT_TRAINED else 0.0
    if found is not None:
        return Estimate(count * found[0] / 3600, machine.gpus, disk, found[1])
    sampling = Sampling(shape, count, lengths, machine.tensor_parallel(size))
    generating = sampling.seconds(CARDS[machine.card], machine.gpus)
    asked = 2 * budget.judge.parameters * count * budget.judge.question_tokens
    judging = asked / (CARDS[machine.card].tflops * 1e12 * throughput.EFFICIENCY)
    basis = (
        f"formula, {count:,} samples of {lengths.mean:,.0f} tokens: generation {generating:.0f} s + judge at most "
        f"{judging:.0f} s; {throughput.UNCERTAINTY}"
    )
    return Estimate((generating + judging) / 3600, machine.gpus, disk, basis)


def _on_cpu(found: tuple[float, str] | None, units: int, disk: float) -> Estimate:
    return Estimate(found[0] * units / 3600, 0, disk, found[1]) if found else Estimate(None, 0, disk, "not known")


def paper_days() -> dict[str, float]:
    """Days of STAPO's training of each size on the paper's machine, by our formula; the paper states 5 to 7."""
    steps = load().settings["steps"].value
    whole = {s: training("stapo", s, MACHINES["64gpu"], steps, ()) for s in load().models}
    return {size: (estimate.hours or 0) / 24 for size, estimate in whole.items()}
