"""What metrics.jsonl gives: training curves, the share of silenced tokens, the distribution of token entropy.

A curve is the mean over seeds with a band from the lowest to the highest seed, which is no interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from stapo_repro import labels
from stapo_repro.figures.groups import Group
from stapo_repro.figures.style import SMALL, Sketch, handle, legend, method_style, name_of, nothing, sheet
from stapo_repro.read import TrainingRun
from stapo_results.errors import BadInput

MOST_POINTS = 300
"""Points a curve keeps: what is finer than a line's width on paper only makes the file large."""
SMOOTHED, NOISY = 5, 40  # steps of a running mean of the reward, for trainings of more than so many steps
FLOOR = 1e-5  # nats: entropies of a sure token are 0 or rounding, which a logarithmic axis cannot show
WARM_UP = 10  # steps of the paper (Appendix "Training Details")
_BOUND = 0.01  # percent: "stays below 0.01 %" after warm-up (the paper's figure 6)
_QUANTILE = "token_entropy_q"


class Panel(NamedTuple):
    """One panel of a figure: the metric in metrics.jsonl, its heading, the axis label with unit, a factor."""

    metric: str
    title: str = ""
    unit: str = ""
    factor: float = 1.0


class Curve(NamedTuple):
    """One method in one panel: steps (S,), mean over seeds, lowest and highest seed (all (S,)).

    `window`: how many consecutive steps each point is the mean of.
    """

    steps: NDArray[np.float64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    seeds: int
    window: int = 1


Runs = Mapping[str, Sequence[TrainingRun]]
ENTROPY = Panel("entropy", "Policy entropy", "entropy (nats per token)")
REWARD = Panel("reward", "Mean reward", "reward (+1 right, −1 wrong)")
SILENCED = Panel("silenced_share", "Silenced tokens", "share of response tokens (%)", 100.0)
THRESHOLD = Panel("threshold", "Entropy threshold", "entropy (nats)")
PANELS = (REWARD, ENTROPY, SILENCED, Panel("accuracy", "Validation accuracy", "accuracy (%)", 100.0))
_SHARES = (SILENCED, Panel("candidate_share", "Candidates: A > 0, p < τₚ", SILENCED.unit, 100.0))
_QUANTILES = tuple(Panel(f"{_QUANTILE}{q}", f"{q} % quantile", "token entropy (nats)") for q in (25, 50, 75, 95, 99))
_VALUES = ("mean", "low", "high")
_VALIDATED = ("accuracy", "val-core")


def curve(runs: Sequence[TrainingRun], shown: Panel, most: int | None = MOST_POINTS) -> Curve | None:
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
    values = [{k: v * shown.factor for k, v in r.series(shown.metric).items() if math.isfinite(v)} for r in runs]
    values = [v for v in values if v]
    steps = sorted(set.intersection(*map(set, values))) if values else []
    if not steps:
        return None
    width = 1 if most is None or shown.metric.startswith(_VALIDATED) else math.ceil(len(steps) / most)
    starts = np.arange(0, len(steps), width)
    rows_RS = np.array([steps, *([v[s] for s in steps] for v in values)], dtype=np.float64)
    rows_RW = np.add.reduceat(rows_RS, starts, axis=1) / np.diff(starts, append=len(steps))
    at, matrix = rows_RW[0], rows_RW[1:]
    return Curve(at, matrix.mean(axis=0), matrix.min(axis=0), matrix.max(axis=0), len(values), width)


def smoothed(values_S: NDArray[np.float64], width: int = SMOOTHED) -> NDArray[np.float64]:
    """Centred running means of `width` steps, (S,); at the ends of the steps that there are."""
    ones = np.ones(width)
    return np.convolve(values_S, ones, "same") / np.convolve(np.ones_like(values_S), ones, "same")


def line(axes: Axes, method: str, c: Curve, metric: str, name: str = "") -> Line2D:
    """One method's curve with the range of its seeds, and a gap where steps are missing. A marker at each point where
    there are few.

    A reward of many steps is smoothed: few responses a step make it noise, so its points are drawn beside it in place
    of the range.

    Args:
        name: identifier in the SVG; metric and method by default.
    """
    how, noisy = method_style(method), metric == REWARD.metric and len(c.steps) > NOISY and c.window == 1
    if noisy:
        axes.plot(c.steps, c.mean, ".", color=how.colour, markersize=2.5, alpha=0.5, gid=f"points-{method}")
    mean = smoothed(c.mean) if noisy else c.mean
    # validation has its own pace
    gaps = [] if metric.startswith(_VALIDATED) else np.flatnonzero(np.diff(c.steps) > c.window) + 1
    steps, mean, low, high = (np.insert(v, gaps, math.nan) for v in (c.steps, mean, c.low, c.high))
    if metric == THRESHOLD.metric:  # a step without a rare token has none: points may be alone
        axes.plot(steps, mean, ".", color=how.colour, markersize=3)
    (drawn,) = axes.plot(steps, mean, color=how.colour, gid=name or f"{metric}-{method}")
    if how.dashes:
        drawn.set_dashes(how.dashes)
    if len(steps) > 100:  # noise in broad lines is a smear
        drawn.set_linewidth(1.0)
    if len(steps) <= 12:
        drawn.set(marker=how.marker, markersize=4, markeredgecolor="white", markeredgewidth=0.5)
    if c.seeds > 1 and not noisy:
        axes.fill_between(steps, low, high, color=how.colour, alpha=0.15, linewidth=0)
    return drawn


def panel(axes: Axes, runs: Runs, shown: Panel) -> list[Curve]:
    """The curves in the table's order (STAPO last, on top), or why there are none."""
    axes.set_title(shown.title)
    axes.set_ylabel(shown.unit)
    axes.set_xlabel("training step")
    axes.margins(x=0.02)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True) if any(runs.values()) else NullLocator())
    found = {m: c for m, mine in runs.items() if mine and (c := curve(mine, shown)) is not None}
    if shown == THRESHOLD:
        found.pop("stapo-random", None)  # its threshold is one of its random keys
        axes.set_xlim(0, max((s.step for of in runs.values() for r in of for s in r.steps), default=1))
    if shown in _QUANTILES:
        found = {m: c._replace(**{x: np.maximum(getattr(c, x), FLOOR) for x in _VALUES}) for m, c in found.items()}
        axes.set_yscale("log")
    for method, c in found.items():
        line(axes, method, c, shown.metric)
    highest = max((float(c.high.max()) for c in found.values()), default=0.0)
    if not found:
        nothing(axes, "not logged" if any(runs.values()) else "not run")
    elif shown == ENTROPY:
        axes.set_ylim(0.0, 1.08 * highest)
    elif shown in _SHARES:
        _share_axis(
            axes, highest, shown == SILENCED and any(r.size in labels.PAPER_SIZES for of in runs.values() for r in of)
        )
    return list(found.values())


