"""What the masks silence of the miniature's planted words: precision and recall with their intervals."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from stapo_repro.figures.canvas import GREY, Sketch, bare, interval, legend, method_style, number, point, sheet
from stapo_repro.figures.experiment import Experiment, Group
from stapo_repro.text import percent, shown
from stapo_repro.tokens import planted
from stapo_repro.tokens.planted import Measured
from stapo_repro.tokens.planted_page import SELECTORS, PlantedSection, section
from stapo_repro.tokens.shares import Share

_PITCH = 0.2  # inches a line

MaskLine = tuple[str, str, Measured | None, Share | None]
"""(text, method, what its mask silences, junk among rare tokens); without the last three a heading."""


def _lines(found: PlantedSection) -> list[MaskLine]:
    """The runs as they were trained, then every mask on the same tokens."""
    out: list[MaskLine] = [("As trained", "", None, None)]
    out += [(t.label, t.method, t.measured, t.base.rare) for t in found.trained]
    for same in found.on_same:
        out.append((same.title, "", None, None))
        masks = same.compared.masks.items()
        out += [(SELECTORS[name], planted.METHODS[name], m, same.base.rare) for name, m in masks]
    return out


def planted_words(experiment: Experiment, group: Group) -> Sketch | None:
    """Precision and recall of each mask; None where no run of the group has a token log with planted words."""
    measured = section([r for r in experiment.runs if r.size in group.sizes], group.name)
    if measured is None:
        return None
    title, found = group.heading("What the masks silence of the planted words"), _lines(measured)
    figure = sheet(title, 1.4 + _PITCH * len(found))
    panels = figure.subplots(1, 2, sharey=True)
    for axes, name in zip(panels, ("precision", "recall"), strict=True):
        axes.set_title(name.capitalize())
        _draw(axes, found, name)
    panels[0].set_xlabel("planted words among the silenced tokens (%)")
    panels[1].set_xlabel("silenced share of the planted words (%)")
    panels[0].set_yticks(*zip(*((-i, text) for i, (text, _, m, _) in enumerate(found) if m), strict=True))
    for i, (text, _, m, _) in enumerate(found):
        if m is None:
            head = panels[0].annotate(text, (0, -i), xytext=(3, 0), textcoords="offset points", va="center",
                                      weight="bold", bbox={"facecolor": "white", "linewidth": 0, "pad": 1})  # fmt: skip
            head.set_in_layout(False)  # it may reach into the gap between the panels
    legend(figure, [Line2D([], [], color="black", linewidth=0.9, label="planted words among all rare tokens")])
    by_batch = any(t.measured.precision.over == "mini-batches" for t in measured.trained)
    batches = ", for masks that reach beyond rare tokens over mini-batches" if by_batch else ""
    caption = (
        f"{group.opening('Tokens that each mask silences in responses with a positive advantage')} The base model was "
        "taught meaningless words; a token counts as planted if and only if it is one of them. Upper part: what each "
        "run silenced; below it, what every mask would silence of the same tokens. Bars are 95 % bootstrap intervals "
        f"over prompts{batches}. Of the random mask the expectation over its draws."
    )
    return Sketch(f"{group.name}_planted", title, figure, caption)


def _draw(axes: Axes, found: list[MaskLine], name: str) -> None:
    for i, (_, method, m, base) in enumerate(found):
        if m is None:
            continue
        share: Share = getattr(m, name)
        if not m.precision.whole or share.value is None:
            why = "no planted word" if m.precision.whole else "silences none"
            number(axes, 0, -i, why, 3, color=GREY)
            continue
        end = 100 * share.value
        if share.low is not None and share.high is not None:
            end = 100 * share.high
            interval(axes, 100 * share.low, end, -i, method_style(method).colour, 1.3)
        point(axes, 100 * share.value, -i, method, f"planted-{i}")
        number(axes, end, -i, shown(percent(share.value), 1), 5)
        if name == "precision" and base is not None and base.value is not None:
            axes.plot([100 * base.value] * 2, [-i - 0.5, -i + 0.5], color="black", linewidth=0.9, zorder=2)
    bare(axes, len(found))
    axes.set_xlim(0, 119)  # room for the numbers
    axes.set_xticks([0, 25, 50, 75, 100])
