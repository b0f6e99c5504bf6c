"""Time and disk of one training and of one evaluation: measured where a record exists, else by formula.

The formula starts from the paper's stated budget, the machines, the models and the number of samples.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

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
LABELS = frozenset({"method", "size"})
SHORTEST = 20  # steps; a shorter training says how long starting takes


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Setting(_Strict):
    """A value with where it stands; "inferred" ones are decisions of this project."""

    value: int = Field(ge=1)
    unit: str
    basis: Literal["stated", "inferred"]
    where: str


class Settings(_Strict):
    """What decides the amount of work."""

    steps: Setting
    prompts: Setting
    responses: Setting
    response_limit: Setting
    checkpoint_every: Setting
    evaluation_limit: Setting


class Judge(_Strict):
    """The verifier: parameters, and the most tokens that one question has."""

    model: str
    parameters: int
    question_tokens: int
    where: str


class BaseWeights(_Strict):
    """A base model's hub id and the commit of its weights."""

    id: str
    revision: str = Field(pattern=r"^[0-9a-f]{40}$")

    @property
    def shape(self) -> Shape:
        return shape_from(KNOWN[self.id], self.id)


class Budget(_Strict):
    """results/paper/budget.json."""

    schema_version: Literal[1]
    source: str
    settings: Settings
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

    name: str
    gpus: int
    card: str
    parallel: dict[str, int] = field(default_factory=dict)
    two_pass: bool = False

    def own_pass(self, method: str) -> bool:
        return method in TWO_PASSES or (self.two_pass and method in labels.RARE_TOKEN_MASKS)

    def tensor_parallel(self, size: str) -> int:
        return self.parallel.get(size, 1)


CPU = Machine("cpu", 0, "")
MACHINES = {
    "1gpu": Machine("1gpu", 1, "H100"),
    "8gpu": Machine("8gpu", 8, "H100", {"qwen3-14b": 2}),
    "64gpu": Machine("64gpu", 64, "H20", {"qwen3-14b": 2}, two_pass=True),
}

Place = tuple[str, str]
"""(benchmark, decoding setting)"""


def places(size: str) -> tuple[Place, ...]:
    """Benchmarks and settings of a size: the paper's six, or the two of a size that a CPU trains, at both settings."""
    return tuple((b, s) for b in labels.benchmarks_of(size) for s in SETTINGS)


def samples(places: Iterable[Place]) -> int:
    """Responses that these benchmarks and settings take: rows x N each."""
    known = registry()
    return sum(known[b].rows * known[b].samples for b, _ in places)


@dataclass(frozen=True)
class Estimate:
    """What a training or an evaluation takes.

    Attributes:
        hours: of wall time, None where nothing is known.
        gpus: of the machine; GPU hours are wall hours of all of them, idle ones included.
        disk: GiB at most; least: where one checkpoint is kept while the next is written.
        basis: where the hours come from. words: how, one sentence a line.
    """

    hours: float | None
    gpus: int
    disk: float
    least: float
    basis: Literal["measured", "formula", "not known"]
    words: tuple[str, ...]

    @property
    def gpu_hours(self) -> float | None:
        return None if self.hours is None else self.hours * self.gpus


@dataclass(frozen=True)
class RecordedRun:
    """A finished training or evaluation: its labels, GPUs, and wall seconds of a step, or of a sample.

    An evaluation of a size that a CPU trains counts as one sample.
    """

    kind: str
    method: str
    size: str
    card: str
    gpus: int
    seconds: float
    machine: str


def recorded(roots: Sequence[Path], skip: Sequence[str] = ()) -> list[RecordedRun]:
    """Finished trainings and evaluations below the roots that are long enough to say how long another one takes.

    Raises:
        RecordError: a broken record, or one whose configuration lacks method, size or a training's steps.
    """
    found = []
    for root in roots:
        for path in sorted(root.rglob("run.json")):
            if path.relative_to(root).parts[0] in skip:
                continue
            run = read_json(path, Run)
            if run.kind in ("train", "eval") and run.status == "done" and run.wall_seconds:
                cells = [read_json(p, CellRecord) for p in sorted(path.parent.glob("cells/*.json"))]
                found += _recorded(path, run, run.wall_seconds, sum(c.n * len(c.problems) for c in cells))
    return found


def _recorded(path: Path, run: Run, seconds: float, samples: int) -> list[RecordedRun]:
    config, hardware = run.config, run.hardware
    own, needed = (config.get("run") or {}, LABELS | {"steps"}) if run.kind == "train" else (config, LABELS)
    if lacking := {k for k in needed if own.get(k) is None}:
        raise RecordError(f"{path}: a finished run without its labels", found=f"no {', '.join(sorted(lacking))}",
                          expected=", ".join(sorted(needed)),
                          next_step="make the run again with this version, or leave its folder out")  # fmt: skip
    if run.kind == "train":
        trainer = config.get("trainer") or {}
        units, gpus = own["steps"], trainer.get("nnodes", 1) * trainer.get("n_gpus_per_node", 1)
        enough = units >= SHORTEST
    else:
        enough = samples > 0 and not config.get("limit")
        units = 1 if has_base(config["size"]) else samples
        gpus = max(1, config.get("tensor_parallel") or 1) * max(1, config.get("replicas") or 1)
    cards = hardware.get("gpus") or []
    card, machine = "", f"{hardware.get('cores')} cores of {hardware.get('cpu')}"
    if cards:
        card = throughput.card_named(cards[0]) or cards[0]
        machine = f"{gpus} {card}"
    labelled = (run.kind, own["method"], own["size"], card, gpus if cards else 0)
    return [RecordedRun(*labelled, seconds / units, machine)] if enough else []


