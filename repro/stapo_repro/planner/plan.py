"""What each model lacks and would take in hours, disk and cost, and the check against the paper's own budget."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stapo_repro import labels
from stapo_repro.paper import load_hyperparameters
from stapo_repro.planner import estimates
from stapo_repro.planner.budget import MACHINES, Budget, Machine, Place, load, places
from stapo_repro.planner.estimates import Estimate, RecordedRun
from stapo_repro.records.reading import Loaded, TrainingRun, load_cells, load_training_runs
from stapo_results.benchmarks import registry
from stapo_results.errors import BadInput
from stapo_results.schema import CellRecord


@dataclass(frozen=True)
class Lacking:
    """What one model (method, size, training seed) lacks: its training, and evaluations by benchmark and setting."""

    method: str
    size: str
    seed: int
    training: bool
    evaluations: tuple[Place, ...]

    @property
    def name(self) -> str:
        return f"{self.method}/{self.size}" + (f" s{self.seed}" if self.seed else "")

    @property
    def nothing(self) -> bool:
        return not (self.training or self.evaluations)

    def words(self) -> str:
        """ "training + 3/12 evaluations" """
        whole, count = len(places(self.size)), len(self.evaluations)
        parts = ["training"] if self.training else []
        if count:
            parts.append("evaluation" if count == whole else f"{count}/{whole} evaluations")
        return " + ".join(parts) or "nothing"


def _is_whole(record: CellRecord) -> bool:
    """Every problem of the benchmark with all of its samples."""
    wanted = registry().get(record.cell.benchmark)
    enough = wanted is None or record.n >= wanted.samples
    there = all("-" not in p.verdicts for p in record.problems)
    return enough and there and len(record.problems) == record.benchmark_rows


def lacking(
    cells: Sequence[Loaded], runs: Sequence[TrainingRun], asked: Sequence[tuple[str, str]], seeds: Sequence[int]
) -> list[Lacking]:
    """What each asked (method, size) lacks, for each training seed (the base model has none and counts once).

    A training counts as done when its run's record says so, or when its last checkpoint was evaluated.
    """
    found = []
    for method, size in asked:
        for seed in (0,) if method == labels.BASE else seeds:
            mine = [c.record for c in cells if c.record.cell.model[:3] == (method, size, seed)]
            have = {(r.cell.benchmark, r.cell.setting) for r in mine if _is_whole(r)}
            trained = method == labels.BASE or bool(mine)
            trained |= any((r.method, r.size, r.seed, r.status) == (method, size, seed, "done") for r in runs)
            left = tuple(p for p in places(size) if p not in have)
            found.append(Lacking(method, size, seed, not trained, left))
    return found


@dataclass(frozen=True)
class ModelPlan:
    """One model that lacks something. An estimate is None where the part is there already."""

    lacks: Lacking
    training: Estimate | None
    evaluation: Estimate | None

    @property
    def parts(self) -> tuple[Estimate, ...]:
        return tuple(p for p in (self.training, self.evaluation) if p is not None)

    @property
    def gpu_hours(self) -> float | None:
        return total(p.gpu_hours for p in self.parts)

    @property
    def disk(self) -> float:
        return sum(p.disk for p in self.parts)

    @property
    def least(self) -> float:
        return sum(p.least for p in self.parts)


def total(values: Iterable[float | None]) -> float | None:
    """The sum, None where a value is not known."""
    known = list(values)
    return None if None in known else sum(v for v in known if v is not None)


@dataclass(frozen=True)
class BudgetCheck:
    """The paper's budget by the same formula: days a training by size, and what the paper states of their mean.

    `machine`: the stated GPUs, "64 H20"; `where`: the place in the paper.
    """

    days: dict[str, float]
    low: float
    high: float
    machine: str
    where: str

    @property
    def mean(self) -> float:
        return sum(self.days.values()) / len(self.days)

    @property
    def within(self) -> bool:
        return self.low <= self.mean <= self.high


@dataclass(frozen=True)
class WorkPlan:
    """What `stapo-repro plan` prints. `price`: of a GPU hour, in whatever currency the reader thinks."""

    machine: str
    gpus: int
    card: str
    steps: int
    price: float | None
    rows: tuple[ModelPlan, ...]
    whole: tuple[str, ...]
    check: BudgetCheck


def paper_check(budget: Budget) -> BudgetCheck:
    """STAPO's trainings on the paper's machine by our formula; evaluation and validation are left out."""
    machine, steps = MACHINES["64gpu"], budget.settings.steps.value
    whole = {s: estimates.training(budget, "stapo", s, machine, machine.card, steps, ()) for s in budget.models}
    days = {size: (estimate.hours or 0) / 24 for size, estimate in whole.items()}
    gpus, low, high = (load_hyperparameters().get(name) for name in ("gpus", "days-low", "days-high"))
    stated = f"{gpus.value} {str(gpus.printed).split()[-1]}"
    return BudgetCheck(days, float(low.value), float(high.value), stated, low.place)


def all_cells() -> list[tuple[str, str]]:
    """(method, size) of the paper's table, base models included."""
    return [(m, s) for s in labels.PAPER_SIZES for m in (labels.BASE, *labels.METHODS)]


def _model(
    lacks: Lacking, budget: Budget, machine: Machine, card: str, steps: int, known: Sequence[RecordedRun]
) -> ModelPlan:
    train = evaluate = None
    method, size, base = lacks.method, lacks.size, lacks.method == labels.BASE
    mini = size == labels.MINI
    if lacks.training:
        train = estimates.miniature("train", method, known) if mini else estimates.training(
            budget, method, size, machine, card, steps, known)  # fmt: skip
    if lacks.evaluations:
        evaluate = estimates.miniature("eval", method, known) if mini else estimates.evaluation(
            budget, size, lacks.evaluations, machine, card, known, base)  # fmt: skip
    return ModelPlan(lacks, train, evaluate)


def build(
    asked: Sequence[tuple[str, str]],
    roots: Sequence[Path],
    *,
    hardware: str = "8gpu",
    card: str | None = None,
    price: float | None = None,
    seeds: Sequence[int] = (0,),
    steps: int | None = None,
    skip: Sequence[str] = (),
) -> WorkPlan:
    """Everything that the asked cells lack in the records below `roots`.

    Args:
        hardware, card: keys of `MACHINES` and of `throughput.CARDS`; None: the machine's own card.

    Raises:
        BadInput: a price below 0.
        RecordError: a broken record.
    """
    if price is not None and price < 0:
        raise BadInput("a price is not negative", found=price, expected=">= 0", next_step="--price 2.5")
    budget, machine = load(), MACHINES[hardware]
    chosen = card or machine.card
    count = budget.settings.steps.value if steps is None else steps
    known = estimates.recorded(roots, skip)
    found = lacking(load_cells(roots, skip), load_training_runs(roots, skip), asked, seeds)
    return WorkPlan(
        machine=machine.name,
        gpus=machine.gpus,
        card=chosen,
        steps=count,
        price=price,
        rows=tuple(_model(x, budget, machine, chosen, count, known) for x in found if not x.nothing),
        whole=tuple(x.name for x in found if x.nothing),
        check=paper_check(budget),
    )
