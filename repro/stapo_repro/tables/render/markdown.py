"""Markdown: the whole table, the README's block, the block of docs/statistics.md."""

from __future__ import annotations

from stapo_repro.tables import Section, Table
from stapo_repro.tables.render.view import (
    Cell,
    Grid,
    Piece,
    difference_grid,
    gains_grid,
    introduction,
    main_grid,
    stamp,
    state_of_paper_cells,
)
from stapo_repro.text import escape, grid


def _piece(piece: Piece) -> str:
    text = escape(piece.text)
    return f"**{text}**" if piece.best or piece.kind == "loud" else text


def _cell(cell: Cell) -> str:
    return "".join(map(_piece, cell.pieces)) + "".join(f"<br><sub>{escape(line)}</sub>" for line in cell.small)


def _grid(g: Grid) -> list[str]:
    rows = [
        [f"*{escape(r.label)}*" if r.paper else escape(r.label), *(_cell(c) for c in r.cells)] for r in g.rows
    ]  # fmt: skip
    notes = ["", *(f"- {escape(n)}" for n in g.notes)] if g.notes else []
    return [*grid([escape(h) for h in g.header], rows), *notes]


def _section(section: Section, families: dict[str, int]) -> list[str]:
    grids = (main_grid(section), difference_grid(section, families))
    return [line for level, g in enumerate(grids, 2) if g is not None for line in (*_titled(g, level), "")]


def _titled(g: Grid, level: int) -> list[str]:
    return [f"{'#' * level} {escape(g.title)}", "", *_grid(g)]


def gains_block(table: Table) -> str:
    """The block of docs/statistics.md."""
    return "\n".join([*_grid(gains_grid(table)), ""])


def to_markdown(table: Table) -> str:
    """All sections."""
    head = ["# Main table", "", f"{escape(stamp(table))} {escape(introduction(table))}", ""]
    sections = [line for s in table.sections for line in _section(s, table.families)]
    return "\n".join([*head, *sections, *_titled(gains_grid(table), 2), ""])


def readme_block(table: Table) -> str:
    """The README's table: the miniature alone."""
    file = "[results/tables/main_table.md](results/tables/main_table.md)"
    more = f"{state_of_paper_cells(table)} All sections, and the differences of methods with intervals and p: {file}."
    return "\n".join([*_titled(main_grid(table.sections[0]), 3), "", f"{more} {escape(stamp(table))}", ""])
