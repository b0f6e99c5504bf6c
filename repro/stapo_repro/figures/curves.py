"""What metrics.jsonl gives: training curves, the share of silenced tokens, the distribution of token entropy.

A curve is the mean over seeds with a band from the lowest to the highest seed, which is no interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from stapo_repro import labels
from stapo_repro.figures.groups import Experiment, Group
from stapo_repro.figures.style import GREY, Sketch, handle, legend, method_style, name_of, nothing, sheet
from stapo_repro.read import TrainingRun
from stapo_results.errors import BadInput

MOST_POINTS = 300
"""Points a curve keeps: what is finer than a line's width on paper only makes the file large."""
SMOOTHED, NOISY = 5, 40  # steps of a running mean of the reward, for trainings of more than so many steps
FLOOR = 1e-5  # nats: entropies of a sure token are 0 or rounding, which a logarithmic axis cannot show
WARM_UP = 10  # steps of the paper (Appendix "Training Details")
_BOUND = 0.01  # percent: "stays below 0.01 %" after warm-up (the paper's figure 6)
_QUANTILE = "token_entropy_q"
_BANDS = (5, 25, 50, 75, 95, 99)


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


Runs = Mapping[str, Sequence[TrainingRun]]
ENTROPY = Panel("entropy", "Policy entropy", "entropy (nats per token)")
REWARD = Panel("reward", "Mean reward", "reward (+1 right, −1 wrong)")
SILENCED = Panel("silenced_share", "Share of tokens", "share of response tokens (%)", 100.0)
CANDIDATES = Panel("candidate_share", "Candidates", "share of response tokens (%)", 100.0)
THRESHOLD = Panel("threshold", "Entropy threshold", "entropy (nats)")
PANELS = (
    REWARD,
    ENTROPY,
    Panel("silenced_share", "Silenced tokens", "share of tokens (%), symlog", 100.0),
    Panel("accuracy", "Validation accuracy", "accuracy (%)", 100.0),
)


def windowed(values_RS: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Means of consecutive windows of `width` columns, (R, ceil(S / width)); the last window holds the rest."""
    starts = np.arange(0, values_RS.shape[1], width)
    counts = np.diff([*starts, values_RS.shape[1]])
    return np.add.reduceat(values_RS, starts, axis=1) / counts


def curve(runs: Sequence[TrainingRun], panel: Panel, most: int | None = MOST_POINTS) -> Curve | None:
    """Mean and range over the seeds of one method, at the steps that all seeds have; None when no run has the metric.

    Of more than `most` steps, each point is the mean of as many consecutive ones as bring them below. Validation keeps
    every point, and so its peak.

    Raises:
        BadInput: two runs of one seed.
    """
    if len({r.seed for r in runs}) != len(runs):
        raise BadInput(
            f"two training runs of {runs[0].method} with one seed",
            found=", ".join(f"{r.path} (seed {r.seed})" for r in runs),
            expected="one run per seed",
            next_step="name only one of the folders with --records",
        )
    values = [r.series(panel.metric) for r in runs]
    values = [{k: v * panel.factor for k, v in by_step.items() if math.isfinite(v)} for by_step in values]
    values = [v for v in values if v]
    steps = sorted(set.intersection(*map(set, values))) if values else []
    if not steps:
        return None
    keeps_all = most is None or panel.metric.startswith("accuracy")
    width = 1 if keeps_all else math.ceil(len(steps) / most)  # type: ignore[operator]
    at = windowed(np.array([steps], dtype=np.float64), width)[0]
    matrix = windowed(np.array([[v[s] for s in steps] for v in values]), width)
    ends = matrix.min(axis=0), matrix.max(axis=0)
    return Curve(runs[0].method, at, matrix.mean(axis=0), *ends, len(values), width)


def smoothed(values_S: NDArray[np.float64], width: int = SMOOTHED) -> NDArray[np.float64]:
    """Centred running means of `width` steps, (S,); at the ends of the steps that there are."""
    ones = np.ones(width)
    return np.convolve(values_S, ones, "same") / np.convolve(np.ones_like(values_S), ones, "same")


def line(axes: Axes, c: Curve, name: str, *, colour: str = "", dashed: bool = False) -> None:
    """One method's curve with the range of its seeds; a marker at each point where there are few. A reward of many
    steps is smoothed: few responses a step make it noise, so its points are drawn beside it in place of the range."""
    how = method_style(c.method)
    colour = colour or how.colour
    if name == THRESHOLD.metric:  # a step without a rare token has none
        c = _broken(c)
        axes.plot(c.steps, c.mean, ".", color=colour, markersize=3)
    noisy = name == REWARD.metric and len(c.steps) > NOISY and c.window == 1
    if noisy:
        axes.plot(c.steps, c.mean, ".", color=colour, markersize=2.5, alpha=0.5, gid=f"points-{c.method}")
    (drawn,) = axes.plot(c.steps, smoothed(c.mean) if noisy else c.mean, color=colour, gid=f"{name}-{c.method}")
    if dashed or how.dashes:
        drawn.set_dashes((3, 1.5) if dashed else how.dashes)
    if len(c.steps) > 100:  # noise in broad lines is a smear
        drawn.set_linewidth(1.0)
    if len(c.steps) <= 12:
        drawn.set(marker=how.marker, markersize=4, markeredgecolor="white", markeredgewidth=0.5)
    if c.seeds > 1 and not noisy:
        axes.fill_between(c.steps, c.low, c.high, color=colour, alpha=0.15, linewidth=0)


def _broken(c: Curve) -> Curve:
    """The curve with a gap where steps are missing."""
    gaps = np.flatnonzero(np.diff(c.steps) > c.window) + 1
    steps, mean, low, high = (np.insert(v.astype(float), gaps, math.nan) for v in (c.steps, c.mean, c.low, c.high))
    return replace(c, steps=steps, mean=mean, low=low, high=high)


def _silenced_axis(axes: Axes, highest: float) -> None:
    """Zero and five decades on one axis: 20-Entropy leaves out 80 % of the tokens, STAPO some hundredths of a percent.

    Linear from 0 to 0.01 %, logarithmic above.
    """
    axes.set_yscale("symlog", linthresh=0.01, linscale=0.6)
    axes.set_ylim(-0.001, max(1.0, highest * 1.6))
    axes.yaxis.set_major_locator(FixedLocator([0, 0.01, 0.1, 1, 10, 100]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _draw(axes: Axes, runs: Runs, panel: Panel) -> list[Curve]:
    """The curves in the table's order (STAPO last, on top), or why there are none."""
    axes.set_title(panel.title)
    axes.set_ylabel(panel.unit)
    axes.set_xlabel("training step")
    axes.margins(x=0.02)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True) if any(runs.values()) else NullLocator())
    found = [replace(c, method=m) for m, mine in runs.items() if mine and (c := curve(mine, panel)) is not None]
    for c in found:
        line(axes, c, panel.metric)
    if not found:
        nothing(axes, "not logged" if any(runs.values()) else "not run")
    return found


