"""What evaluations give: differences between methods, accuracy against entropy stability, sweeps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from stapo_repro import labels
from stapo_repro.figures import style
from stapo_repro.figures.groups import Group
from stapo_repro.figures.style import GREY, SMALL, Sketch
from stapo_repro.paper import TAU_P, Q, variant, with_values
from stapo_repro.scores import Difference
from stapo_results.schema import SETTINGS, StepMetrics
from stapo_results.statistics import Number, over_seeds

_OURS = "stapo"
_PITCH = 0.155  # inches a line of the forest
FEWEST_STEPS = 100
"""Of a shorter training entropy stability says how fast the task was learnt, not whether entropy is stable."""

# tau_p as in comments of the paper's source; q is printed in a figure alone, so these four are this project's choice
_PLANNED = {"tau_p": (2e-4, 2e-3, 2e-2), "q": (0.0, 0.25, 0.5, 0.75, 1.0)}
# at its ends q leaves nothing to choose: none of the rare tokens is silenced, or all of them
_ENDS = {0.0: "justrl", 1.0: "justrl-fullmask"}
_HOLLOW = "t0.7"
_SYMBOLS = {"tau_p": "τₚ", "q": "q"}
_KEYS = {"tau_p": "probability threshold τₚ", "q": "q, share of the candidates silenced"}

Lines = dict[tuple[str, str], tuple[Difference, float | None]]
"""(benchmark, the other method) -> STAPO minus that method, and the paper's printed difference where it has one."""
Spots = dict[str, tuple[tuple[float, ...], Number]]
"""Method -> stability of each seed, and accuracy in percent."""
Points = dict[float, str | None]
"""Value of tau_p or q -> the label of a strategy's runs at it; None without a run."""


def _of(benchmarks: Sequence[str]) -> str:
    return labels.benchmark_label(benchmarks[0]) if len(benchmarks) == 1 else f"average of {len(benchmarks)}"


def forest_lines(g: Group, setting: str) -> Lines:
    """All lines of one panel: the benchmarks in order, their average last."""
    columns = {**{name: (name,) for name in g.benchmarks}, labels.AVERAGE: g.benchmarks}
    others = [m for m in g.models if m != _OURS]
    ours = g.paper.get(g.size, _OURS, setting)
    lines: Lines = {}
    for name, part in columns.items():
        for other in others:
            theirs = g.paper.get(g.size, other, setting)
            printed = float(ours.values[name]) - float(theirs.values[name]) if ours and theirs else None
            lines[name, other] = g.difference(_OURS, other, part, setting), printed
    return lines


def forest(g: Group) -> Sketch | None:
    """Paired differences of STAPO to each other method with their intervals, at both decoding settings; None where
    there is nothing to compare."""
    if _OURS not in g.methods or not g.benchmarks:
        return None
    both = [forest_lines(g, s) for s in SETTINGS]
    heads, texts = set[str](), list[str]()  # texts: of the lines from above, at 0, -1, -2, ...
    places = {}
    for name, other in both[0]:
        head = labels.benchmark_label(name)
        if head not in heads:
            heads.add(head)
            texts.append(head)
        places[name, other] = -len(texts)
        texts.append(f"− {labels.method_label(other)}")
    figure = style.sheet(1.15 + _PITCH * len(texts))
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for axes, setting, lines in zip(panels, SETTINGS, both, strict=True):
        _draw_forest(axes, lines, places)
        axes.set_title(style.setting_label(setting))
        axes.set_xlabel("difference (percentage points)")
    panels[0].set_yticks(range(1 - len(texts), 1), texts[::-1])
    for tick in panels[0].get_yticklabels():
        tick.set_fontweight("bold" if tick.get_text() in heads else "normal")
    caption = (
        "Accuracy of STAPO minus that of each other method. Bars: 95 % t intervals, paired by problem, and by seed "
        "where both have the same several; not adjusted for the number of comparisons."
    )
    if any(printed is not None for _, printed in both[0].values()):
        mark = style.key("d", "the paper's printed difference", face="none")
        figure.legend(handles=[mark], loc="outside lower center")
    return g.sketch("forest", "STAPO minus the others", figure, caption, finding=_forest_finding(both), evaluated=True)


