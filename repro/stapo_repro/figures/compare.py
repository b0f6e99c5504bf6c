"""What evaluations give: differences between methods, accuracy against entropy stability, sweeps, response lengths."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from stapo_repro import labels
from stapo_repro.figures import style
from stapo_repro.figures.groups import TAU_P, Experiment, Gap, Group, Q, Value, variant
from stapo_repro.figures.style import GREY, SMALL, Sketch
from stapo_repro.read import Loaded
from stapo_repro.testbed.evidence import run_values
from stapo_results.schema import SETTINGS, StepMetrics
from stapo_results.statistics import over_seeds

_OURS = "stapo"
_PITCH = 0.155  # inches a line of the forest
FEWEST_STEPS = 100
"""Of a shorter training entropy stability says how fast the task was learnt, not whether entropy is stable."""

# tau_p as in comments of the paper's source; q is printed in a figure alone, so these four are this project's choice
_TAUS = (2e-4, 2e-3, 2e-2)
_QS = (0.0, 0.25, 0.5, 0.75, 1.0)
_STRATEGIES = ("stapo-high-entropy", "stapo-random", "stapo")
# at its ends q leaves nothing to choose: none of the rare tokens is silenced, or all of them
_ENDS = {0.0: "justrl", 1.0: "justrl-fullmask"}
_HOLLOW = "t0.7"
_KEYS = {"tau_p": "probability threshold τₚ", "q": "q, share of the candidates silenced"}
_QUANTILES = ("p5", "p25", "p50", "p75", "p95")

Lines = dict[tuple[str, str], tuple[Value | Gap, float | None]]
"""(benchmark, the other method) -> STAPO minus that method, and the paper's printed difference where it has one."""


def forest_lines(experiment: Experiment, group: Group, setting: str) -> Lines:
    """All lines of one panel: the benchmarks in order, their average last."""
    out: Lines = {}
    for name in (*group.benchmarks, labels.AVERAGE):
        part = group.benchmarks if name == labels.AVERAGE else (name,)
        for other in group.models:
            if other == _OURS:
                continue
            value = experiment.difference(group.size, _OURS, other, part, setting)
            rows = [experiment.paper.get(group.size, m, setting) for m in (_OURS, other)]
            known = [float(r.values[name]) for r in rows if r and name in r.values]
            out[name, other] = value, known[0] - known[1] if len(known) == 2 else None
    return out


def forest(experiment: Experiment, group: Group) -> Sketch | None:
    """Paired differences of STAPO to each other method with their intervals, at both decoding settings; None where
    there is nothing to compare."""
    if _OURS not in group.methods:
        return None
    one = labels.method_label(_OURS)
    both = [forest_lines(experiment, group, s) for s in SETTINGS]
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
    what = f"Accuracy of {one} minus that of each other method"
    caption = (
        f"{group.opening(what)} Paired by problem, and by seed where both sides have the same several or one is the "
        "base model; bars are 95 % t intervals for the choice of what is paired, not adjusted for the number of "
        f"comparisons. Right of 0: {one} is better."
    )
    if any(printed is not None for _, printed in both[0].values()):
        mark = style.marker_handle("d", "the paper's printed difference", 5, face="none")
        figure.legend(handles=[mark], loc="outside lower center")
        caption += " Hollow diamonds: differences of the paper's printed values."
    caption = " ".join([caption, *experiment.remarks(group)])
    return Sketch(f"{group.name}_forest", group.heading(f"{one} minus the others"), figure, caption)


