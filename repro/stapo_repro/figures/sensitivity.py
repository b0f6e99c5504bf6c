"""How much the choice of tau_p and q matters: accuracy and late entropy over both, where runs exist."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from stapo_repro import labels
from stapo_repro.figures import canvas
from stapo_repro.figures.canvas import Sketch
from stapo_repro.figures.experiment import TAU_P, Experiment, Group, Q, Value, variant
from stapo_repro.testbed.evidence import run_values
from stapo_results.schema import SETTINGS
from stapo_results.statistics.crossed import over_seeds

# tau_p as in comments of the paper's source; q is printed in a figure alone, so these four are this project's choice
_TAUS = (2e-4, 2e-3, 2e-2)
_QS = (0.0, 0.25, 0.5, 0.75, 1.0)
_STRATEGIES = ("stapo-high-entropy", "stapo-random", "stapo")
# at its ends q leaves nothing to choose: none of the rare tokens is silenced, or all of them
_ENDS = {0.0: "justrl", 1.0: "justrl-fullmask"}
_HOLLOW = "t0.7"


@dataclass(frozen=True)
class SweepPoint:
    """One value of a sweep: the label its runs have, and of each setting the accuracy (percent), of "entropy" the late
    entropy (nats)."""

    at: float
    label: str | None
    values: dict[str, Value | None]


def _label(names: set[str], strategy: str, tau_p: float, q: float) -> str | None:
    """The label under which the runs of a selector are recorded; None without a run."""
    if (tau_p, q) == (TAU_P, Q):
        return strategy if strategy in names else None
    for name in sorted(names):
        if variant(name) == (strategy, tau_p, q):
            return name
    end = _ENDS.get(q, "") if tau_p == TAU_P else ""
    return end if end in names else None


def _late_entropy(experiment: Experiment, size: str, method: str) -> Value | None:
    runs = [r for r in experiment.runs if (r.size, r.method, r.status) == (size, method, "done")]
    found = [m["entropy_late"] for r in runs if "entropy_late" in (m := run_values(r.steps))]
    if not found:
        return None
    c = over_seeds(found)
    return Value(c.mean, *((None, None) if math.isnan(c.low) else (max(0.0, c.low), c.high)), c.seeds)


def sweep(experiment: Experiment, group: Group, strategy: str, key: str) -> list[SweepPoint]:
    """A strategy over `key` ("tau_p" or "q"), the other one at the paper's value: planned values and those found."""
    size = group.sizes[0]
    names = {c.record.cell.method for c in experiment.cells if c.record.cell.size == size}
    names |= {r.method for r in experiment.runs if r.size == size}
    known = [v for v in map(variant, names) if v is not None]
    found = {t for _, t, q in known if q == Q} if key == "tau_p" else {q for _, t, q in known if t == TAU_P}
    points = []
    for at in sorted({*(_TAUS if key == "tau_p" else _QS), *found}):
        label = _label(names, strategy, *((at, Q) if key == "tau_p" else (TAU_P, at)))
        values = {s: experiment.accuracy(size, label, group.benchmarks, s) if label else None for s in SETTINGS}
        values["entropy"] = _late_entropy(experiment, size, label) if label else None
        points.append(SweepPoint(at, label, values))
    return points