def _forest_finding(both: Sequence[Lines]) -> str:
    """Of how many benchmarks, over both settings, an interval lies above or below 0: against the base model and against
    the other methods."""
    minus_base, minus_others = list[Number](), list[Number]()
    for lines in both:
        for (name, other), (d, _) in lines.items():
            if name != labels.AVERAGE and d.number.has_interval:
                (minus_base if other == labels.BASE else minus_others).append(d.number)
    texts = []
    for whom, numbers in (("the base model", minus_base), ("other methods", minus_others)):
        above = sum(n.low > 0 for n in numbers)
        below = sum(n.high < 0 for n in numbers)
        if numbers:
            texts.append(f"minus {whom}: {above} of {len(numbers)} above 0, {below} below")
    return f"STAPO {'; '.join(texts)} (benchmarks, unadjusted)" if texts else ""


def _draw_forest(axes: Axes, lines: Lines, places: dict[tuple[str, str], int]) -> None:
    axes.axvline(0, color="black", linewidth=0.8)
    for (benchmark, other), (d, printed) in lines.items():
        y = places[benchmark, other]
        if d.number.known:
            style.mark(axes, d.number, y, style.method_style(other), f"difference-{benchmark}-{other}")
        else:
            axes.text(0.99, y, d.status, transform=axes.get_yaxis_transform(), ha="right", va="center", size=SMALL,
                      color=GREY)  # fmt: skip
        if printed is not None:
            axes.plot([printed], [y], "d", markersize=5, markerfacecolor="none", markeredgecolor=GREY, zorder=6)
    axes.set_ylim(min(places.values()) - 0.8, 0.8)
    axes.margins(x=0.15)  # room for what is not run
    style.bare(axes)


def stability(steps: Sequence[StepMetrics]) -> float | None:
    """S = exp(-RMS ln(H_k / H_early)) of one training: 1 where the policy's entropy stays at its early level.

    H_early is the mean entropy of the first quarter of the steps (4 k <= K), the root mean square runs over all later
    ones. 1/2 means that entropy is typically off by a factor of two; a collapse, an explosion and a swing all count,
    each by its factor. The paper's text names no measure; this one is this project's.

    Returns:
        None when a step lacks the metric, entropy is not positive, or there are too few steps.
    """
    entropy = {s.step: s.values.get("token_entropy_mean", math.nan) for s in steps if s.step >= 1}
    last = max(entropy, default=0)
    early = [h for step, h in entropy.items() if 4 * step <= last]
    late = [h for step, h in entropy.items() if 4 * step > last]
    if not early or not all(math.isfinite(h) and h > 0 for h in entropy.values()):
        return None
    level = math.fsum(early) / len(early)
    squares = math.fsum(math.log(h / level) ** 2 for h in late)
    return math.exp(-math.sqrt(squares / len(late)))


def spots(g: Group, benchmarks: Sequence[str], setting: str) -> Spots:
    """Of the methods with a finished training that logged its entropy and all of the benchmarks evaluated."""
    out: Spots = {}
    for method in g.methods:
        measured = [stability(r.steps) for r in g.finished(method)]
        seeds = tuple(s for s in measured if s is not None)
        accuracy = g.accuracy(method, benchmarks, setting)
        if seeds and accuracy.known:
            out[method] = seeds, accuracy
    return out


