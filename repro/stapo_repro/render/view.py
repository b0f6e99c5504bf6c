"""Which texts stand in which cell. Every form marks up these grids, so all of them print the same numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from stapo_repro import labels
from stapo_repro.tables import Difference, Gain, Row, Section, Table, Value, p_shown, shown, signed
from stapo_results.schema import SETTINGS

FIRST, SECOND = SETTINGS  # order of the paper's cells: T=1.0, then T=0.7 in brackets

Kind = Literal["plain", "number", "loud"]


@dataclass(frozen=True)
class Piece:
    """A run of text: a number, or what must not be overlooked, or neither.

    `best` is the column's mark; `records` the files that a number is made of.
    """

    text: str
    kind: Kind = "plain"
    best: bool = False
    records: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cell:
    """One line of pieces, and lines in small print below it. `muted`: nothing was run."""

    pieces: tuple[Piece, ...]
    small: tuple[str, ...] = ()
    muted: bool = False


@dataclass(frozen=True)
class GridRow:
    """A row's heading and cells. `paper`: the paper's values, not ours."""

    label: str
    cells: tuple[Cell, ...]
    paper: bool = False


@dataclass(frozen=True)
class Grid:
    """One table of cells with its notes; `id` names it within its file."""

    id: str
    title: str
    header: tuple[str, ...]
    rows: tuple[GridRow, ...]
    notes: tuple[str, ...]


def _value(v: Value) -> Iterator[Piece]:
    if v.status == "incomplete":
        yield Piece(v.shown if v.shown not in ("", "n/a") else v.status, "loud", records=tuple(v.records))
    elif v.status in ("run", "paper"):
        yield Piece(v.shown, "number", v.best, tuple(v.records))
    else:
        yield Piece(v.status)
    if v.status == "run" and v.missing:
        yield Piece(" (")
        yield Piece(f"{v.fewest_samples}/{v.samples} samples", "loud")
        yield Piece(")")
    if v.status == "run" and v.problems < v.rows:
        yield Piece(" (")
        yield Piece(f"{v.problems}/{v.rows} problems", "loud")
        yield Piece(")")


def _both(first: Iterator[Piece], second: Iterator[Piece]) -> tuple[Piece, ...]:
    return (*first, Piece(" ("), *second, Piece(")"))


def interval(low: float | None, high: float | None) -> str:
    """Two ends with one decimal."""
    return f"{shown(low, 1)} to {shown(high, 1)}"


def _cell(by_setting: Mapping[str, Value]) -> Cell:
    first, second = by_setting[FIRST], by_setting[SECOND]
    if first.status == second.status and first.status in ("not run", "not in the paper"):
        return Cell((Piece(first.status),), muted=True)
    small = ()
    if "run" in (first.status, second.status):
        small = (f"{interval(first.low, first.high)} ({interval(second.low, second.high)})",)
    return Cell(_both(_value(first), _value(second)), small)


def _against(v: Value) -> Iterator[Piece]:
    if v.paper is None:
        yield Piece(v.status if v.status == "not run" else "n/a")
        return
    yield Piece(signed(v.paper.points), "number")


def _side(v: Value) -> str:
    return "n/a" if v.paper is None else {True: "within", False: "outside", None: "not judged"}[v.paper.within]


def _against_cell(by_setting: Mapping[str, Value]) -> Cell:
    first, second = by_setting[FIRST], by_setting[SECOND]
    if first.paper is None and second.paper is None:
        return Cell((Piece(first.status if first.status == second.status == "not run" else "n/a"),), muted=True)
    return Cell(_both(_against(first), _against(second)), (f"{_side(first)} ({_side(second)})",))


def _rows(row: Row) -> Iterator[GridRow]:
    yield GridRow(row.label, tuple(map(_cell, row.values.values())), paper=row.source == "paper")
    if any(v.paper for by_setting in row.values.values() for v in by_setting.values()):
        yield GridRow(f"{row.label}, ours minus paper", tuple(map(_against_cell, row.values.values())))


def _header(first: str, section: Section) -> tuple[str, ...]:
    columns = (labels.benchmark_label(b) for b in section.benchmarks)
    return (first, *columns, f"Avg of {len(section.benchmarks)}")


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
    return Grid(
        section.id,
        section.title,
        _header("Method", section),
        tuple(g for row in section.rows for g in _rows(row)),
        (*_beside_paper(section), *section.footnotes),
    )


def _points(d: Difference) -> Iterator[Piece]:
    if d.status != "run":
        yield Piece(d.status)
    elif d.points is None:
        yield Piece("samples missing", "loud")
    else:
        yield Piece(signed(d.points), "number")


def _difference(first: Difference, second: Difference) -> Cell:
    if first.status == second.status and first.status != "run":
        return Cell((Piece(first.status),), muted=True)
    small = ()
    if first.points is not None or second.points is not None:
        small = (
            f"{interval(first.low, first.high)} ({interval(second.low, second.high)})",
            f"p {p_shown(first.p)} ({p_shown(second.p)})",
            f"Holm {p_shown(first.p_holm)} ({p_shown(second.p_holm)})",
        )
    return Cell(_both(_points(first), _points(second)), small)


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
    if not any(d.status != "not run" for d in section.differences):
        return None
    found = {(d.method, d.against, d.benchmark, d.setting): d for d in section.differences}
    rows = []
    for method, against in dict.fromkeys((d.method, d.against) for d in section.differences):
        of = {k: d for k, d in found.items() if k[:2] == (method, against)}
        if all(d.status == "not run" for d in of.values()):
            continue
        cells = [
            _difference(of[method, against, b, FIRST], of[method, against, b, SECOND])
            for b in (*section.benchmarks, labels.AVERAGE)
        ]
        rows.append(GridRow(f"{labels.method_label(method)} minus {labels.method_label(against)}", tuple(cells)))
    return Grid(
        f"{section.id}-differences",
        "Differences of methods",
        _header("Difference", section),
        tuple(rows),
        tuple(_tests(section, families)),
    )


def _gain(g: Gain) -> Iterator[Piece]:
    yield Piece(signed(g.points), "number", best=g.reading == "above both")
    if g.reading == "below both":
        yield Piece("†")


def _gain_cell(first: Gain, second: Gain) -> Cell:
    bounds = [interval(g.mde_sampling, g.mde_unpaired) for g in (first, second)]
    return Cell(_both(_gain(first), _gain(second)), (f"{bounds[0]} ({bounds[1]})",))


def count_gains(gains: list[Gain], averages: bool) -> dict[str, int]:
    """How many of the gains on averages, or on single benchmarks, lie where."""
    chosen = [g.reading for g in gains if (g.benchmark == labels.AVERAGE) == averages]
    return {reading: chosen.count(reading) for reading in ("above both", "between", "below both")}


def _counted(table: Table, averages: bool) -> str:
    counts = count_gains(table.gains, averages)
    return ", ".join(f"{n} {reading}" for reading, n in counts.items())


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
    columns = (labels.benchmark_label(b) for b in labels.PAPER_BENCHMARKS)
    return Grid(
        "gains",
        "The paper's gains beside what its design can tell from noise",
        ("Gain", *columns, f"Avg of {len(labels.PAPER_BENCHMARKS)}"),
        tuple(rows),
        (
            "Printed values of the paper, in percentage points, at temperature 1.0, in brackets at 0.7. Below: the "
            "minimal detectable difference (80 % power, two-sided 5 %) from the number of problems and samples and the "
            "printed values alone, once if all problems were equally hard (sampling alone), once if each problem were "
            "always right or always wrong and the models unpaired. Bold: above both. †: below both, so a true gain of "
            "that size would be missed more than one time in five even with the smaller standard error. The spread "
            "between training runs is in neither, and nothing is corrected for the number of comparisons.",
            f"On averages: {_counted(table, True)}. On single benchmarks: {_counted(table, False)}.",
        ),
    )


def stamp(table: Table) -> str:
    """What the table was made of; the same in every form."""
    return f"Generated by stapo-repro tables from {len(table.records)} records, inputs {table.inputs_sha256[:16]}."


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
