"""What each model lacks and would take in hours and disk, and the check against the paper's own budget.

The text has 100 columns. Numbers are rounded before they are printed.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stapo_repro import labels
from stapo_repro.paper import load_hyperparameters
from stapo_repro.planner import estimates
from stapo_repro.planner.estimates import CPU, MACHINES, Estimate, Machine, Place, load, places
from stapo_repro.read import Loaded, TrainingRun, final_step, load_cells, load_training_runs
from stapo_results import throughput
from stapo_results.benchmarks import registry
from stapo_results.schema import CellRecord
from stapo_results.sizes import has_base
from stapo_results.throughput import CARDS

WIDTH = 100
_HEAD = ("cell", "lacks", "train h", "eval h", "GPU h", "disk GiB", "least")
_ROW = "{:<22} {:<30} {:>7} {:>7} {:>7} {:>8} {:>6}"


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


def _steps(size: str, asked: int | None) -> int:
    return asked or estimates.STEPS.get(size) or load().settings.steps.value


def lacking(
    cells: Sequence[Loaded], runs: Sequence[TrainingRun], asked: Sequence[tuple[str, str]], seeds: Sequence[int],
    steps: int | None = None,
) -> list[Lacking]:  # fmt: skip
    """What each asked (method, size) lacks, for each training seed (the base model has none and counts once).

    Of each model the last evaluated checkpoint counts, as in the table. A training counts as done when its run's record
    says so, or when its last checkpoint was evaluated: that of `steps`, by default those of its size.
    """
    found, (final, _) = [], final_step(cells)
    for method, size in asked:
        for seed in (0,) if method == labels.BASE else seeds:
            mine = [c.record for c in final if c.record.cell.model[:3] == (method, size, seed)]
            have = {(r.cell.benchmark, r.cell.setting) for r in mine if _is_whole(r)}
            trained = method == labels.BASE or any(r.cell.step == _steps(size, steps) for r in mine)
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
class WorkPlan:
    """What `stapo-repro plan` prints. `whole`: names of what lacks nothing."""

    machine: Machine
    card: str
    steps: int
    rows: tuple[ModelPlan, ...]
    whole: tuple[str, ...]


def all_cells() -> list[tuple[str, str]]:
    """(method, size) of the paper's table, base models included."""
    return [(m, s) for s in labels.PAPER_SIZES for m in (labels.BASE, *labels.METHODS)]


def build(
    asked: Sequence[tuple[str, str]],
    roots: Sequence[Path],
    *,
    hardware: str = "8gpu",
    card: str | None = None,
    seeds: Sequence[int] = (0,),
    steps: int | None = None,
    skip: Sequence[str] = (),
) -> WorkPlan:
    """Everything that the asked cells lack in the records below `roots`.

    Args:
        hardware, card: keys of `MACHINES` and of `throughput.CARDS`; None: the machine's own card.

    Raises:
        RecordError: a broken record.
    """
    machine = MACHINES[hardware]
    chosen, known = card or machine.card, estimates.recorded(roots, skip)
    found = lacking(load_cells(roots, skip), load_training_runs(roots, skip), asked, seeds, steps)

    def estimated(x: Lacking) -> ModelPlan:
        where = (CPU, CPU.card) if has_base(x.size) else (machine, chosen)
        train = estimates.training(x.method, x.size, *where, _steps(x.size, steps), known) if x.training else None
        test = estimates.evaluation(x.method, x.size, x.evaluations, *where, known) if x.evaluations else None
        return ModelPlan(x, train, test)

    return WorkPlan(
        machine=machine,
        card=chosen,
        steps=steps or load().settings.steps.value,
        rows=tuple(estimated(x) for x in found if not x.nothing),
        whole=tuple(x.name for x in found if x.nothing),
    )


def number(value: float | None, digits: int = 0) -> str:
    """1,234 or 1.2; "not known" without a value."""
    return "not known" if value is None else f"{value:,.{digits}f}"


def hours(estimate: Estimate | None, absent: str = "there") -> str:
    """Wall hours; `absent` without an estimate."""
    if estimate is None:
        return absent
    return number(estimate.hours, 1 if estimate.hours is None or estimate.hours >= 0.095 else 2)


def _line(row: ModelPlan) -> str:
    train = hours(row.training, "-" if row.lacks.method == labels.BASE else "there")
    return _ROW.format(
        row.lacks.name, row.lacks.words(), train, hours(row.evaluation), number(row.gpu_hours),
        number(row.disk), number(row.least),
    )  # fmt: skip