def pareto(g: Group, benchmarks: Sequence[str] = ()) -> Sketch | None:
    """Accuracy, on average over the benchmarks (the group's by default), against entropy stability; None for trainings
    of few steps."""
    if max((r.last for r in g.runs), default=0) <= FEWEST_STEPS:
        return None
    part = benchmarks or g.benchmarks
    figure = style.sheet(3.1)
    drawn, unevaluated = set[str](), list[str]()
    for axes, setting in zip(figure.subplots(1, 2), SETTINGS, strict=True):
        heading, methods = style.setting_label(setting), spots(g, part, setting)
        _draw_spots(axes, methods)
        axes.set_title(heading)
        axes.set_xlabel("entropy stability S (right is better)")
        axes.set_ylabel(f"accuracy (%), {_of(part)}")
        drawn.update(methods)
        if not methods:
            unevaluated.append(f"{heading} (not evaluated)")
    style.legend(figure, [style.handle(m, run=m in drawn, line=False) for m in g.methods])
    caption = (
        "S = exp(−RMS ln(H/H₀)), a measure of this project: H is a step's mean token entropy after the first quarter "
        "of training, H₀ the mean over that quarter. Bars: 95 % intervals. Dots: S of each seed."
    )
    missing = [labels.method_label(m) for m in g.methods if m not in drawn]
    if drawn:
        missing += unevaluated
    return g.sketch("pareto", "Accuracy against entropy stability", figure, caption, missing, evaluated=True)


def _draw_spots(axes: Axes, methods: Spots) -> None:
    if not methods:
        style.nothing(axes, "not recorded")
        return
    for method, (seeds, y) in methods.items():
        how = style.method_style(method)
        axes.plot(seeds, [y.mean] * len(seeds), ".", color=how.colour, markersize=3)
        style.mark(axes, y, float(np.mean(seeds)), how, f"pareto-{method}", upright=True)
    axes.margins(x=0.12, y=0.08)
    axes.xaxis.set_major_locator(MaxNLocator(5))


def _strategies(key: str) -> tuple[str, ...]:
    """The masks that are compared over `key` ("tau_p" or "q")."""
    return labels.SWEPT if key == "q" else (_OURS,)


SweepPanel = tuple[str, tuple[str, ...], tuple[str, ...]]
"""(key, "tau_p" or "q"; benchmarks, of which the accuracy is averaged; settings). Without benchmarks: late entropy."""


def _planned(strategy: str, key: str, at: float) -> str:
    """The label of a strategy's runs at a value of `key` ("tau_p" or "q"), the other one at the paper's."""
    if key == "tau_p":
        return with_values(strategy, at, Q)
    return _ENDS.get(at) or with_values(strategy, TAU_P, at)


def sweep(g: Group, strategy: str, key: str) -> Points:
    """Each planned or recorded value of `key`, with the label of a strategy's runs there."""
    values = {*_PLANNED[key]}
    for _, tau_p, q in filter(None, map(variant, g.recorded)):
        if key == "tau_p" and q == Q:
            values.add(tau_p)
        if key == "q" and tau_p == TAU_P:
            values.add(q)
    points: Points = {}
    for at in sorted(values):
        own = (strategy, at, Q) if key == "tau_p" else (strategy, TAU_P, at)
        label = _planned(strategy, key, at)
        points[at] = label if label in g.recorded else next((m for m in g.recorded if variant(m) == own), None)
    return points


def further(key: str) -> tuple[str, ...]:
    """The labels of the runs that the paper's figure over `key` takes beside those of its table."""
    planned = dict.fromkeys(_planned(s, key, at) for s in _strategies(key) for at in _PLANNED[key])
    return tuple(m for m in planned if m not in labels.METHODS)


def late_entropy(g: Group, method: str) -> Number:
    """Policy entropy in nats over the last quarter of the steps, mean and interval over the finished trainings."""
    means = []
    for run in g.finished(method):
        late = [s.values.get("token_entropy_mean", math.nan) for s in run.steps if 4 * s.step > 3 * run.last]
        if late and all(map(math.isfinite, late)):
            means.append(math.fsum(late) / len(late))
    number = over_seeds(means) if means else Number()
    return replace(number, low=max(number.low, 0.0))  # NaN stays


def sensitivity(g: Group) -> Sketch | None:
    """Accuracy and late entropy over tau_p and q: for a size with such a run, and the paper's size; None for others."""
    # the one size that the paper varies them on
    if not any(variant(c.record.cell.method) for c in g.cells) and g.size != next(iter(labels.PAPER_SIZES)):
        return None
    both = g.benchmarks, tuple(SETTINGS)
    return sweeps(g, [("tau_p", *both), ("q", *both), ("tau_p", (), ()), ("q", (), ())], "Sensitivity to τₚ and q")


