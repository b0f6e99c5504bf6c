"""Several engines on one model: the same cells, each from its own samples, paired by problem."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations

from stapo_repro.labels import benchmark_label
from stapo_repro.read import Loaded
from stapo_repro.scores import difference, score
from stapo_repro.text import grid, number_shown, shown
from stapo_results.errors import RecordError

RULE = (
    "Written before the second engine ran: two engines agree on a cell within their error when the 95 % interval of "
    "the difference, paired by problem, holds 0. All have the same weights, prompts and grader, each its own samples. "
    "Draws of seed 1 were made, and put together with the first, after those of seed 0 had been seen. Written on "
    "2026-11-29, before a third engine ran on AMC23 (vLLM 0.32.0 on a CPU, float32, seed 2, 320 samples): where the "
    "interval of its difference from hf's draws together lies below 0, vLLM and hf differ on this cell. Where that "
    "holds 0, and that of its difference from vLLM's draw on the H200 does not, the H200's draw stands alone. Else it "
    "stays open."
)
_HEAD = ("Cell", "Engine", "Other", "Accuracy (%)", "Other's", "First minus other (points)", "Mean tokens", "Agree")


def _name(c: Loaded) -> tuple[str, ...]:
    cell = c.record.cell
    return *map(str, cell.model), cell.benchmark, cell.setting


def compared(first: Sequence[Loaded], other: Sequence[Loaded]) -> list[list[str]]:
    """Of each cell that several engines hold, each two of them: by draw of the second, and its draws together.

    A draw is an evaluation of whatever seed. The engine with fewer draws is the first of two.
    """
    rows = []
    for own in first:
        draws = defaultdict[str, list[Loaded]](list)
        for c in (own, *(c for c in other if _name(c) == _name(own))):
            _check_alike(own, c)
            draws[c.record.engine].append(c)
        for a, b in combinations(sorted(draws.values(), key=len), 2):
            rows += [_row(a, [c], f"seed {c.record.cell.eval_seed}") for c in b]
            if len(b) > 1:
                rows.append(_row(a, b, "together"))
    return rows


def _row(own: Sequence[Loaded], theirs: Sequence[Loaded], which: str) -> list[str]:
    cell, (first, engine) = own[0].record.cell, (of[0].record.engine for of in (own, theirs))
    a, b = score(own), score(theirs)
    d = difference([a], [b], (first, engine, cell.benchmark, cell.setting))
    told, agree = d.status, "undecided"
    if d.number.has_interval:
        told = number_shown(d.number, 1, sign=True)
        agree = "yes" if d.number.low <= 0 <= d.number.high else "no"
    lengths = [math.fsum(c.record.mean_response_tokens for c in of) / len(of) for of in (own, theirs)]
    accuracies = [number_shown(s.estimate, 1, 100) for s in (a, b)]
    name = f"{benchmark_label(cell.benchmark)}, {cell.setting}, {which}"
    return [name, first, engine, *accuracies, told, " and ".join(shown(n, 0) for n in lengths), agree]


def _check_alike(own: Loaded, theirs: Loaded) -> None:
    """Raises RecordError where more than the engine differs."""
    both = {name: [getattr(c.record, name) for c in (own, theirs)] for name in ("grader", "max_tokens", "n")}
    both |= {name: [c.record.revisions.get(name) for c in (own, theirs)] for name in ("model", "tokenizer")}
    for what, (one, other) in both.items():
        if one != other:
            raise RecordError(f"two engines' records of {own.record.cell.id} differ in {what}", found=other,
                              expected=one, next_step=f"evaluate again as {own.file} was")  # fmt: skip


def section(first: Sequence[Loaded], other: Sequence[Loaded]) -> list[str]:
    """The rule and the cells, or that none was run by two engines."""
    rows = compared(first, other)
    return ["## Do the engines agree?", "", RULE, "", *(grid(_HEAD, rows, 3) if rows else ["Not run."]), ""]
