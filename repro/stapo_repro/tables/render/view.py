"""Which texts stand in which cell: the section in the paper's layout, differences of methods, the paper's gains.

Every form marks up these grids, so all of them print the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from stapo_repro import labels
from stapo_repro.tables import Difference, Gain, MethodRow, Section, Table, Value
from stapo_repro.tables.build import SYNTHETIC
from stapo_repro.tables.model import Reading
from stapo_repro.text import p_shown, shown, signed
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


def _state(status: str) -> Piece:
    """What stands in the place of a number that is not there."""
    return Piece(status, "absent" if status == "not run" else "plain")


def _only(status: str) -> Cell:
    """A cell of a state alone: "not run" is to be seen, what has no place here stays in the background."""
    return Cell((_state(status),), muted=status != "not run")


def _loud(text: str) -> list[Piece]:
    """In brackets behind a number."""
    return [Piece(" ("), Piece(text, "loud"), Piece(")")]


def _both(first: Sequence[Piece], second: Sequence[Piece], small: Sequence[tuple[str, str]] = ()) -> Cell:
    """The paper's cell: temperature 1.0, in brackets 0.7. `small`: lines below, each for both settings."""
    keys = [next((p.text.removeprefix("+") for p in pieces if p.kind == "number"), "") for pieces in (first, second)]
    pieces = (*first, Piece(" ("), *second, Piece(")"))
    return Cell(pieces, tuple(f"{a} ({b})" for a, b in small), keys=(keys[0], keys[1]))


def _interval(low: float | None, high: float | None) -> str:
    """Two ends with one decimal."""
    return f"{shown(low, 1)} to {shown(high, 1)}"


def _value(v: Value) -> list[Piece]:
    if v.status == "incomplete":
        return [Piece(v.shown if v.shown not in ("", "n/a") else v.status, "loud", records=tuple(v.records))]
    if v.status not in ("run", "paper"):
        return [_state(v.status)]
    pieces = [Piece(v.shown, "number", v.best, tuple(v.records))]
    if v.missing:
        pieces += _loud(f"{v.fewest_samples}/{v.samples} samples")
    if v.problems < v.rows:
        pieces += _loud(f"{v.problems}/{v.rows} problems")
    return pieces


def _cell(by_setting: Mapping[str, Value]) -> Cell:
    first, second = by_setting[FIRST], by_setting[SECOND]
    if first.status == second.status == "not run":
        return _only(first.status)
    run = "run" in (first.status, second.status)
    small = [(_interval(first.low, first.high), _interval(second.low, second.high))] if run else []
    return _both(_value(first), _value(second), small)


def _against(v: Value) -> list[Piece]:
    if v.paper is None:
        return [_state(v.status if v.status == "not run" else "n/a")]
    return [Piece(signed(v.paper.points), "number")]


def _side(v: Value) -> str:
    return "n/a" if v.paper is None else {True: "within", False: "outside", None: "not judged"}[v.paper.within]


def _against_cell(by_setting: Mapping[str, Value]) -> Cell:
    first, second = by_setting[FIRST], by_setting[SECOND]
    if first.paper is None and second.paper is None:
        return _only(first.status if first.status == second.status == "not run" else "n/a")
    return _both(_against(first), _against(second), [(_side(first), _side(second))])


def _rows(row: MethodRow) -> Iterator[GridRow]:
    yield GridRow(row.label, tuple(map(_cell, row.values.values())), paper=row.source == "paper")
    if any(v.paper for by_setting in row.values.values() for v in by_setting.values()):
        cells = tuple(map(_against_cell, row.values.values()))
        yield GridRow(f"{row.label}, ours minus paper", cells, follows=True)


def _header(first: str, benchmarks: Sequence[str]) -> tuple[str, ...]:
    """Headings of the columns, the average last."""
    return (first, *map(labels.benchmark_label, benchmarks), f"Avg of {len(benchmarks)}")


def main_grid(section: Section) -> Grid:
    """The section in the paper's layout."""
    rows = tuple(g for row in section.rows for g in _rows(row))
    beside = [
        "Ours minus paper in percentage points; within or outside: whether the paper's printed value lies in our 95 % "
        "interval. Not judged: samples or problems are missing, or other ones."
    ]
    notes = (*(beside if any(g.follows for g in rows) else []), *section.footnotes)
    return Grid(section.id, section.title, _header("Method", section.benchmarks), rows, notes)


def _points(d: Difference) -> list[Piece]:
    if d.status != "run":
        return [_state(d.status)]
    if d.points is None:
        return [Piece("samples missing", "loud")]
    return [Piece(signed(d.points), "number"), *(_loud(f"{d.missing} samples missing") if d.missing else [])]