def sensitivity(experiment: Experiment, group: Group) -> Sketch | None:
    """Accuracy and late entropy over tau_p and q: for a size with such a run, and the paper's size; None for others."""
    varied = {c.record.cell.size for c in experiment.cells if variant(c.record.cell.method)}
    varied.add(next(iter(labels.PAPER_SIZES)))  # the one size that the paper varies them on
    if group.sizes[0] not in varied:
        return None
    title = group.heading("Sensitivity to τₚ and q")
    figure = canvas.sheet(title, 4.5)
    grid = figure.subplots(2, 2, sharex="col")
    taus = {"stapo": sweep(experiment, group, "stapo", "tau_p")}
    qs = {s: sweep(experiment, group, s, "q") for s in _STRATEGIES}
    columns = ((taus, "probability threshold τₚ", f"STAPO over τₚ (q = {Q:g})"),
               (qs, "q, share of the candidates silenced", f"Masks over q (τₚ = {TAU_P:g})"))  # fmt: skip
    for column, (sweeps, name, head) in enumerate(columns):
        _panel(grid[0][column], sweeps, list(SETTINGS))
        _panel(grid[1][column], sweeps, ["entropy"])
        points = next(iter(sweeps.values()))
        grid[1][column].set_xticks(range(len(points)), [f"{s.at:g}" for s in points])
        grid[1][column].set_xlabel(name)
        grid[0][column].set_title(head)
    grid[0][0].set_ylabel("accuracy (%), average")
    grid[1][0].set_ylabel("late entropy (nats)")
    hollow = canvas.marker_handle("o", "hollow: T = 0.7", 4.5)
    run = {s.label for points in (*taus.values(), *qs.values()) for s in points}
    there = {m: any(s.label and s.label not in _ENDS.values() for s in points) for m, points in (taus | qs).items()}
    ends = [canvas.handle(e, f" (q = {q:g})", line=False) for q, e in _ENDS.items() if e in run]
    canvas.legend(figure, [*(canvas.handle(m, run=there[m]) for m in _STRATEGIES), *ends, hollow])
    missing = [f"τₚ = {s.at:g}" for s in taus["stapo"] if s.label is None]
    missing += [f"{labels.method_label(m)} q = {s.at:g}" for m, x in qs.items() for s in x if s.label is None]
    caption = (
        f"{group.opening('Accuracy and late policy entropy over the two values of the mask')} Left: STAPO over the "
        "probability threshold. Right: three masks over q; q = 0 is JustRL and q = 1 JustRL-FullMask, whatever the "
        f"mask. Accuracy is the average of {len(group.benchmarks)} benchmarks; bars are 95 % intervals. Entropy: mean "
        "over the last quarter of the steps."
    )
    more = [f"Not run: {', '.join(missing)}."] if missing else []
    return Sketch(f"{group.name}_sensitivity", title, figure, " ".join([caption, *more, *experiment.remarks(group)]))


def _panel(axes: Axes, sweeps: Mapping[str, Sequence[SweepPoint]], what: Sequence[str]) -> None:
    places = range(len(next(iter(sweeps.values()))))
    have = {k for k in places for x in sweeps.values() for w in what if x[k].values[w] is not None}
    if not have:
        canvas.nothing(axes, "not run")
        return
    drawn: set[tuple[str, str]] = set()
    for i, (strategy, points) in enumerate(sweeps.items()):
        aside = (i - (len(sweeps) - 1) / 2) * 0.14
        for w in what:
            apart = 0.03 if w == _HOLLOW else -0.03 if w in SETTINGS else 0.0
            at = [k + apart + (0.0 if s.label in _ENDS.values() else aside) for k, s in enumerate(points)]
            how = canvas.method_style(strategy)
            # through neighbouring values alone: what was not run breaks the line
            means = [v.mean if (v := s.values[w]) else math.nan for s in points]
            (line,) = axes.plot(at, means, color=how.colour, linewidth=1, gid=f"sweep-{strategy}-{w}")
            if how.dashes:
                line.set_dashes(how.dashes)
            for place, s in zip(at, points, strict=True):
                if s.label and (s.label, w) not in drawn:  # an end of q is one run for all strategies
                    drawn.add((s.label, w))
                    _point(axes, place, s.values[w], s.label if s.label in _ENDS.values() else strategy, w == _HOLLOW)
    axes.set_xlim(-0.5, len(places) - 0.5)
    for k in set(places) - have:
        axes.text(k, 0.5, "not run", rotation=90, transform=axes.get_xaxis_transform(), ha="center", va="center",
                  color=canvas.GREY, size=7)  # fmt: skip


def _point(axes: Axes, at: float, v: Value | None, method: str, hollow: bool) -> None:
    if v is None:
        return
    how = canvas.method_style(method)
    if v.low is not None and v.high is not None:
        axes.plot([at, at], [v.low, v.high], color=how.colour, linewidth=0.9)
    axes.plot([at], [v.mean], how.marker, color=how.colour, markersize=4.5, zorder=5,
              markerfacecolor="white" if hollow else how.colour)  # fmt: skip
