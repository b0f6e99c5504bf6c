"""Training curves: reward, entropy, silenced share and accuracy by step; and the share of silenced tokens by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from stapo_repro import labels
from stapo_repro.figures.canvas import GREY, Sketch, handle, legend, nothing, sheet
from stapo_repro.figures.curves import Curve, Panel, curve
from stapo_repro.figures.looks import look
from stapo_repro.figures.material import Group, Material
from stapo_repro.records.reading import TrainingRun

PANELS = (
    Panel("reward", "Mean reward", "reward (+1 right, −1 wrong)"),
    Panel("entropy", "Policy entropy", "entropy (nats per token)"),
    Panel("silenced_share", "Silenced tokens", "share of tokens (%), symlog", 100.0),
    Panel("accuracy", "Validation accuracy", "accuracy (%)", 100.0),
)
SILENCED = Panel("silenced_share", "Silenced", "share of response tokens (%)", 100.0)
CANDIDATES = Panel("candidate_share", "Candidates", "share of response tokens (%)", 100.0)
THRESHOLD = Panel("threshold", "Entropy threshold", "entropy (nats)")
_PAPERS_BOUND = 0.01  # percent: "stays below 0.01 %" after warm-up (Section "Quantitative Results")


def line(axes: Axes, c: Curve, name: str, *, colour: str = "", dashed: bool = False) -> None:
    """One method's curve with the range of its seeds; a marker at each point where there are few."""
    how = look(c.method)
    colour = colour or how.colour
    (drawn,) = axes.plot(c.steps, c.mean, color=colour, gid=f"{name}-{c.method}")
    if dashed or how.dashes:
        drawn.set_dashes((3, 1.5) if dashed else how.dashes)
    if len(c.steps) > 100:  # noise in broad lines is a smear
        drawn.set_linewidth(1.0)
    if len(c.steps) <= 12:
        drawn.set_marker(how.marker)
        drawn.set_markersize(4)
        drawn.set_markeredgecolor("white")
        drawn.set_markeredgewidth(0.5)
    if c.seeds > 1:
        axes.fill_between(c.steps, c.low, c.high, color=colour, alpha=0.15, linewidth=0)


def _panel(axes: Axes, panel: Panel, curves: Sequence[Curve], why: str) -> None:
    axes.set_title(panel.title)
    axes.set_ylabel(panel.unit)
    for c in curves:  # in the table's order: STAPO last, on top
        line(axes, c, panel.metric)
    if not curves:
        nothing(axes, why)
    elif panel.metric == "silenced_share":
        _silenced_axis(axes, max(float(c.high.max()) for c in curves))
    elif panel.metric == "entropy":
        axes.set_ylim(0.0, 1.08 * max(float(c.high.max()) for c in curves))


def _silenced_axis(axes: Axes, highest: float) -> None:
    """Zero and five decades on one axis: 20-Entropy leaves out 80 % of the tokens, STAPO some hundredths of a percent.

    Linear from 0 to 0.01 %, logarithmic above.
    """
    axes.set_yscale("symlog", linthresh=0.01, linscale=0.6)
    axes.set_ylim(-0.001, max(1.0, highest * 1.6))
    axes.yaxis.set_major_locator(FixedLocator([0, 0.01, 0.1, 1, 10, 100]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _handles(runs: Mapping[str, Sequence[TrainingRun]]) -> list[Line2D]:
    alike = len({len(r) for r in runs.values() if r}) == 1  # then the caption says how many
    out = []
    for method, mine in runs.items():
        state = f" ({len(mine)} seed{'s' if len(mine) > 1 else ''})" if mine and not alike else ""
        if unfinished := sorted({r.status for r in mine if r.status != "done"}):
            state += f" ({'; '.join(unfinished)})"
        out.append(handle(method, state, run=bool(mine)))
    return out


def _band(seeds: int) -> str:
    """What the band between the lowest and the highest of n independent runs is: P(median inside) = 1 - 2^(1 - n)."""
    return f" (of {seeds} seeds; it holds the median run with a probability of {100 * (1 - 2 ** (1 - seeds)):.0f} %)"


def of_runs(runs: Mapping[str, Sequence[TrainingRun]], windows: Sequence[int] = ()) -> str:
    """Second part of a caption: how many runs, of how many steps; what bands and points are; what was not run."""
    have = {m: r for m, r in runs.items() if r}
    if not have:
        return "Nothing has been run yet."
    steps = max((s.step for r in have.values() for run in r for s in run.steps), default=0)
    text = f"{len(have)} method{'s' if len(have) > 1 else ''}, {steps} steps."
    if any(len(r) > 1 for r in have.values()):
        counts = {len(r) for r in have.values()}
        text += " Lines are means over seeds, bands reach from the lowest to the highest seed"
        text += f"{_band(next(iter(counts))) if len(counts) == 1 else ''}."
    if (widest := max(windows, default=1)) > 1:
        text += f" Each point is the mean of {widest} consecutive steps."
    if missing := [labels.method_label(m) for m, r in runs.items() if not r]:
        text += f" Not run: {', '.join(missing)}."
    return text


def training_curves(material: Material) -> list[Sketch]:
    """Reward, entropy, silenced share and accuracy by training step: a figure a size, one colour a method."""
    return [_training_curves(material, group) for group in material.groups()]


def _training_curves(material: Material, group: Group) -> Sketch:
    runs = material.runs_of(group.sizes[0], group.methods)
    title = group.heading("Training curves")
    figure = sheet(title, 4.9)
    panels = figure.subplots(2, 2, sharex=True).flatten()
    why = "not logged" if any(runs.values()) else "not run"
    windows = []
    for axes, panel in zip(panels, PANELS, strict=True):
        found = [c for mine in runs.values() if mine and (c := curve(mine, panel)) is not None]
        windows += [c.window for c in found]
        _panel(axes, panel, found, why)
        axes.margins(x=0.02)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True) if any(runs.values()) else NullLocator())
    for axes in panels[2:]:
        axes.set_xlabel("training step")
    legend(figure, _handles(runs))
    caption = f"{group.opening('Training curves')} {of_runs(runs, windows)}"
    return Sketch(f"{group.name}_training_curves", title, figure, caption)


