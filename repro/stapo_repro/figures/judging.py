"""Where rule and judge disagree, and how many samples the judge turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from stapo_repro.figures.by_method import by_method, note
from stapo_repro.figures.canvas import GREY, Sketch, legend, number
from stapo_repro.figures.experiment import Experiment, Group
from stapo_repro.records.reading import Loaded
from stapo_results.schema import confusion

Opinion = Literal["right", "rescued", "agreed", "invalid", "unasked", "condemned"]
# face, hatch, what the legend says: readable in grey, and no method's colour
_OPINIONS: dict[Opinion, tuple[str, str, str]] = {
    "right": ("#F2F2F2", "", "rule: right"),
    "condemned": ("#FFFFFF", "xxxx", "rule: right, judge: wrong"),
    "rescued": ("#000000", "", "rule: wrong, judge: right"),
    "agreed": ("#8C8C8C", "", "rule: wrong, judge: wrong"),
    "invalid": ("#D0D0D0", "////", "rule: wrong, judge: no answer to grade"),
    "unasked": ("#FFFFFF", "....", "rule: wrong, judge not asked"),
}


@dataclass(frozen=True)
class Opinions:
    """Shares of the samples (percent) by what rule and judge said; `asked`: samples that the judge saw."""

    shares: dict[Opinion, float]
    asked: int


def opinions(cells: Sequence[Loaded]) -> Opinions | None:
    """The shares over all samples of the cells; None without a cell or where no judge was asked."""
    counts: Counter[Opinion] = Counter()
    asked = 0
    for c in cells:
        found = confusion(c.record)
        for rule, row in found.items():
            asked += sum(n for says, n in row.items() if says != "not_asked")
            right = rule == "rule_correct"
            counts["right" if right else "rescued"] += row["correct"]
            counts["condemned" if right else "agreed"] += row["incorrect"]
            counts["condemned" if right else "invalid"] += row["invalid"]
            counts["right" if right else "unasked"] += row["not_asked"]
    total = sum(counts.values())
    if not asked or not total:
        return None
    return Opinions({k: 100 * counts[k] / total for k in get_args(Opinion)}, asked)


def judge(experiment: Experiment, group: Group) -> Sketch:
    """What the judge said of the rule's verdicts, and how many of them it would turn."""
    title = group.heading("Rule and judge")
    figure = by_method(experiment, group, title, ("samples (%)", "turned (%)"), _draw_opinions, _opinion_limits)
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
        found = opinions(mine)
        if found is None:
            why = "judge not asked" if mine else "not run"
            note(wide, i, why)
            note(narrow, i, why.removeprefix("judge "), at=0.12)
            continue
        left = 0.0
        for k, (face, hatch, _) in _OPINIONS.items():
            if not found.shares[k]:
                continue
            wide.barh(-i, found.shares[k], left=left, height=0.7, facecolor=face, hatch=hatch, edgecolor=GREY,
                      linewidth=0.4, gid=f"{k}-{method}")  # fmt: skip
            left += found.shares[k]
        up, down = found.shares["rescued"], found.shares["condemned"]
        narrow.barh(-i, up, height=0.6, color="black")
        if down:
            narrow.barh(-i, -down, height=0.6, facecolor="white", hatch="xxxx", edgecolor=GREY, linewidth=0.4)
        number(narrow, up, -i, f"{up:.1f}" + (f" / {down:.1f}" if down else ""), 2)
    narrow.axvline(0, color="black", linewidth=0.6)


def _opinion_limits(wide: Axes, narrow: Axes) -> None:
    wide.set_xlim(0, 100)
    wide.set_xticks([0, 25, 50, 75])
    low, high = narrow.get_xlim()
    narrow.set_xlim(min(1.15 * low, -0.1), max(1.0, 1.9 * high))  # room for the numbers
