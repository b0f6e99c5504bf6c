"""What metrics.jsonl gives: training curves, the share of silenced tokens, the distribution of token entropy.

A curve is the mean over seeds with a band from the lowest to the highest seed, which is no interval.
"""

from __future__ import annotations

import math
from collections import defaultdict
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
from stapo_repro.read import TrainingRun, check_seeds, logged

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

    def floored(self) -> Curve:
        """The same on a logarithmic axis, which cannot show less than `FLOOR`."""
        mean, low, high = (np.maximum(values, FLOOR) for values in (self.mean, self.low, self.high))
        return self._replace(mean=mean, low=low, high=high)


Runs = Mapping[str, Sequence[TrainingRun]]
ENTROPY = Panel("token_entropy_mean", "Policy entropy", "entropy (nats per token)")
REWARD = Panel("reward", "Mean reward", "reward (+1 right, −1 wrong)")
SILENCED = Panel("silenced_share", "Silenced tokens", "of response tokens (%)", 100.0)
THRESHOLD = Panel("threshold", "Entropy threshold", "entropy (nats)")
PANELS = (REWARD, ENTROPY, SILENCED, Panel("accuracy", "Validation accuracy", "accuracy (%)", 100.0))
_SHARES = (SILENCED, Panel("candidate_share", "Candidates: A > 0, p < τₚ", SILENCED.unit, 100.0))
_QUANTILES = tuple(Panel(f"{_QUANTILE}{q}", f"{q} % quantile", "token entropy (nats)") for q in (25, 50, 75, 95, 99))
_VALIDATED = ("accuracy", "val-")


