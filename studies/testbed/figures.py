"""The testbed's figures: what training makes of useful and spurious words, long trainings, and the judged claims."""

from __future__ import annotations

import math
from collections import Counter

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from stapo_repro import labels
from stapo_repro.figures import style
from stapo_repro.figures.curves import Panel, curve, line, panel
from stapo_repro.figures.style import GREY, MethodStyle, Sketch
from stapo_repro.text import as_written, signed
from studies.testbed.claims import Claim, Judged, Verdict, judging
from studies.testbed.evidence import MEASURES, run_values
from studies.testbed.plan import COSTLY, COSTLY_ARMS, LONG_ARMS, WORLDS, method_and_rate, rate_text
from studies.testbed.tables import MASKS, Testbed

_RATES = (Panel("useful_rate", factor=100.0), Panel("spurious_rate", factor=100.0))
_LONG = (
    Panel("entropy", "Entropy", "nats per token"),
    Panel("spurious_rate", "Spurious words", "per 100 responses", 100.0),
    Panel("accuracy", "Accuracy in validation", "%", 100.0),
)
_COSTLY = (
    Panel("val-core/mini-add-hard/acc/mean@8", "Longer problems", "accuracy (%)", 100.0),
    Panel("spurious_rate", "Spurious words", "per 100 responses", 100.0),
)
# colour and marker, whether it is hollow: a verdict is told apart in grey too
_LOOKS: dict[Verdict, tuple[MethodStyle, bool]] = {
    "holds": (MethodStyle("#009E73", (), "o"), False),
    "equivalent": (MethodStyle("#0072B2", (), "s"), False),
    "opposite": (MethodStyle("#D55E00", (), "X"), False),
    "not distinguishable": (MethodStyle(GREY, (), "o"), True),
}


def _sketch(t: Testbed, kind: str, title: str, figure: Figure, caption: str, finding: str = "") -> Sketch:
    made_up = f" {labels.SYNTHETIC}" if t.synthetic else ""
    opening = f"A tiny model on sums modulo 4, not a result of the paper.{made_up}"
    title = f"{title} (testbed){', SYNTHETIC RECORDS' if t.synthetic else ''}"
    return Sketch(f"testbed_{kind}", title, figure, f"{opening} {caption}", finding=finding)


def _judged(t: Testbed, world: str, first: str, second: str, *measures: str) -> str:
    """ "+9.0 (holds), +10.2 (holds)": claimed differences of two arms with verdicts after Holm; empty without one."""
    of = {(j.claim.world, j.claim.first, j.claim.second, j.claim.measure): j for j in t.claims}
    found = [of.get((world, first, second, m)) for m in measures]
    texts = [f"{signed(j.quantity.number.mean, 1)} ({j.verdict_holm})" for j in found if j and j.verdict != "not run"]
    return ", ".join(texts) if len(texts) == len(measures) else ""


def rates(t: Testbed) -> Sketch:
    """Useful and spurious words over the steps, a colour per arm, a column per world."""
    figure = style.sheet(4.8)
    grid = figure.subplots(len(_RATES), len(WORLDS), sharex=True, sharey="row")
    done = [r for r in t.evidence["main"].runs if r.status == "done"]
    for column, (world, size) in zip(grid.T, WORLDS.items(), strict=True):
        runs = {arm: [r for r in done if (r.size, r.method) == (size, arm)] for arm in labels.ARMS}
        for axes, shown in zip(column, _RATES, strict=True):
            panel(axes, runs, shown)
            axes.label_outer()
        column[0].set_title(world)
    for (first, *_), text in zip(grid, ("useful", "spurious"), strict=True):
        first.set(ylabel=f"{text}, per 100 responses", ylim=(0, None))
    style.legend(figure, [style.handle(arm, run=any(r.method == arm for r in done)) for arm in labels.ARMS])
    caption = "Planted words: useful ones lead to right answers, spurious ones neither help nor harm. "
    most = max((len({r.seed for r in done if (r.size, r.method) == of}) for of in {(r.size, r.method) for r in done}),
               default=0)  # fmt: skip
    caption += f"Lines: means over seeds (at most {most}); bands: lowest to highest seed." if done else "Not run."
    late = {(r["world"], r["arm"]): q.number.mean for r in t.rows for m, q in r["values"].items()
            if m == "spurious_late" and q.number.known}  # fmt: skip
    found = {
        world: (none, max(masked))
        for world in WORLDS
        if (none := late.get((world, "justrl"))) is not None
        and (masked := [x for (w, a), x in late.items() if w == world and a in MASKS])
    }
    each = "; ".join(f"{world} {none:.0f} and {most:.0f}" for world, (none, most) in found.items())
    finding = f"Spurious words per 100 responses late in training, no mask and the highest of the masks: {each}"
    return _sketch(t, "rates", "Useful and spurious words over training", figure, caption, finding if found else "")