def _difference(first: Difference, second: Difference) -> Cell:
    if first.status == second.status and first.status != "run":
        return _only(first.status)
    small = []
    if first.points is not None or second.points is not None:
        small = [
            (_interval(first.low, first.high), _interval(second.low, second.high)),
            (f"p {p_shown(first.p)}", p_shown(second.p)),
            (f"Holm {p_shown(first.p_holm)}", p_shown(second.p_holm)),
        ]
    return _both(_points(first), _points(second), small)


def _tests(section: Section, families: Mapping[str, int]) -> list[str]:
    used = {d.family: families[d.family] for d in section.differences if d.family}
    sizes = "; ".join(f"{name}: {count} tests" for name, count in used.items())
    notes = [
        "In percentage points, paired by problem, at temperature 1.0, in brackets at 0.7; below it the 95 % t "
        f"interval, the two-sided p-value, and that p by Holm over its family ({sizes}). p is a sign-flip permutation "
        "test's: it speaks about these two models, not about another training."
    ]
    if several := {d.method: d.seeds for d in section.differences if d.seeds}:
        which = "; ".join(f"{labels.method_label(m)}: {', '.join(map(str, s))}" for m, s in several.items())
        notes.append(
            f"Where both sides have the same several training seeds ({which}) they are paired by seed too, the "
            "interval covers the choice of problems and of seeds, and p is the t test's with that standard error."
        )
    return notes


def difference_grid(section: Section, families: Mapping[str, int]) -> Grid | None:
    """Differences of methods; None where no pair was run."""
    found = {(d.method, d.against, d.benchmark, d.setting): d for d in section.differences}
    run = dict.fromkeys((d.method, d.against) for d in section.differences if d.status != "not run")
    if not run:
        return None
    rows = [
        GridRow(
            f"{labels.method_label(method)} minus {labels.method_label(against)}",
            tuple(
                _difference(found[method, against, b, FIRST], found[method, against, b, SECOND])
                for b in (*section.benchmarks, labels.AVERAGE)
            ),
        )
        for method, against in run
    ]
    title = f"Differences of methods: {section.title}"
    heads = _header("Difference", section.benchmarks)
    return Grid(f"{section.id}-differences", title, heads, tuple(rows), tuple(_tests(section, families)))


def _gain(g: Gain) -> list[Piece]:
    pieces = [Piece(signed(g.points), "number", best=g.reading == "above both")]
    return [*pieces, Piece("†")] if g.reading == "below both" else pieces


def _gain_cell(first: Gain, second: Gain) -> Cell:
    bounds = [_interval(g.mde_sampling, g.mde_unpaired) for g in (first, second)]
    return _both(_gain(first), _gain(second), [(bounds[0], bounds[1])])


def _counted(table: Table, averages: bool) -> str:
    """How many of the gains on averages, or on single benchmarks, lie where."""
    chosen = [g.reading for g in table.gains if (g.benchmark == labels.AVERAGE) == averages]
    return ", ".join(f"{chosen.count(reading)} {reading}" for reading in get_args(Reading))


def gains_grid(table: Table) -> Grid:
    """The paper's gains beside their minimal detectable differences."""
    found = {(g.size, g.baseline, g.benchmark, g.setting): g for g in table.gains}
    rows = [
        GridRow(
            f"{labels.PAPER_SIZES[size]}, STAPO minus {labels.method_label(baseline)}",
            tuple(
                _gain_cell(found[size, baseline, b, FIRST], found[size, baseline, b, SECOND])
                for b in (*labels.PAPER_BENCHMARKS, labels.AVERAGE)
            ),
            paper=True,
        )
        for size, baseline in dict.fromkeys((g.size, g.baseline) for g in table.gains)
    ]
    notes = (
        "Printed values of the paper, in percentage points, at temperature 1.0, in brackets at 0.7. Below: the "
        "minimal detectable difference (80 % power, two-sided 5 %) from the number of problems and samples and the "
        "printed values alone, once if all problems were equally hard (sampling alone), once if each problem were "
        "always right or always wrong and the models unpaired. Bold: above both. †: below both, so a true gain of "
        "that size would be missed more than one time in five even with the smaller standard error. The spread "
        "between training runs is in neither, and nothing is corrected for the number of comparisons.",
        f"On averages: {_counted(table, True)}. On single benchmarks: {_counted(table, False)}.",
    )
    title = "The paper's gains beside what its design can tell from noise"
    return Grid("gains", title, _header("Gain", tuple(labels.PAPER_BENCHMARKS)), tuple(rows), notes)


def difference_grids(table: Table) -> list[Grid]:
    """Of the sections in which a pair was run."""
    return [g for s in table.sections if (g := difference_grid(s, table.families)) is not None]


def all_grids(table: Table) -> list[Grid]:
    """Every section with its differences, then the gains."""
    pairs = [(main_grid(s), difference_grid(s, table.families)) for s in table.sections]
    return [*(g for pair in pairs for g in pair if g is not None), gains_grid(table)]


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
