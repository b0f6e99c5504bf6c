"""The tables' grids for a page in which they are sorted: each row with its keys, and the rows that move with it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from stapo_repro.tables.render.view import Cell, Grid, GridRow, Piece

_NUMBER = re.compile(r"[+\-−]?\d+(\.\d+)?")


@dataclass(frozen=True)
class SortedCell:
    """A cell and its numbers at both settings as texts; "" where there is none."""

    cell: Cell
    first: str
    second: str


@dataclass(frozen=True)
class SortedRow:
    """A row of a grid. `follows`: it says more of the row above it and moves with that."""

    row: GridRow
    cells: tuple[SortedCell, ...]
    follows: bool


@dataclass(frozen=True)
class SortedGrid:
    """One table of the page."""

    grid: Grid
    rows: tuple[SortedRow, ...]


def halves(pieces: Sequence[Piece]) -> tuple[Sequence[Piece], Sequence[Piece]]:
    """The pieces at the first setting, and those at the second, which stand in the cell's last outer brackets."""
    depth = 0
    for i in range(len(pieces) - 1, -1, -1):
        depth += {")": 1, " (": -1}.get(pieces[i].text, 0)
        if depth == 0:
            return (pieces[:i], pieces[i + 1 : -1]) if pieces[i].text == " (" else (pieces, ())
    return pieces, ()


def key(pieces: Sequence[Piece]) -> str:
    """The first number among the pieces that are one, as text that a program reads; "" where there is none."""
    for p in pieces:
        if p.kind != "plain" and _NUMBER.fullmatch(p.text):
            return p.text.replace("−", "-").removeprefix("+")
    return ""


def sortable(grid: Grid, names: Sequence[str] | None = None) -> SortedGrid:
    """A grid with what it is sorted by.

    Args:
        names: labels of the rows that stand for themselves; every other one follows the row above it. None: all do.
    """
    rows = []
    for row in grid.rows:
        cells = []
        for cell in row.cells:
            first, second = halves(cell.pieces)
            cells.append(SortedCell(cell, key(first), key(second)))
        rows.append(SortedRow(row, tuple(cells), names is not None and row.label not in names))
    return SortedGrid(grid, tuple(rows))