def costly(t: Testbed) -> Sketch:
    """Accuracy on longer problems and spurious words in `costly`, a colour per arm."""
    runs = {a.name: [r for r in t.evidence["costly"].runs
                     if (r.status, r.size, r.method) == ("done", COSTLY["costly"], a.name)]
            for a in COSTLY_ARMS}  # fmt: skip
    figure = style.sheet(3.1)
    for axes, shown in zip(figure.subplots(1, len(_COSTLY)), _COSTLY, strict=True):
        panel(axes, runs, shown)
    style.legend(figure, [style.handle(arm, run=bool(of)) for arm, of in runs.items()])
    caption = "World costly: a spurious word harms only in problems longer than those of training. "
    caption += (
        f"Lines: means over {len(runs['stapo'])} seeds; bands: lowest to highest seed." if any(runs.values()) else ""
    )
    steps = ("hard_step20", "hard_step40")
    none, chance = (_judged(t, "costly", "stapo", arm, *steps) for arm in ("justrl", "stapo-random"))
    finding = f"Points after 20 and 40 steps, longer problems: STAPO minus no mask {none}; minus random mask {chance}"
    finding = finding if none and chance else ""
    return _sketch(t, "costly", "Where spurious words cost accuracy", figure, caption, finding)


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
        for axes, shown in zip(row, _LONG, strict=True):
            for method, run in [(m, r) for m in methods for r in of.get((m, rate), [])]:
                if (found := curve([run], shown)) is not None:
                    drawn = line(axes, method, found, shown.metric, f"long-{shown.metric}{rate}-s{run.seed}-{method}")
                    drawn.set_alpha(1.0 if run in judges else 0.45)
            if not axes.lines:
                style.nothing(axes)
    for top, bottom, shown in zip(grid[0], grid[-1], _LONG, strict=True):
        top.set_title(f"{shown.title}\n({shown.unit})")
        bottom.set_xlabel("training step")
    grid[0][1].set_yscale("symlog", linthresh=1.0)  # from none to every second word of a response
    style.legend(figure, [style.handle(m, run=any(of.get((m, rate)) for rate in rates)) for m in methods])
    caption = "World paper. A line is one training; n: how many."
    if seen := len(runs) - len(judges):
        caption += f" {seen} of them, paler, are exploratory and judge no claim."
    growth = [(rate, text) for rate in rates
              if (text := _judged(t, "paper", f"stapo{rate}", f"justrl{rate}", "spurious_growth"))]  # fmt: skip
    finding = "Growth of spurious words per 100 responses, STAPO minus no mask, at learning rate "
    finding += "; ".join(f"{rate_text(rate)}: {text}" for rate, text in growth)
    return _sketch(t, "long", "Long trainings", figure, caption, finding if growth else "")