def _handles(runs: Runs) -> list[Line2D]:
    alike = len({len(r) for r in runs.values() if r}) == 1  # then the caption says how many
    out = []
    for method, mine in runs.items():
        state = f" ({len(mine)} seed{'s' if len(mine) > 1 else ''})" if mine and not alike else ""
        if unfinished := sorted({r.status for r in mine if r.status != "done"}):
            state += f" ({'; '.join(unfinished)})"
        out.append(handle(method, state, run=bool(mine)))
    return out


def _not_run(runs: Runs) -> tuple[str, ...]:
    return tuple(name_of(m) for m, r in runs.items() if not r)


def describe_runs(runs: Runs, found: Sequence[Curve] = (), bands: bool = True) -> str:
    """Second part of a caption: how many runs, of how many steps; what bands and points are."""
    have = {m: r for m, r in runs.items() if r}
    if not have:
        return "Nothing has been run yet."
    steps = max((s.step for r in have.values() for run in r for s in run.steps), default=0)
    text = f"{len(have)} method{'s' if len(have) > 1 else ''}, {steps} steps."
    if most := max(len(r) for r in have.values()) - 1:
        alike = all(len(r) == most + 1 for r in have.values())
        of = f"of {most + 1} seeds" if alike else "seed, where there are several"
        text += f" Lines: means over seeds.{f' Bands: lowest to highest {of}.' if bands else ''}"
    if (widest := max((c.window for c in found), default=1)) > 1:
        text += f" Each point is the mean of {widest} consecutive steps."
    return text