def _share_axis(axes: Axes, highest: float, bound: bool) -> None:
    """From 0; of large shares, or with the paper's `bound`, symlog: linear to 0.01 %, logarithmic above. 20-Entropy
    leaves out 80 % of the tokens, STAPO some hundredths of a percent."""
    axes.set_ylim(bottom=0)
    if bound:
        axes.axhline(_BOUND, color="black", linewidth=0.8, dashes=(1, 2))
        axes.annotate("the paper: below 0.01 %", (1, _BOUND), xycoords=("axes fraction", "data"), xytext=(0, 2),
                      textcoords="offset points", ha="right", va="bottom", size=SMALL)  # fmt: skip
    if bound or highest > 1:
        axes.set_ylabel("share of tokens (%), symlog")
        axes.set_yscale("symlog", linthresh=0.01, linscale=0.6)
        axes.set_ylim(-0.001, max(1.0, 1.6 * highest))
        axes.yaxis.set_major_locator(FixedLocator([0, 0.01, 0.1, 1, 10, 100]))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def training(
    g: Group, panels: Sequence[Panel] = PANELS, title: str = "Training curves", *, kind: str = "training_curves",
    profile: bool = False, more: str = "", finding: str = "",
) -> Sketch | None:  # fmt: skip
    """Curves of a group's methods, one panel a metric; None of another model that was only evaluated.

    Args:
        profile: a further panel with the quantiles of token entropy late in training.
        more: first sentences of the caption.
        finding: what is seen. Default: where accuracy in validation ends.
    """
    if not g.runs and g.size not in (labels.MINI, *labels.PAPER_SIZES):
        return None
    runs, n = {m: [r for r in g.runs if r.method == m] for m in g.methods}, len(panels) + profile
    columns = 3 if n % 3 == 0 else 2
    figure = sheet(0.5 + 2.2 * math.ceil(n / columns))
    every = figure.subplots(math.ceil(n / columns), columns, squeeze=False).flatten()
    by_panel = {shown.title: panel(axes, runs, shown) for axes, shown in zip(every, panels, strict=False)}
    drawn, empty = [c for of in by_panel.values() for c in of], [title for title, of in by_panel.items() if not of]
    missing = [name_of(m) for m, mine in runs.items() if not mine]
    if profile:
        levels = _profiles(every[-1], runs)
        empty += [] if levels else ["token entropy by quantile"]
        more += "Late in training: mean over the last quarter of the steps. "
        if levels and 80 not in levels and kind == "training_curves":  # the paper's figure 5d
            missing.append("the 80th percentile, which the trainer did not log")
    missing += [f"{title} (not logged)" for title in empty if g.runs]
    numbers = sorted({len(of) for of in runs.values() if of}) or [0]
    handles = []
    for method, mine in runs.items():
        state = f" ({len(mine)} seed{'s' * (len(mine) > 1)})" if mine and len(numbers) > 1 else ""
        unfinished = sorted({r.status for r in mine if r.status != "done"})
        handles.append(handle(method, state + f" ({'; '.join(unfinished)})" * bool(unfinished), run=bool(mine)))
    legend(figure, handles)
    if numbers[-1] > 1:
        more += f"Lines: means over {' to '.join(map(str, dict.fromkeys((numbers[0], numbers[-1]))))} seeds; bands: "
        more += "lowest to highest seed."
    else:
        more += "One seed." if numbers[-1] else "Nothing has been run yet."
    if (widest := max((c.window for c in drawn), default=1)) > 1:
        more += f" Points: means of {widest} steps."
    if any(str(x.get_gid()).startswith("points-") for axes in every for x in axes.lines):
        more += f" Reward: points are single steps, lines running means over {SMOOTHED}."
    return g.sketch(kind, title, figure, more.strip(), missing, finding=finding or _ends(runs, panels))


