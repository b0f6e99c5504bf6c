"""The density of all tokens of correct responses over probability and entropy, S2T's region outlined."""

from __future__ import annotations

import math

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PathCollection
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.patches import Rectangle
from matplotlib.path import Path
from numpy.typing import NDArray

from stapo_repro.figures.canvas import GREY, Sketch, nothing, sheet
from stapo_repro.tokens.figures import SILENCED
from stapo_repro.tokens.logged_run import LoggedRun
from stapo_repro.tokens.silencing import Threshold
from stapo_results.token_log import ENTROPY_EDGES, LOG10_P_EDGES


def level_edges(most: int) -> list[int]:
    """1, 3, 10, 30, ... up to the first above `most`: the classes of counts that a colour stands for."""
    edges = [1]
    while edges[-1] <= most:
        edges.append(edges[-1] * 3 if str(edges[-1])[0] == "1" else edges[-1] // 3 * 10)
    return edges


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
    axes.annotate(f"p = {run.header.tau_p:g}", (tau_p, 1), xycoords=("data", "axes fraction"), xytext=(-3, -3),
                  textcoords="offset points", ha="right", va="top", size=7)  # fmt: skip
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
    edges = level_edges(int(grid.max()))
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
    shown = ScalarMappable(
        BoundaryNorm(edges, len(edges) - 1), ListedColormap(colours)
    )  # fmt: skip
    bar = axes.figure.colorbar(shown, ax=axes, label="tokens in a square, from", spacing="uniform", pad=0.01)
    bar.set_ticks(edges[:-1], labels=[f"{e:,}" for e in edges[:-1]])
    bar.outline.set_linewidth(0.4)


def _frame(axes: Axes, grid: NDArray[np.int64], tau_p: float) -> tuple[float, float]:
    """Limits around the data and tau_p; returns (left, top)."""
    columns, rows = np.flatnonzero(grid.any(axis=1)), np.flatnonzero(grid.any(axis=0))
    left = min(float(LOG10_P_EDGES[columns[0]]), math.log10(tau_p) - 1) - 0.25
    top = float(ENTROPY_EDGES[rows[-1] + 1]) + 0.125
    axes.set_xlim(left, 0.05)
    axes.set_ylim(0, top)
    axes.set_xlabel("log₁₀ of the token's probability")
    axes.set_ylabel("entropy (nats)")
    return left, top
