"""The grids of statistics across runs: differences of methods, and the paper's gains beside its design's noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from stapo_repro import labels
from stapo_repro.tables import Difference, Gain, Section, Table, p_shown, signed
from stapo_repro.tables.gains import Reading
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
    loud,
    main_grid,
    only,
    state,
)


def _points(d: Difference) -> list[Piece]:
    if d.status != "run":
        return [state(d.status)]
    if d.points is None:
        return [Piece("samples missing", "loud")]
    return [Piece(signed(d.points), "number"), *(loud(f"{d.missing} samples missing") if d.missing else [])]


def _difference(first: Difference, second: Difference) -> Cell:
    if first.status == second.status and first.status != "run":
        return only(first.status)
    small = []
    if first.points is not None or second.points is not None:
        small = [
            (interval(first.low, first.high), interval(second.low, second.high)),
            (f"p {p_shown(first.p)}", p_shown(second.p)),
            (f"Holm {p_shown(first.p_holm)}", p_shown(second.p_holm)),
        ]
    return both(_points(first), _points(second), small)


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
    heads = header("Difference", section.benchmarks)
    return Grid(f"{section.id}-differences", title, heads, tuple(rows), tuple(_tests(section, families)))


def _gain(g: Gain) -> list[Piece]:
    pieces = [Piece(signed(g.points), "number", best=g.reading == "above both")]
    return [*pieces, Piece("†")] if g.reading == "below both" else pieces


def _gain_cell(first: Gain, second: Gain) -> Cell:
    bounds = [interval(g.mde_sampling, g.mde_unpaired) for g in (first, second)]
    return both(_gain(first), _gain(second), [(bounds[0], bounds[1])])


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
    return Grid("gains", title, header("Gain", tuple(labels.PAPER_BENCHMARKS)), tuple(rows), notes)


def difference_grids(table: Table) -> list[Grid]:
    """Of the sections in which a pair was run."""
    return [g for s in table.sections if (g := difference_grid(s, table.families)) is not None]


def all_grids(table: Table) -> list[Grid]:
    """Every section with its differences, then the gains."""
    pairs = [(main_grid(s), difference_grid(s, table.families)) for s in table.sections]
    return [*(g for pair in pairs for g in pair if g is not None), gains_grid(table)]
