"""Training curves: reward, entropy, silenced share and accuracy by step; and the share of silenced tokens by itself.

A curve is the mean over seeds with the range between them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from stapo_repro import labels
from stapo_repro.figures.canvas import GREY, Sketch, handle, legend, method_style, nothing, sheet
from stapo_repro.figures.experiment import Experiment, Group
from stapo_repro.read import TrainingRun
from stapo_results.errors import BadInput

MOST_POINTS = 300
"""Points a curve keeps: what is finer than a line's width on paper only makes the file large."""


@dataclass(frozen=True)
class Panel:
    """One panel of a figure: the metric in metrics.jsonl, its heading, the axis label with unit, a factor."""

    metric: str
    title: str
    unit: str
    factor: float = 1.0


@dataclass(frozen=True)
class Curve:
    """One method in one panel: steps (S,), mean over seeds, lowest and highest seed (all (S,)).

    `window`: how many consecutive steps each point is the mean of.
    """

    method: str
    steps: NDArray[np.float64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    seeds: int
    window: int = 1


def windowed(values_RS: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Means of consecutive windows of `width` columns, (R, ceil(S / width)); the last window holds the rest."""
    starts = np.arange(0, values_RS.shape[1], width)
    counts = np.diff([*starts, values_RS.shape[1]])
    return np.add.reduceat(values_RS, starts, axis=1) / counts


def curve(runs: Sequence[TrainingRun], panel: Panel, most: int | None = MOST_POINTS) -> Curve | None:
    """Mean and range over the seeds of one method, at the steps that all seeds have; None when no run has the metric.

    Of more than `most` steps, each point is the mean of as many consecutive ones as bring them below.

    Raises:
        BadInput: two runs of one seed.
    """
    seeds = [r.seed for r in runs]
    if len(set(seeds)) != len(seeds):
        raise BadInput(
            f"two training runs of {runs[0].method} with one seed",
            found=", ".join(f"{r.path} (seed {r.seed})" for r in runs),
            expected="one run a seed",
            next_step="name only one of the folders with --records",
        )
    values = [r.series(panel.metric) for r in runs]
    values = [{k: v * panel.factor for k, v in by_step.items() if math.isfinite(v)} for by_step in values]
    values = [v for v in values if v]
    if not values:
        return None
    steps = sorted(set.intersection(*map(set, values)))
    if not steps:
        return None
    width = 1 if most is None else math.ceil(len(steps) / most)
    at = windowed(np.array([steps], dtype=np.float64), width)[0]
    matrix = windowed(np.array([[v[s] for s in steps] for v in values]), width)
    ends = matrix.min(axis=0), matrix.max(axis=0)
    return Curve(runs[0].method, at, matrix.mean(axis=0), *ends, len(values), width)


PANELS = (
    Panel("reward", "Mean reward", "reward (+1 right, −1 wrong)"),
    Panel("entropy", "Policy entropy", "entropy (nats per token)"),
    Panel("silenced_share", "Silenced tokens", "share of tokens (%), symlog", 100.0),
    Panel("accuracy", "Validation accuracy", "accuracy (%)", 100.0),
)
SILENCED = Panel("silenced_share", "Share of tokens", "share of response tokens (%)", 100.0)
CANDIDATES = Panel("candidate_share", "Candidates", "share of response tokens (%)", 100.0)
THRESHOLD = Panel("threshold", "Entropy threshold", "entropy (nats)")
Runs = Mapping[str, Sequence[TrainingRun]]
_PAPERS_BOUND = 0.01  # percent: "stays below 0.01 %" after warm-up (Section "Quantitative Results")


def line(axes: Axes, c: Curve, name: str, *, colour: str = "", dashed: bool = False) -> None:
    """One method's curve with the range of its seeds; a marker at each point where there are few."""
    how = method_style(c.method)
    colour = colour or how.colour
    (drawn,) = axes.plot(c.steps, c.mean, color=colour, gid=f"{name}-{c.method}")
    if dashed or how.dashes:
        drawn.set_dashes((3, 1.5) if dashed else how.dashes)
    if len(c.steps) > 100:  # noise in broad lines is a smear
        drawn.set_linewidth(1.0)
    if len(c.steps) <= 12:
        drawn.set_marker(how.marker)
        drawn.set_markersize(4)
        drawn.set_markeredgecolor("white")
        drawn.set_markeredgewidth(0.5)
    if c.seeds > 1:
        axes.fill_between(c.steps, c.low, c.high, color=colour, alpha=0.15, linewidth=0)


def _silenced_axis(axes: Axes, highest: float) -> None:
    """Zero and five decades on one axis: 20-Entropy leaves out 80 % of the tokens, STAPO some hundredths of a percent.

    Linear from 0 to 0.01 %, logarithmic above.
    """
    axes.set_yscale("symlog", linthresh=0.01, linscale=0.6)
    axes.set_ylim(-0.001, max(1.0, highest * 1.6))
    axes.yaxis.set_major_locator(FixedLocator([0, 0.01, 0.1, 1, 10, 100]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _curves(runs: Runs, panel: Panel) -> list[Curve]:
    """In the table's order: STAPO is drawn last, on top."""
    return [c for mine in runs.values() if mine and (c := curve(mine, panel)) is not None]


def _lines(axes: Axes, runs: Runs, panel: Panel, found: Sequence[Curve]) -> list[int]:
    """Draws the curves, or says why there are none; returns the windows of their points."""
    for c in found:
        line(axes, c, panel.metric)
    if not found:
        nothing(axes, "not logged" if any(runs.values()) else "not run")
    return [c.window for c in found]


def _handles(runs: Runs) -> list[Line2D]:
    alike = len({len(r) for r in runs.values() if r}) == 1  # then the caption says how many
    out = []
    for method, mine in runs.items():
        state = f" ({len(mine)} seed{'s' if len(mine) > 1 else ''})" if mine and not alike else ""
        if unfinished := sorted({r.status for r in mine if r.status != "done"}):
            state += f" ({'; '.join(unfinished)})"
        out.append(handle(method, state, run=bool(mine)))
    return out


def describe_runs(runs: Runs, windows: Sequence[int] = ()) -> str:
    """Second part of a caption: how many runs, of how many steps; what bands and points are; what was not run."""
    have = {m: r for m, r in runs.items() if r}
    if not have:
        return "Nothing has been run yet."
    steps = max((s.step for r in have.values() for run in r for s in run.steps), default=0)
    text = f"{len(have)} method{'s' if len(have) > 1 else ''}, {steps} steps."
    if any(len(r) > 1 for r in have.values()):
        text += " Lines are means over seeds, bands reach from the lowest to the highest seed"
        if len(counts := {len(r) for r in have.values()}) == 1:
            n = counts.pop()  # the median lies between the lowest and the highest of n runs: P = 1 - 2^(1 - n)
            text += f" (of {n} seeds; it holds the median run with a probability of {100 * (1 - 2 ** (1 - n)):.0f} %)"
        text += "."
    if (widest := max(windows, default=1)) > 1:
        text += f" Each point is the mean of {widest} consecutive steps."
    if missing := [labels.method_label(m) for m, r in runs.items() if not r]:
        text += f" Not run: {', '.join(missing)}."
    return text


def training_curves(experiment: Experiment, group: Group) -> Sketch:
    """Reward, entropy, silenced share and accuracy by training step, one colour a method."""
    runs = experiment.runs_of(group.sizes[0], group.methods)
    title = group.heading("Training curves")
    figure = sheet(title, 4.9)
    panels = figure.subplots(2, 2, sharex=True).flatten()
    windows = []
    for axes, panel in zip(panels, PANELS, strict=True):
        axes.set_title(panel.title)
        axes.set_ylabel(panel.unit)
        found = _curves(runs, panel)
        windows += _lines(axes, runs, panel, found)
        highest = max((float(c.high.max()) for c in found), default=0.0)
        if found and panel.metric == "silenced_share":
            _silenced_axis(axes, highest)
        elif found and panel.metric == "entropy":
            axes.set_ylim(0.0, 1.08 * highest)
        axes.margins(x=0.02)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True) if any(runs.values()) else NullLocator())
    for axes in panels[2:]:
        axes.set_xlabel("training step")
    legend(figure, _handles(runs))
    caption = f"{group.opening('Training curves')} {describe_runs(runs, windows)}"
    return Sketch(f"{group.name}_training_curves", title, figure, caption)


def silenced_share(experiment: Experiment, group: Group) -> Sketch | None:
    """The share of silenced tokens, of the candidates they were chosen from, and the entropy threshold, by step.

    None where no method of the group masks rare tokens.
    """
    methods = [m for m in group.methods if m in labels.RARE_TOKEN_MASKS]
    if not methods:
        return None
    title = group.heading("Silenced tokens")
    figure = sheet(title, 2.7)
    shares, threshold = figure.subplots(1, 2)
    runs = experiment.runs_of(group.sizes[0], methods)
    alone = methods == ["stapo"]
    silenced = _curves(runs, SILENCED)
    for c in _curves(runs, CANDIDATES) if alone and silenced else ():
        line(shares, c, CANDIDATES.metric, colour=GREY, dashed=True)
    # the random mask has a threshold too, in its random keys
    asked = _curves({m: mine for m, mine in runs.items() if m != "stapo-random"}, THRESHOLD)
    windows = _lines(shares, runs, SILENCED, silenced) + _lines(threshold, runs, THRESHOLD, asked)
    for axes, panel, found in ((shares, SILENCED, silenced), (threshold, THRESHOLD, asked)):
        if found:
            axes.set_ylim(bottom=0)
        axes.set_title(panel.title)
        axes.set_xlabel("training step")
        axes.set_ylabel(panel.unit)
    if group.kind == "paper" and any(runs.values()):
        shares.axhline(_PAPERS_BOUND, color="black", linewidth=0.8, dashes=(1, 2))
        shares.annotate("0.01 % (the paper's bound)", (1.0, _PAPERS_BOUND), xycoords=shares.get_yaxis_transform(),
                        xytext=(-2, 2), textcoords="offset points", ha="right", size=6.5, color="black")  # fmt: skip
    handles: list[Artist] = list(_handles(runs))
    if alone and any(runs.values()):
        handles += [Line2D([], [], color=GREY, dashes=(3, 1.5), label="candidates (A > 0, p < τₚ)")]
    legend(figure, handles)
    caption = f"{group.opening('Tokens left out of the loss')} Left: silenced tokens as a share of the response tokens"
    if alone:
        caption += ", dashed the candidates they are chosen from (positive advantage, probability below τₚ)"
    caption += "; right: the entropy below which a candidate is silenced"
    caption += " (above which, by the high-entropy mask). " if "stapo-high-entropy" in methods else ". "
    caption += describe_runs(runs, windows)
    return Sketch(f"{group.name}_silenced_share", title, figure, caption)
