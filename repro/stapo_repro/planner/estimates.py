"""Time and disk of one training and of one evaluation: measured where a record exists, else by formula."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stapo_repro.planner.budget import Budget, Machine, Place, samples
from stapo_results import throughput
from stapo_results.schema import CellRecord, Run
from stapo_results.store import read_json
from stapo_results.throughput import CARDS, Sampling, Update

GIB = 2**30
STATE = 12  # bytes a parameter of a checkpoint: fp32 weights, AdamW's two fp32 moments
EXPORT = 2  # bytes a parameter of an export in bf16, and of the hub's weights
LOGS_GIB = 3.0  # of a training: 1 of metrics and logs, 2 at most of the token log
BYTES_A_TOKEN = 5  # of a response in a record, with its share of fields: four letters a token, and the line around them
WITH_REFERENCE = ("grpo",)  # methods whose update asks a reference model
SHORTEST = 20  # steps; a shorter training says how long starting takes


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
    """A run's record with the cells beside it."""

    run: Run
    cells: tuple[CellRecord, ...]

    def matches(self, kind: str, size: str, card: str, gpus: int) -> bool:
        """Whether it is of this kind and size and ran on these cards ("": on none); `gpus` 0: on any number."""
        config = self.run.config
        own = config.get("run", {}) if kind == "train" else config
        if self.run.kind != kind or own.get("size") != size:
            return False
        cards, trainer = self.run.hardware.get("gpus") or [], config.get("trainer") or {}
        ranks = trainer.get("nnodes", 1) * trainer.get("n_gpus_per_node", 1) if trainer else gpus
        named = throughput.card_named(cards[0]) if cards else ""
        return named == card and (not gpus or ranks == gpus)


def recorded(roots: Sequence[Path], skip: Sequence[str] = ()) -> list[RecordedRun]:
    """Finished trainings and evaluations below the roots."""
    found = []
    for root in roots:
        for path in sorted(root.rglob("run.json")):
            if path.relative_to(root).parts[0] in skip:
                continue
            run = read_json(path, Run)
            if run.kind in ("train", "eval") and run.status == "done" and run.wall_seconds:
                cells = tuple(read_json(p, CellRecord) for p in sorted(path.parent.glob("cells/*.json")))
                found.append(RecordedRun(run, cells))
    return found