def claims(t: Testbed) -> Sketch:
    """Every claim's quantity with its interval and verdict, one panel per unit. Claims about a collapse that no run
    shows are named in the caption: there is nothing to draw of them."""
    ends = {(r.method, r.seed): (run_values(r.steps).get("collapse_step", math.inf), r.steps[-1].step)
            for r in t.evidence["long"].runs}  # fmt: skip
    collapsed = {run for run, (at, last) in ends.items() if at <= last}
    panels: dict[str, list[Judged]] = {}
    no_event = []
    for j in t.claims:
        of = {(arm, seed) for arm in (j.claim.first, j.claim.second) for seed in j.quantity.seeds}
        if j.claim.measure == "collapse_step" and of and not of & collapsed:
            no_event.append(j.claim.number)
            continue
        unit = MEASURES[j.claim.measure][1] or "reward"
        rate = method_and_rate(j.claim.first)[1]
        grown = f"growth, {unit}{f', at {rate_text(rate)}' if rate else ''}"
        panels.setdefault(grown if j.claim.measure.endswith("growth") else unit, []).append(j)
    figure = style.sheet(1.0 + sum(0.62 + 0.2 * len(found) for found in panels.values()))
    heights = [1.5 + len(found) for found in panels.values()]
    grid = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights).flatten()
    for axes, (unit, found) in zip(grid, panels.items(), strict=True):
        axes.axvline(0, color="black", linewidth=0.6)
        for i, j in enumerate(found):
            _draw(axes, j, -i)
        axes.set_yticks([-i for i in range(len(found))], [f"{_short(j.claim)}  {j.claim.number}" for j in found])
        style.bare(axes, len(found))
        axes.set_xlabel(f"difference ({unit})", labelpad=1, x=1, horizontalalignment="right")
    known = {j.verdict_holm for j in t.claims}
    style.legend(figure, [
        *(style.key(how.marker, text, 5, how.colour, "white" if hollow else how.colour)
          for text, (how, hollow) in _LOOKS.items() if text in known),
        style.key(">", "reference, towards the claimed side", 5, "black", "none"),
        Patch(color="#DDDDDD", label="margin of an equivalence"),
    ])  # fmt: skip
    caption = "First minus second, in the claim's unit. Bars: 95 % intervals. Verdicts are after Holm's correction."
    caption += f" {', '.join(no_event)}: no run that judges the claim collapsed." if no_event else ""
    verdicts = Counter(j.verdict_holm for j in t.claims)
    finding = f"Of {len(t.claims)} claims after Holm, checks included: "
    finding += ", ".join(f"{v} {n}" for v, n in verdicts.most_common())
    opposite = sum(j.verdict == "opposite" for j in t.claims) - verdicts["opposite"]
    finding += f"; {opposite} more are opposite before Holm" * bool(opposite)
    return _sketch(t, "claims", "The claims", figure, caption, finding)


def _short(c: Claim) -> str:
    """The quantity in a line's room."""
    what = MEASURES[c.measure][0].split(" for ")[0].replace(" late in training", "").replace("step of ", "")
    what = what.removeprefix("accuracy on ")
    (first, rate), (second, _) = method_and_rate(c.first), method_and_rate(c.second)
    pair = f"{labels.method_label(first)} − {labels.method_label(second)}"
    if c.kind == "optimum":
        pair = "best q inside − ends"
    elif c.measure == "precision":
        pair = f"{MASKS[c.first]} − {MASKS[c.second]}"
    return f"{c.world}: {what}, {pair}{f' at {rate_text(rate)}' if rate else ''}"


def _draw(axes: Axes, j: Judged, y: float) -> None:
    c, n = j.claim, as_written(j.quantity.number)
    if c.margin is not None:
        axes.barh(y, 2 * c.margin, left=-c.margin, height=0.8, color="#DDDDDD", zorder=0)
    else:
        axes.plot([c.reference], [y], ">" if c.direction == "above" else "<", color="black", markersize=5,
                  markerfacecolor="none", markeredgewidth=0.7, zorder=2)  # fmt: skip
    if not n.known or j.verdict_holm not in _LOOKS:
        style.number(axes, c.reference, y, "not run", 9, color=GREY)
        return
    how, hollow = _LOOKS[j.verdict_holm]
    style.mark(axes, n, y, how, f"claim-{c.number}", hollow=hollow)
