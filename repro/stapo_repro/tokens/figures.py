"""The figures of a token log: density, quadrants, silenced share, entropy threshold, clouds of words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PathCollection
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from stapo_repro.figures.canvas import GREY, SMALL, Sketch, bare, nothing, number, sheet
from stapo_repro.figures.training import MOST_POINTS, windowed
from stapo_repro.tokens import numbers, words
from stapo_repro.tokens.logged_run import LoggedRun
from stapo_repro.tokens.numbers import Quadrant, StepCount, Threshold
from stapo_repro.tokens.words import KEPT, SILENCED
from stapo_results.token_log import ENTROPY_EDGES, LOG10_P_EDGES

_APART = 20  # times as many silenced as rare tokens: 20-Entropy silences four fifths of all
_NAMES = {
    (False, False): "frequent,\nhigh entropy",
    (False, True): "frequent,\nlow entropy",
    (True, False): "rare,\nhigh entropy",
    (True, True): "rare,\nlow entropy",
}


def sketches(run: LoggedRun) -> list[Sketch]:
    """All figures, to be drawn under the style.

    Raises:
        RunFailed: the log contradicts the run's metrics (`numbers.by_step`).
    """
    spread = numbers.all_thresholds(run)
    return [
        density(run, spread),
        quadrant_bars(run, numbers.quadrants(run)),
        silenced_share(run, numbers.by_step(run)),
        threshold(run, spread, numbers.thresholds(run)),
        words.clouds(run, numbers.words(run)),
    ]


def density(run: LoggedRun, region: Threshold | None) -> Sketch:
    """All tokens with a positive advantage by probability and entropy, S2T's region outlined."""
    title = run.heading("Tokens of correct responses by probability and entropy")
    figure = sheet(title, 3.7)
    axes = figure.add_subplot()
    c = run.counts
    correct = c["sign"] == 1
    grid = np.zeros((len(LOG10_P_EDGES) - 1, len(ENTROPY_EDGES) - 1), dtype=np.int64)
    np.add.at(grid, (c["log10_p"][correct], c["entropy"][correct]), c["tokens"][correct])
    caption = f"{run.caption_opening}Each square counts response tokens of responses with a positive advantage."
    name = "tokens_density"
    if not grid.any():
        nothing(axes, "no token of a response with a positive advantage")
        return Sketch(name, title, figure, caption)
    _squares(axes, grid)
    left, top = _frame(axes, grid, run.header.tau_p)
    tau_p = math.log10(run.header.tau_p)
    axes.axvline(tau_p, color="black", linewidth=0.8, dashes=(1, 1))
    axes.annotate(f"p = {run.header.tau_p:g}", (tau_p, 1), xycoords=("data", "axes fraction"), xytext=(2, 2),
                  textcoords="offset points", ha="left", va="bottom", size=7)  # fmt: skip
    inside = int(c["tokens"][correct & c["rare"] & c["below"]].sum())
    share = f"{inside:,} of {int(grid.sum()):,} tokens, {100 * inside / grid.sum():.3g} %"
    tau_h = region.median if region is not None else None
    if tau_h is None and np.inf in run.thresholds.values():
        tau_h = top  # q = 1: every rare token is below
    if tau_h is None:
        axes.set_title("no rare token, so no entropy threshold", color=GREY, weight="normal")
    else:
        axes.add_patch(Rectangle((left, 0), tau_p - left, min(tau_h, top), fill=False, edgecolor=SILENCED,
                                 linewidth=1.6, zorder=6, gid="region"))  # fmt: skip
        axes.set_title(f"in the region: {share}", color=SILENCED, weight="normal")
        caption += (
            " Outlined: S2T's region, rare tokens (left of the dotted line, p < "
            f"{run.header.tau_p:g}) with an entropy below the threshold; its count is exact and of each "
            "mini-batch's own threshold."
        )
    if region is not None:
        band = Rectangle((left, region.low), tau_p - left, min(region.high, top) - region.low)
        band.set(facecolor=SILENCED, alpha=0.15, linewidth=0, zorder=0)
        axes.add_patch(band)
        caption += (
            f" The outline's upper edge is the median threshold, {region.median:.3g} nats; the band is its range over "
            f"the mini-batches, {region.low:.3g} to {region.high:.3g}."
        )
    caption += " Squares are 0.25 wide and 0.125 high and may lie across a line."
    return Sketch(name, title, figure, caption)


