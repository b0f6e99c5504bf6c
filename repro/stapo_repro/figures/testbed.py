"""The testbed's figures: what training makes of useful and spurious words, long trainings, and the judged claims."""

from __future__ import annotations

import math
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from stapo_repro import labels
from stapo_repro.figures import style
from stapo_repro.figures.curves import Panel, curve, line
from stapo_repro.figures.style import GREY, Sketch
from stapo_repro.testbed.claims import Claim, Judged, Verdict, judging
from stapo_repro.testbed.evidence import MEASURES, run_values
from stapo_repro.testbed.pages import MASKS, Testbed
from stapo_repro.testbed.plan import LONG_ARMS, STEPS, method_and_rate, rate_text

_PANELS = (
    Panel("useful_rate", "Useful words", "useful, per 100 responses", 100.0),
    Panel("spurious_rate", "Spurious words", "spurious, per 100 responses", 100.0),
)
_LONG = (
    Panel("entropy", "Entropy", "nats per token"),
    Panel("spurious_rate", "Spurious words", "per 100 responses", 100.0),
    Panel("accuracy", "Accuracy in validation", "%", 100.0),
)
# colour, marker, whether it is filled: a verdict is told apart in grey too
_LOOKS: dict[Verdict, tuple[str, str, bool]] = {
    "holds": ("#009E73", "o", True),
    "equivalent": ("#0072B2", "s", True),
    "opposite": ("#D55E00", "X", True),
    "not distinguishable": (GREY, "o", False),
}


def _heading(t: Testbed, text: str) -> str:
    return f"{text} (testbed){', SYNTHETIC RECORDS' if t.synthetic else ''}"


def _opening(t: Testbed, what: str) -> str:
    made_up = " SYNTHETIC RECORDS, made up for a test." if t.synthetic else ""
    return f"{what} in the testbed: a tiny model on sums modulo 4, not a result of the paper.{made_up}"


def rates(t: Testbed) -> Sketch:
    """Useful and spurious words over the steps, a colour per arm, a column per world."""
    figure = style.sheet(4.4)
    grid = figure.subplots(len(_PANELS), len(labels.WORLDS), sharex=True, sharey="row")
    drawn: dict[str, int] = {}
    runs = t.evidence["main"].runs
    for column, (world, size) in enumerate(labels.WORLDS.items()):
        grid[0][column].set_title(world)
        grid[-1][column].set_xlabel("training step")
        for row, panel in enumerate(_PANELS):
            axes = grid[row][column]
            for arm in labels.ARMS:
                mine = [r for r in runs if (r.size, r.method, r.status) == (size, arm, "done")]
                if mine and (found := curve(mine, panel)) is not None:
                    line(axes, found, f"{panel.metric}-{world}")
                    drawn[arm] = max(drawn.get(arm, 0), found.seeds)
            if not axes.lines:
                style.nothing(axes)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for row, panel in enumerate(_PANELS):
        grid[row][0].set_ylabel(panel.unit)
        grid[row][0].set_ylim(bottom=0)
    style.legend(figure, [style.handle(arm, run=arm in drawn) for arm in labels.ARMS])
    seeds = f" Lines: means over seeds (at most {max(drawn.values(), default=0)}). Bands: lowest to highest seed."
    caption = (
        f"{_opening(t, 'Planted words in all responses, by training step,')} Useful words lead to right answers, "
        f"spurious ones neither help nor harm.{seeds if drawn else ' Nothing has been run yet.'}"
    )
    return Sketch("testbed_rates", _heading(t, "Useful and spurious words over training"), figure, caption)


def long(t: Testbed) -> Sketch:
    """Entropy, spurious words and validation of the long trainings: a row per learning rate, a line per run."""
    runs = [r for r in t.evidence["long"].runs if r.status == "done"]
    arms = [method_and_rate(a) for a in dict.fromkeys((*LONG_ARMS, *(r.method for r in runs)))]
    of = {(m, rate): [r for r in runs if r.method == m + rate] for m, rate in arms}
    methods, rates = (list(dict.fromkeys(x)) for x in zip(*arms, strict=True))
    judges = [r for r in runs if judging([j.claim for j in t.claims], r.method, r.seed)]
    figure = style.sheet(0.8 + 1.8 * len(rates))
    grid = figure.subplots(len(rates), len(_LONG), sharex=True, sharey="col")
    for row, rate in zip(grid, rates, strict=True):
        counts = [f"{labels.method_label(m)} {len(of[m, rate])}" for m in methods if of.get((m, rate))]
        row[0].set_ylabel(f"learning rate {rate_text(rate)}\n(n: {', '.join(counts) or 'none'})")
        for axes, panel in zip(row, _LONG, strict=True):
            for method in methods:
                for run in of.get((method, rate), []):
                    if (found := curve([run], panel)) is not None:
                        line(axes, replace(found, method=method), f"long-{panel.metric}{rate}-s{run.seed}")
                        axes.lines[-1].set_alpha(1.0 if run in judges else 0.45)
            if not axes.lines:
                style.nothing(axes)
    for top, bottom, panel in zip(grid[0], grid[-1], _LONG, strict=True):
        top.set_title(f"{panel.title}\n({panel.unit})")
        bottom.set_xlabel("training step")
    grid[0][1].set_yscale("symlog", linthresh=1.0)  # from none to every second word of a response
    style.legend(figure, [style.handle(m, run=any(of.get((m, rate)) for rate in rates)) for m in methods])
    seeds = "; ".join(
        f"at {rate_text(at)} "
        + " and ".join(f"{len(x)} of {labels.method_label(m)}" for (m, r), x in of.items() if r == at)
        for at in rates
    )
    steps = max((r.steps[-1].step for r in runs), default=STEPS["long"])
    seen = len(runs) - len(judges)
    exploratory = f" {seen} of them, paler, are exploratory and judge no claim." if seen else ""
    caption = _opening(t, f"Trainings of {steps} steps in the world paper,")
    caption += f" A line is one training: {seeds}.{exploratory}" if runs else " Nothing has been run yet."
    return Sketch("testbed_long", _heading(t, "Long trainings with S2T and without a mask"), figure, caption)


