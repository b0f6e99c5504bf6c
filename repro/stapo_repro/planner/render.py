"""The plan as text of 100 columns. Numbers are rounded before they are printed."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from stapo_repro import labels
from stapo_repro.planner.budget import Budget, load
from stapo_repro.planner.estimates import Estimate
from stapo_repro.planner.plan import ModelPlan, WorkPlan, total
from stapo_results import throughput
from stapo_results.throughput import CARDS

WIDTH = 100
_UNKNOWN = "not known"
_HEAD = ("cell", "lacks", "train h", "eval h", "GPU h", "disk GiB", "least")
_ROW = "{:<24} {:<32} {:>8} {:>7} {:>8} {:>8} {:>6}"
_COST = "{:<24} {:>12} {:>12} {:>12}"
_ALL = "all, one by one"


def number(value: float | None, digits: int = 0) -> str:
    """1,234 or 1.2; "not known" without a value."""
    return _UNKNOWN if value is None else f"{value:,.{digits}f}"


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


def _sum(plan: WorkPlan) -> str:
    train, evaluate = (total(p.hours for p in parts if p) for parts in _by_part(plan.rows))
    return _ROW.format(
        _ALL, "", number(train, 1), number(evaluate, 1), number(total(r.gpu_hours for r in plan.rows)),
        number(sum(r.disk for r in plan.rows)), number(sum(r.least for r in plan.rows)),
    )  # fmt: skip


def _by_part(rows: Sequence[ModelPlan]) -> tuple[list[Estimate | None], list[Estimate | None]]:
    """(trainings, evaluations)"""
    return [r.training for r in rows], [r.evaluation for r in rows]


def _cost(estimates: Iterable[Estimate | None], price: float) -> str:
    """Of what is not there yet; "-" where all is."""
    gpu_hours = [e.gpu_hours for e in estimates if e is not None]
    known = total(gpu_hours)
    return "-" if not gpu_hours else number(None if known is None else known * price)


def _costs(plan: WorkPlan, price: float) -> list[str]:
    """What training and evaluation of each cell cost, and of all of them."""
    rows = [(r.lacks.name, *_by_part([r])) for r in plan.rows]
    if len(rows) > 1:
        rows.append((_ALL, *_by_part(plan.rows)))
    lines = [_COST.format(name, _cost(train, price), _cost(test, price), _cost([*train, *test], price))
             for name, train, test in rows]  # fmt: skip
    return ["", _COST.format("cost", "training", "evaluation", "both"), *lines]


def _wrapped(lines: Iterable[str]) -> list[str]:
    return [w for x in lines for w in textwrap.wrap(x, WIDTH, initial_indent="  ", subsequent_indent="    ")]


def assumptions(budget: Budget, card: str) -> list[str]:
    """What the formula takes for granted, with sources."""
    s = budget.settings
    values = (s.prompts, s.responses, s.response_limit, s.steps, s.evaluation_limit)
    stated = "; ".join(f"{v.value:,} {v.unit} ({v.basis}: {v.where})" for v in values)
    known = CARDS[card]
    return [
        f"{card}: {known.tflops:g} TFLOP/s in bf16, {known.terabytes:g} TB/s ({known.source}); training reaches "
        f"{throughput.EFFICIENCY:.0%} of the one, decoding {throughput.BANDWIDTH:.0%} of the other (assumed)",
        f"mean response {throughput.SHARE:g} of the limit, prompt {throughput.PROMPT} tokens (assumed; records of a "
        "size replace the first for its evaluations); validation, loading and copying between devices are left out",
        f"work: {stated}; values from {budget.source}",
        "P: parameters of the model, from its config.json; GPU hours: wall hours of all GPUs of the machine",
    ]


def paper_words(plan: WorkPlan) -> str:
    """The paper's own budget beside the formula's."""
    c = plan.check
    sizes = ", ".join(f"{labels.PAPER_SIZES[size]} {days:.1f}" for size, days in c.days.items())
    verdict = "within" if c.within else "NOT within"
    return (
        f"The paper states {c.low:g} to {c.high:g} days for one training, on average ({c.where}), on "
        f"{c.machine}. The formula gives there: {sizes} days, {c.mean:.1f} in the mean: "
        f"{verdict} what is stated. The paper gives no days by size."
    )


def to_text(plan: WorkPlan, formulas: bool = True) -> str:
    """The table; with `formulas` how each number comes about."""
    budget = load()
    machine = f"{plan.machine}: {plan.gpus} x {plan.card}"
    lines = [f"What is not run, planned for {machine}, {plan.steps:,} steps", ""]
    if plan.rows:
        lines += [_ROW.format(*_HEAD), *map(_line, plan.rows)]
        if len(plan.rows) > 1:
            lines.append(_sum(plan))
        if plan.price is not None:
            lines += _costs(plan, plan.price)
    if plan.whole:
        lines += ["", *_wrapped([f"nothing is missing of {', '.join(plan.whole)}"])]
    cost = "cost: name a price with --price" if plan.price is None else f"cost: GPU hours x {plan.price:g}"
    lines += ["", f"h: wall hours. disk: all checkpoints kept; least: two at a time. {cost}.", ""]
    for row in plan.rows if formulas else ():
        for kind, estimate in (("training", row.training), ("evaluation", row.evaluation)):
            if estimate is not None:
                lines += [f"{kind} of {row.lacks.name} ({estimate.basis})", *_wrapped(estimate.words)]
    if plan.rows and not formulas:
        first = plan.rows[0].lacks
        lines.append(f"How the hours come about: stapo-repro plan {first.method}/{first.size}")
    lines += ["", "What is assumed", *_wrapped(assumptions(budget, plan.card))]
    lines += ["", "The paper's own budget", *_wrapped([paper_words(plan)])]
    return "\n".join(line.rstrip() for line in lines) + "\n"
