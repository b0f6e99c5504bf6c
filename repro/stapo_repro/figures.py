"""The training curves of the miniature and of its ablation, drawn to the same bytes each time."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stapo_repro import labels
from stapo_repro.curves import PANELS, Curve, Panel, by_method, curve
from stapo_repro.records import TrainingRun
from stapo_results.errors import BadInput

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLE = Path(__file__).with_name("stapo.mplstyle")
# Methods also differ in dash and marker, for print in grey
_DASHES: dict[str, tuple] = {
    "grpo": (4, 1.5),
    "entropy20": (1, 1.2),
    "justrl": (6, 1.5, 1, 1.5),
    "justrl-fullmask": (4, 1.5),
    "stapo-high-entropy": (1, 1.2),
    "stapo-random": (3, 1, 1, 1, 1, 1),
    "stapo": (),
}
_MARKERS = {
    "grpo": "s", "entropy20": "^", "justrl": "D", "justrl-fullmask": "s", "stapo-high-entropy": "^",
    "stapo-random": "v", "stapo": "o",
}  # fmt: skip
_OTHER = "#777777"


@dataclass(frozen=True)
class Look:
    """Which curves are one figure: file name, heading, first sentence of the caption, methods in drawing order."""

    name: str
    title: str
    says: str
    methods: tuple[str, ...]


MINIATURE = Look(
    "miniature_training_curves",
    "Training curves (miniature)",
    "Training curves of the miniature: a tiny model on additions, not a result of the paper.",
    tuple(labels.METHODS),
)
ABLATION = Look(
    "ablation_training_curves",
    "Training curves of the ablation (miniature)",
    "Training curves of the ablation in miniature: a tiny model on additions, not a result of the paper.",
    tuple(labels.ABLATION),
)


@dataclass(frozen=True)
class Drawn:
    """A figure in both forms, and what it says of itself."""

    name: str
    files: dict[str, bytes]
    caption: str

    def block(self, folder: str = "results/figures") -> str:
        """The picture with its caption for a page that sees the figures at `folder`."""
        return f"![{self.caption}]({folder}/{self.name}.png)\n\n<sub>{self.caption}</sub>"


def _draw(axes: Axes, panel: Panel, curves: Sequence[Curve], nothing: str) -> None:
    axes.set_title(panel.title)
    axes.set_ylabel(panel.unit)
    for c in curves:  # in the table's order: STAPO last, on top
        colour, dashes = labels.COLOURS.get(c.method, _OTHER), _DASHES.get(c.method, (2, 2))
        sparse = len(c.steps) <= 12
        (line,) = axes.plot(c.steps, c.mean, color=colour, gid=f"{panel.metric}-{c.method}")
        if dashes:
            line.set_dashes(dashes)
        if sparse:
            line.set_marker(_MARKERS.get(c.method, "x"))
            line.set_markersize(4)
            line.set_markeredgecolor("white")
            line.set_markeredgewidth(0.5)
        if c.seeds > 1:
            axes.fill_between(c.steps, c.low, c.high, color=colour, alpha=0.15, linewidth=0)
    if not curves:
        axes.text(0.5, 0.5, nothing, ha="center", va="center", transform=axes.transAxes, color="#777777", size=11)
        axes.set_yticks([])
        axes.grid(visible=False)
    elif panel.metric == "silenced_share":
        _silenced_axis(axes, max(float(c.high.max()) for c in curves))
    elif panel.metric == "entropy":
        axes.set_ylim(0.0, 1.08 * max(float(c.high.max()) for c in curves))


def _silenced_axis(axes: Axes, highest: float) -> None:
    """Zero and five decades on one axis: 20-Entropy leaves out 80 % of the tokens, STAPO some hundredths of a percent.

    Linear from 0 to 0.01 %, logarithmic above.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_yscale("symlog", linthresh=0.01, linscale=0.6)
    axes.set_ylim(-0.001, max(1.0, highest * 1.6))
    axes.yaxis.set_major_locator(FixedLocator([0, 0.01, 0.1, 1, 10, 100]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _legend(figure: Figure, runs: Mapping[str, Sequence[TrainingRun]]) -> None:
    from matplotlib.lines import Line2D

    handles = []
    for method, mine in runs.items():
        state = "" if mine else " (not run)"
        if len(mine) > 1:
            state = f" ({len(mine)} seeds)"
        if mine and any(r.status != "done" for r in mine):
            state += f" ({'; '.join(sorted({r.status for r in mine if r.status != 'done'}))})"
        colour = labels.COLOURS.get(method, _OTHER) if mine else "#BBBBBB"
        handle = Line2D([], [], color=colour, label=labels.method_label(method) + state)
        if dashes := _DASHES.get(method, (2, 2)):
            handle.set_dashes(dashes)
        handle.set_marker(_MARKERS.get(method, "x"))
        handle.set_markersize(4)
        handles.append(handle)
    figure.legend(
        handles=handles, loc="outside lower center", ncols=3 if len(handles) > 4 else len(handles), handlelength=3.2
    )


def _band(seeds: int) -> str:
    """What the band between the lowest and the highest of n independent runs is: P(median inside) = 1 - 2^(1 - n)."""
    return f" (of {seeds} seeds; it holds the median run with a probability of {100 * (1 - 2 ** (1 - seeds)):.0f} %)"


def _caption(text: str, runs: Mapping[str, Sequence[TrainingRun]]) -> str:
    have = {m: r for m, r in runs.items() if r}
    if not have:
        return f"{text} Nothing has been run yet."
    steps = max(s.step for r in have.values() for run in r for s in run.steps)
    text += f" {len(have)} methods, {steps} steps."
    if any(len(r) > 1 for r in have.values()):
        counts = {len(r) for r in have.values()}
        text += " Lines are means over seeds, bands reach from the lowest to the highest seed"
        text += f"{_band(next(iter(counts))) if len(counts) == 1 else ''}."
    if missing := [labels.method_label(m) for m, r in runs.items() if not r]:
        text += f" Not run: {', '.join(missing)}."
    return text


def training_curves(all_runs: Sequence[TrainingRun], look: Look = MINIATURE) -> Drawn:
    """Reward, entropy, silenced share and accuracy of the miniature by training step, one colour a method.

    Returns:
        "svg" and "png" as bytes, without dates.

    Raises:
        BadInput: matplotlib is not installed, or two runs of one method and seed.
    """
    try:
        import matplotlib as mpl
        import matplotlib.style
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator, NullLocator
    except ImportError:
        raise BadInput("figures need matplotlib", found="not installed", next_step="pip install -e .[repro]") from None

    runs = by_method(all_runs, labels.MINI, look.methods)
    with mpl.rc_context():
        mpl.rcdefaults()
        matplotlib.style.use(_STYLE)
        figure = Figure(figsize=(7.0, 4.9), layout="constrained")
        panels = figure.subplots(2, 2, sharex=True).flatten()
        figure.suptitle(look.title, x=0.02, ha="left")
        nothing = "not logged" if any(runs.values()) else "not run"
        for axes, panel in zip(panels, PANELS, strict=True):
            found = [c for mine in runs.values() if mine and (c := curve(mine, panel)) is not None]
            _draw(axes, panel, found, nothing)
            axes.margins(x=0.02)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True) if any(runs.values()) else NullLocator())
        for axes in panels[2:]:
            axes.set_xlabel("training step")
        _legend(figure, runs)
        files = {kind: _save(figure, kind) for kind in ("svg", "png")}
    return Drawn(look.name, files, _caption(look.says, runs))


def _save(figure: Figure, kind: str) -> bytes:
    out = io.BytesIO()
    # no date, no version: a figure changes when its data or its looks change
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    figure.savefig(out, format=kind, metadata=metadata)
    return out.getvalue()
