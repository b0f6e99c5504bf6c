"""Three-valued verdicts: True, False, and None for "cannot tell"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")


def both(results: Sequence[bool | None]) -> bool | None:
    """All of them, in three-valued logic."""
    return False if False in results else None if None in results else True


def assigned(golds: Sequence[A], answers: Sequence[B], same: Callable[[A, B], bool | None]) -> bool | None:
    """Whether a one-to-one assignment exists (augmenting paths). None: it hangs on pairs that `same` left open."""
    if len(golds) != len(answers):
        return False
    table = [[same(g, a) for a in answers] for g in golds]
    if _assigns(table, sure=True):
        return True
    return None if any(x is None for row in table for x in row) and _assigns(table, sure=False) else False


def _assigns(table: list[list[bool | None]], *, sure: bool) -> bool:
    owner: dict[int, int] = {}

    def place(row: int, seen: set[int]) -> bool:
        for column, same in enumerate(table[row]):
            if (same or (same is None and not sure)) and column not in seen:
                seen.add(column)
                if column not in owner or place(owner[column], seen):
                    owner[column] = row
                    return True
        return False

    return all(place(row, set()) for row in range(len(table)))
