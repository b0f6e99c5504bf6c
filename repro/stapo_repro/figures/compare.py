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
_KEYS = {"tau_p": "probability threshold τₚ", "q": "q, share of the candidates silenced"}

Lines = dict[tuple[str, str], tuple[Difference, float | None]]
"""(benchmark, the other method) -> STAPO minus that method, and the paper's printed difference where it has one."""


def _of(benchmarks: Sequence[str]) -> str:
    return labels.benchmark_label(benchmarks[0]) if len(benchmarks) == 1 else f"average of {len(benchmarks)}"


def forest_lines(g: Group, setting: str) -> Lines:
    """All lines of one panel: the benchmarks in order, their average last."""
    out: Lines = {}
    for name in (*g.benchmarks, labels.AVERAGE):
        part = g.benchmarks if name == labels.AVERAGE else (name,)
        for other in g.models:
            if other == _OURS:
                continue
            rows = [g.paper.get(g.size, m, setting) for m in (_OURS, other)]
            known = [float(r.values[name]) for r in rows if r and name in r.values]
            printed = known[0] - known[1] if len(known) == 2 else None
            out[name, other] = g.difference(_OURS, other, part, setting), printed
    return out


def forest(g: Group) -> Sketch | None:
    """Paired differences of STAPO to each other method with their intervals, at both decoding settings; None where
    there is nothing to compare."""
    if _OURS not in g.methods:
        return None
    both = [forest_lines(g, s) for s in SETTINGS]
    names = list(dict.fromkeys(name for name, _ in both[0]))
    places = {key: -(i + names.index(key[0]) + 1) for i, key in enumerate(both[0])}  # a line above each benchmark
    figure = style.sheet(1.15 + _PITCH * (len(places) + len(names)))
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for axes, setting, found in zip(panels, SETTINGS, both, strict=True):
        _draw_forest(axes, found, places)
        axes.set_title(style.setting_label(setting))
        axes.set_xlabel("difference (percentage points)")
    heads = {max(y for (b, _), y in places.items() if b == name) + 1: labels.benchmark_label(name) for name in names}
    ticks = heads | {y: f"− {labels.method_label(other)}" for (_, other), y in places.items()}
    panels[0].set_yticks(sorted(ticks), [ticks[y] for y in sorted(ticks)])
    for tick, y in zip(panels[0].get_yticklabels(), sorted(ticks), strict=True):
        tick.set_fontweight("bold" if y in heads else "normal")
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
    texts = []
    for base, whom in ((True, "the base model"), (False, "other methods")):
        numbers = [d.number for found in both for (name, other), (d, _) in found.items()
                   if name != labels.AVERAGE and (other == labels.BASE) == base and d.number.has_interval]  # fmt: skip
        above, below = sum(n.low > 0 for n in numbers), sum(n.high < 0 for n in numbers)
        texts += [f"minus {whom}: {above} of {len(numbers)} above 0, {below} below"] if numbers else []
    return f"STAPO {'; '.join(texts)} (benchmarks, unadjusted)" if texts else ""


def _draw_forest(axes: Axes, found: Lines, places: dict[tuple[str, str], int]) -> None:
    axes.axvline(0, color="black", linewidth=0.8)
    for (benchmark, other), (d, printed) in found.items():
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
    trained = [s for s in steps if s.step >= 1]
    last = max((s.step for s in trained), default=0)
    entropy = [s.values.get("token_entropy_mean", math.nan) for s in trained]
    early = [h for s, h in zip(trained, entropy, strict=True) if 4 * s.step <= last]
    late = [h for s, h in zip(trained, entropy, strict=True) if 4 * s.step > last]
    if not early or not late or not all(math.isfinite(h) and h > 0 for h in entropy):
        return None
    level = math.fsum(early) / len(early)
    return math.exp(-math.sqrt(math.fsum(math.log(h / level) ** 2 for h in late) / len(late)))


