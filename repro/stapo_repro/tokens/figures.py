"""The figures of counts: quadrants, silenced share, entropy threshold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from stapo_repro.figures.canvas import GREY, SMALL, Sketch, bare, nothing, number, sheet
from stapo_repro.figures.curves import MOST_POINTS, windowed
from stapo_repro.tokens.logged_run import LoggedRun
from stapo_repro.tokens.quadrants import Quadrant
from stapo_repro.tokens.silencing import StepCount, Threshold

SILENCED, KEPT = "#D55E00", "#0072B2"  # Okabe and Ito (2008)
_APART = 20  # times as many silenced as rare tokens: 20-Entropy silences four fifths of all
_NAMES = {
    (False, False): "frequent,\nhigh entropy",
    (False, True): "frequent,\nlow entropy",
    (True, False): "rare,\nhigh entropy",
    (True, True): "rare,\nlow entropy",
}


def quadrant_bars(run: LoggedRun, quadrants: Sequence[Quadrant]) -> Sketch:
    """Tokens and mean gradient norm of each quadrant."""
    title = run.heading("Gradient norm by quadrant")
    figure = sheet(title, 2.7)
    left, right = figure.subplots(1, 2, sharey=True)
    left.set_title("Tokens with A > 0 (log scale)")
    right.set_title("Mean gradient norm of a token")
    for i, q in enumerate(quadrants):
        colour = SILENCED if q.rare and q.below else KEPT
        if q.norm is None:
            for axes in (left, right):
                axes.annotate("no token", (0, -i), xytext=(3, 0), textcoords="offset points", va="center", color=GREY,
                              size=SMALL, xycoords=axes.get_yaxis_transform())  # fmt: skip
            continue
        left.barh(-i, q.tokens, height=0.62, color=colour, gid=f"tokens-{i}")
        number(left, q.tokens, -i, f"{q.tokens:,} ({100 * (q.share or 0):.3g} %)", 4)
        right.barh(-i, q.norm.mean, height=0.62, color=colour, gid=f"norm-{i}")
        end = q.norm.mean
        if q.norm.low is not None and q.norm.high is not None:
            end = q.norm.high
            right.plot([max(q.norm.low, 0), end], [-i, -i], color="black", linewidth=1, solid_capstyle="butt")
        number(right, end, -i, f"{q.norm.mean:.3g}", 4)
    left.set_yticks([-i for i in range(len(quadrants))], [_NAMES[q.rare, q.below] for q in quadrants])
    if any(q.tokens for q in quadrants):
        left.set_xscale("log")
        left.set_xlim(0.7, 20 * max(q.tokens for q in quadrants))
        right.set_xlim(0, 1.25 * max([q.norm.high or q.norm.mean for q in quadrants if q.norm] + [1e-9]))
    for axes in (left, right):
        bare(axes)
        axes.set_ylim(-len(quadrants) + 0.5, 0.5)
    several = any(q.norm is not None and q.norm.low is not None for q in quadrants)
    ends = (
        " Whiskers are 95 % t intervals over the run's mini-batches." if several else " One mini-batch: no intervals."
    )
    caption = (
        f"{run.caption_opening}Tokens of responses with a positive advantage. Rare: p < {run.header.tau_p:g}. Low "
        "entropy: below the mini-batch's threshold. The norm is of the gradient with respect to the token's logits, "
        f"before any silencing.{ends}"
    )
    return Sketch("tokens_quadrants", title, figure, caption)


def silenced_share(run: LoggedRun, counts: Sequence[StepCount]) -> Sketch:
    """Silenced, candidate and would-be silenced tokens by step, the run's own metric over them."""
    title = run.heading("Silenced tokens")
    figure = sheet(title, 2.9)
    axes = figure.subplots()
    name = "tokens_silenced_share"
    if not counts or not any(c.rare or c.silenced for c in counts):
        nothing(axes, "no rare token in the log" if counts else "the log is empty")
        return Sketch(name, title, figure, f"{run.caption_opening}Silenced tokens by step.")
    width = math.ceil(len(counts) / MOST_POINTS)
    steps = windowed(np.array([[c.step for c in counts]], dtype=np.float64), width)[0]
    own = np.array([[math.nan if c.own_share is None else 100 * c.own_share for c in counts]])

    def curve(part: Sequence[int], **how: Any) -> None:
        shares = np.array([[100 * n / c.tokens if c.tokens else 0.0 for n, c in zip(part, counts, strict=True)]])
        axes.plot(steps, windowed(shares, width)[0], marker="." if len(steps) < 60 else "", **how)

    curve([c.rare for c in counts], color=GREY, linewidth=1, label="rare tokens of correct responses", gid="rare")
    masks = run.masks_rare and [c.silenced for c in counts] == [c.region for c in counts]
    if not masks:
        curve([c.region for c in counts], color=SILENCED, dashes=(4, 1.5), label="S2T would silence", gid="region")
    if run.masks_rare or any(c.silenced for c in counts):
        colour = SILENCED if masks else KEPT
        done = run.part_names[0] if run.masks_rare else "silenced"
        curve(
            [c.silenced for c in counts],
            color=colour,
            label=f"{done}, in the log",
            gid="silenced",
        )
        if not np.isnan(own).all():
            axes.plot(steps, windowed(own, width)[0], "o", markersize=5, markerfacecolor="none", gid="metrics",
                      markeredgecolor="black", markeredgewidth=0.6, label="silenced, in the run's metrics")  # fmt: skip
    axes.set_ylabel("% of response tokens")
    rare = max(100 * c.rare / c.tokens for c in counts if c.tokens)
    if max(100 * c.silenced / c.tokens for c in counts if c.tokens) > _APART * rare > 0:
        axes.set_yscale("symlog", linthresh=rare)
        axes.set_ylabel("% of response tokens, symlog")
    axes.set_ylim(bottom=0)
    _step_axis(axes, steps.tolist(), run)
    figure.legend(loc="outside lower center", ncols=4)
    caption = f"{run.caption_opening}Shares of a step's response tokens, from the log's counts of all tokens."
    if not run.masks_rare:
        caption += f" {run.header.selector} is no mask over rare tokens: dashed is what S2T would have silenced."
    if width > 1:
        caption += f" Each point is the mean of {width} consecutive steps."
    return Sketch(name, title, figure, caption)


