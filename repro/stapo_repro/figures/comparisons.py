"""Figures that compare accuracies: ours with the paper's, and methods with each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from stapo_repro import labels
from stapo_repro.figures import canvas
from stapo_repro.figures.canvas import GREY, SMALL, Sketch
from stapo_repro.figures.experiment import Experiment, Gap, Group, Value
from stapo_repro.paper import COLUMNS
from stapo_results.schema import SETTINGS

_OURS = "stapo"
_PITCH, _PAPER_PITCH = 0.155, 0.145  # inches a line
_BLOCK = len(labels.METHODS) + 0.7  # lines from one benchmark to the next, beside the paper


@dataclass(frozen=True)
class Pair:
    """One cell of the table: the paper's printed value and ours (None: not run), in percent."""

    benchmark: str
    method: str
    paper: float
    ours: Value | None


def paper_pairs(experiment: Experiment, size: str, setting: str) -> list[Pair]:
    """The paper's cells of one size and setting, benchmark by benchmark, the average last."""
    out = []
    for name in COLUMNS:
        part = tuple(labels.PAPER_BENCHMARKS) if name == labels.AVERAGE else (name,)
        for method in labels.METHODS:
            row = experiment.paper.get(size, method, setting)
            assert row is not None  # PaperTable holds every method, size and setting
            out.append(Pair(name, method, float(row.values[name]), experiment.accuracy(size, method, part, setting)))
    return out


def against_paper(experiment: Experiment) -> list[Sketch]:
    """Our values against the paper's: a figure a decoding setting, the three sizes side by side."""
    return [_against_paper(experiment, setting) for setting in SETTINGS]


def _against_paper(experiment: Experiment, setting: str) -> Sketch:
    group = experiment.paper_group()
    title = group.heading(f"Ours against the paper, {canvas.setting_label(setting)}")
    figure = canvas.sheet(title, 1.3 + _PAPER_PITCH * len(COLUMNS) * _BLOCK)
    panels = figure.subplots(1, len(labels.PAPER_SIZES), sharey=True)
    run = total = 0
    for axes, (size, label) in zip(panels, labels.PAPER_SIZES.items(), strict=True):
        found = paper_pairs(experiment, size, setting)
        ours = sum(p.ours is not None for p in found)
        run, total = run + ours, total + len(found)
        _draw_pairs(axes, found)
        axes.set_title(label)
        state = "ours: not run" if not ours else "" if ours == len(found) else f"ours: {ours} of {len(found)} run"
        axes.text(0.98, 1.0, state, transform=axes.transAxes, ha="right", va="top", color=GREY, size=7.5)
        axes.set_xlabel("accuracy (%)")
    middles = [-(i * _BLOCK + (len(labels.METHODS) - 1) / 2) for i in range(len(COLUMNS))]
    panels[0].set_yticks(middles, [labels.benchmark_label(c) for c in COLUMNS])
    papers = canvas.marker_handle("o", "the paper (hollow)", 5)
    mine = Line2D([], [], color=GREY, marker="o", markersize=5, label="ours, 95 % interval")
    canvas.legend(figure, [*(canvas.handle(m, line=False) for m in labels.METHODS), papers, mine])
    state = f"{run} of {total} cells run here" if run else "none has been run here yet"
    what = "Accuracy as printed in the main table (hollow) and our own (filled, with its 95 % interval)"
    caption = (
        f"{group.opening(what)} {canvas.setting_label(setting)}. {state[0].upper()}{state[1:]}. "
        f"Source of the printed values: {experiment.paper.source}."
    )
    name = f"paper_against_ours_{setting.replace('.', '')}"
    return Sketch(name, title, figure, " ".join([caption, *experiment.remarks(group)]))


def _draw_pairs(axes: Axes, found: list[Pair]) -> None:
    each = len(labels.METHODS)
    for i, p in enumerate(found):
        y, how = -(i % each + i // each * _BLOCK), canvas.method_style(p.method)
        if p.ours is not None:
            axes.plot([p.paper, p.ours.mean], [y, y], color=how.colour, linewidth=0.8, dashes=(1, 1))
            canvas.interval(axes, p.ours.low, p.ours.high, y, how.colour, 1.6, alpha=0.7)
            canvas.point(axes, p.ours.mean, y, p.method, f"ours-{p.benchmark}-{p.method}", edge=0.4)
        axes.plot([p.paper], [y], how.marker, markersize=4.8, markerfacecolor="none", markeredgecolor=how.colour,
                  markeredgewidth=0.9, gid=f"paper-{p.benchmark}-{p.method}", zorder=6)  # fmt: skip
    blocks = len(found) // each
    for block in range(1, blocks):
        axes.axhline(-(block * _BLOCK - 0.85), color="#DDDDDD", linewidth=0.5)
    canvas.bare(axes)
    axes.set(xlim=(0, 100), ylim=(-(blocks * _BLOCK) + 0.5, 1.6))


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
