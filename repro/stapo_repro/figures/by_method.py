"""The layout of figures that show every evaluated model: a panel a benchmark and setting, a line a method."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stapo_repro import labels
from stapo_repro.figures.canvas import GREY, SMALL, bare, setting_label, sheet
from stapo_repro.figures.experiment import Experiment, Group
from stapo_repro.records.reading import Loaded
from stapo_results.schema import SETTINGS

_PITCH = 0.17  # inches a method
Draw = Callable[[Axes, Axes, list[str], list[list[Loaded]]], None]
Limit = Callable[[Axes, Axes], None]


def by_method(
    experiment: Experiment, group: Group, title: str, units: tuple[str, str], draw: Draw, limit: Limit
) -> Figure:  # fmt: skip
    """A row of panels a benchmark; for each setting a wide and a narrow one; a line a method.

    Args:
        units: labels of the two axes.
        draw: fills one pair of panels. limit: sets the limits of a finished column.
    """
    size, methods = group.sizes[0], [labels.BASE, *group.methods]
    figure = sheet(title, 1.35 + len(group.benchmarks) * (_PITCH * len(methods) + 0.22))
    grid = figure.subplots(len(group.benchmarks), 4, width_ratios=(3, 1.3) * 2, sharey="row", sharex="col",
                           squeeze=False)  # fmt: skip
    for row, benchmark in enumerate(group.benchmarks):
        for k, setting in enumerate(SETTINGS):
            wide, narrow = grid[row][2 * k : 2 * k + 2]
            draw(wide, narrow, methods, [experiment.cells_of(size, m, benchmark, setting) for m in methods])
            for axes in (wide, narrow):
                bare(axes, len(methods))
            if row == 0:
                wide.set_title(setting_label(setting))
            if row == len(group.benchmarks) - 1:
                wide.set_xlabel(units[0])
                narrow.set_xlabel(units[1])
                limit(wide, narrow)
        first = grid[row][0]
        first.set_yticks([-i for i in range(len(methods))], [labels.method_label(m) for m in methods])
        first.set_ylabel(labels.benchmark_label(benchmark), weight="bold")
    return figure


def note(axes: Axes, i: int, text: str, at: float = 0.01) -> None:
    """In the place of line `i`, which has no data."""
    axes.text(at, -i, text, transform=axes.get_yaxis_transform(), va="center", color=GREY, size=SMALL)
