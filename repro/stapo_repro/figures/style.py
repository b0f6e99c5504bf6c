"""The look of every figure: style, sheet, the methods' marks, legends, empty panels, and saving to the same bytes."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
import matplotlib.style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FixedFormatter

from stapo_repro import labels
from stapo_repro.text import escape, visible
from stapo_results.methods import methods
from stapo_results.schema import SETTINGS
from stapo_results.statistics import Number

WIDTH = 7.0  # inches: the text width of a page with one column
GREY, FAINT, OTHER = "#666666", "#BBBBBB", "#777777"
SMALL = 6.5
SILENCED, KEPT = "#D55E00", "#0072B2"  # Okabe and Ito (2008)
_LETTERS = 80  # of a finding, in a line above the figure
_KEY = 4.0  # letters: a legend's line, long enough to show gaps on both sides of its marker
# no date, no version: a figure changes when its data or its style change
_METADATA: dict[str, dict[str, str | None]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}

# where a figure compares the paper's sizes: the colour of a method in its place
_SIZE_COLOURS = dict(zip(labels.PAPER_SIZES, ("stapo", "grpo", "justrl"), strict=True))


class MethodStyle(NamedTuple):
    """A method's colour, dashes and marker, which tell it apart in grey too."""

    colour: str
    dashes: tuple[float, ...]
    marker: str

    @property
    def line(self) -> Literal["solid"] | tuple[int, tuple[float, ...]]:
        """As matplotlib's `linestyle`."""
        return (0, self.dashes) if self.dashes else "solid"


STYLES = {labels.BASE: MethodStyle("#000000", (1, 1), "P")}
for _name, _entry in methods().items():
    if "style" in _entry:
        _colour, _dashes, _marker = _entry["style"]
        STYLES[_name] = MethodStyle(_colour, tuple(_dashes), _marker)


def method_style(method: str) -> MethodStyle:
    """The style of a method, or of one of the paper's sizes, in every figure; grey for an unknown one."""
    return STYLES.get(_SIZE_COLOURS.get(method, method), MethodStyle(OTHER, (2, 2), "X"))


@dataclass(frozen=True)
class Sketch:
    """A figure with its title and caption. It is saved under the style that it was drawn with.

    Attributes:
        finding: what is seen in it, with its numbers; written above the title.
        missing: what has no record, such as "GRPO": the saved caption ends with it.
        dense: too many marks for an SVG; pages show it as PNG.
        files: kind -> bytes, once it is saved.
    """

    name: str
    title: str
    figure: Figure
    caption: str
    missing: tuple[str, ...] = ()
    finding: str = ""
    dense: bool = False
    files: dict[str, bytes] = field(default_factory=dict)

    @property
    def shows(self) -> str:
        """The title with the finding, for those who do not see the picture."""
        return f"{self.title}: {self.finding}" if self.finding else self.title

    def block(self, folder: str = "results/figures") -> str:
        """The picture with its caption for a page that sees the figures at `folder`."""
        shows, caption = (escape(visible(text)) for text in (self.shows, self.caption))
        return f"![{shows}]({folder}/{self.name}.{_kind(self)})\n\n<sub>{caption}</sub>"


def _kind(sketch: Sketch) -> str:
    """The format that pages show."""
    return "png" if sketch.dense else "svg"


@contextmanager
def style() -> Iterator[None]:
    """matplotlib's defaults and this project's style, whatever the user has configured."""
    with mpl.rc_context():
        mpl.rcdefaults()
        matplotlib.style.use(Path(__file__).with_name("stapo.mplstyle"))
        yield


def sheet(height: float) -> Figure:
    """An empty figure of the one width, `height` inches high; `save` writes the title on it."""
    return Figure(figsize=(WIDTH, height), layout="constrained")


def save(sketch: Sketch, kinds: Sequence[str] = ()) -> Sketch:
    """The sketch with its files: the same bytes each time, on every machine with the pinned matplotlib and pillow.

    Args:
        kinds: of "svg", "png", "pdf"; the one that pages show is always among the files.
    """
    lines = textwrap.wrap(sketch.finding.replace(" %", "\u00a0%"), _LETTERS)
    lines += textwrap.wrap(sketch.title, _LETTERS)
    sketch.figure.suptitle("\n".join(lines), x=0.02, ha="left")
    _literal(sketch.figure)
    sketch.figure.draw_without_rendering()  # the layout, once for all kinds: it takes as long as the drawing
    sketch.figure.set_layout_engine(None)
    for axes in sketch.figure.axes:  # its last digits depend on what was drawn before; an SVG's ids hash them
        left, bottom, width, height = (round(x, 6) for x in axes.get_position(original=True).bounds)
        axes.set_position((left, bottom, width, height))
    files = {}
    for kind in dict.fromkeys((_kind(sketch), *kinds)):
        out = io.BytesIO()
        title = {} if kind == "png" else {"Title": sketch.title}
        sketch.figure.savefig(out, format=kind, metadata=_METADATA[kind] | title)
        files[kind] = out.getvalue()
    lacks = f" Missing: {', '.join(sketch.missing)}." if sketch.missing else ""
    return replace(sketch, caption=sketch.caption + lacks, files=files)