def _checkpoints(parameters: int, steps: int, every: int, keep: int) -> tuple[float, float, str]:
    """(GiB of the checkpoints at most, of two, both in words); an old one goes when the new one is complete."""
    each, made = STATE * parameters / GIB, -(-steps // every)
    most = min(made, keep + 1) if keep else made
    words = f"disk: {most} checkpoints of {each:.1f} GiB ({STATE} bytes x P) and {LOGS_GIB:g} GiB of logs"
    return most * each + LOGS_GIB, min(made, 2) * each + LOGS_GIB, words


def _step_seconds(budget: Budget, method: str, size: str, machine: Machine, card: str) -> tuple[float, str]:
    """A rollout step of the paper's runs by formula, with the sum in words."""
    s, shape, gpus = budget.settings, budget.models[size].shape, machine.gpus
    sequences, limit = s.prompts.value * s.responses.value, s.response_limit.value
    mean, parallel = throughput.SHARE * limit, machine.tensor_parallel(size)
    update = Update(shape.parameters, sequences, mean, reference=method in WITH_REFERENCE)
    sampling = Sampling(shape.parameters, shape.kv_bytes_per_token(2), sequences, mean, limit, parallel)
    seconds = update.seconds(CARDS[card], gpus) + sampling.seconds(CARDS[card], gpus)
    return seconds, f"{update.words(card, gpus)}; {sampling.words(card, gpus)}"


def training(
    budget: Budget, method: str, size: str, machine: Machine, card: str, steps: int, known: Sequence[RecordedRun],
    keep: int = 0,
) -> Estimate:  # fmt: skip
    """The training of one of the paper's models. `keep`: checkpoints that are kept, 0 for all."""
    parameters = budget.models[size].shape.parameters
    disk, least, disk_words = _checkpoints(parameters, steps, budget.settings.checkpoint_every.value, keep)
    export = EXPORT * parameters / GIB
    disk_words += f"; weights and export in bf16, {export:.1f} GiB each"
    timed = [r.run for r in known if r.matches("train", size, card, machine.gpus)]
    timed = [r for r in timed if r.config["run"]["steps"] >= SHORTEST]
    timed = [r for r in timed if r.config["run"]["method"] == method] or timed
    if timed:
        seconds, basis = statistics.median(_seconds_a_step(r) for r in timed), "measured"
        words = f"measured: median of {len(timed)} recorded runs, start and validation included"
    else:
        (seconds, words), basis = _step_seconds(budget, method, size, machine, card), "formula"
    words = f"{steps:,} steps x {seconds:.1f} s on {machine.gpus} {card}: {words}"
    more = 2 * export
    hours = seconds * steps / 3600
    return Estimate(hours, machine.gpus, disk + more, least + more, basis, (words, disk_words))


def _seconds_a_step(run: Run) -> float:
    return (run.wall_seconds or 0.0) / run.config["run"]["steps"]


def evaluation(
    budget: Budget, size: str, places: Sequence[Place], machine: Machine, card: str, known: Sequence[RecordedRun],
    weights: bool = False,
) -> Estimate:  # fmt: skip
    """The evaluation of one model at these benchmarks and settings, with the judge.

    Args:
        weights: they are fetched for this evaluation alone (a base model's).
    """
    shape, limit = budget.models[size].shape, budget.settings.evaluation_limit.value
    count, parallel = samples(places), machine.tensor_parallel(size)
    mean, mean_words = _mean_tokens(size, limit, known)
    tokens = count * mean
    timed = [r for r in known if r.matches("eval", size, card, 0) and not r.run.config.get("limit")]
    rates = [rate for r in timed if (rate := _tokens_a_gpu_second(r))]
    if rates:
        rate = statistics.median(rates)
        seconds, basis = tokens / (rate * machine.gpus), "measured"
        words = f"measured: {rate:.0f} tokens/s a GPU, median of {len(rates)} recorded runs, judge included"
    else:
        sampling = Sampling(shape.parameters, shape.kv_bytes_per_token(2), count, mean, limit, parallel)
        judge = 2 * budget.judge.parameters * count * budget.judge.question_limit
        judging = judge / (CARDS[card].tflops * 1e12 * throughput.EFFICIENCY)
        seconds, basis = sampling.seconds(CARDS[card], machine.gpus) + judging, "formula"
        words = (
            f"{sampling.words(card, machine.gpus)}; judge at most {judging:.0f} s = 2 x "
            f"{budget.judge.parameters / 1e9:.2f}e9 x {budget.judge.question_limit:,} tokens a "
            f"sample at {throughput.EFFICIENCY:.0%} on one {card}"
        )
    replicas = machine.gpus // parallel
    words = (
        f"{count:,} samples x {mean:.0f} tokens ({mean_words}) on {replicas} replica(s) of {parallel} {card}: {words}"
    )
    disk, disk_words = tokens * BYTES_A_TOKEN / GIB, f"disk: {BYTES_A_TOKEN} bytes a token of the responses"
    if weights:
        disk += EXPORT * shape.parameters / GIB
        disk_words += f", and the weights in bf16 ({EXPORT} bytes x P)"
    return Estimate(seconds / 3600, machine.gpus, disk, disk, basis, (words, disk_words))


def _mean_tokens(size: str, limit: int, known: Sequence[RecordedRun]) -> tuple[float, str]:
    lengths = [c.mean_response_tokens for r in known for c in r.cells if c.cell.size == size]
    if lengths:
        return statistics.fmean(lengths), f"measured: mean of {len(lengths)} records"
    return throughput.SHARE * limit, f"assumed: {throughput.SHARE:g} of the limit of {limit:,}"


def _tokens_a_gpu_second(r: RecordedRun) -> float | None:
    gpus = max(1, r.run.config.get("tensor_parallel") or 1) * max(1, r.run.config.get("replicas") or 1)
    tokens = sum(c.mean_response_tokens * c.n * len(c.problems) for c in r.cells)
    return tokens / ((r.run.wall_seconds or 0.0) * gpus) if tokens else None


def miniature(kind: Literal["train", "eval"], method: str, known: Sequence[RecordedRun], steps: int = 40) -> Estimate:
    """A stage of the miniature: on a CPU nothing but a record says how long it takes."""
    runs = [r.run for r in known if r.matches(kind, "mini", "", 0)]
    same = [r for r in runs if (r.config["run"] if kind == "train" else r.config)["method"] == method] or runs
    if not same:
        return Estimate(None, 0, LOGS_GIB, LOGS_GIB, "not known", ("no record of a miniature",))
    each = [_seconds_a_step(r) * steps if kind == "train" else r.wall_seconds or 0.0 for r in same]
    cores = sorted({f"{r.hardware['cores']} cores of {r.hardware['cpu']}" for r in same})
    words = f"measured: median of {len(same)} recorded runs on {' and '.join(cores)}"
    return Estimate(statistics.median(each) / 3600, 0, LOGS_GIB, LOGS_GIB, "measured", (words,))