def curve(runs: Sequence[TrainingRun], shown: Panel, most: int | None = MOST_POINTS) -> Curve | None:
    """Mean and range over the seeds of one method, at the steps that all seeds have; None when no run has the metric.
    A threshold is missing at a step without a rare token: there it is that of the seeds that have one.

    Of more than `most` steps, each point is the mean of as many consecutive ones as bring them below. Validation keeps
    every point, and so its peak.

    Raises:
        BadInput: two runs of one seed.
    """
    check_seeds(runs)
    values = []
    for r in runs:
        series = {k: v * shown.factor for k, v in r.series(shown.metric).items() if math.isfinite(v)}
        values += [series] if series else []
    of_seeds = map(set, values)
    steps = sorted((set.union if shown == THRESHOLD else set.intersection)(*of_seeds)) if values else []
    if not steps:
        return None
    width = 1 if most is None or shown.metric.startswith(_VALIDATED) else math.ceil(len(steps) / most)
    starts = np.arange(0, len(steps) - width // 2, width)  # a short rest belongs to the window before it
    rows_RS = np.array([steps, *([v.get(s, math.nan) for s in steps] for v in values)], dtype=np.float64)
    sums, counts = (np.add.reduceat(x, starts, axis=1) for x in (np.nan_to_num(rows_RS), np.isfinite(rows_RS) * 1.0))
    rows_RW = np.divide(sums, counts, out=np.full_like(sums, math.nan), where=counts > 0)
    at, matrix = rows_RW[0], rows_RW[1:]
    low, high = np.nanmin(matrix, axis=0), np.nanmax(matrix, axis=0)
    return Curve(at, np.nanmean(matrix, axis=0), low, high, len(values), width)


def curves_of(runs: Runs, shown: Panel, most: int = MOST_POINTS) -> dict[str, Curve]:
    """Of the methods that have the metric."""
    every = {method: curve(of_method, shown, most) for method, of_method in runs.items()}
    return {method: c for method, c in every.items() if c is not None}


def _is_noisy(c: Curve, metric: str) -> bool:
    """A reward of many steps: few responses a step make it noise."""
    return metric == REWARD.metric and len(c.steps) > NOISY and c.window == 1


def smoothed(values_S: NDArray[np.float64], width: int = SMOOTHED) -> NDArray[np.float64]:
    """Centred running means of `width` steps, (S,); at the ends of the steps that there are."""
    ones = np.ones(width)
    return np.convolve(values_S, ones, "same") / np.convolve(np.ones_like(values_S), ones, "same")


def line(axes: Axes, method: str, c: Curve, metric: str, name: str = "") -> Line2D:
    """One method's curve with the range of its seeds, and a gap where steps are missing. A marker at each point where
    there are few. A noisy reward is smoothed, and its points are drawn beside it in place of the range.

    Args:
        name: identifier in the SVG; metric and method by default.
    """
    how, noisy, mean = method_style(method), _is_noisy(c, metric), c.mean
    if noisy:
        axes.plot(c.steps, mean, ".", color=how.colour, markersize=2.5, alpha=0.5, gid=f"points-{method}")
        mean = smoothed(mean)
    pace = np.diff(c.steps)  # validation, and what is logged now and then, has its own
    gaps = np.flatnonzero(pace >= 1.5 * max(c.window, *np.quantile(pace, [0.5]))) + 1 if len(pace) else []
    gaps = [] if metric.startswith(_VALIDATED) else gaps
    steps, mean, low, high = (np.insert(v, gaps, math.nan) for v in (c.steps, mean, c.low, c.high))
    padded = np.concatenate([[math.nan], mean, [math.nan]])
    alone = ~np.isnan(mean) & np.isnan(padded[:-2]) & np.isnan(padded[2:]) & (len(steps) > 12)
    if metric == THRESHOLD.metric or alone.any():  # a line does not show a point between two gaps
        axes.plot(
            steps, np.where(alone | (metric == THRESHOLD.metric), mean, math.nan), ".", color=how.colour, markersize=3
        )
    gid = name or f"{metric}-{method}"
    (drawn,) = axes.plot(steps, mean, color=how.colour, linestyle=how.line, gid=gid)
    if len(steps) > 100:  # noise in broad lines is a smear
        drawn.set_linewidth(1.0)
    if len(steps) <= 12:
        drawn.set(marker=how.marker, markersize=4, markeredgecolor="white", markeredgewidth=0.5)
    if c.seeds > 1 and not noisy:
        axes.fill_between(steps, low, high, color=how.colour, alpha=0.15, linewidth=0)
    return drawn


def _absent(runs: Sequence[TrainingRun], shown: Panel) -> str:
    """Why there is no curve."""
    return "no step that all seeds have" if any(r.series(shown.metric) for r in runs) else "not logged"


def panel(axes: Axes, runs: Runs, shown: Panel) -> list[Curve]:
    """The curves in the table's order (STAPO last, on top), or why there are none."""
    every = [r for of_method in runs.values() for r in of_method]
    axes.set_title(shown.title)
    axes.set_ylabel(shown.unit)
    axes.set_xlabel("training step")
    axes.margins(x=0.02)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True) if every else NullLocator())
    drawn = curves_of(runs, shown)
    if shown == THRESHOLD:
        drawn.pop("stapo-random", None)  # its threshold is one of its random keys
        last = max([r.last for r in every], default=1)
        axes.set_xlim(1 - 0.02 * last, 1.02 * last)  # as the other panels, whatever steps have one
    if shown in _QUANTILES:
        drawn = {method: c.floored() for method, c in drawn.items()}
        axes.set_yscale("log")
    for method, c in drawn.items():
        line(axes, method, c, shown.metric)
    highest = max((float(c.high.max()) for c in drawn.values()), default=0.0)
    if not drawn:
        nothing(axes, _absent(every, shown) if every else "not run")
    elif shown == ENTROPY:
        axes.set_ylim(0.0, 1.08 * highest)
    elif shown in _SHARES:
        papers = any(r.size in labels.PAPER_SIZES for r in every)
        _share_axis(axes, highest, papers and shown == SILENCED)
    return list(drawn.values())