def _step_axis(axes: Axes, steps: Sequence[float], run: LoggedRun) -> None:
    """Whole numbers only, for a single step too."""
    axes.set_xlabel("mini-batch of the file" if run.is_probe else "training step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(steps) == 1:
        axes.set_xticks(steps)


def threshold(run: LoggedRun, spread: Threshold | None, steps: Sequence[Threshold]) -> Sketch:
    """The entropies of the rare tokens, cut at the threshold; the threshold over the steps."""
    title = run.heading("Entropy threshold")
    figure = sheet(title, 2.8)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    left.set_title("Rare tokens of correct responses")
    right.set_title("Threshold by step")
    name, header = "tokens_threshold", run.header
    caption = (
        f"{run.caption_opening}S2T's threshold is the {header.q:g}-quantile of the entropies of a mini-batch's rare "
        f"tokens (p < {header.tau_p:g}, positive advantage): what lies below is silenced, the rest kept."
    )
    if not run.rows["rare"].any():
        for axes in (left, right):
            nothing(axes, "no rare token")
        return Sketch(name, title, figure, caption)
    _entropies(left, run, spread)
    if steps:
        right.set_ylabel("threshold (nats)")
        x = [t.step for t in steps]
        right.fill_between(x, [t.low for t in steps], [t.high for t in steps], color="black", alpha=0.1, linewidth=0)
        marker = "." if len(x) < 60 else ""
        right.plot(x, [t.median for t in steps], color="black", marker=marker, linewidth=1, gid="tau")
        _step_axis(right, x, run)
        right.set_ylim(bottom=0)
    else:
        nothing(right, f"q = {header.q:g}: no finite threshold")
    caption += " Both sides are of each token's own mini-batch, so colours overlap where thresholds differ."
    if header.left_out:
        caption += f" Logged rows only: {header.left_out:,} of the whole log were left out at its bound."
    return Sketch(name, title, figure, caption)


def _entropies(axes: Axes, run: LoggedRun, spread: Threshold | None) -> None:
    """The entropies of the rare tokens, coloured by the side of the threshold."""
    rare = run.rows["rare"]
    entropy, below = run.rows["entropy"][rare], run.below[rare]
    edges = np.linspace(0, max(float(entropy.max()), 1e-6), 41).tolist()
    axes.hist([entropy[below], entropy[~below]], bins=edges, stacked=True, color=[SILENCED, KEPT])
    handles: list[Patch | Line2D] = [
        Patch(color=SILENCED, label=f"below: {int(below.sum()):,} ({100 * below.mean():.3g} %)"),
        Patch(color=KEPT, label=f"not below: {int((~below).sum()):,} ({100 * (~below).mean():.3g} %)"),
    ]
    if spread is not None:
        axes.axvline(spread.median, color="black", linewidth=1)
        axes.axvspan(spread.low, spread.high, color="black", alpha=0.1, linewidth=0, zorder=0)
        handles += [
            Line2D([], [], color="black", linewidth=1, label="median threshold"),
            Patch(color="black", alpha=0.1, label="range over mini-batches"),
        ]
    axes.legend(handles=handles, loc="upper right", fontsize=7)
    axes.set_xlabel("entropy (nats)")
    axes.set_ylabel("tokens")
