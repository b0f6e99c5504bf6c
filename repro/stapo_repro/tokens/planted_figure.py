"""What the masks silence of the miniature's planted words: precision and recall with their intervals."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from stapo_repro.figures.canvas import GREY, Sketch, bare, interval, legend, method_style, number, point, sheet
from stapo_repro.figures.experiment import Experiment, Group
from stapo_repro.tables import percent, shown
from stapo_repro.tokens import planted, planted_runs
from stapo_repro.tokens.shares import Share

# a mask has the style of the method that trains with it
_METHOD = {
    planted.S2T: "stapo",
    planted.FULL: "justrl-fullmask",
    planted.HIGH: "stapo-high-entropy",
    planted.RANDOM: "stapo-random",
}
_PITCH = 0.2  # inches a line


@dataclass(frozen=True)
class MaskLine:
    """One line of the figure; without a mask it is the heading of those that follow. `base`: junk among rare tokens."""

    text: str
    method: str = ""
    measured: planted.Measured | None = None
    base: Share | None = None


def lines(section: planted_runs.PlantedSection) -> list[MaskLine]:
    """The runs as they were trained, then every mask on the same tokens."""
    out = [MaskLine("As trained")]
    out += [MaskLine(t.label, t.method, t.measured, t.base.rare) for t in section.trained]
    for same in section.on_same:
        out.append(MaskLine(same.title))
        masks = same.compared.masks.items()
        out += [MaskLine(planted_runs.SELECTORS[name], _METHOD[name], m, same.base.rare) for name, m in masks]
    return out


def planted_words(experiment: Experiment, group: Group) -> Sketch | None:
    """Precision and recall of each mask; None where no run of the group has a token log with planted words."""
    runs = [r for r in experiment.runs if r.size in group.sizes]
    section = planted_runs.section(runs, group.name)
    if section is None:
        return None
    title, found = group.heading("What the masks silence of the planted words"), lines(section)
    figure = sheet(title, 1.4 + _PITCH * len(found))
    panels = figure.subplots(1, 2, sharey=True)
    for axes, name in zip(panels, ("precision", "recall"), strict=True):
        axes.set_title(name.capitalize())
        _draw(axes, found, name)
    panels[0].set_xlabel("planted words among the silenced tokens (%)")
    panels[1].set_xlabel("silenced share of the planted words (%)")
    panels[0].set_yticks(*zip(*((-i, x.text) for i, x in enumerate(found) if x.measured), strict=True))
    for i, x in enumerate(found):
        if x.measured is None:
            head = panels[0].annotate(x.text, (0, -i), xytext=(3, 0), textcoords="offset points", va="center",
                                      weight="bold", bbox={"facecolor": "white", "linewidth": 0, "pad": 1})  # fmt: skip
            head.set_in_layout(False)  # it may reach into the gap between the panels
    base = Line2D([], [], color="black", linewidth=0.9, label="planted words among all rare tokens")
    legend(figure, [base])
    by_batch = any(t.measured.precision.over == "mini-batches" for t in section.trained)
    batches = ", for masks that reach beyond rare tokens over mini-batches" if by_batch else ""
    caption = (
        f"{group.opening('Tokens that each mask silences in responses with a positive advantage')} The base model was "
        "taught meaningless words; a token counts as planted if and only if it is one of them. Upper part: what each "
        "run silenced; below it, what every mask would silence of the same tokens. Bars are 95 % bootstrap intervals "
        f"over prompts{batches}. Of the random mask the expectation over its draws."
    )
    return Sketch(f"{group.name}_planted", title, figure, caption)


def _draw(axes: Axes, found: list[MaskLine], name: str) -> None:
    for i, x in enumerate(found):
        if x.measured is None:
            continue
        share: Share = getattr(x.measured, name)
        if not x.measured.precision.whole or share.value is None:
            why = "no planted word" if x.measured.precision.whole else "silences none"
            number(axes, 0, -i, why, 3, color=GREY)
            continue
        _point(axes, -i, share, x.method)
        if name == "precision" and x.base is not None and x.base.value is not None:
            axes.plot([100 * x.base.value] * 2, [-i - 0.5, -i + 0.5], color="black", linewidth=0.9, zorder=2)
    bare(axes, len(found))
    axes.set_xlim(0, 119)  # room for the numbers
    axes.set_xticks([0, 25, 50, 75, 100])


def _point(axes: Axes, y: float, share: Share, method: str) -> None:
    assert share.value is not None
    end = 100 * share.value
    if share.low is not None and share.high is not None:
        end = 100 * share.high
        interval(axes, 100 * share.low, end, y, method_style(method).colour, 1.3)
    point(axes, 100 * share.value, y, method, f"planted-{-y:.0f}")
    number(axes, end, y, shown(percent(share.value), 1), 5)