def _ends(runs: Runs, panels: Sequence[Panel]) -> str:
    """Where accuracy in validation ends: the lowest and the highest method, and whether their seeds overlap. Empty
    while a run is not finished, or where the last steps differ."""
    shown = next((p for p in panels if p.metric.startswith(_VALIDATED)), None)
    found = {m: c for m, mine in runs.items() if shown and mine and (c := curve(mine, shown)) is not None}
    done = all(r.status == "done" for m in found for r in runs[m])
    if len(found) < 2 or not done or len({c.steps[-1] for c in found.values()}) > 1:
        return ""
    order = sorted(found, key=lambda m: found[m].mean[-1])
    (low, worst), (high, best) = ((found[m], name_of(m)) for m in (order[0], order[-1]))
    text = f"Accuracy in validation ends at {low.mean[-1]:.0f} % ({worst}) to {high.mean[-1]:.0f} % ({best})"
    if min(low.seeds, high.seeds) < 2:  # a single accuracy is mostly the draw of its samples
        return (_entropy_ends(runs) if ENTROPY in panels else "") or text
    return text + f"; their seeds {'overlap' if low.high[-1] >= high.low[-1] else 'do not overlap'}"


def _entropy_ends(runs: Runs) -> str:
    """Where entropy goes, from the first to the last of six parts of the steps: the lowest and the highest method.
    Empty unless two methods have it."""
    found = {name_of(m): curve(mine, ENTROPY, most=6) for m, mine in runs.items() if mine}
    ends = {name: (c.mean[0], c.mean[-1]) for name, c in found.items() if c is not None}
    order = sorted(ends, key=lambda name: ends[name][1])
    texts = [f"{name} {ends[name][0]:.2f} to {ends[name][1]:.2f}" for name in (*order[:1], *order[-1:])]
    return f"Entropy: {', '.join(texts)} nats" if len(order) > 1 else ""


