"""Ours against the paper: each printed value with our own value of the same cell, if there is one."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from stapo_repro import labels
from stapo_repro.figures.canvas import GREY, Sketch, bare, handle, legend, setting_label, sheet
from stapo_repro.figures.looks import look
from stapo_repro.figures.material import Material, Value
from stapo_repro.paper import COLUMNS
from stapo_results.schema import SETTINGS

_PITCH = 0.145  # inches a line


@dataclass(frozen=True)
class Pair:
    """One cell of the table: the paper's printed value and ours (None: not run), in percent."""

    benchmark: str
    method: str
    paper: float
    ours: Value | None


def cells(material: Material, size: str, setting: str) -> list[Pair]:
    """The paper's cells of one size and setting, benchmark by benchmark, the average last."""
    out = []
    for name in COLUMNS:
        part = tuple(labels.PAPER_BENCHMARKS) if name == labels.AVERAGE else (name,)
        for method in labels.METHODS:
            row = material.paper.get(size, method, setting)
            assert row is not None  # PaperTable holds every method, size and setting
            out.append(Pair(name, method, float(row.values[name]), material.accuracy(size, method, part, setting)))
    return out


def dumbbells(material: Material) -> list[Sketch]:
    """Our values against the paper's: a figure a decoding setting, the three sizes side by side."""
    return [_figure(material, setting) for setting in SETTINGS]


def _figure(material: Material, setting: str) -> Sketch:
    group = material.paper_group()
    title = group.heading(f"Ours against the paper, {setting_label(setting)}")
    each = len(labels.METHODS)
    figure = sheet(title, 1.3 + _PITCH * len(COLUMNS) * (each + 0.7))
    panels = figure.subplots(1, len(labels.PAPER_SIZES), sharey=True)
    run = total = 0
    for axes, (size, label) in zip(panels, labels.PAPER_SIZES.items(), strict=True):
        found = cells(material, size, setting)
        ours = sum(p.ours is not None for p in found)
        run, total = run + ours, total + len(found)
        _draw(axes, found, each)
        axes.set_title(label)
        state = "ours: not run" if not ours else "" if ours == len(found) else f"ours: {ours} of {len(found)} run"
        axes.text(0.98, 1.0, state, transform=axes.transAxes, ha="right", va="top", color=GREY, size=7.5)
        axes.set_xlabel("accuracy (%)")
    middles = [-(i * (each + 0.7) + (each - 1) / 2) for i in range(len(COLUMNS))]
    panels[0].set_yticks(middles, [labels.benchmark_label(c) for c in COLUMNS])
    papers = Line2D([], [], linestyle="none", marker="o", markersize=5, markerfacecolor="white", markeredgecolor=GREY,
                    label="the paper (hollow)")  # fmt: skip
    mine = Line2D([], [], color=GREY, marker="o", markersize=5, label="ours, 95 % interval")
    legend(figure, [*(handle(m, line=False) for m in labels.METHODS), papers, mine])
    state = f"{run} of {total} cells run here" if run else "none has been run here yet"
    what = "Accuracy as printed in the main table (hollow) and our own (filled, with its 95 % interval)"
    caption = (
        f"{group.opening(what)} {setting_label(setting)}. {state[0].upper()}{state[1:]}. "
        f"Source of the printed values: {material.paper.source}."
    )
    name = f"paper_against_ours_{setting.replace('.', '')}"
    return Sketch(name, title, figure, " ".join([caption, *material.remarks(group)]))


def _draw(axes: Axes, found: list[Pair], each: int) -> None:
    for i, p in enumerate(found):
        y, how = -(i % each + i // each * (each + 0.7)), look(p.method)
        if p.ours is not None:
            v = p.ours
            axes.plot([p.paper, v.mean], [y, y], color=how.colour, linewidth=0.8, dashes=(1, 1))
            if v.low is not None and v.high is not None:
                axes.plot([v.low, v.high], [y, y], color=how.colour, linewidth=1.6, solid_capstyle="butt", alpha=0.7)
            axes.plot([v.mean], [y], how.marker, color=how.colour, markersize=4.5, markeredgecolor="white",
                      markeredgewidth=0.4, gid=f"ours-{p.benchmark}-{p.method}", zorder=5)  # fmt: skip
        axes.plot([p.paper], [y], how.marker, markersize=4.8, markerfacecolor="none", markeredgecolor=how.colour,
                  markeredgewidth=0.9, gid=f"paper-{p.benchmark}-{p.method}", zorder=6)  # fmt: skip
    for block in range(1, len(found) // each):
        axes.axhline(-(block * (each + 0.7) - 0.85), color="#DDDDDD", linewidth=0.5)
    bare(axes)
    axes.set_xlim(0, 100)
    axes.set_ylim(-(len(found) // each * (each + 0.7)) + 0.5, 1.6)