def spots(g: Group, benchmarks: Sequence[str], setting: str) -> dict[str, tuple[tuple[float, ...], Number]]:
    """Method -> (stability of each seed, accuracy in percent), of the methods with a finished training that logged its
    entropy and all of the benchmarks evaluated."""
    out = {}
    for method in g.methods:
        runs = [r for r in g.runs if (r.method, r.status) == (method, "done")]
        found = tuple(s for r in runs if (s := stability(r.steps)) is not None)
        accuracy = g.accuracy(method, benchmarks, setting)
        if found and accuracy.known:
            out[method] = found, accuracy
    return out


def pareto(g: Group, benchmarks: Sequence[str] = ()) -> Sketch | None:
    """Accuracy, on average over the benchmarks (the group's by default), against entropy stability; None for trainings
    of few steps."""
    if max((r.steps[-1].step for r in g.runs if r.steps), default=0) <= FEWEST_STEPS:
        return None
    part = tuple(benchmarks) or g.benchmarks
    figure, of = style.sheet(3.1), {setting: spots(g, part, setting) for setting in SETTINGS}
    drawn = {m for found in of.values() for m in found}
    for axes, (setting, found) in zip(figure.subplots(1, 2), of.items(), strict=True):
        _draw_spots(axes, found)
        axes.set_title(style.setting_label(setting))
        axes.set_xlabel("entropy stability S (right is better)")
        axes.set_ylabel(f"accuracy (%), {_of(part)}")
    style.legend(figure, [style.handle(m, run=m in drawn, line=False) for m in g.methods])
    caption = (
        "S = exp(−RMS ln(H/H₀)), a measure of this project: H is a step's mean token entropy after the first quarter "
        "of training, H₀ the mean over that quarter. Bars: 95 % intervals. Dots: S of each seed."
    )
    missing = [labels.method_label(m) for m in g.methods if m not in drawn]
    missing += [f"{style.setting_label(s)} (not evaluated)" for s, found in of.items() if drawn and not found]
    return g.sketch("pareto", "Accuracy against entropy stability", figure, caption, missing, evaluated=True)


def _draw_spots(axes: Axes, found: dict[str, tuple[tuple[float, ...], Number]]) -> None:
    if not found:
        style.nothing(axes, "not recorded")
        return
    for method, (seeds, y) in found.items():
        how = style.method_style(method)
        axes.plot(seeds, [y.mean] * len(seeds), ".", color=how.colour, markersize=3)
        style.mark(axes, y, float(np.mean(seeds)), how, f"pareto-{method}", upright=True)
    axes.margins(x=0.12, y=0.08)
    axes.xaxis.set_major_locator(MaxNLocator(5))


SweepPanel = tuple[str, tuple[str, ...], tuple[str, ...]]
"""(key, "tau_p" or "q"; benchmarks, of which the accuracy is averaged; settings). Without benchmarks: late entropy."""


def _planned(strategy: str, key: str, at: float) -> str:
    """The label of a strategy's runs at a value of `key` ("tau_p" or "q"), the other one at the paper's."""
    return with_values(strategy, at, Q) if key == "tau_p" else _ENDS.get(at) or with_values(strategy, TAU_P, at)


def sweep(g: Group, strategy: str, key: str) -> dict[float, str | None]:
    """Of each planned or recorded value of `key` the label of a strategy's runs, None without a run."""
    known = [v for name in g.recorded if (v := variant(name)) is not None]
    found = {t for _, t, q in known if q == Q} if key == "tau_p" else {q for _, t, q in known if t == TAU_P}
    points = {at: _planned(strategy, key, at) for at in sorted({*_PLANNED[key], *found})}
    return {at: label if label in g.recorded else None for at, label in points.items()}


def further(key: str) -> tuple[str, ...]:
    """The labels of the runs that the paper's figure over `key` takes beside those of its table."""
    every = (_planned(s, key, at) for s in (labels.SWEPT if key == "q" else (_OURS,)) for at in _PLANNED[key])
    return tuple(m for m in dict.fromkeys(every) if m not in labels.METHODS)