def share_after_warm_up(runs: Sequence[TrainingRun]) -> tuple[float, float] | None:
    """Percent of the response tokens that were silenced after the warm-up, as a mean over its steps and seeds, and
    the percent of these steps below 0.01 %; None where no step has the share."""
    values = [100 * v for r in runs for step, v in r.series(SILENCED.metric).items() if step > WARM_UP]
    return (math.fsum(values) / len(values), 100 * sum(v < _BOUND for v in values) / len(values)) if values else None


def silenced_share(g: Group) -> Sketch | None:
    """Silenced tokens, candidates and entropy threshold by step, of the group's masks over rare tokens; None without
    one."""
    g = g.only(*(m for m in g.methods if m in labels.RARE_TOKEN_MASKS or m in labels.PAPER_SIZES))
    said = [f"{name_of(m)} {after[0]:.2g} % (below 0.01 % in {after[1]:.0f} % of the steps)" for m in g.methods
            if (after := share_after_warm_up([r for r in g.runs if r.method == m])) is not None]  # fmt: skip
    more = f"Silenced after step {WARM_UP}: {'; '.join(said)}. " if said else ""
    if not g.methods:
        return None
    return training(
        g, (*_SHARES, THRESHOLD), "Silenced tokens", kind="silenced_share", more=more, finding=more.strip(". ")
    )


def silenced_by_size(of: Sequence[Group]) -> Sketch | None:
    """The paper's figure 6: STAPO's silenced tokens, the three sizes together."""
    runs = [replace(r, method=g.size) for g in of for r in g.runs if r.method == "stapo"]
    return silenced_share(Group("STAPO of three sizes", (), runs, of[0].paper, tuple(labels.PAPER_SIZES)))


def token_entropy(g: Group) -> Sketch | None:
    """Quantiles of token entropy by step, and their profile late in training."""
    more = f"Entropy of a response token; values under {FLOOR:g} nats are drawn at {FLOOR:g}. "
    late = {m: x for m in g.methods if (x := late_profile([r for r in g.runs if r.method == m]).get(75)) is not None}
    finding = ""
    if late:
        lowest, highest = min(late, key=lambda m: late[m]), max(late, key=lambda m: late[m])
        named = " to ".join(f"{late[m]:.2g} ({name_of(m)})" for m in dict.fromkeys((lowest, highest)))
        finding = f"Late in training 75 % of the tokens are below {named} nats"
    return training(g, _QUANTILES, "Token entropy", kind="token_entropy", profile=True, more=more, finding=finding)


def late_profile(runs: Sequence[TrainingRun]) -> dict[int, float]:
    """Percent -> that quantile of token entropy in nats, mean over the last quarter of the steps (4 k > 3 K), for every
    quantile that was logged."""
    names = sorted({n for r in runs for s in r.steps for n in s.values if n.startswith(_QUANTILE)})
    found = {int(n.removeprefix(_QUANTILE)): curve(runs, Panel(n), None) for n in names}
    return {q: float(c.mean[4 * c.steps > 3 * c.steps.max()].mean()) for q, c in found.items() if c is not None}


def _profiles(axes: Axes, runs: Runs) -> list[int]:
    """Every method's quantiles late in training; returns the percents on the axis."""
    profiles = {m: p for m, mine in runs.items() if (p := late_profile(mine))}
    levels = sorted(set().union(*profiles.values()))
    axes.set_title("Late in training")
    for method, values in profiles.items():
        how = method_style(method)
        (drawn,) = axes.plot([levels.index(q) for q in values], [max(v, FLOOR) for v in values.values()],
                             color=how.colour, marker=how.marker, markersize=4, markeredgecolor="white",
                             markeredgewidth=0.5, gid=f"profile-{method}")  # fmt: skip
        if how.dashes:
            drawn.set_dashes(how.dashes)
    if not profiles:
        nothing(axes, "not logged" if any(runs.values()) else "not run")
        return levels
    axes.set(yscale="log", xlabel="quantile of tokens (%)", ylabel="token entropy (nats)")
    axes.set_xticks(range(len(levels)), [str(q) for q in levels])
    return levels