def _literal(figure: Figure) -> None:
    """No text is a formula, since a name may have a dollar in it; the numbers of an axis stay what they are."""
    numbers = [a for axes in figure.axes for a in (axes.xaxis, axes.yaxis)
               if not isinstance(a.get_major_formatter(), FixedFormatter)]  # fmt: skip
    kept = {id(text) for axis in numbers for text in (axis.offsetText, *axis.get_ticklabels(which="both"))}
    for text in figure.findobj(Text):
        if isinstance(text, Text) and id(text) not in kept:
            text.set_parse_math(False)


def nothing(axes: Axes, text: str = "not run") -> None:
    """A panel without data says why."""
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color=GREY, size=9)
    axes.tick_params(left=False, labelleft=False, bottom=False, labelbottom=False)  # not of axes that share its scale
    axes.grid(visible=False)


def bare(axes: Axes, rows: int | None = None, margin: float = 0.4) -> None:
    """An axis of names: no ticks, no grid along it. `rows`: their number, where they are at 0, -1, -2, ..."""
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    if rows is not None:
        axes.set_ylim(-rows + margin, 1 - margin)


def mark(
    axes: Axes, v: Number, at: float, how: MethodStyle, name: str, *, upright: bool = False, hollow: bool = False
) -> None:
    """A value with its interval along x at height `at`, or `upright` along y; `name`: its identifier in the SVG."""
    bar, point = ([v.low, v.high], [at, at]), ([v.mean], [at])
    if upright:
        bar, point = bar[::-1], point[::-1]
    if v.has_interval:
        axes.plot(*bar, color=how.colour, linewidth=1.3, solid_capstyle="butt")
    face, edge, width = ("white", how.colour, 1.0) if hollow else (how.colour, "white", 0.5)
    axes.plot(*point, how.marker, color=how.colour, markersize=4.5, markerfacecolor=face, markeredgecolor=edge,
              markeredgewidth=width, zorder=5, gid=name)  # fmt: skip


def number(axes: Axes, x: float, y: float, text: str, gap: float, **how: Any) -> None:
    """Small print `gap` points to the right of a mark."""
    how = {"va": "center", "size": SMALL} | how
    axes.annotate(text, (x, y), xytext=(gap, 0), textcoords="offset points", **how)


def handle(method: str, text: str = "", *, run: bool = True, line: bool = True) -> Line2D:
    """A method's entry in a legend; grey where it was not run."""
    how = method_style(method)
    label = name_of(method) + (text if run else " (not run)")
    colour = how.colour if run else FAINT
    shown = Line2D([], [], color=colour, label=label, linestyle=how.line, marker=how.marker, markersize=4)
    if not line:
        shown.set(linestyle="none", markersize=5)
    return shown


def key(marker: str, label: str, size: float = 5, edge: str = GREY, face: str = "white") -> Line2D:
    """A legend's entry for a marker without a line."""
    return Line2D([], [], linestyle="none", marker=marker, markersize=size, markerfacecolor=face, markeredgecolor=edge,
                  label=label)  # fmt: skip


def legend(figure: Figure, handles: Sequence[Artist]) -> None:
    """One legend below all panels, in as few rows as the width of the sheet allows, none much shorter than another."""
    letters = max(len(str(h.get_label())) for h in handles)
    lines = [h for h in handles if isinstance(h, Line2D) and h.get_linestyle() != "None"]
    length = _KEY if lines else 2.0
    width = 0.22 + 0.11 * length + 0.068 * letters  # inches of an entry: its handle and its letters
    rows = math.ceil(len(handles) / max(1, int((WIDTH - 0.2) / width)))
    columns = math.ceil(len(handles) / rows)
    figure.legend(
        handles=list(handles), loc="outside lower center", ncols=columns, handlelength=length, columnspacing=1.4
    )


def name_of(method: str) -> str:
    """A method's label, or that of a size."""
    return labels.size_label(labels.method_label(method))


def setting_label(setting: str) -> str:
    """ "T = 0.7, top-p = 0.9": a decoding setting in a heading."""
    temperature, top_p = SETTINGS[setting]
    return f"T = {temperature}, top-p = {top_p}"