def _share_axis(axes: Axes, highest: float, bound: bool) -> None:
    """From 0; of large shares, or with the paper's `bound`, symlog: linear to 0.01 %, logarithmic above. 20-Entropy
    leaves out 80 % of the tokens, STAPO some hundredths of a percent."""
    axes.set_ylim(bottom=0)
    if bound:
        axes.axhline(_BOUND, color="black", linewidth=0.8, dashes=(1, 2))
        axes.annotate("the paper: below 0.01 %", (1, _BOUND), xycoords=("axes fraction", "data"), xytext=(0, 2),
                      textcoords="offset points", ha="right", va="bottom", size=SMALL)  # fmt: skip
    if bound or highest > 1:
        axes.set_ylabel(f"{SILENCED.unit}, symlog")
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
    runs, count = {m: g.runs_of(m) for m in g.methods}, len(panels) + profile
    whole = _to_the_end(runs)
    columns = 3 if count % 3 == 0 else 2
    rows = math.ceil(count / columns)
    figure = sheet(0.5 + 2.2 * rows)
    every = figure.subplots(rows, columns, squeeze=False).flatten()
    missing = [name_of(m) for m, of_method in runs.items() if not of_method]
    empty, widest, smooth, fewer = list[str](), 1, False, set[str]()
    for axes, shown in zip(every, panels, strict=False):
        drawn = panel(axes, runs, shown)
        widest = max([widest, *(c.window for c in drawn)])
        fewer |= {shown.title for m, c in curves_of(runs, shown).items() if c.seeds < len(runs[m])}
        smooth = smooth or any(_is_noisy(c, shown.metric) for c in drawn)
        empty += [] if drawn else [f"{shown.title} ({_absent(g.runs, shown)})"]
    if profile:
        levels = _profiles(every[-1], whole)
        empty += [] if levels else ["token entropy by quantile (not logged)"]
        more += "Late in training: mean over the last quarter of the steps. "
        if levels and 80 not in levels and kind == "training_curves":  # the paper's figure 5d
            missing.append("the 80th percentile, which the trainer did not log")
    if g.runs:
        missing += empty
    counts = sorted({len(of_method) for of_method in runs.values() if of_method}) or [0]
    legend(figure, [_entry(m, of_method, len(counts) > 1) for m, of_method in runs.items()])
    if counts[-1] > 1:
        seeds = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
        more += f"Lines: means over {seeds} seeds; bands: lowest to highest seed."
        if fewer:
            more += f" Fewer seeds, of those that logged it: {', '.join(sorted(fewer))}."
        short = {name_of(m): _last(of) for m, of in runs.items() if len({r.last for r in of}) > 1}
        if short:
            more += f" CUT where the shortest seed ends: {', '.join(f'{m} at step {n:,}' for m, n in short.items())}."
    else:
        more += "One seed." if counts[-1] else "Nothing has been run yet."
    if fewest := [f"{name_of(m)} {_last(of):,}" for m, of in runs.items() if of and m not in whole]:
        more += f" FEWER STEPS: {', '.join(fewest)}."
    trained_on = defaultdict[str, dict[str, None]](dict)
    for m, of_method in runs.items():
        for machine in filter(None, (r.machine for r in of_method)):
            trained_on[machine][name_of(m)] = None
    if len(trained_on) > 1:
        machines = [f"{machine}: {', '.join(names)}" for machine, names in sorted(trained_on.items())]
        more += f" NOT ON ONE MACHINE: {'; '.join(machines)}."
    if widest > 1:
        more += f" Points: means of {widest} steps."
    if smooth:
        more += f" Reward: points are single steps, lines running means over {SMOOTHED}."
    return g.sketch(kind, title, figure, more.strip(), missing, finding=finding or _ends(runs, panels))


def _entry(method: str, runs: Sequence[TrainingRun], counted: bool) -> Line2D:
    """A method's entry in the legend, with its seeds if they are `counted` and with what is not done."""
    text = f" ({len(runs)} seed{'s' * (len(runs) > 1)})" if counted else ""
    unfinished = {r.status for r in runs} - {"done"}
    if unfinished:
        text += f" ({'; '.join(sorted(unfinished))})"
    return handle(method, text, run=bool(runs))


def _ends(runs: Runs, panels: Sequence[Panel]) -> str:
    """Where accuracy in validation ends: the lowest and the highest method, and whether their seeds overlap. Empty
    while a run is not finished, or where the last steps differ."""
    validation = next((p for p in panels if p.metric.startswith(_VALIDATED)), None)
    drawn = curves_of(runs, validation) if validation else {}
    unfinished = any(r.status != "done" for method in drawn for r in runs[method])
    if len(drawn) < 2 or unfinished or len({c.steps[-1] for c in drawn.values()}) > 1:
        return ""
    worst, *_, best = sorted(drawn, key=lambda method: drawn[method].mean[-1])
    low, high = drawn[worst], drawn[best]
    ends = f"{low.mean[-1]:.0f} % ({name_of(worst)}) to {high.mean[-1]:.0f} % ({name_of(best)})"
    text = f"Accuracy in validation ends at {ends}"
    if min(low.seeds, high.seeds) < 2:  # a single accuracy is mostly the draw of its samples
        return (_entropy_ends(runs) if ENTROPY in panels else "") or text
    return text + f"; their seeds {'overlap' if low.high[-1] >= high.low[-1] else 'do not overlap'}"


def _last(runs: Sequence[TrainingRun]) -> int:
    """The last step that all seeds have."""
    return min(r.last for r in runs)


def _to_the_end(runs: Runs) -> Runs:
    """The methods whose seeds all have the longest one's last step: what is late in a shorter one is not late there."""
    ends = {method: _last(of) for method, of in runs.items() if of}
    return {method: runs[method] for method, end in ends.items() if end == max(ends.values())}


def _entropy_ends(runs: Runs) -> str:
    """Where entropy goes, from the first to the last of six parts of the steps: the lowest and the highest method.
    Empty unless two methods have it."""
    means = {name_of(method): c.mean for method, c in curves_of(_to_the_end(runs), ENTROPY, most=6).items()}
    if len(means) < 2:
        return ""
    lowest, *_, highest = sorted(means, key=lambda name: means[name][-1])
    texts = [f"{name} {means[name][0]:.2f} to {means[name][-1]:.2f}" for name in (lowest, highest)]
    return f"Entropy: {', '.join(texts)} nats"


