"""Paired differences as a forest plot: STAPO against each baseline, or each mask of the ablation against JustRL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from stapo_repro import labels
from stapo_repro.ablation.build import REFERENCE
from stapo_repro.figures import canvas
from stapo_repro.figures.canvas import GREY, SMALL, Sketch
from stapo_repro.figures.experiment import Experiment, Gap, Group, Value
from stapo_repro.paper import PaperTable
from stapo_results.schema import SETTINGS

OURS = "stapo"
_PITCH = 0.155  # inches a line


@dataclass(frozen=True)
class ForestLine:
    """One line of the plot: `first` minus `second`; `printed` is the paper's difference where it has one.

    `other` is the one of the two that changes from line to line: the line has its name and its style.
    """

    benchmark: str
    first: str
    second: str
    other: str
    value: Value | Gap
    printed: float | None


def pairs(group: Group) -> list[tuple[str, str]]:
    """(first, second) in drawing order."""
    if group.kind == "ablation":
        return [(m, REFERENCE) for m in group.methods if m != REFERENCE]
    return [(OURS, m) for m in (labels.BASE, *group.methods) if m != OURS]


def printed_difference(paper: PaperTable, size: str, first: str, second: str, column: str, setting: str):
    """The paper's printed value of `first` minus that of `second`, in points; None where it prints no such value."""
    rows = [paper.get(size, m, setting) for m in (first, second)]
    if rows[0] is None or rows[1] is None or column not in rows[0].values:
        return None
    return float(rows[0].values[column]) - float(rows[1].values[column])


def lines(experiment: Experiment, group: Group, setting: str) -> list[ForestLine]:
    """All lines of one panel: the benchmarks in order, their average last."""
    size, out = group.sizes[0], []
    for name in (*group.benchmarks, labels.AVERAGE):
        part = group.benchmarks if name == labels.AVERAGE else (name,)
        for first, second in pairs(group):
            value = experiment.difference(size, first, second, part, setting)
            printed = printed_difference(experiment.paper, size, first, second, name, setting)
            other = first if group.kind == "ablation" else second
            out.append(ForestLine(name, first, second, other, value, printed))
    return out


def forest(experiment: Experiment, group: Group) -> Sketch | None:
    """Paired differences with their intervals at both decoding settings; None where there is nothing to compare."""
    masks = group.kind == "ablation"
    if not masks and OURS not in group.methods:
        return None
    one = labels.method_label(REFERENCE if masks else OURS)
    title = group.heading(f"Differences to {one}" if masks else f"{one} minus the others")
    blocks, each = len(group.benchmarks) + 1, len(pairs(group))
    figure = canvas.sheet(title, 1.15 + _PITCH * blocks * (each + 1))
    panels = figure.subplots(1, 2, sharey=True)
    both = [lines(experiment, group, s) for s in SETTINGS]
    for axes, setting, found in zip(panels, SETTINGS, both, strict=True):
        _draw(axes, found, each)
        axes.set_title(canvas.setting_label(setting))
        axes.set_xlabel("difference (percentage points)")
    _names(panels[0], both[0], each)
    printed = any(x.printed is not None for x in both[0])
    if printed:
        mark = canvas.marker_handle("d", "the paper's printed difference", 5)
        figure.legend(handles=[mark], loc="outside lower center")
    what = f"Accuracy of {'each mask' if masks else one} minus that of {one if masks else 'each other method'}"
    caption = (
        f"{group.opening(what)} Paired by problem{' and training seed' if masks else ''}; bars are 95 % t intervals "
        f"for {'problems and seeds' if masks else 'the choice of problems'}, not adjusted for the number of "
        f"comparisons. Right of 0: {'the mask' if masks else one} is better."
    )
    if printed:
        caption += " Hollow diamonds: differences of the paper's printed values."
    return Sketch(f"{group.name}_forest", title, figure, " ".join([caption, *experiment.remarks(group)]))


def _rows(found: Sequence[ForestLine], each: int) -> list[float]:
    """y of every line: a free line above each block holds its name."""
    return [-(i + i // each + 1) for i in range(len(found))]


def _draw(axes: Axes, found: Sequence[ForestLine], each: int) -> None:
    axes.axvline(0, color="black", linewidth=0.8)
    for y, x in zip(_rows(found, each), found, strict=True):
        if isinstance(x.value, Value):
            canvas.interval(axes, x.value.low, x.value.high, y, canvas.method_style(x.other).colour, 1.3)
            canvas.point(axes, x.value.mean, y, x.other, f"difference-{x.benchmark}-{x.other}")
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
        axes.set_xlim(-1, 1)
        axes.set_xticks([0])


def _names(axes: Axes, found: Sequence[ForestLine], each: int) -> None:
    rows = _rows(found, each)
    heads = [(rows[i] + 1, labels.benchmark_label(found[i].benchmark)) for i in range(0, len(found), each)]
    sign = "− " if found[0].other == found[0].second else ""
    ticks = sorted(
        [(y, f"{sign}{labels.method_label(x.other)}", False) for y, x in zip(rows, found, strict=True)]
        + [(y, name, True) for y, name in heads]
    )
    axes.set_yticks([y for y, _, _ in ticks], [text for _, text, _ in ticks])
    for tick, (_, _, bold) in zip(axes.get_yticklabels(), ticks, strict=True):
        tick.set_fontweight("bold" if bold else "normal")
