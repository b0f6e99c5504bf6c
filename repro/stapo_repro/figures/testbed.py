"""The testbed's figures: what training makes of useful and spurious words, long trainings, and the judged claims."""

from __future__ import annotations

from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, NullLocator

from stapo_repro import labels
from stapo_repro.figures import canvas
from stapo_repro.figures.canvas import GREY, Sketch
from stapo_repro.figures.training import Panel, curve, line
from stapo_repro.testbed.claims import Claim, Judged, judging
from stapo_repro.testbed.evidence import MEASURES
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
_PITCH = 0.23  # inches a claim
_FARTHEST = 100.0  # in units of the smallest difference that matters; what lies beyond is drawn at the edge


def _heading(t: Testbed, text: str) -> str:
    return f"{text} (testbed){', SYNTHETIC RECORDS' if t.synthetic else ''}"


def _opening(t: Testbed, what: str) -> str:
    made_up = " SYNTHETIC RECORDS, made up for a test." if t.synthetic else ""
    return f"{what} in the testbed: a tiny model on sums modulo 4, not a result of the paper.{made_up}"


def rates(t: Testbed) -> list[Sketch]:
    """Useful and spurious words over the steps, a colour an arm, a column a world."""
    title = _heading(t, "Useful and spurious words over training")
    figure = canvas.sheet(title, 4.4)
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
                canvas.nothing(axes, "not run")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for row, panel in enumerate(_PANELS):
        grid[row][0].set_ylabel(panel.unit)
        grid[row][0].set_ylim(bottom=0)
    canvas.legend(figure, [canvas.handle(arm, run=arm in drawn) for arm in labels.ARMS])
    most = max(drawn.values(), default=0)
    seeds = f" Lines are means over seeds (at most {most}), bands reach from the lowest to the highest."
    caption = (
        f"{_opening(t, 'Planted words in all responses, by training step,')} Useful words lead to right answers, "
        f"spurious ones neither help nor harm.{seeds if drawn else ' Nothing has been run yet.'}"
    )
    return [Sketch("testbed_rates", title, figure, caption)]


def long(t: Testbed) -> list[Sketch]:
    """Entropy, spurious words and validation of the long trainings: a row a learning rate, a line a run."""
    title = _heading(t, "Long trainings with S2T and without a mask")
    runs = [r for r in t.evidence["long"].runs if r.status == "done"]
    arms = [method_and_rate(a) for a in dict.fromkeys((*LONG_ARMS, *(r.method for r in runs)))]
    of = {(m, rate): [r for r in runs if r.method == m + rate] for m, rate in arms}
    methods, rates = (list(dict.fromkeys(x)) for x in zip(*arms, strict=True))
    figure = canvas.sheet(title, 0.8 + 1.8 * len(rates))
    grid = figure.subplots(len(rates), len(_LONG), sharex=True, sharey="col")
    for row, rate in zip(grid, rates, strict=True):
        row[0].set_ylabel(f"learning rate {rate_text(rate)}")
        for axes, panel in zip(row, _LONG, strict=True):
            for method in methods:
                for run in of.get((method, rate), []):
                    if (found := curve([run], panel)) is not None:
                        line(axes, replace(found, method=method), f"long-{panel.metric}{rate}-s{run.seed}")
            if not axes.lines:
                canvas.nothing(axes, "not run")
    for top, bottom, panel in zip(grid[0], grid[-1], _LONG, strict=True):
        top.set_title(f"{panel.title}\n({panel.unit})")
        bottom.set_xlabel("training step")
    grid[0][1].set_yscale("symlog", linthresh=1.0)  # from none to every second word of a response
    canvas.legend(figure, [canvas.handle(m, run=any(of.get((m, rate)) for rate in rates)) for m in methods])
    seeds = "; ".join(
        f"at {rate_text(at)} "
        + " and ".join(f"{len(x)} of {labels.method_label(m)}" for (m, r), x in of.items() if r == at)
        for at in rates
    )
    steps = max((r.steps[-1].step for r in runs), default=STEPS["long"])
    what = _opening(t, f"Trainings of {steps} steps in the world paper,")
    seen = sum(not judging([j.claim for j in t.claims], r.method, r.seed) for r in runs)
    exploratory = f" {seen} of them are exploratory and judge no claim." if seen else ""
    caption = f"{what} {f'A line is one training: {seeds}.{exploratory}' if runs else 'Nothing has been run yet.'}"
    return [Sketch("testbed_long", title, figure, caption)]