def silenced_share(material: Material) -> list[Sketch]:
    """The share of silenced tokens, of the candidates they were chosen from, and the entropy threshold, by step."""
    return [
        _silenced_share(material, g) for g in material.wide_groups() if set(g.methods) & set(labels.RARE_TOKEN_MASKS)
    ]


def _silenced_share(material: Material, group: Group) -> Sketch:
    methods = [m for m in group.methods if m in labels.RARE_TOKEN_MASKS]
    title = group.heading("Silenced tokens")
    wide = len(group.sizes) > 1
    figure = sheet(title, 4.2 if wide else 2.7)
    grid = figure.subplots(2, len(group.sizes), sharex="col", squeeze=False) if wide else figure.subplots(
        1, 2, squeeze=False).T  # fmt: skip
    every: dict[str, list[TrainingRun]] = {m: [] for m in methods}
    windows: list[int] = []
    alone = methods == ["stapo"]
    for column, size in enumerate(group.sizes):
        runs = material.runs_of(size, methods)
        for m, mine in runs.items():
            every[m] = max(every[m], mine, key=len)
        shares, threshold = grid[0][column], grid[1][column]
        windows += _shares(shares, runs, alone)
        windows += _thresholds(threshold, runs)
        shares.set_title(labels.size_label(size) if wide else "Share of tokens")
        threshold.set_title("" if wide else THRESHOLD.title)
        if group.kind == "paper" and any(runs.values()):
            _bound(shares)
        for axes in (shares, threshold) if not wide else (threshold,):
            axes.set_xlabel("training step")
        if column == 0:
            shares.set_ylabel(SILENCED.unit)
            threshold.set_ylabel("entropy threshold (nats)" if wide else THRESHOLD.unit)
    handles: list[Artist] = list(_handles(every))
    if alone and any(every.values()):
        handles += [Line2D([], [], color=GREY, dashes=(3, 1.5), label="candidates (A > 0, p < τₚ)")]
    legend(figure, handles)
    caption = (
        f"{group.opening('Tokens left out of the loss')} {'Above' if wide else 'Left'}: silenced tokens as a share of "
        "the response tokens"
    )
    if alone:
        caption += ", dashed the candidates they are chosen from (positive advantage, probability below τₚ)"
    caption += f"; {'below' if wide else 'right'}: the entropy below which a candidate is silenced"
    caption += " (above which, by the high-entropy mask). " if "stapo-high-entropy" in methods else ". "
    caption += of_runs(every, windows)
    return Sketch(f"{group.name}_silenced_share", title, figure, caption)


def _shares(axes: Axes, runs: Mapping[str, Sequence[TrainingRun]], candidates: bool) -> list[int]:
    found = [c for mine in runs.values() if mine and (c := curve(mine, SILENCED)) is not None]
    if not found:
        nothing(axes, "not logged" if any(runs.values()) else "not run")
        return []
    if candidates:
        for mine in runs.values():
            if (c := curve(mine, CANDIDATES)) is not None:
                line(axes, c, CANDIDATES.metric, colour=GREY, dashed=True)
    for c in found:
        line(axes, c, SILENCED.metric)
    axes.set_ylim(bottom=0)
    return [c.window for c in found]


def _thresholds(axes: Axes, runs: Mapping[str, Sequence[TrainingRun]]) -> list[int]:
    # the random mask has a threshold too, in its random keys
    asked = [mine for m, mine in runs.items() if mine and m != "stapo-random"]
    found = [c for mine in asked if (c := curve(mine, THRESHOLD)) is not None]
    for c in found:
        line(axes, c, THRESHOLD.metric)
    if found:
        axes.set_ylim(bottom=0)
    else:
        nothing(axes, "not logged" if any(runs.values()) else "not run")
    return [c.window for c in found]


def _bound(axes: Axes) -> None:
    axes.axhline(_PAPERS_BOUND, color="black", linewidth=0.8, dashes=(1, 2))
    axes.annotate(
        "0.01 % (the paper's bound)", (1.0, _PAPERS_BOUND), xycoords=axes.get_yaxis_transform(), xytext=(-2, 2),
        textcoords="offset points", ha="right", size=6.5, color="black",
    )  # fmt: skip
