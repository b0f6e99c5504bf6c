"""Figures of every evaluated model, a panel a benchmark and setting: lengths of responses; rule and judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
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
    number,
    setting_label,
    sheet,
)
from stapo_repro.figures.experiment import Experiment, Group
from stapo_repro.records.reading import Loaded
from stapo_results.schema import SETTINGS, confusion

_PITCH = 0.17  # inches a method
_QUANTILES = ("p5", "p25", "p50", "p75", "p95")
Opinion = Literal["right", "condemned", "rescued", "agreed", "invalid", "unasked"]
# face, hatch, what the legend says: readable in grey, and no method's colour
_OPINIONS: dict[Opinion, tuple[str, str, str]] = {
    "right": ("#F2F2F2", "", "rule: right"),
    "condemned": ("#FFFFFF", "xxxx", "rule: right, judge: wrong"),
    "rescued": ("#000000", "", "rule: wrong, judge: right"),
    "agreed": ("#8C8C8C", "", "rule: wrong, judge: wrong"),
    "invalid": ("#D0D0D0", "////", "rule: wrong, judge: no answer to grade"),
    "unasked": ("#FFFFFF", "....", "rule: wrong, judge not asked"),
}
Draw = Callable[[Axes, Axes, list[str], list[list[Loaded]]], None]


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


def opinions(cells: Sequence[Loaded]) -> dict[Opinion, float] | None:
    """Shares of all samples of the cells (percent) by what rule and judge said; None where no judge was asked."""
    counts: Counter[Opinion] = Counter()
    asked = 0
    for c in cells:
        for rule, row in confusion(c.record).items():
            asked += sum(n for says, n in row.items() if says != "not_asked")
            right = rule == "rule_correct"
            counts["right" if right else "rescued"] += row["correct"]
            counts["condemned" if right else "agreed"] += row["incorrect"]
            counts["condemned" if right else "invalid"] += row["invalid"]
            counts["right" if right else "unasked"] += row["not_asked"]
    return {k: 100 * counts[k] / counts.total() for k in _OPINIONS} if asked else None


def _by_method(
    experiment: Experiment, group: Group, title: str, units: tuple[str, str], draw: Draw,
    limit: Callable[[Axes, Axes], None],
) -> Figure:  # fmt: skip
    """A row of panels a benchmark; for each setting a wide and a narrow one; a line a method.

    Args:
        units: labels of the two axes.
        draw: fills one pair of panels. limit: sets the limits of a finished column.
    """
    size, methods = group.sizes[0], list(group.models)
    # a benchmark's name stands upright: a single line is higher than its pitch
    figure = sheet(title, 1.35 + len(group.benchmarks) * (max(_PITCH * len(methods), 0.55) + 0.22))
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


def _note(axes: Axes, i: int, text: str, at: float = 0.01) -> None:
    """In the place of line `i`, which has no data."""
    axes.text(at, -i, text, transform=axes.get_yaxis_transform(), va="center", color=GREY, size=SMALL)


def length(experiment: Experiment, group: Group) -> Sketch:
    """Response length and truncation of right and wrong responses."""
    title = group.heading("Response length and truncation")
    units = ("response length (tokens)", "truncated (%)")
    figure = _by_method(experiment, group, title, units, _draw_lengths, _length_limits)
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
            _note(wide, i, "not run")
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


def _length_limits(wide: Axes, narrow: Axes) -> None:
    wide.set_xlim(0, 1.05 * wide.get_xlim()[1])
    narrow.set_xlim(0, max(10.0, 1.1 * narrow.get_xlim()[1]))


def judge(experiment: Experiment, group: Group) -> Sketch:
    """What the judge said of the rule's verdicts, and how many of them it would turn."""
    title = group.heading("Rule and judge")
    figure = _by_method(experiment, group, title, ("samples (%)", "turned (%)"), _draw_opinions, _opinion_limits)
    legend(figure, [Patch(facecolor=f, hatch=h, edgecolor=GREY, linewidth=0.5, label=text)
                    for f, h, text in _OPINIONS.values()])  # fmt: skip
    records = [c.record for c in experiment.cells if c.record.cell.size in group.sizes]
    notes = sorted({r.judge_note for r in records if r.judge_note})
    caption = (
        f"{group.opening('What rule and judge say of the same samples')} The judge is asked where the rule says no, "
        "unless the run chose another scope. Narrow panels: samples that the judge turns, to right (bar to the right) "
        "and to wrong (bar to the left), in percent of all samples."
    )
    notes = [f"{n[0].upper()}{n[1:]}{'' if n.endswith('.') else '.'}" for n in notes]
    return Sketch(f"{group.name}_judge", title, figure, " ".join([caption, *notes]))


def _draw_opinions(wide: Axes, narrow: Axes, methods: list[str], cells: list[list[Loaded]]) -> None:
    for i, (method, mine) in enumerate(zip(methods, cells, strict=True)):
        shares = opinions(mine)
        if shares is None:
            why = "judge not asked" if mine else "not run"
            _note(wide, i, why)
            _note(narrow, i, why.removeprefix("judge "), at=0.12)
            continue
        left = 0.0
        for k, (face, hatch, _) in _OPINIONS.items():
            if shares[k]:
                wide.barh(-i, shares[k], left=left, height=0.7, facecolor=face, hatch=hatch, edgecolor=GREY,
                          linewidth=0.4, gid=f"{k}-{method}")  # fmt: skip
                left += shares[k]
        up, down = shares["rescued"], shares["condemned"]
        narrow.barh(-i, up, height=0.6, color="black")
        if down:
            narrow.barh(-i, -down, height=0.6, facecolor="white", hatch="xxxx", edgecolor=GREY, linewidth=0.4)
        number(narrow, up, -i, f"{up:.1f}" + (f" / {down:.1f}" if down else ""), 2)
    narrow.axvline(0, color="black", linewidth=0.6)


def _opinion_limits(wide: Axes, narrow: Axes) -> None:
    wide.set(xlim=(0, 100), xticks=[0, 25, 50, 75])
    low, high = narrow.get_xlim()
    narrow.set_xlim(min(1.15 * low, -0.1), max(1.0, 1.9 * high))  # room for the numbers
