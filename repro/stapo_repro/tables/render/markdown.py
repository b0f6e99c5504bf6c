"""Markdown: the whole table, the README's block, the block of docs/statistics.md."""

from __future__ import annotations

import re
from collections.abc import Sequence

from stapo_repro.tables import Section, Table
from stapo_repro.tables.render.view import (
    Cell,
    Grid,
    Piece,
    introduction,
    main_grid,
    stamp,
    state_of_paper_cells,
)
from stapo_repro.tables.render.view_statistics import difference_grid, gains_grid

_TAG = re.compile(r"<(?=[A-Za-z/!?])")


def escape(text: str) -> str:
    """Text of a record in a cell or a list: it can neither end the cell nor begin a tag, a link or emphasis."""
    flat = re.sub(r"\s+", " ", text).replace("\\", "\\\\")
    return re.sub(r"([|\[\]`*])", r"\\\1", _TAG.sub("&lt;", flat))


def grid(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """A Markdown table as lines; all columns but the first `left` ones are centred."""
    align = [*["---"] * left, *[":---:"] * (len(header) - left)]
    return ["| " + " | ".join(line) + " |" for line in (header, align, *rows)]


def _piece(piece: Piece) -> str:
    text = escape(piece.text)
    return f"**{text}**" if piece.best or piece.kind == "loud" else text


def _cell(cell: Cell) -> str:
    return "".join(map(_piece, cell.pieces)) + "".join(f"<br><sub>{escape(line)}</sub>" for line in cell.small)


def _grid(g: Grid) -> list[str]:
    rows = [
        [f"*{escape(r.label)}*" if r.paper else escape(r.label), *(_cell(c) for c in r.cells)] for r in g.rows
    ]  # fmt: skip
    return grid([escape(h) for h in g.header], rows)


def _main(section: Section, level: int) -> list[str]:
    g = main_grid(section)
    notes = ["", *(f"- {escape(n)}" for n in g.notes)] if g.notes else []
    return [f"{'#' * level} {escape(section.title)}", "", *_grid(g), *notes]


def section_markdown(section: Section, families: dict[str, int]) -> str:
    """One section with its footnotes and comparisons."""
    lines = _main(section, 2)
    if comparison := difference_grid(section, families):
        lines += ["", f"### {comparison.title}", "", *_grid(comparison)]
        lines += ["", *(f"- {escape(n)}" for n in comparison.notes)]
    return "\n".join(lines) + "\n"


def _gains(table: Table) -> str:
    g = gains_grid(table)
    return "\n".join([*_grid(g), "", *(f"- {escape(n)}" for n in g.notes)])


def gains_block(table: Table) -> str:
    """What stands between the markers of docs/statistics.md."""
    return f"{_gains(table)}\n"


def to_markdown(table: Table) -> str:
    """All sections."""
    head = f"# Main table\n\n{escape(stamp(table))} {escape(introduction(table))}\n"
    sections = [section_markdown(s, table.families) for s in table.sections]
    return "\n".join([head, *sections, f"## {gains_grid(table).title}\n\n{_gains(table)}\n"])


def readme_block(table: Table) -> str:
    """What stands between the README's table markers."""
    file = "[results/tables/main_table.md](results/tables/main_table.md)"
    more = f"{state_of_paper_cells(table)} All sections, and the differences of methods with intervals and p: {file}."
    return "\n".join([*_main(table.sections[0], 3), "", f"{more} {escape(stamp(table))}"]) + "\n"