def _draw_forest(axes: Axes, found: Lines, places: dict[tuple[str, str], int]) -> None:
    axes.axvline(0, color="black", linewidth=0.8)
    for (benchmark, other), (value, printed) in found.items():
        y = places[benchmark, other]
        if isinstance(value, Value):
            style.interval(axes, value.low, value.high, y, style.method_style(other).colour, 1.3)
            style.point(axes, value.mean, y, other, f"difference-{benchmark}-{other}")
        else:
            axes.text(0.99, y, value, transform=axes.get_yaxis_transform(), ha="right", va="center", size=SMALL,
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


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other one reaches in both coordinates (more is better), from left to right."""
    best, out = -math.inf, []
    for x, y in sorted(set(points), reverse=True):
        if y > best:
            out.append((x, y))
            best = y
    return out[::-1]


def spots(
    experiment: Experiment, group: Group, benchmarks: Sequence[str], setting: str
) -> dict[str, tuple[tuple[float, ...], Value]]:
    """Method -> (stability of each seed, accuracy in percent), of the methods with a finished training that logged its
    entropy and all of the benchmarks evaluated."""
    out = {}
    for method, runs in experiment.runs_of(group.size, group.methods).items():
        found = tuple(s for r in runs if r.status == "done" and (s := stability(r.steps)) is not None)
        accuracy = experiment.accuracy(group.size, method, benchmarks, setting)
        if found and accuracy is not None:
            out[method] = found, accuracy
    return out


def pareto(experiment: Experiment, group: Group, benchmarks: Sequence[str] = ()) -> Sketch | None:
    """Accuracy, on average over the benchmarks (the group's by default), against entropy stability; None for trainings
    of few steps."""
    steps = [r.steps[-1].step for r in experiment.runs if r.size == group.size and r.steps]
    if max(steps, default=0) <= FEWEST_STEPS:
        return None
    part = tuple(benchmarks) or group.benchmarks
    of = labels.benchmark_label(part[0]) if len(part) == 1 else f"average of {len(part)} benchmarks"
    figure, shown = style.sheet(3.1), set()
    for axes, setting in zip(figure.subplots(1, 2), SETTINGS, strict=True):
        found = spots(experiment, group, part, setting)
        _draw_spots(axes, found)
        shown |= set(found)
        axes.set_title(style.setting_label(setting))
        axes.set_xlabel("entropy stability S (right is better)")
        axes.set_ylabel(f"accuracy (%), {of}")
    front = Line2D([], [], color=GREY, linewidth=0.8, dashes=(4, 2), label="none is better in both")
    known = {c.record.cell.method for c in experiment.cells if c.record.cell.size == group.size}
    why = {m: "incomplete" if m in known else "not run" for m in group.methods}
    style.legend(figure, [*(style.handle(m, run=m in shown, line=False, why=why[m]) for m in group.methods), front])
    caption = (
        f"{group.opening('Accuracy against the stability of policy entropy')} S = exp(−RMS ln(H/H₀)), with H the "
        "mean token entropy of a step after the first quarter of training and H₀ the mean over that quarter: 1 when "
        "entropy keeps its early level, 1/2 when it is typically off by a factor of two, up or down. The paper's text "
        f"names no measure; this one is ours. Accuracy: {of}. Vertical bars: 95 % intervals. Dots: S of each seed."
    )
    caption = " ".join([caption, *experiment.remarks(group)])
    missing = tuple(labels.method_label(m) for m in group.methods if m not in shown)
    title = group.heading("Accuracy against entropy stability")
    return Sketch(f"{group.name}_pareto", title, figure, caption, missing)


def _draw_spots(axes: Axes, found: dict[str, tuple[tuple[float, ...], Value]]) -> None:
    if not found:
        style.nothing(axes, "not recorded")
        return
    means = {m: (float(np.mean(seeds)), y.mean) for m, (seeds, y) in found.items()}
    for method, (seeds, y) in found.items():
        axes.plot(seeds, [y.mean] * len(seeds), ".", color=style.method_style(method).colour, markersize=3)
        _upright(axes, means[method][0], y, method, f"pareto-{method}")
    axes.margins(x=0.12, y=0.08)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    (left, _), (bottom, _) = axes.get_xlim(), axes.get_ylim()
    best = frontier(list(means.values()))
    x, y = zip((left, best[0][1]), *best, (best[-1][0], bottom), strict=True)
    axes.step(x, y, where="pre", color=GREY, linewidth=0.8, dashes=(4, 2), zorder=1)
    axes.set_xlim(left=left)
    axes.set_ylim(bottom=bottom)


def _upright(axes: Axes, x: float, v: Value, method: str, name: str, hollow: bool = False) -> None:
    """A value with its interval."""
    how = style.method_style(method)
    if v.low is not None and v.high is not None:
        axes.plot([x, x], [v.low, v.high], color=how.colour, linewidth=1)
    axes.plot([x], [v.mean], how.marker, color=how.colour, markersize=5, zorder=5, gid=name,
              markerfacecolor="white" if hollow else how.colour)  # fmt: skip


Sweep = list[tuple[float, str | None]]
"""(value of tau_p or q, the label under which its runs are recorded; None without a run)"""
SweepPanel = tuple[str, tuple[str, ...], tuple[str, ...]]
"""(key, "tau_p" or "q"; benchmarks, of which the accuracy is averaged; settings). Without benchmarks: late entropy."""


def sweep(experiment: Experiment, size: str, strategy: str, key: str) -> Sweep:
    """A strategy over `key` ("tau_p" or "q"), the other one at the paper's value: planned values and those found."""
    names = {c.record.cell.method for c in experiment.cells if c.record.cell.size == size}
    names |= {r.method for r in experiment.runs if r.size == size}
    known = {v: name for name in sorted(names, reverse=True) if (v := variant(name)) is not None}
    found = {t for _, t, q in known if q == Q} if key == "tau_p" else {q for _, t, q in known if t == TAU_P}
    points: Sweep = []
    for at in sorted({*(_TAUS if key == "tau_p" else _QS), *found}):
        tau_p, q = (at, Q) if key == "tau_p" else (TAU_P, at)
        plain = strategy if (tau_p, q) == (TAU_P, Q) else _ENDS.get(q, "") if tau_p == TAU_P else ""
        label = known.get((strategy, tau_p, q), plain)
        points.append((at, label if label in names else None))
    return points


def late_entropy(experiment: Experiment, size: str, method: str) -> Value | None:
    """Policy entropy in nats over the last quarter of the steps, mean and interval over the finished trainings."""
    runs = [r for r in experiment.runs if (r.size, r.method, r.status) == (size, method, "done")]
    found = [m["entropy_late"] for r in runs if "entropy_late" in (m := run_values(r.steps))]
    if not found:
        return None
    c = over_seeds(found)
    return Value(c.mean, *((None, None) if math.isnan(c.low) else (max(0.0, c.low), c.high)), c.seeds)


def sensitivity(experiment: Experiment, group: Group) -> Sketch | None:
    """Accuracy and late entropy over tau_p and q: for a size with such a run, and the paper's size; None for others."""
    varied = {c.record.cell.size for c in experiment.cells if variant(c.record.cell.method)}
    if group.size not in {*varied, next(iter(labels.PAPER_SIZES))}:  # the one size that the paper varies them on
        return None
    both = group.benchmarks, tuple(SETTINGS)
    return sweeps(experiment, group, [("tau_p", *both), ("q", *both), ("tau_p", (), ()), ("q", (), ())])


def sweeps(experiment: Experiment, group: Group, panels: Sequence[SweepPanel]) -> Sketch:
    """STAPO over tau_p, and three masks over q; two panels in a row."""
    rows = math.ceil(len(panels) / 2)
    figure = style.sheet(0.7 + 2.0 * rows)
    runs = {key: {s: sweep(experiment, group.size, s, key) for s in (_STRATEGIES if key == "q" else (_OURS,))}
            for key in dict.fromkeys(key for key, *_ in panels)}  # fmt: skip
    for axes, (key, part, settings) in zip(figure.subplots(rows, 2, squeeze=False).flatten(), panels, strict=True):

        def value(label: str, setting: str, part: tuple[str, ...] = part) -> Value | None:
            accuracy = experiment.accuracy(group.size, label, part, setting)
            return accuracy if part else late_entropy(experiment, group.size, label)

        _draw_sweep(axes, runs[key], settings or ("entropy",), value)
        of = labels.benchmark_label(part[0]) if len(part) == 1 else f"average of {len(part)}"
        at = f", {style.setting_label(settings[0])}" if len(settings) == 1 else ""
        axes.set(xlabel=_KEYS[key], ylabel=f"accuracy (%), {of}" if part else "late entropy (nats)")
        axes.set_title(("Masks over q" if key == "q" else "STAPO over τₚ") + at)
    found = {(m, label) for of in runs.values() for m, points in of.items() for _, label in points if label}
    names = dict.fromkeys(m for of in runs.values() for m in of)
    handles = [style.handle(m, run=any(m == n and x not in _ENDS.values() for n, x in found)) for m in names]
    handles += [style.handle(e, f" (q = {q:g})", line=False) for q, e in _ENDS.items() if e in {x for _, x in found}]
    if any(len(settings) > 1 for *_, settings in panels):
        handles.append(style.marker_handle("o", "hollow: T = 0.7", 4.5))
    style.legend(figure, handles)
    missing = tuple(f"{labels.method_label(m)} {'q' if key == 'q' else 'τₚ'} = {at:g}" for key, of in runs.items()
                    for m, points in of.items() for at, label in points if not label)  # fmt: skip
    caption = f"{group.opening('Accuracy and late policy entropy over the two values of the mask')} "
    caption += f"Over q, τₚ = {TAU_P:g}; over τₚ, q = {Q:g}. "
    caption += "q = 0 is JustRL and q = 1 JustRL-FullMask, whatever the mask. " if "q" in runs else ""
    caption += "Bars: 95 % intervals. Late entropy: mean over the last quarter of the steps."
    caption = " ".join([caption, *experiment.remarks(group)])
    return Sketch(f"{group.name}_sensitivity", group.heading("Sensitivity to τₚ and q"), figure, caption, missing)


def _draw_sweep(
    axes: Axes, of: Mapping[str, Sweep], settings: Sequence[str], value: Callable[[str, str], Value | None]
) -> None:
    places = [at for at, _ in next(iter(of.values()))]
    drawn: set[tuple[str, str]] = set()
    for i, (strategy, points) in enumerate(of.items()):
        aside, how = (i - (len(of) - 1) / 2) * 0.14, style.method_style(strategy)
        for w in settings:
            apart = 0.05 * (w == _HOLLOW)
            at = [k + apart + aside * (label not in _ENDS.values()) for k, (_, label) in enumerate(points)]
            shown = [value(label, w) if label else None for _, label in points]
            # through neighbouring values alone: what was not run breaks the line
            (line,) = axes.plot(at, [v.mean if v else math.nan for v in shown], color=how.colour, linewidth=1,
                                gid=f"sweep-{strategy}-{w}")  # fmt: skip
            if how.dashes:
                line.set_dashes(how.dashes)
            for x, (_, label), v in zip(at, points, shown, strict=True):
                if v is not None and label and (label, w) not in drawn:  # an end of q is one run for all strategies
                    drawn.add((label, w))
                    method = label if label in _ENDS.values() else strategy
                    _upright(axes, x, v, method, f"sweep-{label}-{w}", hollow=w == _HOLLOW and len(settings) > 1)
    if not drawn:
        style.nothing(axes)
        return
    axes.set_xlim(-0.5, len(places) - 0.5)
    axes.set_xticks(range(len(places)), [f"{v:g}" for v in places])


def lengths(
    cells: Sequence[Loaded],
) -> tuple[float, float, dict[str, tuple[tuple[float, ...], float]]] | None:
    """What the records of one cell of the table say of lengths, over seeds; None without a record.

    Returns:
        (mean tokens, percent truncated) of all responses, and by verdict (quantiles p5, p25, p50, p75, p95 in tokens,
        percent truncated); a verdict is left out where a record has no such response, or does not keep them.
    """
    if not cells:
        return None
    records = [c.record for c in cells]
    ended = sum((Counter(r.finish_reasons) for r in records), Counter())
    done = ended["stop"] + ended["length"]
    by_verdict = {}
    for verdict in ("correct", "incorrect"):
        found = [r.by_verdict[verdict] for r in records if verdict in r.by_verdict]
        if len(found) == len(records) and all(f.responses for f in found):
            tokens = tuple(float(np.mean([f.tokens[q] for f in found])) for q in _QUANTILES)
            by_verdict[verdict] = tokens, 100 * sum(f.truncated for f in found) / sum(f.responses for f in found)
    mean = float(np.mean([r.mean_response_tokens for r in records]))
    return mean, 100 * ended["length"] / done if done else 0.0, by_verdict


def response_lengths(experiment: Experiment, group: Group) -> Sketch:
    """Length and truncation of right and wrong responses: a row of panels per benchmark, a line per method."""
    models = list(group.models)
    # a benchmark's name is written upright: a single line is higher than its pitch
    figure = style.sheet(1.35 + len(group.benchmarks) * (max(0.17 * len(models), 0.55) + 0.22))
    grid = figure.subplots(len(group.benchmarks), 4, width_ratios=(3, 1.3) * 2, sharey="row", sharex="col",
                           squeeze=False)  # fmt: skip
    for row, benchmark in zip(grid, group.benchmarks, strict=True):
        for k, setting in enumerate(SETTINGS):
            wide, narrow = row[2 * k : 2 * k + 2]
            for i, method in enumerate(models):
                score = experiment.scores.get((group.size, method, benchmark, setting))
                _draw_lengths(wide, narrow, -i, method, score.cells if score else ())
            style.bare(wide, len(models))
            style.bare(narrow, len(models))
            grid[0][2 * k].set_title(style.setting_label(setting))
        row[0].set_yticks([-i for i in range(len(models))], [labels.method_label(m) for m in models])
        row[0].set_ylabel(labels.benchmark_label(benchmark), weight="bold")
    for wide, narrow in (grid[-1][:2], grid[-1][2:]):
        wide.set(xlabel="response length (tokens)", xlim=(0, 1.05 * wide.get_xlim()[1]))
        narrow.set(xlabel="truncated (%)", xlim=(0, max(10.0, 1.1 * narrow.get_xlim()[1])))
    style.legend(figure, [
        Patch(facecolor=GREY, label="right: middle half, 5 % to 95 %"),
        Patch(facecolor="white", edgecolor=GREY, label="wrong: the same"),
        Line2D([], [], linestyle="none", marker="|", markersize=7, markeredgewidth=1.5, color="black",
               label="all: mean length, share"),
    ])  # fmt: skip
    own = [c.record for c in experiment.cells if c.record.cell.size == group.size]
    caption = (
        f"{group.opening('Length of the responses and share of truncated ones, by verdict')} Boxes: the middle half, "
        "with the median; lines: 5 % to 95 %; filled the right responses, hollow the wrong ones. Ticks: all responses."
    )
    if without := sum(not r.by_verdict for r in own):
        caption += f" {without} of {len(own)} records were made before lengths were kept by verdict."
    caption = " ".join([caption, *experiment.remarks(group)])
    title = group.heading("Response length and truncation")
    return Sketch(f"{group.name}_lengths", title, figure, caption)


def _draw_lengths(wide: Axes, narrow: Axes, y: float, method: str, cells: Sequence[Loaded]) -> None:
    found = lengths(cells)
    if found is None:
        wide.text(0.01, y, "not run", transform=wide.get_yaxis_transform(), va="center", color=GREY, size=SMALL)
        return
    colour = style.method_style(method).colour
    mean, truncated, by_verdict = found
    for verdict, ((p5, p25, p50, p75, p95), cut) in by_verdict.items():
        right = verdict == "correct"
        at, face = y + (0.19 if right else -0.19), colour if right else "white"
        style.interval(wide, p5, p95, at, colour, 0.8)
        wide.barh(at, p75 - p25, left=p25, height=0.3, facecolor=face, edgecolor=colour, linewidth=0.8,
                  gid=f"{verdict}-{method}", zorder=3)  # fmt: skip
        wide.plot([p50, p50], [at - 0.15, at + 0.15], zorder=4, linewidth=1,
                  color="white" if right and p75 > p25 else colour)  # fmt: skip
        narrow.plot([cut], [at], "o", markersize=3.5, markeredgecolor=colour, markeredgewidth=0.8,
                    markerfacecolor=face, zorder=4, clip_on=False)  # fmt: skip
    wide.plot([mean], [y], "|", color="black", markersize=8, markeredgewidth=1.2, zorder=5)
    narrow.plot([truncated], [y], "|", color="black", markersize=8, markeredgewidth=1.2, clip_on=False)
