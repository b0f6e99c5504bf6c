"""Lengths of the responses of every evaluated model, a panel a benchmark and setting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from stapo_repro import labels
from stapo_repro.figures.canvas import (
    GREY,
    SMALL,
    Sketch,
    bare,
    interval,
    legend,
    method_style,
    setting_label,
    sheet,
)
from stapo_repro.figures.experiment import Experiment, Group
from stapo_repro.read import Loaded
from stapo_results.schema import SETTINGS

_PITCH = 0.17  # inches a method
_QUANTILES = ("p5", "p25", "p50", "p75", "p95")


@dataclass(frozen=True)
class Lengths:
    """Response lengths of one method in one benchmark and setting.

    Attributes:
        mean: tokens, all responses.
        truncated: percent of all responses.
        tokens: verdict -> quantiles p5, p25, p50, p75, p95 (mean over seeds); empty where the records have none.
        cut: verdict -> percent of its responses that were truncated.
    """

    mean: float
    truncated: float
    tokens: dict[str, tuple[float, ...]]
    cut: dict[str, float]


def lengths(cells: Sequence[Loaded]) -> Lengths | None:
    """What the records of one cell of the table say of lengths, over seeds; None without a record."""
    if not cells:
        return None
    records = [c.record for c in cells]
    ended = sum((Counter(r.finish_reasons) for r in records), Counter())
    done = ended["stop"] + ended["length"]
    tokens, cut = {}, {}
    for verdict in ("correct", "incorrect"):
        found = [r.by_verdict[verdict] for r in records if verdict in r.by_verdict]
        if len(found) == len(records) and all(f.responses for f in found):
            tokens[verdict] = tuple(float(np.mean([f.tokens[q] for f in found])) for q in _QUANTILES)
            cut[verdict] = 100 * sum(f.truncated for f in found) / sum(f.responses for f in found)
    mean = float(np.mean([r.mean_response_tokens for r in records]))
    return Lengths(mean, 100 * ended["length"] / done if done else 0.0, tokens, cut)


def length(experiment: Experiment, group: Group) -> Sketch:
    """Response length and truncation of right and wrong responses: a row of panels a benchmark, a line a method."""
    title = group.heading("Response length and truncation")
    size, methods = group.sizes[0], list(group.models)
    # a benchmark's name stands upright: a single line is higher than its pitch
    figure = sheet(title, 1.35 + len(group.benchmarks) * (max(_PITCH * len(methods), 0.55) + 0.22))
    grid = figure.subplots(len(group.benchmarks), 4, width_ratios=(3, 1.3) * 2, sharey="row", sharex="col",
                           squeeze=False)  # fmt: skip
    for row, benchmark in enumerate(group.benchmarks):
        for k, setting in enumerate(SETTINGS):
            wide, narrow = grid[row][2 * k : 2 * k + 2]
            _draw_lengths(wide, narrow, methods, [experiment.cells_of(size, m, benchmark, setting) for m in methods])
            for axes in (wide, narrow):
                bare(axes, len(methods))
            if row == 0:
                wide.set_title(setting_label(setting))
            if row == len(group.benchmarks) - 1:
                wide.set_xlabel("response length (tokens)")
                narrow.set_xlabel("truncated (%)")
                wide.set_xlim(0, 1.05 * wide.get_xlim()[1])
                narrow.set_xlim(0, max(10.0, 1.1 * narrow.get_xlim()[1]))
        first = grid[row][0]
        first.set_yticks([-i for i in range(len(methods))], [labels.method_label(m) for m in methods])
        first.set_ylabel(labels.benchmark_label(benchmark), weight="bold")
    legend(figure, [
        Patch(facecolor=GREY, label="right: middle half, 5 % to 95 %"),
        Patch(facecolor="white", edgecolor=GREY, label="wrong: the same"),
        Line2D([], [], linestyle="none", marker="|", markersize=7, markeredgewidth=1.5, color="black",
               label="all: mean length, share"),
    ])  # fmt: skip
    own = [c.record for c in experiment.cells if c.record.cell.size in group.sizes]
    state = ""
    if without := sum(not r.by_verdict for r in own):
        state = f" {without} of {len(own)} records were made before lengths were kept by verdict: there, not recorded."
    caption = (
        f"{group.opening('Length of the responses and share of truncated ones, by verdict')} Boxes: the middle half, "
        "with the median; lines: 5 % to 95 %; filled the right responses, hollow the wrong ones. Ticks: all responses."
        f"{state}"
    )
    return Sketch(f"{group.name}_lengths", title, figure, " ".join([caption, *experiment.remarks(group)]))


def _draw_lengths(wide: Axes, narrow: Axes, methods: list[str], cells: list[list[Loaded]]) -> None:
    any_verdict = False
    for i, (method, mine) in enumerate(zip(methods, cells, strict=True)):
        found = lengths(mine)
        if found is None:
            wide.text(0.01, -i, "not run", transform=wide.get_yaxis_transform(), va="center", color=GREY, size=SMALL)
            continue
        colour = method_style(method).colour
        for verdict, (p5, p25, p50, p75, p95) in found.tokens.items():
            any_verdict = True
            filled = verdict == "correct"
            y = -i + (0.19 if filled else -0.19)
            interval(wide, p5, p95, y, colour, 0.8)
            wide.barh(y, p75 - p25, left=p25, height=0.3, facecolor=colour if filled else "white", edgecolor=colour,
                      linewidth=0.8, gid=f"{verdict}-{method}", zorder=3)  # fmt: skip
            wide.plot([p50, p50], [y - 0.15, y + 0.15], zorder=4, linewidth=1,
                      color="white" if filled and p75 > p25 else colour)  # fmt: skip
            narrow.plot([found.cut[verdict]], [y], "o", markersize=3.5, markeredgecolor=colour, markeredgewidth=0.8,
                        markerfacecolor=colour if filled else "white", zorder=4, clip_on=False)  # fmt: skip
        wide.plot([found.mean], [-i], "|", color="black", markersize=8, markeredgewidth=1.2, zorder=5)
        narrow.plot([found.truncated], [-i], "|", color="black", markersize=8, markeredgewidth=1.2, clip_on=False)
    if any(cells) and not any_verdict:
        wide.text(0.02, 0.5, "by verdict:\nnot recorded", transform=wide.transAxes, va="center", color=GREY, size=7.5)
