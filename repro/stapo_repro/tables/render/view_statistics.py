"""The grids of statistics across runs: differences of methods, and the paper's gains beside its design's noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stapo_repro import labels
from stapo_repro.tables import Difference, Gain, Section, Table, p_shown, signed
from stapo_repro.tables.render.view import (
    FIRST,
    SECOND,
    Cell,
    Grid,
    GridRow,
    Piece,
    both,
    header,
    interval,
    only,
    state,
)


def _points(d: Difference) -> Iterator[Piece]:
    if d.status != "run":
        yield state(d.status)
    elif d.points is None:
        yield Piece("samples missing", "loud")
    else:
        yield Piece(signed(d.points), "number")
        if d.missing:
            yield Piece(" (")
            yield Piece(f"{d.missing} samples missing", "loud")
            yield Piece(")")


def _difference(first: Difference, second: Difference) -> Cell:
    if first.status == second.status and first.status != "run":
        return only(first.status)
    small = ()
    if first.points is not None or second.points is not None:
        small = (
            f"{interval(first.low, first.high)} ({interval(second.low, second.high)})",
            f"p {p_shown(first.p)} ({p_shown(second.p)})",
            f"Holm {p_shown(first.p_holm)} ({p_shown(second.p_holm)})",
        )
    return Cell(both(_points(first), _points(second)), small)


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
        f"Differences of methods: {section.title}",
        header("Difference", section),
        tuple(rows),
        tuple(_tests(section, families)),
    )


def _gain(g: Gain) -> Iterator[Piece]:
    yield Piece(signed(g.points), "number", best=g.reading == "above both")
    if g.reading == "below both":
        yield Piece("†")


def _gain_cell(first: Gain, second: Gain) -> Cell:
    bounds = [interval(g.mde_sampling, g.mde_unpaired) for g in (first, second)]
    return Cell(both(_gain(first), _gain(second)), (f"{bounds[0]} ({bounds[1]})",))


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
