"""How the entropies of a step's tokens are spread, over training: is entropy high everywhere or at few tokens?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from stapo_repro import labels
from stapo_repro.figures.canvas import GREY, KEY, Sketch, handle, legend, method_style, nothing, sheet
from stapo_repro.figures.experiment import Experiment, Group
from stapo_repro.figures.training import MOST_POINTS, Panel, curve, describe_runs
from stapo_repro.read import TrainingRun

QUANTILES = (5, 25, 50, 75, 95, 99)
FLOOR = 1e-5  # nats: entropies of a sure token are 0 or rounding, which a logarithmic axis cannot show


@dataclass(frozen=True)
class Quantiles:
    """Quantiles of token entropy, mean over seeds: steps (S,), values (6, S) in nats, in the order of QUANTILES."""

    steps: NDArray[np.float64]
    values: NDArray[np.float64]
    window: int


def quantiles(runs: Sequence[TrainingRun], most: int | None = MOST_POINTS) -> Quantiles | None:
    """The quantiles over training; None when one of them was not logged."""
    found = [curve(runs, Panel(f"token_entropy_q{q:02d}", "", ""), most) for q in QUANTILES] if runs else []
    have = [c for c in found if c is not None]
    if len(have) < len(QUANTILES):
        return None
    return Quantiles(have[0].steps, np.array([c.mean for c in have]), have[0].window)


def late_profile(runs: Sequence[TrainingRun]) -> NDArray[np.float64] | None:
    """(6,) in nats: each quantile's mean over the last quarter of the steps (k with 4 k > 3 K)."""
    q = quantiles(runs, None)
    return None if q is None else q.values[:, 4 * q.steps > 3 * q.steps.max()].mean(axis=1)


def token_entropy(experiment: Experiment, group: Group) -> Sketch:
    """Quantiles of token entropy by step, a panel a method, and their profile late in training."""
    runs = experiment.runs_of(group.sizes[0], group.methods)
    title = group.heading("Token entropy")
    figure = sheet(title, 4.9)
    columns = len(runs)
    grid = figure.add_gridspec(2, columns, height_ratios=(1, 1))
    shared: Axes | None = None
    windows = []
    for i, (method, mine) in enumerate(runs.items()):
        found = quantiles(mine)
        axes = figure.add_subplot(grid[0, i], sharey=shared if found is not None else None)
        _over_training(axes, method, found, "not logged" if mine else "not run")
        if found is not None:
            windows.append(found.window)
            shared = shared or axes
            axes.tick_params(labelleft=shared is axes)
            if shared is axes:
                axes.set_ylabel("token entropy (nats)")
    profiles = {m: p for m, mine in runs.items() if (p := late_profile(mine)) is not None}
    _profiles(figure.add_subplot(grid[1, :]), profiles, any(runs.values()))
    handles = [
        Patch(color=GREY, alpha=0.18, linewidth=0, label="5 % to 95 %"),
        Patch(color=GREY, alpha=0.45, linewidth=0, label="25 % to 75 %"),
        Line2D([], [], color=GREY, label="median"),
        Line2D([], [], color=GREY, dashes=(1, 1), linewidth=1, label="99 %"),
    ]
    legend(figure, handles)
    caption = (
        f"{group.opening('Quantiles of the entropy of a response token')} Above: over training, of the policy that "
        "sampled the step. Below: the same quantiles late in training (mean over the last quarter of the steps). "
        f"Values under {FLOOR:g} nats are drawn at {FLOOR:g}. "
    )
    several = any(len(r) > 1 for r in runs.values())
    runs_shown = describe_runs({m: r[:1] for m, r in runs.items()}, windows)  # bands are quantiles here, not seeds
    caption += runs_shown + (" Means over seeds." if several else "")
    return Sketch(f"{group.name}_token_entropy", title, figure, caption)


def _over_training(axes: Axes, method: str, found: Quantiles | None, why: str) -> None:
    axes.set_title(labels.method_label(method).replace(" mask", "\nmask").replace("-FullMask", "-\nFullMask"))
    axes.set_xlabel("training step")
    if found is None:
        nothing(axes, why)
        return
    colour = method_style(method).colour
    v = np.maximum(found.values, FLOOR)
    axes.fill_between(found.steps, v[0], v[4], color=colour, alpha=0.18, linewidth=0)
    axes.fill_between(found.steps, v[1], v[3], color=colour, alpha=0.45, linewidth=0)
    axes.plot(found.steps, v[2], color=colour, gid=f"median-{method}")
    axes.plot(found.steps, v[5], color=colour, linewidth=1, dashes=(1, 1))
    axes.set_yscale("log")
    axes.margins(x=0.02)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True, steps=[1, 2, 5, 10]))


def _profiles(axes: Axes, profiles: dict[str, NDArray[np.float64]], any_run: bool) -> None:
    axes.set_title("Late in training")
    if not profiles:
        nothing(axes, "not logged" if any_run else "not run")
        return
    at = np.arange(len(QUANTILES))
    for method, values in profiles.items():
        how = method_style(method)
        (line,) = axes.plot(at, np.maximum(values, FLOOR), color=how.colour, marker=how.marker, markersize=4,
                            markeredgecolor="white", markeredgewidth=0.5, gid=f"profile-{method}")  # fmt: skip
        if how.dashes:
            line.set_dashes(how.dashes)
    axes.set_yscale("log")
    axes.set_xticks(at, [f"{q} %" for q in QUANTILES])
    axes.set_xlabel("quantile of the response tokens")
    axes.set_ylabel("token entropy (nats)")
    axes.legend(handles=[handle(m) for m in profiles], loc="upper left", handlelength=KEY)
