"""Accuracies of the trained models beside the base that the same engine sampled, paired by problem."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from stapo_repro import labels
from stapo_repro.read import Loaded
from stapo_repro.scores import difference, score
from stapo_repro.text import grid, number_shown, shown
from stapo_results.errors import BadInput
from stapo_results.statistics import Number

SIZE = "qwen2.5-coder-0.5b"
STEPS = 30
"""Steps of a training that a claim is of; its last one was evaluated."""
WHERE = ("math500 t1.0", "math500 t0.7", "amc23 t1.0", "amc23 t0.7")
_BETWEEN = (
    ("stapo", "stapo-random", "math500 t1.0"),
    ("stapo-random", "entropy20", "math500 t1.0"),
    ("justrl-fullmask", "grpo", "math500 t1.0"),
    ("justrl-fullmask", "grpo", "math500 t0.7"),
)
"""Differences of two methods that no claim is of, with seed 0: the first, the second, benchmark and setting."""


def of_seed(cells: Sequence[Loaded], seed: int) -> list[Loaded]:
    """Those of trainings with this seed, and of the base."""
    return [c for c in cells if c.record.cell.method == labels.BASE or c.record.cell.train_seed == seed]


def _at(cells: Sequence[Loaded], where: str) -> list[Loaded]:
    """The base's and the trained models' of one benchmark and setting."""
    told = (c.record.cell for c in cells)
    return [
        c for c, cell in zip(cells, told, strict=True)
        if (cell.size, f"{cell.benchmark} {cell.setting}") == (SIZE, where) and cell.step in ("base", STEPS)
    ]  # fmt: skip


def paired(first: str, second: str, where: str, cells: Sequence[Loaded]) -> Number:
    """First minus second in points, paired by problem, as one engine sampled both; `where`: benchmark and setting.
    Not known where nothing was evaluated alike.

    Raises:
        BadInput: two engines, or two ways to evaluate, have both.
    """
    alike = defaultdict[tuple[object, ...], dict[str, list[Loaded]]](dict)
    for c in _at(cells, where):
        r = c.record
        how = (r.engine, r.grader, r.scored_by, r.max_tokens, r.n, str(r.chat))
        alike[how].setdefault(r.cell.method, []).append(c)
    both = {how: of for how, of in alike.items() if first in of and second in of}
    if len(both) > 1:
        raise BadInput(f"{first} against {second} on {where} was evaluated twice", found="; ".join(map(str, both)),
                       next_step="name the one that judges the claims")  # fmt: skip
    benchmark, setting = where.split()
    for of in both.values():
        d = difference([score(of[first])], [score(of[second])], (first, second, benchmark, setting)).number
        return d if d.has_interval else Number()
    return Number()


def table(cells: Sequence[Loaded]) -> list[str]:
    """A line a model and engine."""
    of = defaultdict[tuple[str, int, str], list[Loaded]](list)
    for c in (c for where in WHERE for c in _at(cells, where)):
        cell = c.record.cell
        of[cell.method, 0 if cell.method == labels.BASE else cell.train_seed, c.record.engine].append(c)
    rows = []
    for (method, seed, engine), own in sorted(of.items(), key=lambda x: (x[0][2], x[0][0] != labels.BASE, x[0])):
        told = []
        for where in WHERE:
            if not (here := _at(own, where)):
                told.append("not run")
                continue
            found, alike = score(here), [c for c in of_seed(cells, seed) if c.record.engine == engine]
            text = number_shown(found.percent, 1)
            if method != labels.BASE:
                more = paired(method, labels.BASE, where, alike)
                bases = [c for c in _at(alike, where) if c.record.cell.method == labels.BASE]
                from_base = number_shown(more, 1, sign=True) if more.known else "not comparable" if bases else "no base"
                text = f"{shown(found.percent.mean, 1)}, {from_base}"
            told.append(f"{text}; cut {shown(found.truncated, 1)}")
        rows.append([labels.method_label(method), "" if method == labels.BASE else f"{seed}", engine, *told])
    names = [f"{labels.benchmark_label(b)} at {s}" for b, s in map(str.split, WHERE)]
    return grid(("Model", "Seed", "Engine", *names), rows, 1)


def section(cells: Sequence[Loaded]) -> list[str]:
    """Accuracies as a table, and differences between methods."""
    lines = [
        "## Accuracy beside the base that the same engine sampled", "",
        "In percent. Behind the comma of a training's: minus the base, in points, paired by problem, with the "
        "interval of problems at 95 %, not corrected. Cut: responses that met the limit of tokens. Claims are of "
        "MATH500 at t1.0, and of GRPO's at t0.7. Seed 0's others were seen afterwards, STAPO's of seed 1 were named "
        "before.", "",
        *table(cells), "",
    ]  # fmt: skip
    for one, other, where in _BETWEEN:
        found, (benchmark, setting) = paired(one, other, where, of_seed(cells, 0)), where.split()
        points = number_shown(found, 1, 1, " points", sign=True) if found.known else "not run"
        lines.append(f"- {labels.method_label(one)} minus {labels.method_label(other)}, seed 0, on "
                     f"{labels.benchmark_label(benchmark)} at {setting}, seen afterwards: {points}")  # fmt: skip
    return [*lines, ""]
