"""The plan as text of 100 columns, and as JSON. Numbers are rounded before they are printed."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from typing import Any

from stapo_repro import labels
from stapo_repro.planner.facts import Budget, load
from stapo_repro.planner.hours import Part
from stapo_repro.planner.plan import Plan, Row, total
from stapo_results import throughput
from stapo_results.throughput import CARDS

WIDTH = 100
_UNKNOWN = "not known"
_HEAD = ("cell", "lacks", "train h", "eval h", "GPU h", "disk GiB", "least")
_ROW = "{:<24} {:<32} {:>8} {:>7} {:>8} {:>8} {:>6}"
_COST_HEAD = ("cost", "training", "evaluation", "both")
_COST = "{:<24} {:>12} {:>12} {:>12}"
_ALL = "all, one by one"


def number(value: float | None, digits: int = 0) -> str:
    """1,234 or 1.2; "not known" without a value."""
    return _UNKNOWN if value is None else f"{value:,.{digits}f}"


def _hours(part: Part | None) -> str:
    if part is None:
        return "there"
    return _UNKNOWN if part.hours is None else number(part.hours, 1 if part.hours >= 0.095 else 2)


def _cost(parts: Iterable[Part | None], price: float) -> str:
    """Of the parts that are not there; "-" where all are."""
    left = [p for p in parts if p is not None]
    return number(_priced(total(p.gpu_hours for p in left), price)) if left else "-"


def _line(row: Row) -> str:
    train = "-" if row.lacks.method == labels.BASE else _hours(row.training)
    return _ROW.format(
        row.lacks.name, row.lacks.words(), train, _hours(row.evaluation), number(row.gpu_hours),
        number(row.disk), number(row.least),
    )  # fmt: skip


def _sum(plan: Plan) -> str:
    parts = {name: [getattr(r, name) for r in plan.rows if getattr(r, name)] for name in ("training", "evaluation")}
    train, evaluate = (total(p.hours for p in of) for of in parts.values())
    gpu_hours = total(r.gpu_hours for r in plan.rows)
    return _ROW.format(
        _ALL, "", number(train, 1), number(evaluate, 1), number(gpu_hours),
        number(sum(r.disk for r in plan.rows)), number(sum(r.least for r in plan.rows)),
    )  # fmt: skip


def _costs(plan: Plan, price: float) -> list[str]:
    """What training and evaluation of each cell cost, and of all of them."""
    rows = [(r.lacks.name, [r.training], [r.evaluation]) for r in plan.rows]
    if len(rows) > 1:
        rows.append((_ALL, [r.training for r in plan.rows], [r.evaluation for r in plan.rows]))
    lines = [_COST.format(name, _cost(train, price), _cost(test, price), _cost([*train, *test], price))
             for name, train, test in rows]  # fmt: skip
    return ["", _COST.format(*_COST_HEAD), *lines]


def _wrapped(lines: Iterable[str]) -> list[str]:
    return [w for x in lines for w in textwrap.wrap(x, WIDTH, initial_indent="  ", subsequent_indent="    ")]


def _ways(plan: Plan) -> list[str]:
    """How the hours come about: each way once, with the cells that it is of."""
    ways: dict[tuple[str, ...], list[str]] = {}
    for r in plan.rows:
        for kind, part in (("training", r.training), ("evaluation", r.evaluation)):
            if part is not None:
                head = f"{part.basis}: " if part.basis != "formula" else "formula, not measured: "
                said = (kind, head + part.words[0].removeprefix("measured: "), *part.words[1:])
                ways.setdefault(said, []).append(r.lacks.name)
    out = []
    for (kind, *words), names in ways.items():
        out += [f"{kind} of {', '.join(names)}", *_wrapped(words)]
    return out


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


def paper_words(plan: Plan, budget: Budget) -> str:
    """The paper's own budget beside the formula's."""
    c, stated = plan.check, budget.stated
    sizes = ", ".join(f"{labels.PAPER_SIZES[size]} {days:.1f}" for size, days in c.days.items())
    verdict = "within" if c.within else "NOT within"
    return (
        f"The paper states {c.low:g} to {c.high:g} days for one training, on average ({stated.where}), on "
        f"{stated.gpus} {stated.card}. The formula gives there: {sizes} days, {c.mean:.1f} in the mean: "
        f"{verdict} what is stated. The paper gives no days by size."
    )


def to_text(plan: Plan) -> str:
    """For people."""
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
    said = "cost: name a price with --price" if plan.price is None else f"cost: GPU hours x {plan.price:g}"
    lines += ["", f"h: wall hours. disk: all checkpoints kept; least: two at a time. {said}.", ""]
    if plan.rows:
        lines += ["How the hours come about", *_ways(plan), ""]
        lines += ["What is assumed", *_wrapped(assumptions(budget, plan.card)), ""]
    lines += ["The paper's own budget", *_wrapped([paper_words(plan, budget)])]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _part(part: Part | None, price: float | None) -> dict[str, Any] | None:
    if part is None:
        return None
    return {
        "hours": _rounded(part.hours),
        "gpu_hours": _rounded(part.gpu_hours),
        "cost": _priced(part.gpu_hours, price),
        "disk_gib": _rounded(part.disk),
        "least_disk_gib": _rounded(part.least),
        "basis": part.basis,
        "formula": list(part.words),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _priced(value: float | None, price: float | None) -> float | None:
    return None if value is None or price is None else round(value * price, 2)


def to_json(plan: Plan) -> str:
    """For programs: the same numbers with more digits."""
    budget = load()
    value = {
        "schema_version": 1,
        "hardware": plan.machine,
        "gpus": plan.gpus,
        "card": plan.card,
        "steps": plan.steps,
        "price_per_gpu_hour": plan.price,
        "cells": [
            {
                "cell": f"{r.lacks.method}/{r.lacks.size}",
                "seed": r.lacks.seed,
                "lacks": {
                    "training": r.lacks.training,
                    "evaluations": [{"benchmark": b, "setting": s} for b, s in r.lacks.evaluations],
                },
                "training": _part(r.training, plan.price),
                "evaluation": _part(r.evaluation, plan.price),
                "hours": _rounded(r.hours),
                "gpu_hours": _rounded(r.gpu_hours),
                "cost": _priced(r.gpu_hours, plan.price),
            }
            for r in plan.rows
        ],
        "nothing_missing": list(plan.whole),
        "assumptions": assumptions(budget, plan.card),
        "paper": {
            "stated_days": [plan.check.low, plan.check.high],
            "days": {size: round(days, 3) for size, days in plan.check.days.items()},
            "mean_days": round(plan.check.mean, 3),
            "within": plan.check.within,
        },
    }
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"
