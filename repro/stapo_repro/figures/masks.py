"""The ablation's masks: accuracy as bars with intervals and single seeds."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from stapo_repro import labels
from stapo_repro.figures.canvas import GREY, SMALL, Sketch, bare, legend, setting_label, sheet
from stapo_repro.figures.looks import look
from stapo_repro.figures.material import Group, Material, Value
from stapo_results.schema import SETTINGS


def ablation_bars(material: Material) -> list[Sketch]:
    """Accuracy of each mask with its interval and its seeds, at both decoding settings."""
    return [_bars(material, group) for group in material.groups()]


def _bars(material: Material, group: Group) -> Sketch:
    title = group.heading("Accuracy")
    blocks = [(b, (b,)) for b in group.benchmarks] + [(labels.AVERAGE, group.benchmarks)]
    figure = sheet(title, 3.9)
    grid = figure.subplots(len(SETTINGS), len(blocks), sharey=True)
    for row, setting in enumerate(SETTINGS):
        for column, (name, part) in enumerate(blocks):
            axes = grid[row][column]
            values = {m: material.accuracy(group.sizes[0], m, part, setting) for m in group.methods}
            base = material.accuracy(group.sizes[0], labels.BASE, part, setting)
            _bar_panel(axes, values, base)
            if row == 0:
                axes.set_title(labels.benchmark_label(name))
            else:
                axes.set_xlabel("accuracy (%)")
            if column == 0:
                axes.set_ylabel(setting_label(setting))
                axes.set_yticks([-i for i in range(len(values))], [labels.method_label(m) for m in values])
    base_line = Line2D([], [], color="black", linewidth=0.9, dashes=(1, 1), label="base model")
    dot = Line2D([], [], linestyle="none", marker="o", markersize=3, markerfacecolor="white", markeredgecolor="black",
                 markeredgewidth=0.6, label="one training seed")  # fmt: skip
    legend(figure, [base_line, dot])
    caption = (
        f"{group.opening('Accuracy of the five ways to treat rare tokens of correct responses')} Bars are means over "
        "training seeds, whiskers 95 % t intervals for the choice of problems and of seeds, dots the single seeds, the "
        "dotted line the base model."
    )
    return Sketch(f"{group.name}_bars", title, figure, " ".join([caption, *material.remarks(group)]))


def _bar_panel(axes: Axes, values: dict[str, Value | None], base: Value | None) -> None:
    for i, (method, v) in enumerate(values.items()):
        if v is None:
            axes.annotate("not run", (0, -i), xytext=(3, 0), textcoords="offset points", va="center", color=GREY,
                          size=SMALL)  # fmt: skip
            continue
        axes.barh(-i, v.mean, height=0.66, color=look(method).colour, alpha=0.85, gid=f"bar-{method}")
        if v.low is not None and v.high is not None:
            axes.plot([v.low, v.high], [-i, -i], color="black", linewidth=0.9, solid_capstyle="butt")
            for end in (v.low, v.high):
                axes.plot([end, end], [-i - 0.13, -i + 0.13], color="black", linewidth=0.9)
        if len(v.seeds) > 1:
            axes.plot(v.seeds, [-i - 0.2] * len(v.seeds), "o", markersize=2.6, markerfacecolor="white",
                      markeredgecolor="black", markeredgewidth=0.5, zorder=5)  # fmt: skip
        axes.annotate(f"{v.mean:.1f}", (v.high or v.mean, -i), xytext=(4, 0), textcoords="offset points", va="center",
                      size=SMALL, zorder=6, bbox={"facecolor": "white", "linewidth": 0, "pad": 0.8})  # fmt: skip
    if base is not None:
        axes.axvline(base.mean, color="black", linewidth=0.9, dashes=(1, 1))
    bare(axes)
    axes.set_ylim(-len(values) + 0.45, 0.55)
    axes.set_xlim(0, 1.12 * max([x for v in values.values() if v for x in (v.mean, v.high or 0)], default=1))
    if not any(values.values()):
        axes.set_xticks([])