def _measured(
    known: Sequence[RecordedRun], kind: str, method: str, size: str, machine: Machine, card: str
) -> tuple[float, str] | None:
    """(seconds of a step or of a sample, how they were measured), of the same method where it is recorded."""
    same = [r for r in known if (r.kind, r.size, r.card, r.gpus) == (kind, size, card, machine.gpus)]
    same = [r for r in same if r.method == method] or same
    if not same:
        return None
    machines = " and ".join(sorted({r.machine for r in same}))
    return statistics.median(r.seconds for r in same), f"measured: median of {len(same)} recorded runs on {machines}"


def _by_formula(method: str, size: str, machine: Machine, card: str) -> tuple[float, str]:
    """Seconds of a rollout step of the paper's runs, with the sum in words."""
    s, shape, gpus = load().settings, load().models[size].shape, machine.gpus
    sequences, limit = s.prompts.value * s.responses.value, s.response_limit.value
    lengths, parallel = throughput.lengths_of(limit), machine.tensor_parallel(size)
    own_pass = machine.own_pass(method)
    update = Update(shape, sequences, lengths, reference=method in WITH_REFERENCE, own_pass=own_pass)
    step = Step(update, Sampling(shape, sequences, lengths, parallel))
    return step.seconds(CARDS[card], gpus), step.words(card, gpus)


def training(
    method: str, size: str, machine: Machine, card: str, steps: int, known: Sequence[RecordedRun], keep: int = 0
) -> Estimate:
    """The training of a model. On a CPU nothing but a record says how long it takes.

    Args:
        keep: checkpoints that are kept, 0 for the training's own number; an old one goes when the new one is complete.
    """
    found = _measured(known, "train", method, size, machine, card)
    basis = "measured" if found else "formula"
    if has_base(size):
        disk = SMALL_TRAINING_GIB if size == SMALL else LOGS_GIB
        if found is None:
            return Estimate(None, 0, disk, disk, "not known", ("no record of one",))
        return Estimate(found[0] * steps / 3600, 0, disk, disk, basis, (found[1],))
    parameters = load().models[size].shape.parameters
    each, made = STATE * parameters / GIB, -(-steps // load().settings.checkpoint_every.value)
    most, export = min(made, (keep or KEPT) + 1), EXPORT * parameters / GIB
    disk, least = (n * each + LOGS_GIB + 2 * export for n in (most, min(made, 2)))
    seconds, words = found or _by_formula(method, size, machine, card)
    return Estimate(seconds * steps / 3600, machine.gpus, disk, least, basis, (
        f"{steps:,} steps x {seconds:.1f} s on {machine.gpus} {card}: {words}",
        f"disk: {most} checkpoints of {each:.1f} GiB ({STATE} bytes x P) and {LOGS_GIB:g} GiB of logs; weights and "
        f"export in bf16, {export:.1f} GiB each",
    ))  # fmt: skip


def evaluation(
    method: str, size: str, places: Sequence[Place], machine: Machine, card: str, known: Sequence[RecordedRun],
    limit: int | None = None,
) -> Estimate:  # fmt: skip
    """The evaluation of one model at these benchmarks and settings, with the judge. The weights of a base model, and of
    a public checkpoint, are fetched for it.

    Args:
        limit: longest response in tokens. Default: the paper's.
    """
    found = _measured(known, "eval", method, size, machine, card)
    basis = "measured" if found else "formula"
    if has_base(size):
        if found is None:
            return Estimate(None, 0, LOGS_GIB, LOGS_GIB, "not known", ("no record of one",))
        return Estimate(found[0] / 3600, 0, LOGS_GIB, LOGS_GIB, basis, (found[1],))
    budget, count, parallel = load(), samples(places), machine.tensor_parallel(size)
    weights = budget.models.get(size) or calibrate.load().checkpoints[size]
    shape, limit = weights.shape, limit or budget.settings.evaluation_limit.value
    lengths = throughput.lengths_of(limit)
    if found:
        seconds, words = count * found[0], found[1]
    else:
        sampling = Sampling(shape, count, lengths, parallel)
        judge = 2 * budget.judge.parameters * count * budget.judge.question_tokens
        judging = judge / (CARDS[card].tflops * 1e12 * throughput.EFFICIENCY)
        generating = sampling.seconds(CARDS[card], machine.gpus)
        seconds = generating + judging
        words = (
            f"generation {generating:.0f} s; judge at most {judging:.0f} s = 2 x "
            f"{budget.judge.parameters / 1e9:.2f}e9 x {budget.judge.question_tokens:,} tokens a "
            f"sample at {throughput.EFFICIENCY:.0%} on one {card}"
        )
    words = (
        f"{count:,} samples x {lengths.mean:.0f} tokens (assumed: {throughput.SHARE:g} of the limit of {limit:,}) on "
        f"{machine.gpus // parallel} replica(s) of {parallel} {card}: {words}"
    )
    disk, disk_words = BYTES_A_TOKEN * count * lengths.mean / GIB, f"disk: {BYTES_A_TOKEN} bytes a token of a response"
    if method in labels.NOT_TRAINED:
        disk += EXPORT * shape.parameters / GIB
        disk_words += f", and the weights in bf16 ({EXPORT} bytes x P)"
    return Estimate(seconds / 3600, machine.gpus, disk, disk, basis, (words, disk_words))
