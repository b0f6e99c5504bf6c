"""Two engines on one model: the same cells, each from its own samples, paired by problem."""

from __future__ import annotations

from collections.abc import Sequence

from stapo_repro.labels import benchmark_label
from stapo_repro.read import Loaded
from stapo_repro.scores import difference, score
from stapo_repro.text import grid, number_shown, shown
from stapo_results.errors import RecordError

RULE = (
    "Written before the second engine ran: two engines agree on a cell within their error when the 95 % interval of "
    "the difference, paired by problem, holds 0. Both have the same weights, prompts and grader, each its own samples. "
    "Draws of seed 1 were made after those of seed 0 had been seen."
)
_HEAD = ("Cell", "Engine", "Other", "Accuracy (%)", "Other's", "First minus other (points)", "Mean tokens", "Agree")


def _name(c: Loaded) -> tuple[str, ...]:
    cell = c.record.cell
    return *map(str, cell.model), cell.benchmark, cell.setting


def compared(first: Sequence[Loaded], other: Sequence[Loaded]) -> list[list[str]]:
    """A line for each cell that both hold, whatever the seed of the evaluation."""
    ours, rows = {_name(c): c for c in first}, []
    for theirs in other:
        cell = theirs.record.cell
        if (own := ours.get(_name(theirs))) is None:
            continue
        _check_alike(own, theirs)
        a, b = score([own]), score([theirs])
        d = difference([a], [b], (own.record.engine, theirs.record.engine, cell.benchmark, cell.setting))
        told, agree = d.status, "undecided"
        if d.number.has_interval:
            told = number_shown(d.number, 1, sign=True)
            agree = "yes" if d.number.low <= 0 <= d.number.high else "no"
        tokens = " and ".join(shown(c.record.mean_response_tokens, 0) for c in (own, theirs))
        accuracies = [number_shown(s.estimate, 1, 100) for s in (a, b)]
        name = f"{benchmark_label(cell.benchmark)}, {cell.setting}, seed {cell.eval_seed}"
        rows.append([name, own.record.engine, theirs.record.engine, *accuracies, told, tokens, agree])
    return rows


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
