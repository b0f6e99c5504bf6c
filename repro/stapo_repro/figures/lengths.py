"""Response length and truncation of right and wrong responses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from stapo_repro.figures.by_method import by_method, note
from stapo_repro.figures.canvas import GREY, Sketch, interval, legend, method_style
from stapo_repro.figures.experiment import Experiment, Group
from stapo_repro.records.reading import Loaded


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


VERDICTS = ("correct", "incorrect")
_QUANTILES = ("p5", "p25", "p50", "p75", "p95")


def lengths(cells: Sequence[Loaded]) -> Lengths | None:
    """What the records of one cell of the table say of lengths, over seeds; None without a record."""
    if not cells:
        return None
    records = [c.record for c in cells]
    ended = sum((Counter(r.finish_reasons) for r in records), Counter())
    done = ended["stop"] + ended["length"]
    tokens, cut = {}, {}
    for verdict in VERDICTS:
        found = [r.by_verdict[verdict] for r in records if verdict in r.by_verdict]
        if len(found) == len(records) and all(f.responses for f in found):
            tokens[verdict] = tuple(float(np.mean([f.tokens[q] for f in found])) for q in _QUANTILES)
            cut[verdict] = 100 * sum(f.truncated for f in found) / sum(f.responses for f in found)
    mean = float(np.mean([r.mean_response_tokens for r in records]))
    return Lengths(mean, 100 * ended["length"] / done if done else 0.0, tokens, cut)


def length(experiment: Experiment, group: Group) -> Sketch:
    """Response length and truncation of right and wrong responses."""
    title = group.heading("Response length and truncation")
    units = ("response length (tokens)", "truncated (%)")
    figure = by_method(experiment, group, title, units, _draw_lengths, _length_limits)
    legend(figure, [
        Patch(facecolor=GREY, label="right: middle half, 5 % to 95 %"),
        Patch(facecolor="white", edgecolor=GREY, label="wrong: the same"),
        Line2D([], [], linestyle="none", marker="|", markersize=7, markeredgewidth=1.5, color="black",
               label="all: mean length, share"),
    ])  # fmt: skip
    own = [c.record for c in experiment.cells if c.record.cell.size in group.sizes]
    bare = sum(not r.by_verdict for r in own)
    state = ""
    if bare:
        state = f" {bare} of {len(own)} records were made before lengths were kept by verdict: there, not recorded."
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
            note(wide, i, "not run")
            continue
        colour = method_style(method).colour
        for verdict, y in (("correct", -i + 0.19), ("incorrect", -i - 0.19)):
            if verdict not in found.tokens:
                continue
            any_verdict = True
            p5, p25, p50, p75, p95 = found.tokens[verdict]
            filled = verdict == "correct"
            interval(wide, p5, p95, y, colour, 0.8)
            wide.barh(y, p75 - p25, left=p25, height=0.3, facecolor=colour if filled else "white", edgecolor=colour,
                      linewidth=0.8, gid=f"{verdict}-{method}", zorder=3)  # fmt: skip
            wide.plot([p50, p50], [y - 0.15, y + 0.15], color="white" if filled else colour, linewidth=1, zorder=4)
            narrow.plot([found.cut[verdict]], [y], "o", markersize=3.5, markeredgecolor=colour, markeredgewidth=0.8,
                        markerfacecolor=colour if filled else "white", zorder=4, clip_on=False)  # fmt: skip
        wide.plot([found.mean], [-i], "|", color="black", markersize=8, markeredgewidth=1.2, zorder=5)
        narrow.plot([found.truncated], [-i], "|", color="black", markersize=8, markeredgewidth=1.2, clip_on=False)
    if any(cells) and not any_verdict:
        wide.text(0.02, 0.5, "by verdict:\nnot recorded", transform=wide.transAxes, va="center", color=GREY,
                  size=7.5)  # fmt: skip


def _length_limits(wide: Axes, narrow: Axes) -> None:
    wide.set_xlim(0, 1.05 * wide.get_xlim()[1])
    narrow.set_xlim(0, max(10.0, 1.1 * narrow.get_xlim()[1]))
