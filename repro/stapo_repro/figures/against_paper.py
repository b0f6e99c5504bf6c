"""Ours against the paper: each printed value with our own value of the same cell, if there is one."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from stapo_repro import labels
from stapo_repro.figures import canvas
from stapo_repro.figures.canvas import GREY, Sketch
from stapo_repro.figures.experiment import Experiment, Value
from stapo_repro.paper import COLUMNS
from stapo_results.schema import SETTINGS

_PITCH = 0.145  # inches a line
_BLOCK = len(labels.METHODS) + 0.7  # lines from one benchmark to the next


@dataclass(frozen=True)
class Pair:
    """One cell of the table: the paper's printed value and ours (None: not run), in percent."""

    benchmark: str
    method: str
    paper: float
    ours: Value | None


def cells(experiment: Experiment, size: str, setting: str) -> list[Pair]:
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
    return [_figure(experiment, setting) for setting in SETTINGS]


def _figure(experiment: Experiment, setting: str) -> Sketch:
    group = experiment.paper_group()
    title = group.heading(f"Ours against the paper, {canvas.setting_label(setting)}")
    figure = canvas.sheet(title, 1.3 + _PITCH * len(COLUMNS) * _BLOCK)
    panels = figure.subplots(1, len(labels.PAPER_SIZES), sharey=True)
    run = total = 0
    for axes, (size, label) in zip(panels, labels.PAPER_SIZES.items(), strict=True):
        found = cells(experiment, size, setting)
        ours = sum(p.ours is not None for p in found)
        run, total = run + ours, total + len(found)
        _draw(axes, found)
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


def _draw(axes: Axes, found: list[Pair]) -> None:
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
    axes.set_xlim(0, 100)
    axes.set_ylim(-(blocks * _BLOCK) + 0.5, 1.6)