def late_entropy(g: Group, method: str) -> Number:
    """Policy entropy in nats over the last quarter of the steps, mean and interval over the finished trainings."""
    found = []
    for run in g.runs:
        last = max((s.step for s in run.steps), default=0)
        values = [s.values.get("entropy", math.nan) for s in run.steps if 4 * s.step > 3 * last]
        if (run.method, run.status) == (method, "done") and values and all(map(math.isfinite, values)):
            found.append(math.fsum(values) / len(values))
    number = over_seeds(found) if found else Number()
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
    runs = {key: {s: sweep(g, s, key) for s in (labels.SWEPT if key == "q" else (_OURS,))}
            for key in dict.fromkeys(key for key, *_ in panels)}  # fmt: skip
    places = zip(figure.subplots(rows, 2, squeeze=False).flatten(), panels, strict=True)
    empty = [axes.get_title() for axes, shown in places if not _draw_sweep(g, axes, runs[shown[0]], shown)]
    found = {(m, label) for of in runs.values() for m, points in of.items() for label in points.values() if label}
    names = dict.fromkeys(m for of in runs.values() for m in of)
    handles = [style.handle(m, run=any(m == n and x not in _ENDS.values() for n, x in found)) for m in names]
    handles += [style.handle(e, f" (q = {q:g})", line=False) for q, e in _ENDS.items() if e in {x for _, x in found}]
    if any(len(settings) > 1 for *_, settings in panels):
        handles.append(style.key("o", "hollow: T = 0.7"))
    style.legend(figure, handles)
    missing = [f"{labels.method_label(m)} {'q' if key == 'q' else 'τₚ'} = {at:g}" for key, of in runs.items()
               for m, points in of.items() for at, label in points.items() if not label]  # fmt: skip
    missing += [f"{title} (not recorded)" for title in empty]
    fixed = [f"τₚ = {TAU_P:g} over q" if key == "q" else f"q = {Q:g} over τₚ" for key in runs]
    caption = f"{'; '.join(fixed)}. Bars: 95 % intervals."
    if any(not part for _, part, _ in panels):
        caption += " Late entropy: mean over the last quarter of the steps."
    return g.sketch("sensitivity", title, figure, caption, missing, evaluated=True)


def _draw_sweep(g: Group, axes: Axes, of: dict[str, dict[float, str | None]], shown: SweepPanel) -> bool:
    """Whether there is anything in the panel."""
    key, part, settings = shown
    where = f", {style.setting_label(settings[0])}" if len(settings) == 1 else ""
    axes.set_title((_of(part).capitalize() if len(part) > 1 else _of(part)) + where if part else "Late entropy")
    axes.set(xlabel=_KEYS[key], ylabel="accuracy (%)" if part else "late entropy (nats)")
    places = list(next(iter(of.values())))
    drawn: set[tuple[str, str]] = set()
    for i, (strategy, points) in enumerate(of.items()):
        aside, how = (i - (len(of) - 1) / 2) * 0.14, style.method_style(strategy)
        for w in settings or ("entropy",):
            hollow = w == _HOLLOW and len(settings) > 1
            values = [
                Number() if not m else g.accuracy(m, part, w) if part else late_entropy(g, m) for m in points.values()
            ]
            at = [k + 0.05 * hollow + aside * (m not in _ENDS.values()) for k, m in enumerate(points.values())]
            # through neighbouring values alone: what was not run breaks the line
            (line,) = axes.plot(at, [v.mean for v in values], color=how.colour, linewidth=1,
                                gid=f"sweep-{strategy}-{w}")  # fmt: skip
            if how.dashes:
                line.set_dashes(how.dashes)
            for x, label, v in zip(at, points.values(), values, strict=True):
                if v.known and label and (label, w) not in drawn:  # an end of q is one run for all strategies
                    drawn.add((label, w))
                    at_end = style.method_style(label if label in _ENDS.values() else strategy)
                    style.mark(axes, v, x, at_end, f"sweep-{label}-{w}", upright=True, hollow=hollow)
    if not drawn:
        style.nothing(axes)
        return False
    axes.set_xlim(-0.5, len(places) - 0.5)
    axes.set_xticks(range(len(places)), [f"{v:g}" for v in places])
    return True
