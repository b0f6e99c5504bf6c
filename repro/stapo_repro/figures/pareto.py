"""Accuracy against entropy stability, with the methods that no other one beats in both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from stapo_repro.figures import canvas
from stapo_repro.figures.canvas import GREY, Sketch
from stapo_repro.figures.experiment import Experiment, Group, Value
from stapo_results.schema import SETTINGS, StepMetrics

METRIC = "token_entropy_mean"


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
    entropy = [s.values.get(METRIC, math.nan) for s in trained]
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


@dataclass(frozen=True)
class MethodPoint:
    """One method: stability, over its seeds, and accuracy in percent."""

    method: str
    stability: Value
    accuracy: Value


def method_points(experiment: Experiment, group: Group, size: str, setting: str) -> list[MethodPoint]:
    """The methods with a finished training that logged its entropy and all of the group's benchmarks evaluated."""
    out = []
    for method, runs in experiment.runs_of(size, group.methods).items():
        found = [s for r in runs if r.status == "done" and (s := stability(r.steps)) is not None]
        accuracy = experiment.accuracy(size, method, group.benchmarks, setting)
        if found and accuracy is not None:
            out.append(MethodPoint(method, Value(float(np.mean(found)), seeds=tuple(found)), accuracy))
    return out


def pareto(experiment: Experiment, group: Group) -> Sketch:
    """Accuracy against entropy stability."""
    title = group.heading("Accuracy against entropy stability")
    figure = canvas.sheet(title, 3.1)
    size = group.sizes[0]
    seen: dict[str, bool] = dict.fromkeys(group.methods, False)
    logged = any(r.status == "done" for r in experiment.runs if r.size == size)
    for axes, setting in zip(figure.subplots(1, 2), SETTINGS, strict=True):
        found = method_points(experiment, group, size, setting)
        _draw(axes, found, "not recorded" if logged else "not run")
        seen |= {s.method: True for s in found}
        axes.set_title(canvas.setting_label(setting))
        axes.set_xlabel("entropy stability S (right is better)")
        axes.set_ylabel("accuracy (%), average")
    front = Line2D([], [], color=GREY, linewidth=0.8, dashes=(4, 2), label="none is better in both")
    known = {c.record.cell.method for c in experiment.cells if c.record.cell.size == size}
    why = {m: "incomplete" if m in known else "not run" for m in seen}
    canvas.legend(figure, [*(canvas.handle(m, run=there, line=False, why=why[m]) for m, there in seen.items()), front])
    seeds = max(map(len, experiment.runs_of(size, group.methods).values()), default=0)
    spread = "; horizontal from the lowest to the highest seed" if seeds > 1 else "; one seed, no interval of S"
    caption = (
        f"{group.opening('Accuracy against the stability of policy entropy')} S = exp(−RMS ln(H/H₀)), with H the "
        "mean token entropy of a step after the first quarter of training and H₀ the mean over that quarter: 1 when "
        "entropy keeps its early level, 1/2 when it is typically off by a factor of two, up or down. The paper's text "
        f"names no measure; this one is ours. Accuracy is the average of {len(group.benchmarks)} benchmarks; vertical "
        f"bars are 95 % intervals{spread if any(seen.values()) else ''}."
    )
    return Sketch(f"{group.name}_pareto", title, figure, " ".join([caption, *experiment.remarks(group)]))


def _draw(axes: Axes, found: Sequence[MethodPoint], why: str) -> None:
    if not found:
        canvas.nothing(axes, why)
        return
    for s in found:
        x, y, colour = s.stability, s.accuracy, canvas.method_style(s.method).colour
        if y.low is not None and y.high is not None:
            axes.plot([x.mean, x.mean], [y.low, y.high], color=colour, linewidth=1, alpha=0.8)
        if len(x.seeds) > 1:
            axes.plot([min(x.seeds), max(x.seeds)], [y.mean, y.mean], color=colour, linewidth=1, alpha=0.8)
        canvas.point(axes, x.mean, y.mean, s.method, f"pareto-{s.method}", 6, 0.6)
    axes.margins(x=0.12, y=0.08)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    (left, _), (bottom, _) = axes.get_xlim(), axes.get_ylim()
    best = frontier([(s.stability.mean, s.accuracy.mean) for s in found])
    corners = [(left, best[0][1]), *best, (best[-1][0], bottom)]
    axes.step([x for x, _ in corners], [y for _, y in corners], where="pre", color=GREY, linewidth=0.8, dashes=(4, 2),
              zorder=1)  # fmt: skip
    axes.set_xlim(left=left)
    axes.set_ylim(bottom=bottom)
