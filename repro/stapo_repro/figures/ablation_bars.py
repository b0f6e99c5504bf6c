"""The ablation's masks: accuracy as bars with intervals and single seeds."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from stapo_repro import labels
from stapo_repro.figures import canvas
from stapo_repro.figures.canvas import GREY, Sketch
from stapo_repro.figures.experiment import Experiment, Group, Value
from stapo_results.schema import SETTINGS


def ablation_bars(experiment: Experiment, group: Group) -> Sketch:
    """Accuracy of each mask with its interval and its seeds, at both decoding settings."""
    title = group.heading("Accuracy")
    blocks = [(b, (b,)) for b in group.benchmarks] + [(labels.AVERAGE, group.benchmarks)]
    figure = canvas.sheet(title, 3.9)
    grid = figure.subplots(len(SETTINGS), len(blocks), sharey=True)
    for row, setting in enumerate(SETTINGS):
        for column, (name, part) in enumerate(blocks):
            axes = grid[row][column]
            values = {m: experiment.accuracy(group.sizes[0], m, part, setting) for m in group.methods}
            _panel(axes, values, experiment.accuracy(group.sizes[0], labels.BASE, part, setting))
            if row == 0:
                axes.set_title(labels.benchmark_label(name))
            else:
                axes.set_xlabel("accuracy (%)")
            if column == 0:
                axes.set_ylabel(canvas.setting_label(setting))
                axes.set_yticks([-i for i in range(len(values))], [labels.method_label(m) for m in values])
    base_line = Line2D([], [], color="black", linewidth=0.9, dashes=(1, 1), label="base model")
    dot = canvas.marker_handle("o", "one training seed", 3, "black", markeredgewidth=0.6)
    canvas.legend(figure, [base_line, dot])
    caption = (
        f"{group.opening('Accuracy of the five ways to treat rare tokens of correct responses')} Bars are means over "
        "training seeds, whiskers 95 % t intervals for the choice of problems and of seeds, dots the single seeds, the "
        "dotted line the base model."
    )
    return Sketch(f"{group.name}_bars", title, figure, " ".join([caption, *experiment.remarks(group)]))


def _panel(axes: Axes, values: dict[str, Value | None], base: Value | None) -> None:
    for i, (method, v) in enumerate(values.items()):
        if v is None:
            canvas.number(axes, 0, -i, "not run", 3, color=GREY)
            continue
        axes.barh(-i, v.mean, height=0.66, color=canvas.method_style(method).colour, alpha=0.85, gid=f"bar-{method}")
        canvas.interval(axes, v.low, v.high, -i, "black", 0.9)
        for end in (v.low, v.high):
            if end is not None:
                axes.plot([end, end], [-i - 0.13, -i + 0.13], color="black", linewidth=0.9)
        if len(v.seeds) > 1:
            axes.plot(v.seeds, [-i - 0.2] * len(v.seeds), "o", markersize=2.6, markerfacecolor="white",
                      markeredgecolor="black", markeredgewidth=0.5, zorder=5)  # fmt: skip
        white = {"facecolor": "white", "linewidth": 0, "pad": 0.8}
        canvas.number(axes, v.high or v.mean, -i, f"{v.mean:.1f}", 4, zorder=6, bbox=white)
    if base is not None:
        axes.axvline(base.mean, color="black", linewidth=0.9, dashes=(1, 1))
    canvas.bare(axes, len(values), 0.45)
    axes.set_xlim(0, 1.12 * max([x for v in values.values() if v for x in (v.mean, v.high or 0)], default=1))
    if not any(values.values()):
        axes.set_xticks([])