def _sum(rows: Sequence[ModelPlan]) -> str:
    train, evaluate = (
        total(e.hours for e in parts if e) for parts in zip(*((r.training, r.evaluation) for r in rows), strict=True)
    )
    return _ROW.format(
        "all, one by one", "", number(train, 1), number(evaluate, 1), number(total(r.gpu_hours for r in rows)),
        number(sum(r.disk for r in rows)), number(sum(r.least for r in rows)),
    )  # fmt: skip


def _wrapped(lines: Iterable[str]) -> list[str]:
    return [w for x in lines for w in textwrap.wrap(x, WIDTH, initial_indent="  ", subsequent_indent="    ")]


def assumptions(card: str) -> list[str]:
    """What the formula takes for granted, with sources."""
    s = load().settings
    values = (s.prompts, s.responses, s.response_limit, s.steps, s.evaluation_limit)
    stated = "; ".join(f"{v.value:,} {v.unit} ({v.basis}: {v.where})" for v in values)
    known = CARDS[card]
    return [
        f"{card}: {known.tflops:g} TFLOP/s in bf16, {known.terabytes:g} TB/s ({known.source}); training reaches "
        f"{throughput.EFFICIENCY:.0%} of the one, decoding {throughput.BANDWIDTH:.0%} of the other (assumed)",
        f"mean response {throughput.SHARE:g} of the limit, {throughput.TRUNCATED:.0%} at the limit, prompt "
        f"{throughput.PROMPT} tokens, {throughput.LAUNCH * 1e3:g} ms a decoding step beside its reading (assumed)",
        f"validation at both settings; a time is {throughput.UNCERTAINTY}",
        f"work: {stated}; values from {load().source}",
        "P: parameters of the model, from its config.json; GPU hours: wall hours of all GPUs of the machine",
    ]


def paper_days() -> dict[str, float]:
    """Days of STAPO's training of each size on the paper's machine, by our formula."""
    machine, steps = MACHINES["64gpu"], load().settings.steps.value
    whole = {s: estimates.training("stapo", s, machine, machine.card, steps, ()) for s in load().models}
    return {size: (estimate.hours or 0) / 24 for size, estimate in whole.items()}


def paper_words() -> str:
    """The paper's own budget beside the formula's."""
    days = paper_days()
    mean = sum(days.values()) / len(days)
    gpus, low, high = (load_hyperparameters()[name] for name in ("gpus", "days-low", "days-high"))
    sizes = ", ".join(f"{labels.PAPER_SIZES[size]} {d:.1f}" for size, d in days.items())
    within = "within" if low["value"] <= mean <= high["value"] else "NOT within"
    return (
        f"The paper states {low['value']} to {high['value']} days for one training, on average ({low['place']}), on "
        f"{gpus['value']} {gpus['printed'].split()[-1]}. The formula gives there: {sizes} days, {mean:.1f} in the "
        f"mean: {within} what is stated. The paper gives no days by size."
    )


def to_text(plan: WorkPlan, formulas: bool = True) -> str:
    """The table; with `formulas` how each number comes about."""
    lines = [
        f"What is not run, planned for {plan.machine.name}: {plan.machine.gpus} x {plan.card}, {plan.steps:,} steps"
    ]
    if plan.rows:
        lines += ["", _ROW.format(*_HEAD), *(_line(row) for row in plan.rows)]
        lines += [_sum(plan.rows)] if len(plan.rows) > 1 else []
    if plan.whole:
        lines += ["", *_wrapped([f"nothing is missing of {', '.join(plan.whole)}"])]
    kept = f"disk: {estimates.KEPT} checkpoints kept and one being written; least: two at a time."
    lines += ["", *(w.lstrip() for w in _wrapped([f"h: wall hours. {kept}"])), ""]
    for row in plan.rows if formulas else ():
        for kind, estimate in (("training", row.training), ("evaluation", row.evaluation)):
            if estimate is not None:
                lines += [f"{kind} of {row.lacks.name} ({estimate.basis})", *_wrapped(estimate.words)]
    lines += ["", "What is assumed", *_wrapped(assumptions(plan.card))]
    lines += ["", "The paper's own budget", *_wrapped([paper_words()])]
    return "\n".join(line.rstrip() for line in lines) + "\n"