def share_after(runs: Sequence[TrainingRun], last: int = WARM_UP) -> tuple[float, float, float] | None:
    """Percent of the response tokens that were silenced after the step `last`, as a mean over later steps and seeds,
    and the percent of these steps below 0.01 %, and of those without one; None where no step has the share."""
    values = [100 * v for r in runs for step, v in r.series(SILENCED.metric).items() if step > last]
    if not values:
        return None
    n = len(values)
    return math.fsum(values) / n, 100 * sum(v < _BOUND for v in values) / n, 100 * values.count(0) / n


def silenced_share(g: Group) -> Sketch | None:
    """Silenced tokens, candidates and entropy threshold by step, of the group's masks over rare tokens; None without
    one."""
    g = g.only(*(m for m in g.methods if m in labels.RARE_TOKEN_MASKS or m in labels.PAPER_SIZES))
    if not g.methods:
        return None
    found = {name_of(m): after for m in g.methods if (after := share_after(g.runs_of(m)))}
    finding = more = ""
    if found:
        shares = ", ".join(f"{name} {share:.2g} %" for name, (share, *_) in found.items())
        finding = f"Silenced after step {WARM_UP}: {shares}"
        parts = (f"{name} {below:.0f} and {none:.0f} %" for name, (_, below, none) in found.items())
        more = f"{finding}. Steps below 0.01 %, and with none: {'; '.join(parts)}. "
    if any(len(g.runs_of(m)) > 1 for m in g.methods):
        more += "A threshold is a mean over the seeds that have one at the step. "
    return training(g, (*_SHARES, THRESHOLD), "Silenced tokens", kind="silenced_share", more=more, finding=finding)


def silenced_by_size(of_sizes: Sequence[Group]) -> Sketch | None:
    """The paper's figure 6: STAPO's silenced tokens, the three sizes together."""
    runs = [replace(r, method=g.size) for g in of_sizes for r in g.runs_of("stapo")]
    return silenced_share(Group("STAPO of three sizes", (), runs, of_sizes[0].paper, tuple(labels.PAPER_SIZES)))


def token_entropy(g: Group) -> Sketch | None:
    """Quantiles of token entropy by step, and their profile late in training."""
    more = f"Entropy of a response token; values under {FLOOR:g} nats are drawn at {FLOOR:g}. "
    profiles = {m: late_profile(of) for m, of in _to_the_end({m: g.runs_of(m) for m in g.methods}).items()}
    late = {m: profile[75] for m, profile in profiles.items() if 75 in profile}
    finding = ""
    if late:
        ends = dict.fromkeys((min(late, key=late.__getitem__), max(late, key=late.__getitem__)))
        named = " to ".join(f"{late[m]:.2g} ({name_of(m)})" for m in ends)
        finding = f"Late in training 75 % of the tokens are below {named} nats"
    return training(g, _QUANTILES, "Token entropy", kind="token_entropy", profile=True, more=more, finding=finding)


def late_profile(runs: Sequence[TrainingRun]) -> dict[int, float]:
    """Percent -> that quantile of token entropy in nats, mean over the last quarter of the steps (4 k > 3 K), for every
    quantile that was logged."""
    names = {name for r in runs for name in logged(r.steps) if name.startswith(_QUANTILE)}
    profile = {}
    for name in sorted(names):
        if c := curve(runs, Panel(name), None):
            late = 4 * c.steps > 3 * c.steps.max()
            profile[int(name.removeprefix(_QUANTILE))] = float(c.mean[late].mean())
    return profile


def _profiles(axes: Axes, runs: Runs) -> list[int]:
    """Every method's quantiles late in training; returns the percents on the axis."""
    profiles = {method: late_profile(of_method) for method, of_method in runs.items()}
    levels = sorted(set().union(*profiles.values()))
    axes.set_title("Late in training")
    for method, profile in profiles.items():
        if not profile:
            continue
        how, values = method_style(method), [max(v, FLOOR) for v in profile.values()]
        axes.plot([levels.index(q) for q in profile], values, color=how.colour, linestyle=how.line, marker=how.marker,
                  markersize=4, markeredgecolor="white", markeredgewidth=0.5, gid=f"profile-{method}")  # fmt: skip
    if not levels:
        nothing(axes, "not logged" if any(runs.values()) else "not run")
        return levels
    axes.set(yscale="log", xlabel="quantile of tokens (%)", ylabel="token entropy (nats)")
    axes.set_xticks(range(len(levels)), [str(q) for q in levels])
    return levels
