"""How far the theorem's bounds are from the gradient norms of a run's tokens, by quadrant."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from stapo_repro import labels
from stapo_repro.figures import canvas
from stapo_repro.figures.canvas import GREY, SMALL, Sketch
from stapo_repro.figures.experiment import Experiment
from stapo_results.schema import Theory, TheoryQuadrant
from stapo_results.sizes import is_miniature_size

LOWER, UPPER = "#0072B2", "#D55E00"
_LEFT = 0.03  # of the axis: what lies further left is drawn at its edge


def gradient_bounds(experiment: Experiment) -> list[Sketch]:
    """One figure a theory record that has a run's tokens; nothing without one."""
    return [_figure(t, i) for i, t in enumerate(t for t in experiment.theory if any(q.tokens for q in t.quadrants))]


def _source(theory: Theory) -> str:
    own = theory.source_about
    method = labels.method_label(own["method"]) + " " if "method" in own else ""
    steps = f", {own['steps']} steps" if "steps" in own else ""
    return f"the {method}{own.get('kind', '')} run {theory.source_run}{steps}"


def _figure(theory: Theory, number: int) -> Sketch:
    miniature = is_miniature_size(theory.source_about.get("size", ""))
    title = f"How tight the gradient bounds are, by quadrant{' (miniature)' if miniature else ''}"
    figure = canvas.sheet(title, 2.6)
    norm, bounds = figure.subplots(1, 2, sharey=True, width_ratios=[1, 2])
    names = [q.quadrant.replace("tau_p", r"$\tau_p$").replace("tau_h", r"$\tau_h$") for q in theory.quadrants]
    norm.set_yticks([-i for i in range(len(names))], [n.replace(">=", r"$\geq$").replace("<", "$<$") for n in names])
    for i, q in enumerate(theory.quadrants):
        if q.tokens:
            _draw(norm, bounds, q, -i)
            continue
        for axes in (norm, bounds):
            axes.annotate("no token", (0.02, -i), xycoords=("axes fraction", "data"), va="center", color=GREY)
    norm.set_xlabel("mean gradient norm (tokens)")
    norm.margins(x=0.6)
    bounds.set_xscale("log")
    bounds.set_xlabel("bound / squared norm: median, and the far 5 %")
    bounds.axvline(1, color="black", linewidth=0.9, zorder=1)
    for axes in (norm, bounds):
        canvas.bare(axes, len(names))
    canvas.legend(figure, [
        Line2D([], [], color=LOWER, marker=">", label="lower bound"),
        Line2D([], [], color=UPPER, marker="<", label="upper bound"),
        Line2D([], [], color="black", linewidth=0.9, label="the norm itself"),
    ])  # fmt: skip
    where = " of the miniature: a tiny model on additions, not a result of the paper" if miniature else ""
    caption = (
        f"Tokens with a positive advantage of {_source(theory)}{where}. Left: mean norm of the gradient with "
        "respect to the logits. Right: the theorem's bounds as multiples of each token's squared norm (1: tight), of "
        "those tokens whose norm float32 resolves; how often the lower bound is not above 0. The thresholds are those "
        "of the token's own mini-batch."
    )
    caption += "".join(f" Not run, missing: {m}." for m in theory.missing)
    name = "miniature_bounds" if miniature else "bounds"
    return Sketch(f"{name}_{number + 1}" if number else name, title, figure, caption)


def _draw(norm: Axes, bounds: Axes, q: TheoryQuadrant, y: int) -> None:
    v = q.values
    norm.barh(y, v["norm_mean"], height=0.5, color="#999999")
    canvas.number(norm, v["norm_mean"], y, f"{v['norm_mean']:.3g}  ({q.tokens:,})", 3)
    if "lower_median" not in v:
        return
    for colour, middle, end, marker in (
        (LOWER, v["lower_median"], v["lower_q05"], ">"),
        (UPPER, v["upper_median"], v["upper_q95"], "<"),
    ):
        at = max(middle, _LEFT)
        canvas.interval(bounds, at, max(end, _LEFT), y, colour, 1.5)
        bounds.plot([at], [y], marker, color=colour, markersize=6, markeredgecolor="white", markeredgewidth=0.5)
    share, resolved = v["lower_says_nothing_share"], q.tokens - round(v["unresolved"])
    parts = [f"≤ 0 for {share:.0%}"] if share else []
    parts += [f"{resolved:,} resolved"] if resolved < q.tokens else []
    bounds.annotate("; ".join(parts), (_LEFT, y), xytext=(2, 8), textcoords="offset points", size=SMALL, color=GREY,
                    va="center")  # fmt: skip