def training(experiment: Experiment, group: Group, panels: Sequence[Panel] = PANELS, profile: bool = False) -> Sketch:
    """Training curves, one colour per method. `profile`: a further panel with the quantiles of token entropy."""
    runs = experiment.runs_of(group.size, group.methods)
    n = len(panels) + profile
    columns = 2 if n % 2 == 0 else 3
    figure = sheet(0.5 + 2.2 * math.ceil(n / columns))
    every = figure.subplots(math.ceil(n / columns), columns, squeeze=False).flatten()
    drawn: list[Curve] = []
    for axes, panel in zip(every, panels, strict=False):
        found = _draw(axes, runs, panel)
        highest = max((float(c.high.max()) for c in found), default=0.0)
        if found and panel.metric == "silenced_share":
            _silenced_axis(axes, highest)
        elif found and panel.metric == "entropy":
            axes.set_ylim(0.0, 1.08 * highest)
        drawn += found
    missing, more = _not_run(runs), ""
    if profile:
        levels = _profiles(every[-1], runs)
        more = " Last panel: quantiles of token entropy, mean over the last quarter of the steps."
        missing += ("the 80th percentile, which the trainer did not log",) if levels and 80 not in levels else ()
    legend(figure, _handles(runs))
    caption = f"{group.opening('Training curves')} {describe_runs(runs, drawn)}{more}"
    if any(line.get_gid() == f"points-{m}" for axes in every for line in axes.lines for m in runs):
        caption += f" Reward: points are single steps, lines running means over {SMOOTHED} steps."
    return Sketch(f"{group.name}_training_curves", group.heading("Training curves"), figure, caption, missing)


def share_after_warm_up(runs: Sequence[TrainingRun]) -> tuple[float, float] | None:
    """Percent of the response tokens that were silenced after the warm-up, as a mean over its steps and seeds, and
    the percent of these steps below 0.01 %; None where no step has the share."""
    values = [100 * v for r in runs for step, v in r.series(SILENCED.metric).items() if step > WARM_UP]
    return (math.fsum(values) / len(values), 100 * sum(v < _BOUND for v in values) / len(values)) if values else None


def silenced_share(experiment: Experiment, group: Group) -> Sketch | None:
    """Silenced tokens and the entropy threshold by step, of the group's masks over rare tokens; None without one."""
    runs = experiment.runs_of(group.size, [m for m in group.methods if m in labels.RARE_TOKEN_MASKS])
    if not runs:
        return None
    opening, title = group.opening("Tokens left out of the loss"), group.heading("Silenced tokens")
    return _silenced(f"{group.name}_silenced_share", title, opening, runs, group.size in labels.PAPER_SIZES)


def silenced_by_size(experiment: Experiment) -> Sketch:
    """The paper's figure 6: STAPO's silenced tokens, and its entropy threshold, the three sizes together."""
    runs = {size: experiment.runs_of(size, ["stapo"])["stapo"] for size in labels.PAPER_SIZES}
    made_up = any(r.synthetic for mine in runs.values() for r in mine)
    title = f"Silenced tokens by size{', SYNTHETIC RECORDS' if made_up else ''}"
    return _silenced("silenced_by_size", title, "Tokens that STAPO leaves out of the loss.", runs, True)


def _silenced(name: str, title: str, opening: str, runs: Runs, bound: bool) -> Sketch:
    figure = sheet(2.9)
    left, right = figure.subplots(1, 2, sharex=True)
    drawn = _draw(left, runs, SILENCED)
    # the random mask has a threshold too, in its random keys
    drawn += _draw(right, {m: mine for m, mine in runs.items() if m != "stapo-random"}, THRESHOLD)
    handles: list[Artist] = list(_handles(runs))
    caption = (
        f"{opening} Left: share of the response tokens; right, at steps at which every seed has a rare token: the "
    )
    caption += "entropy below which it is silenced"
    caption += " (above which, by the high-entropy mask)." if "stapo-high-entropy" in runs else "."
    if list(runs) == ["stapo"] and (found := curve(runs["stapo"], CANDIDATES)) is not None:
        line(left, found, CANDIDATES.metric, colour=GREY, dashed=True)
        handles += [Line2D([], [], color=GREY, dashes=(3, 1.5), label="candidates (A > 0, p < τₚ)")]
        caption += " Dashed: the candidates that tokens are chosen from."
    if bound and drawn:
        _silenced_axis(left, max(float(c.high.max()) for c in drawn if c.steps is not None))
        left.axhline(_BOUND, color="black", linewidth=0.8, dashes=(1, 2))
        handles += [Line2D([], [], color="black", linewidth=0.8, dashes=(1, 2), label="the paper's bound, 0.01 %")]
    elif drawn:
        left.set_ylim(bottom=0)
    said = {m: after for m, mine in runs.items() if (after := share_after_warm_up(mine)) is not None}
    caption += f" Mean after step {WARM_UP}: " if said else " "
    caption += "; ".join(f"{name_of(m)} {mean:.2g} % (below 0.01 % in {below:.0f} % of the steps)"
                         for m, (mean, below) in said.items()) + ". " * bool(said)  # fmt: skip
    legend(figure, handles)
    return Sketch(name, title, figure, caption + describe_runs(runs, drawn), _not_run(runs))


