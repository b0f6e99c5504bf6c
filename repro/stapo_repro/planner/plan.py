"""The plan: every cell that lacks something, its hours, disk and cost, and the check against the paper's own budget."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stapo_repro import labels
from stapo_repro.planner import hours
from stapo_repro.planner.facts import MACHINES, Budget, Machine, load
from stapo_repro.planner.hours import Part, Recorded
from stapo_repro.planner.missing import Lacking, lacking
from stapo_repro.records.reading import load_cells, load_training_runs
from stapo_results.errors import BadInput
from stapo_results.throughput import CARDS


@dataclass(frozen=True)
class Row:
    """One model that lacks something. A part is None where it is there already."""

    lacks: Lacking
    training: Part | None
    evaluation: Part | None

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(p for p in (self.training, self.evaluation) if p is not None)

    @property
    def hours(self) -> float | None:
        return total(p.hours for p in self.parts)

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
    found = 0.0
    for value in values:
        if value is None:
            return None
        found += value
    return found


@dataclass(frozen=True)
class Check:
    """The paper's budget by the same formula: days a training by size, their mean, and what the paper states."""

    days: dict[str, float]
    low: float
    high: float

    @property
    def mean(self) -> float:
        return sum(self.days.values()) / len(self.days)

    @property
    def within(self) -> bool:
        return self.low <= self.mean <= self.high


@dataclass(frozen=True)
class Plan:
    """What `stapo-repro plan` prints. `price`: of a GPU hour, in whatever currency the reader thinks."""

    machine: str
    gpus: int
    card: str
    steps: int
    price: float | None
    rows: tuple[Row, ...]
    whole: tuple[str, ...]
    check: Check


def paper_check(budget: Budget) -> Check:
    """STAPO's trainings on the paper's machine by our formula; evaluation and validation are left out."""
    stated, machine = budget.stated, MACHINES["64gpu"]
    if (stated.gpus, stated.card) != (machine.gpus, machine.card):
        raise BadInput(
            "the paper's machine is none of ours",
            found=f"{stated.gpus} {stated.card}",
            expected=f"{machine.gpus} {machine.card}",
            next_step="correct results/paper/hyperparameters.json",
        )
    days = {
        size: (hours.training(budget, "stapo", size, machine, machine.card, budget.settings.steps.value, ()).hours or 0)
        / 24
        for size in budget.models
    }
    return Check(days, stated.days_low, stated.days_high)


def all_cells() -> list[tuple[str, str]]:
    """(method, size) of the paper's table, base models included."""
    return [(m, s) for s in labels.PAPER_SIZES for m in (labels.BASE, *labels.METHODS)]


def find_machine(name: str, card: str | None) -> tuple[Machine, str]:
    """The machine and the card to plan with.

    Raises:
        BadInput: one that is not known.
    """
    if name not in MACHINES:
        raise BadInput("this hardware cannot be planned", found=name, expected=" | ".join(MACHINES),
                       next_step="--hardware 8gpu")  # fmt: skip
    chosen = card or MACHINES[name].card
    if chosen not in CARDS:
        raise BadInput("this card is not known", found=chosen, expected=" | ".join(CARDS), next_step="--card H100")
    return MACHINES[name], chosen


def row(lacks: Lacking, budget: Budget, machine: Machine, card: str, steps: int, known: Sequence[Recorded]) -> Row:
    """Hours and disk of what a model lacks."""
    if lacks.size == labels.MINI:
        return Row(
            lacks,
            hours.miniature("train", lacks.method, known) if lacks.training else None,
            hours.miniature("eval", lacks.method, known) if lacks.evaluations else None,
        )
    train = hours.training(budget, lacks.method, lacks.size, machine, card, steps, known) if lacks.training else None
    if not lacks.evaluations:
        return Row(lacks, train, None)
    base = lacks.method == labels.BASE
    return Row(lacks, train, hours.evaluation(budget, lacks.size, lacks.evaluations, machine, card, known, base))


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
) -> Plan:
    """Everything that the asked cells lack in the records below `roots`.

    Raises:
        BadInput: unknown hardware or card, a price below 0.
        RecordError: a broken record.
    """
    if price is not None and price < 0:
        raise BadInput("a price is not negative", found=price, expected=">= 0", next_step="--price 2.5")
    budget = load()
    machine, chosen = find_machine(hardware, card)
    count = budget.settings.steps.value if steps is None else steps
    known = hours.recorded(roots, skip)
    found = lacking(load_cells(roots, skip), load_training_runs(roots, skip), asked, seeds)
    return Plan(
        machine=machine.name,
        gpus=machine.gpus,
        card=chosen,
        steps=count,
        price=price,
        rows=tuple(row(x, budget, machine, chosen, count, known) for x in found if not x.nothing),
        whole=tuple(x.name for x in found if x.nothing),
        check=paper_check(budget),
    )
