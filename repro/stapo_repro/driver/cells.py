"""The names of cells: METHOD/SIZE, such as stapo/qwen3-1.7b or base/qwen3-8b."""

from __future__ import annotations

from collections.abc import Sequence

from stapo_repro import labels
from stapo_results.errors import BadInput

_EXAMPLE = "stapo-repro run stapo/mini"


def parse(cells: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """(method, size) of each cell, each once, in the order given.

    Raises:
        BadInput: none, or one that is no METHOD/SIZE of ours.
    """
    if not cells:
        raise BadInput("no cell was named", expected="METHOD/SIZE", next_step=_EXAMPLE)
    found = []
    for cell in cells:
        method, slash, size = cell.partition("/")
        sizes = [labels.MINI, *labels.PAPER_SIZES]
        methods = list(labels.METHODS) if size == labels.MINI else list(labels.METHOD_LABELS)
        if not slash or method not in methods or size not in sizes:
            raise BadInput(
                f"no such cell: {cell}",
                expected=f"METHOD/SIZE with METHOD of {', '.join(methods)} and SIZE of {', '.join(sizes)}",
                next_step=_EXAMPLE,
            )
        if (method, size) not in found:
            found.append((method, size))
    return tuple(found)


def is_miniature(cells: Sequence[tuple[str, str]]) -> bool:
    """Whether they are the miniature's.

    Raises:
        BadInput: some are and some are not: they do not fit one machine.
    """
    mini = [f"{m}/{s}" for m, s in cells if s == labels.MINI]
    if mini and len(mini) < len(cells):
        others = [f"{m}/{s}" for m, s in cells if s != labels.MINI]
        raise BadInput(
            "the miniature's cells and the paper's are two runs",
            found=", ".join(f"{m}/{s}" for m, s in cells),
            expected="one kind a command",
            next_step=f"stapo-repro run {' '.join(mini)}   and: stapo-repro run {' '.join(others)}",
        )
    return bool(mini)


def methods(cells: Sequence[tuple[str, str]]) -> str:
    """The miniature's methods in the table's order, for `chain.plan`."""
    named = {m for m, _ in cells}
    return ",".join(m for m in labels.METHODS if m in named)