def quantiles(runs: Sequence[TrainingRun], most: int | None = MOST_POINTS) -> dict[int, Curve]:
    """Percent -> the curve of that quantile of token entropy, in nats, for every quantile that was logged."""
    names = sorted({n for r in runs for s in r.steps for n in s.values if n.startswith(_QUANTILE)})
    found = {int(n.removeprefix(_QUANTILE)): curve(runs, Panel(n, "", ""), most) for n in names}
    return {q: c for q, c in found.items() if c is not None}


def late_profile(runs: Sequence[TrainingRun]) -> dict[int, float]:
    """Percent -> that quantile of token entropy in nats, mean over the last quarter of the steps (4 k > 3 K)."""
    return {q: float(c.mean[4 * c.steps > 3 * c.steps.max()].mean()) for q, c in quantiles(runs, None).items()}


def token_entropy(experiment: Experiment, group: Group) -> Sketch:
    """Quantiles of token entropy by step, one panel per method, and their profile late in training."""
    runs = experiment.runs_of(group.size, group.methods)
    figure = sheet(4.9)
    grid = figure.add_gridspec(2, len(runs))
    shared: Axes | None = None
    drawn: list[Curve] = []
    for i, (method, mine) in enumerate(runs.items()):
        found = quantiles(mine)
        known = set(_BANDS) <= set(found)
        axes = figure.add_subplot(grid[0, i], sharey=shared if known else None)
        axes.set_title(labels.method_label(method).replace(" mask", "\nmask").replace("-FullMask", "-\nFullMask"))
        axes.set_xlabel("training step")
        if not known:
            nothing(axes, "not logged" if mine else "not run")
            continue
        _over_training(axes, method, found)
        drawn += found.values()
        shared = shared or axes
        axes.tick_params(labelleft=shared is axes)
        if shared is axes:
            axes.set_ylabel("token entropy (nats)")
    below = figure.add_subplot(grid[1, :])
    _profiles(below, runs)
    if below.lines:
        below.legend(handles=[handle(m) for m, mine in runs.items() if late_profile(mine)], loc="upper left",
                     handlelength=4.0)  # fmt: skip
    legend(figure, [
        Patch(color=GREY, alpha=0.18, linewidth=0, label="5 % to 95 %"),
        Patch(color=GREY, alpha=0.45, linewidth=0, label="25 % to 75 %"),
        Line2D([], [], color=GREY, label="median"),
        Line2D([], [], color=GREY, dashes=(1, 1), linewidth=1, label="99 %"),
    ])  # fmt: skip
    caption = (
        f"{group.opening('Quantiles of the entropy of a response token')} Above: over training, of the policy that "
        "sampled the step. Below: the same quantiles late in training (mean over the last quarter of the steps). "
        f"Values under {FLOOR:g} nats are drawn at {FLOOR:g}. {describe_runs(runs, drawn, bands=False)}"
    )
    title = group.heading("Token entropy")
    return Sketch(f"{group.name}_token_entropy", title, figure, caption, _not_run(runs))


def _over_training(axes: Axes, method: str, found: Mapping[int, Curve]) -> None:
    colour, steps = method_style(method).colour, found[50].steps
    v = {q: np.maximum(c.mean, FLOOR) for q, c in found.items()}
    axes.fill_between(steps, v[5], v[95], color=colour, alpha=0.18, linewidth=0)
    axes.fill_between(steps, v[25], v[75], color=colour, alpha=0.45, linewidth=0)
    axes.plot(steps, v[50], color=colour, gid=f"median-{method}")
    axes.plot(steps, v[99], color=colour, linewidth=1, dashes=(1, 1))
    axes.set_yscale("log")
    axes.margins(x=0.02)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True, steps=[1, 2, 5, 10]))


def _profiles(axes: Axes, runs: Runs) -> list[int]:
    """Every method's quantiles late in training; returns the percents on the axis."""
    profiles = {m: p for m, mine in runs.items() if (p := late_profile(mine))}
    levels = sorted(set().union(*profiles.values()))
    axes.set_title("Token entropy late in training")
    if not profiles:
        nothing(axes, "not logged" if any(runs.values()) else "not run")
        return levels
    for method, values in profiles.items():
        how = method_style(method)
        (drawn,) = axes.plot([levels.index(q) for q in values], [max(v, FLOOR) for v in values.values()],
                             color=how.colour, marker=how.marker, markersize=4, markeredgecolor="white",
                             markeredgewidth=0.5, gid=f"profile-{method}")  # fmt: skip
        if how.dashes:
            drawn.set_dashes(how.dashes)
    axes.set_yscale("log")
    axes.set_xticks(range(len(levels)), [f"{q} %" for q in levels])
    axes.set_xlabel("quantile of the response tokens")
    axes.set_ylabel("token entropy (nats)")
    return levels