def _squares(axes: Axes, grid: NDArray[np.int64]) -> None:
    """One path for all squares of a colour: the file stays small and has no seams inside."""
    edges = [1]  # 1, 3, 10, 30, ...: the classes of counts that a colour stands for
    while edges[-1] <= grid.max():
        edges.append(edges[-1] * 3 if str(edges[-1])[0] == "1" else edges[-1] // 3 * 10)
    colours = mpl.colormaps["viridis_r"](np.linspace(0.05, 1, len(edges) - 1))
    level = np.digitize(grid, edges)
    for i, colour in enumerate(colours, 1):
        squares = [
            Path([(x, y), (x + 0.25, y), (x + 0.25, y + 0.125), (x, y + 0.125), (x, y)], closed=True)
            for x, y in ((LOG10_P_EDGES[a], ENTROPY_EDGES[b]) for a, b in np.argwhere(level == i))
        ]
        if squares:
            axes.add_collection(PathCollection([Path.make_compound_path(*squares)], facecolors=[colour],
                                               edgecolors=[colour], linewidths=0.1, gid=f"level-{i}"))  # fmt: skip
    shown = ScalarMappable(BoundaryNorm(edges, len(edges) - 1), ListedColormap(colours))
    bar = axes.figure.colorbar(shown, ax=axes, label="tokens in a square, from", spacing="uniform", pad=0.01)
    bar.set_ticks(edges[:-1], labels=[f"{e:,}" for e in edges[:-1]])
    bar.outline.set_linewidth(0.4)


def _frame(axes: Axes, grid: NDArray[np.int64], tau_p: float) -> tuple[float, float]:
    """Limits around the data and tau_p; returns (left, top)."""
    columns, rows = np.flatnonzero(grid.any(axis=1)), np.flatnonzero(grid.any(axis=0))
    left = min(float(LOG10_P_EDGES[columns[0]]), math.log10(tau_p) - 1) - 0.25
    top = float(ENTROPY_EDGES[rows[-1] + 1]) + 0.125
    axes.set(xlim=(left, 0.05), ylim=(0, top), xlabel="log₁₀ of the token's probability", ylabel="entropy (nats)")
    return left, top


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
        bare(axes, len(quadrants), 0.5)
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

    def shares(part: Sequence[int | None]) -> NDArray[np.float64]:
        values = [math.nan if n is None else 100 * n / max(1, c.tokens) for n, c in zip(part, counts, strict=True)]
        return windowed(np.array([values]), width)[0]

    def curve(part: Sequence[int], **how: Any) -> None:
        axes.plot(steps, shares(part), marker="." if len(steps) < 60 else "", **how)

    curve([c.rare for c in counts], color=GREY, linewidth=1, label="rare tokens of correct responses", gid="rare")
    masks = run.masks_rare and [c.silenced for c in counts] == [c.region for c in counts]
    if not masks:
        curve([c.region for c in counts], color=SILENCED, dashes=(4, 1.5), label="S2T would silence", gid="region")
    if run.masks_rare or any(c.silenced for c in counts):
        colour = SILENCED if masks else KEPT
        done = run.part_names[0] if run.masks_rare else "silenced"
        curve([c.silenced for c in counts], color=colour, label=f"{done}, in the log", gid="silenced")
        own = shares([c.metric for c in counts])
        if not np.isnan(own).all():
            axes.plot(steps, own, "o", markersize=5, markerfacecolor="none", gid="metrics",
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
        caption += f" {run.header.selector} is no known mask over rare tokens: dashed is what S2T would silence."
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
    axes.set(xlabel="entropy (nats)", ylabel="tokens")