def sweeps(g: Group, panels: Sequence[SweepPanel], title: str) -> Sketch:
    """STAPO over tau_p, and three masks over q; two panels in a row."""
    rows = math.ceil(len(panels) / 2)
    figure = style.sheet(0.7 + 2.0 * rows)
    keys = dict.fromkeys(key for key, *_ in panels)
    runs = {key: {s: sweep(g, s, key) for s in _strategies(key)} for key in keys}
    empty = []
    for axes, shown in zip(figure.subplots(rows, 2, squeeze=False).flatten(), panels, strict=True):
        if not _draw_sweep(g, axes, runs[shown[0]], shown):
            empty.append(f"{axes.get_title()} (not recorded)")
    ends, swept, missing = set[str](), dict[str, bool](), list[str]()  # swept: whether a strategy has a run of its own
    for key, strategies in runs.items():
        for strategy, points in strategies.items():
            recorded = set(filter(None, points.values()))
            ends |= recorded & {*_ENDS.values()}
            swept[strategy] = swept.get(strategy, False) or not recorded.issubset(_ENDS.values())
            name = f"{labels.method_label(strategy)} {_SYMBOLS[key]}"
            missing += [f"{name} = {at:g}" for at, label in points.items() if not label]
    handles = [style.handle(strategy, run=run) for strategy, run in swept.items()]
    handles += [style.handle(end, f" (q = {q:g})", line=False) for q, end in _ENDS.items() if end in ends]
    if any(len(settings) > 1 for *_, settings in panels):
        handles.append(style.key("o", "hollow: T = 0.7"))
    style.legend(figure, handles)
    fixed = [f"τₚ = {TAU_P:g} over q" if key == "q" else f"q = {Q:g} over τₚ" for key in runs]
    caption = f"{'; '.join(fixed)}. Bars: 95 % intervals."
    if any(not part for _, part, _ in panels):
        caption += " Late entropy: mean over the last quarter of the steps."
    return g.sketch("sensitivity", title, figure, caption, missing + empty, evaluated=True)


def _draw_sweep(g: Group, axes: Axes, runs: dict[str, Points], shown: SweepPanel) -> bool:
    """Whether there is anything in the panel."""
    key, part, settings = shown
    heading, unit = "Late entropy", "late entropy (nats)"
    if part:
        heading, unit = _of(part), "accuracy (%)"
        heading = heading.capitalize() if len(part) > 1 else heading
        heading += f", {style.setting_label(settings[0])}" if len(settings) == 1 else ""
    axes.set_title(heading)
    axes.set(xlabel=_KEYS[key], ylabel=unit)
    drawn: set[tuple[str, str]] = set()
    for i, (strategy, points) in enumerate(runs.items()):
        aside = (i - (len(runs) - 1) / 2) * 0.14
        for setting in settings or ("entropy",):
            hollow = setting == _HOLLOW and len(settings) > 1
            values, at = [], []
            for k, label in enumerate(points.values()):
                values.append(_value(g, label, part, setting))
                at.append(k + 0.05 * hollow + (0.0 if label in _ENDS.values() else aside))
            # through neighbouring values alone: what was not run breaks the line
            how, heights = style.method_style(strategy), [v.mean for v in values]
            axes.plot(at, heights, color=how.colour, linewidth=1, linestyle=how.line, gid=f"sweep-{strategy}-{setting}")
            for x, label, v in zip(at, points.values(), values, strict=True):
                if v.known and label and (label, setting) not in drawn:  # an end of q is one run for all
                    drawn.add((label, setting))
                    how = style.method_style(label if label in _ENDS.values() else strategy)
                    style.mark(axes, v, x, how, f"sweep-{label}-{setting}", upright=True, hollow=hollow)
    if not drawn:
        style.nothing(axes)
        return False
    places = list(next(iter(runs.values())))
    axes.set_xlim(-0.5, len(places) - 0.5)
    axes.set_xticks(range(len(places)), [f"{v:g}" for v in places])
    return True


def _value(g: Group, label: str | None, part: Sequence[str], setting: str) -> Number:
    if label is None:
        return Number()
    return g.accuracy(label, part, setting) if part else late_entropy(g, label)
