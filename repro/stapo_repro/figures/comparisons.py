"""The forest plot: differences of accuracy between methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from stapo_repro import labels
from stapo_repro.figures import canvas
from stapo_repro.figures.canvas import GREY, SMALL, Sketch
from stapo_repro.figures.experiment import Experiment, Gap, Group, Value
from stapo_results.schema import SETTINGS

_OURS = "stapo"
_PITCH = 0.155  # inches a line


@dataclass(frozen=True)
class ForestLine:
    """One line of the forest plot: `first` minus `second`, whose name and style it has; `printed` is the paper's
    difference where it has one."""

    benchmark: str
    first: str
    second: str
    value: Value | Gap
    printed: float | None


def _pairs(group: Group) -> list[tuple[str, str]]:
    """(first, second) in drawing order."""
    return [(_OURS, m) for m in group.models if m != _OURS]


def forest_lines(experiment: Experiment, group: Group, setting: str) -> list[ForestLine]:
    """All lines of one panel: the benchmarks in order, their average last."""
    size, out = group.sizes[0], []
    for name in (*group.benchmarks, labels.AVERAGE):
        part = group.benchmarks if name == labels.AVERAGE else (name,)
        for first, second in _pairs(group):
            value = experiment.difference(size, first, second, part, setting)
            rows = [r for m in (first, second) if (r := experiment.paper.get(size, m, setting)) and name in r.values]
            printed = float(rows[0].values[name]) - float(rows[1].values[name]) if len(rows) == 2 else None
            out.append(ForestLine(name, first, second, value, printed))
    return out


def forest(experiment: Experiment, group: Group) -> Sketch | None:
    """Paired differences of STAPO to each other method with their intervals, at both decoding settings; None where
    there is nothing to compare."""
    if _OURS not in group.methods:
        return None
    one = labels.method_label(_OURS)
    title = group.heading(f"{one} minus the others")
    blocks, each = len(group.benchmarks) + 1, len(_pairs(group))
    figure = canvas.sheet(title, 1.15 + _PITCH * blocks * (each + 1))
    panels = figure.subplots(1, 2, sharey=True)
    both = [forest_lines(experiment, group, s) for s in SETTINGS]
    for axes, setting, found in zip(panels, SETTINGS, both, strict=True):
        _draw_forest(axes, found, each)
        axes.set_title(canvas.setting_label(setting))
        axes.set_xlabel("difference (percentage points)")
    _names(panels[0], both[0], each)
    printed = any(x.printed is not None for x in both[0])
    if printed:
        mark = canvas.marker_handle("d", "the paper's printed difference", 5)
        figure.legend(handles=[mark], loc="outside lower center")
    what = f"Accuracy of {one} minus that of each other method"
    caption = (
        f"{group.opening(what)} Paired by problem, and by seed where both sides have the same several or one is the "
        "base model; bars are 95 % t intervals for the choice of what is paired, not adjusted for the number of "
        f"comparisons. Right of 0: {one} is better."
    )
    if printed:
        caption += " Hollow diamonds: differences of the paper's printed values."
    return Sketch(f"{group.name}_forest", title, figure, " ".join([caption, *experiment.remarks(group)]))


def _rows(found: Sequence[ForestLine], each: int) -> list[float]:
    """y of every line: a free line above each block holds its name."""
    return [-(i + i // each + 1) for i in range(len(found))]


def _draw_forest(axes: Axes, found: Sequence[ForestLine], each: int) -> None:
    axes.axvline(0, color="black", linewidth=0.8)
    for y, x in zip(_rows(found, each), found, strict=True):
        if isinstance(x.value, Value):
            canvas.interval(axes, x.value.low, x.value.high, y, canvas.method_style(x.second).colour, 1.3)
            canvas.point(axes, x.value.mean, y, x.second, f"difference-{x.benchmark}-{x.second}")
        else:
            axes.text(0.99, y, x.value, transform=axes.get_yaxis_transform(), ha="right", va="center", size=SMALL,
                      color=GREY)  # fmt: skip
        if x.printed is not None:
            axes.plot([x.printed], [y], "d", markersize=5, markerfacecolor="none", markeredgecolor=GREY, zorder=6)
    axes.set_ylim(min(_rows(found, each)) - 0.8, 0.8)
    low, high = axes.get_xlim()
    axes.set_xlim(low, high + 0.15 * (high - low) * any(not isinstance(x.value, Value) for x in found))
    canvas.bare(axes)
    if not any(isinstance(x.value, Value) or x.printed is not None for x in found):
        axes.set(xlim=(-1, 1), xticks=[0])


def _names(axes: Axes, found: Sequence[ForestLine], each: int) -> None:
    rows = _rows(found, each)
    heads = [(rows[i] + 1, labels.benchmark_label(found[i].benchmark)) for i in range(0, len(found), each)]
    ticks = sorted(
        [(y, f"− {labels.method_label(x.second)}", "normal") for y, x in zip(rows, found, strict=True)]
        + [(y, name, "bold") for y, name in heads]
    )
    axes.set_yticks([y for y, _, _ in ticks], [text for _, text, _ in ticks])
    for tick, (_, _, weight) in zip(axes.get_yticklabels(), ticks, strict=True):
        tick.set_fontweight(weight)