def claims(t: Testbed) -> Sketch:
    """Every claim's quantity with its interval and verdict, one panel per unit."""
    panels: dict[str, list[Judged]] = {}
    for j in t.claims:
        unit = MEASURES[j.claim.measure][1] or "reward"
        rate = method_and_rate(j.claim.first)[1]
        grown = f"growth, {unit}{f', at {rate_text(rate)}' if rate else ''}"
        panels.setdefault(grown if j.claim.measure.endswith("growth") else unit, []).append(j)
    ends = {(r.method, str(r.seed)): (run_values(r.steps).get("collapse_step", math.inf), r.steps[-1].step)
            for r in t.evidence["long"].runs}  # fmt: skip
    collapsed = {run for run, (at, last) in ends.items() if at <= last}
    figure = style.sheet(1.0 + sum(0.62 + 0.2 * len(found) for found in panels.values()))
    heights = [1.5 + len(found) for found in panels.values()]
    grid = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights).flatten()
    for axes, (unit, found) in zip(grid, panels.items(), strict=True):
        axes.axvline(0, color="black", linewidth=0.6)
        for i, j in enumerate(found):
            judged = {(arm, str(seed)) for arm in (j.claim.first, j.claim.second) for seed in j.quantity.seeds}
            _draw(axes, j, -i, event=j.claim.measure != "collapse_step" or bool(judged & collapsed))
        axes.set_yticks([-i for i in range(len(found))], [f"{_short(j.claim)}  {j.claim.number}" for j in found])
        style.bare(axes, len(found))
        axes.set_xlabel(f"difference ({unit})", labelpad=1)
    known = {j.verdict for j in t.claims}
    looks = [(v, *look) for v, look in _LOOKS.items() if v in known]
    style.legend(figure, [
        *(style.marker_handle(m, text, 5, colour, colour if full else "white") for text, colour, m, full in looks),
        style.marker_handle(">", "reference, towards the claimed side", 5, "black", "none"),
        Patch(color="#DDDDDD", label="margin of an equivalence"),
    ])  # fmt: skip
    caption = (
        f"{_opening(t, 'The claims')} Each claim's quantity, the first minus the second, in its own unit. Bars: 95 % "
        "intervals. Colour and marker: the verdict before Holm's correction. Hollow triangles: the claim's reference, "
        "pointing to where the claim expects the quantity. No event: no run that judges the claim collapsed."
    )
    return Sketch("testbed_claims", _heading(t, "The claims"), figure, caption)


def _short(c: Claim) -> str:
    """The quantity in a line's room."""
    what = MEASURES[c.measure][0].split(" for ")[0].replace(" late in training", "").replace("step of ", "")
    (first, rate), (second, _) = method_and_rate(c.first), method_and_rate(c.second)
    pair = f"{labels.method_label(first)} − {labels.method_label(second)}"
    if c.kind == "optimum":
        pair = "best q inside − ends"
    elif c.measure == "precision":
        pair = f"{MASKS[c.first]} − {MASKS[c.second]}"
    return f"{c.world}: {what}, {pair}{f' at {rate_text(rate)}' if rate else ''}"


def _draw(axes: Axes, j: Judged, y: float, event: bool) -> None:
    c, q = j.claim, j.quantity
    if c.margin is not None:
        axes.barh(y, 2 * c.margin, left=-c.margin, height=0.8, color="#DDDDDD", zorder=0)
    else:
        axes.plot([c.reference], [y], ">" if c.direction == "above" else "<", color="black", markersize=5,
                  markerfacecolor="none", markeredgewidth=0.7, zorder=2)  # fmt: skip
    if q.mean is None or j.verdict not in _LOOKS or not event:
        known = q.mean is not None and j.verdict in _LOOKS
        style.number(axes, c.reference, y, "no event" if known else "not run", 9, color=GREY)
        return
    colour, marker, full = _LOOKS[j.verdict]
    style.interval(axes, q.low, q.high, y, colour, 1.4, zorder=3)
    axes.plot([q.mean], [y], marker, color=colour, markersize=5, markerfacecolor=colour if full else "white", zorder=5,
              gid=f"claim-{c.number}")  # fmt: skip