def claims(t: Testbed) -> list[Sketch]:
    """Every claim's quantity with its interval, in units of the smallest difference that matters."""
    title = _heading(t, "The claims")
    figure = canvas.sheet(title, 1.5 + _PITCH * len(t.claims))
    axes = figure.subplots()
    axes.axvline(0, color="black", linewidth=0.8)
    for i, j in enumerate(t.claims):
        _draw(axes, j, -i)
    names = [f"{j.claim.number}  {j.claim.world}: {_short(j.claim)}" for j in t.claims]
    axes.set_yticks([-i for i in range(len(names))], names)
    canvas.bare(axes, len(names), 0.4)
    axes.set_xscale("symlog", linthresh=1.0)
    axes.set_xlim(-_FARTHEST, 1000 * _FARTHEST)  # room for the verdicts
    axes.set_xticks([-100, -10, -1, 0, 1, 10, 100], ["-100", "-10", "-1", "0", "1", "10", "100"])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("distance from the reference, in smallest differences\nthat matter (right: as claimed)")
    methods = dict.fromkeys(method_and_rate(j.claim.first)[0] for j in t.claims if j.quantity.mean is not None)
    if methods:
        canvas.legend(figure, [*(canvas.handle(m, line=False) for m in methods),
                               Patch(color="#DDDDDD", label="margin of an equivalence")])  # fmt: skip
    caption = (
        f"{_opening(t, 'The claims')} Each claim's quantity less its reference, divided by the smallest difference "
        "that matters (both are in the table), turned so that the claimed side is on the right; of an equivalence the "
        f"difference itself. Bars are 95 % intervals; the axis is linear to 1 and ends at {_FARTHEST:g}."
    )
    return [Sketch("testbed_claims", title, figure, caption)]


def _short(c: Claim) -> str:
    """The quantity in a line's room."""
    what = MEASURES[c.measure][0].split(" for ")[0].replace(" late in training", "").replace("step of ", "")
    if c.kind == "optimum":
        return f"{what}, best q inside − ends"
    if c.measure == "precision":
        return f"{what}, {MASKS[c.first]} − {MASKS[c.second]}"
    (first, rate), (second, _) = method_and_rate(c.first), method_and_rate(c.second)
    larger = f" at {rate_text(rate)}" if rate else ""
    return f"{what}, {labels.method_label(first)} − {labels.method_label(second)}{larger}"


def _draw(axes: Axes, j: Judged, y: float) -> None:
    c, q = j.claim, j.quantity
    axes.text(0.995, y, j.verdict, transform=axes.get_yaxis_transform(), ha="right", va="center", size=canvas.SMALL,
              color=GREY)  # fmt: skip
    if c.margin is not None:
        axes.barh(y, 2 * c.margin / c.smallest, left=-c.margin / c.smallest, height=0.8, color="#DDDDDD", zorder=0)
    if q.mean is None:
        return
    sign, first = -1.0 if c.direction == "below" else 1.0, method_and_rate(c.first)[0]

    def at(x: float) -> float:
        return max(-_FARTHEST, min(_FARTHEST, sign * (x - c.reference) / c.smallest))

    if q.low is not None and q.high is not None:
        low, high = sorted((at(q.low), at(q.high)))
        canvas.interval(axes, low, high, y, canvas.method_style(first).colour, 1.4)
    canvas.point(axes, at(q.mean), y, first, f"claim-{c.number}")
