"""Which texts stand in which cell. Every form marks up these grids, so all of them print the same numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from stapo_repro import labels
from stapo_repro.tables import MethodRow, Section, Table, Value, shown, signed
from stapo_repro.tables.notes import SYNTHETIC
from stapo_results.schema import SETTINGS

FIRST, SECOND = SETTINGS  # order of the paper's cells: T=1.0, then T=0.7 in brackets

Kind = Literal["plain", "number", "loud", "absent"]


@dataclass(frozen=True)
class Piece:
    """A run of text: a number, what must not be overlooked, what was not run (`absent`), or none of these.

    `best` is the column's mark; `records` the files that a number is made of.
    """

    text: str
    kind: Kind = "plain"
    best: bool = False
    records: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cell:
    """One line of pieces, and lines in small print below it.

    Attributes:
        muted: nothing could stand here.
        keys: the numbers at both settings as text that a program reads; "" where there is none.
    """

    pieces: tuple[Piece, ...]
    small: tuple[str, ...] = ()
    muted: bool = False
    keys: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class GridRow:
    """A row's heading and cells.

    Attributes:
        paper: the paper's values, not ours.
        follows: it says more of the row above it, and moves with that where rows are sorted.
    """

    label: str
    cells: tuple[Cell, ...]
    paper: bool = False
    follows: bool = False


@dataclass(frozen=True)
class Grid:
    """One table of cells with its notes; `id` names it within its file."""

    id: str
    title: str
    header: tuple[str, ...]
    rows: tuple[GridRow, ...]
    notes: tuple[str, ...]


def state(status: str) -> Piece:
    """What stands in the place of a number that is not there."""
    return Piece(status, "absent" if status == "not run" else "plain")


def only(status: str) -> Cell:
    """A cell of a state alone: "not run" is to be seen, what has no place here stays in the background."""
    piece = state(status)
    return Cell((piece,), muted=piece.kind != "absent")


def loud(text: str) -> list[Piece]:
    """In brackets behind a number."""
    return [Piece(" ("), Piece(text, "loud"), Piece(")")]


def both(first: Sequence[Piece], second: Sequence[Piece], small: Sequence[tuple[str, str]] = ()) -> Cell:
    """The paper's cell: temperature 1.0, in brackets 0.7. `small`: lines below, each for both settings."""
    keys = [next((p.text.removeprefix("+") for p in pieces if p.kind == "number"), "") for pieces in (first, second)]
    pieces = (*first, Piece(" ("), *second, Piece(")"))
    return Cell(pieces, tuple(f"{a} ({b})" for a, b in small), keys=(keys[0], keys[1]))


def interval(low: float | None, high: float | None) -> str:
    """Two ends with one decimal."""
    return f"{shown(low, 1)} to {shown(high, 1)}"


def _value(v: Value) -> list[Piece]:
    if v.status == "incomplete":
        return [Piece(v.shown if v.shown not in ("", "n/a") else v.status, "loud", records=tuple(v.records))]
    if v.status not in ("run", "paper"):
        return [state(v.status)]
    pieces = [Piece(v.shown, "number", v.best, tuple(v.records))]
    if v.missing:
        pieces += loud(f"{v.fewest_samples}/{v.samples} samples")
    if v.problems < v.rows:
        pieces += loud(f"{v.problems}/{v.rows} problems")
    return pieces


def _cell(by_setting: Mapping[str, Value]) -> Cell:
    first, second = by_setting[FIRST], by_setting[SECOND]
    if first.status == second.status == "not run":
        return only(first.status)
    run = "run" in (first.status, second.status)
    small = [(interval(first.low, first.high), interval(second.low, second.high))] if run else []
    return both(_value(first), _value(second), small)


def _against(v: Value) -> list[Piece]:
    if v.paper is None:
        return [state(v.status if v.status == "not run" else "n/a")]
    return [Piece(signed(v.paper.points), "number")]


def _side(v: Value) -> str:
    return "n/a" if v.paper is None else {True: "within", False: "outside", None: "not judged"}[v.paper.within]


def _against_cell(by_setting: Mapping[str, Value]) -> Cell:
    first, second = by_setting[FIRST], by_setting[SECOND]
    if first.paper is None and second.paper is None:
        return only(first.status if first.status == second.status == "not run" else "n/a")
    return both(_against(first), _against(second), [(_side(first), _side(second))])


def _rows(row: MethodRow) -> Iterator[GridRow]:
    yield GridRow(row.label, tuple(map(_cell, row.values.values())), paper=row.source == "paper")
    if any(v.paper for by_setting in row.values.values() for v in by_setting.values()):
        cells = tuple(map(_against_cell, row.values.values()))
        yield GridRow(f"{row.label}, ours minus paper", cells, follows=True)


def header(first: str, benchmarks: Sequence[str]) -> tuple[str, ...]:
    """Headings of the columns, the average last."""
    return (first, *map(labels.benchmark_label, benchmarks), f"Avg of {len(benchmarks)}")


def _beside_paper(section: Section) -> list[str]:
    found = [v.paper for r in section.rows for by_setting in r.values.values() for v in by_setting.values() if v.paper]
    if not found:
        return []
    why = sorted({p.why for p in found if p.why})
    reasons = f" Not judged: {'; '.join(why)}." if why else ""
    return [
        "Ours minus paper in percentage points; within or outside: whether the paper's printed value lies in our 95 % "
        f"interval.{reasons}"
    ]


def main_grid(section: Section) -> Grid:
    """The section in the paper's layout."""
    rows = tuple(g for row in section.rows for g in _rows(row))
    notes = (*_beside_paper(section), *section.footnotes)
    return Grid(section.id, section.title, header("Method", section.benchmarks), rows, notes)


def stamp(table: Table) -> str:
    """What the table was made of; the same in every form."""
    text = f"Generated by stapo-repro tables from {len(table.records)} records, inputs {table.inputs_sha256[:16]}."
    return f"{SYNTHETIC} {text}" if table.synthetic else text


def introduction(table: Table) -> str:
    """How to read it."""
    return (
        f"Italic rows are the paper's printed values ({table.paper}); the others are this suite's own runs. "
        '"not run" means that no record exists. Bold marks the best complete value of a column.'
    )


def state_of_paper_cells(table: Table) -> str:
    """One sentence: how many of the paper's models were run."""
    rows = [r for s in table.sections if s.size in labels.PAPER_SIZES for r in s.rows]
    ours = [r for r in rows if r.source == "ours" and r.method in labels.METHODS]
    run = sum(r.values[labels.AVERAGE][FIRST].status == "run" for r in ours)
    return f"Of the paper's {len(ours)} models (three sizes, four methods), {run} have been run with this suite."
