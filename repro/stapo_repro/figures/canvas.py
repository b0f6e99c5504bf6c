"""What every figure shares: the style, the sheet it is drawn on, the methods' marks, legends, empty panels, saving."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from stapo_repro import labels
from stapo_results.schema import SETTINGS

STYLE = Path(__file__).with_name("stapo.mplstyle")
WIDTH = 7.0  # inches: the text width of a page with one column
GREY, FAINT, OTHER = "#666666", "#BBBBBB", "#777777"
SMALL = 6.5
KEY = 4.0  # letters: a legend's line, long enough to show gaps on both sides of its marker
# no date, no version: a figure changes when its data or its style change
_METADATA: dict[str, dict[str, str | None]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
KINDS = ("svg", "png")

# a method's dashes and marker
_STYLES: dict[str, tuple[tuple[float, ...], str]] = {
    labels.BASE: ((1, 1), "P"),
    "grpo": ((4, 1.5), "s"),
    "entropy20": ((1, 1.2), "^"),
    "justrl": ((6, 1.5, 1, 1.5), "D"),
    "stapo": ((), "o"),
    "justrl-fullmask": ((4, 1.5), "s"),
    "stapo-high-entropy": ((1, 1.2), "^"),
    "stapo-random": ((3, 1, 1, 1, 1, 1), "v"),
    "grpo-nokl": ((8, 2), "p"),
    "dapo": ((5, 1), "h"),
    "gspo": ((2, 1), "<"),
    "sapo": ((8, 2, 2, 2), ">"),
    "cispo": ((5, 2, 1, 2, 1, 2), "d"),
    "clip_cov": ((3, 3), "8"),
    "kl_cov": ((1, 3), "H"),
}


@dataclass(frozen=True)
class MethodStyle:
    """A method's colour, dashes and marker, which tell it apart in grey too."""

    colour: str
    dashes: tuple[float, ...]
    marker: str


def method_style(method: str) -> MethodStyle:
    """The method's style in every figure; grey for a method that this project does not know."""
    return MethodStyle(labels.COLOURS.get(method, OTHER), *_STYLES.get(method, ((2, 2), "X")))


@dataclass(frozen=True)
class Sketch:
    """A figure that is drawn but not saved. It is saved under the style that it was drawn with."""

    name: str
    title: str
    figure: Figure
    caption: str


@dataclass(frozen=True)
class Drawn:
    """A figure as files (kind -> bytes) with its title and caption."""

    name: str
    title: str
    files: dict[str, bytes]
    caption: str

    def block(self, folder: str = "results/figures") -> str:
        """The picture with its caption for a page that sees the figures at `folder`."""
        return f"![{self.title}]({folder}/{self.name}.png)\n\n<sub>{self.caption}</sub>"


@contextmanager
def style() -> Iterator[None]:
    """matplotlib's defaults and this project's style, whatever the user has configured."""
    with mpl.rc_context():
        mpl.rcdefaults()
        matplotlib.style.use(STYLE)
        yield


def sheet(title: str, height: float) -> Figure:
    """An empty figure of the one width, `height` inches high, with its heading."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    figure.suptitle(title, x=0.02, ha="left")
    return figure


def save(sketch: Sketch, kinds: Sequence[str] = KINDS) -> Drawn:
    """The sketch as files: the same bytes each time, on every machine with the pinned matplotlib and pillow."""
    files = {}
    sketch.figure.draw_without_rendering()  # the layout, once for all kinds: it takes as long as the drawing
    sketch.figure.set_layout_engine(None)
    for kind in kinds:
        out = io.BytesIO()
        title = {} if kind == "png" else {"Title": sketch.title}
        sketch.figure.savefig(out, format=kind, metadata=_METADATA[kind] | title)
        files[kind] = out.getvalue()
    return Drawn(sketch.name, sketch.title, files, sketch.caption)


def nothing(axes: Axes, text: str) -> None:
    """A panel without data says why."""
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color=GREY, size=9)
    axes.set_yticks([])
    axes.tick_params(bottom=False, labelbottom=False)
    axes.grid(visible=False)


def bare(axes: Axes, rows: int | None = None, margin: float = 0.4) -> None:
    """An axis of names: no ticks, no grid along it. `rows`: their number, where they stand at 0, -1, -2, ..."""
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    if rows is not None:
        axes.set_ylim(-rows + margin, 1 - margin)


def point(axes: Axes, x: float, y: float, method: str, name: str, size: float = 4.5, edge: float = 0.5) -> None:
    """A method's marker; `name` is its identifier in the SVG."""
    how = method_style(method)
    axes.plot([x], [y], how.marker, color=how.colour, markersize=size, markeredgecolor="white", markeredgewidth=edge,
              zorder=5, gid=name)  # fmt: skip


def interval(
    axes: Axes, low: float | None, high: float | None, y: float, colour: str, width: float, **how: Any
) -> None:
    """A horizontal line from `low` to `high`; none where there is no interval."""
    if low is not None and high is not None:
        axes.plot([low, high], [y, y], color=colour, linewidth=width, solid_capstyle="butt", **how)


def number(axes: Axes, x: float, y: float, text: str, gap: float, **how: Any) -> None:
    """Small print `gap` points to the right of a mark."""
    axes.annotate(text, (x, y), xytext=(gap, 0), textcoords="offset points", va="center", size=SMALL, **how)


def handle(method: str, text: str = "", *, run: bool = True, line: bool = True, why: str = "not run") -> Line2D:
    """A method's entry in a legend; grey, and with the reason, where nothing of it is drawn."""
    how = method_style(method)
    label = labels.method_label(method) + (text if run else f" ({why})")
    shown = Line2D([], [], color=how.colour if run else FAINT, label=label, marker=how.marker, markersize=4)
    if not line:
        shown.set_linestyle("none")
        shown.set_markersize(5)
    elif how.dashes:
        shown.set_dashes(how.dashes)
    return shown


def marker_handle(marker: str, label: str, size: float, edge: str = GREY, face: str = "white", **how: Any) -> Line2D:
    """A legend's entry for a marker without a line."""
    return Line2D([], [], linestyle="none", marker=marker, markersize=size, markerfacecolor=face, markeredgecolor=edge,
                  label=label, **how)  # fmt: skip


def legend(figure: Figure, handles: Sequence[Artist]) -> None:
    """One legend below all panels, in as few rows as the width of the sheet allows, none much shorter than another."""
    widest = max(len(str(h.get_label())) for h in handles)
    key = KEY if any(isinstance(h, Line2D) and h.get_linestyle() != "None" for h in handles) else 2.0
    most = max(1, int((WIDTH - 0.2) / (0.22 + 0.11 * key + 0.068 * widest)))  # inches of a handle, and of a letter
    rows = -(-len(handles) // most)
    figure.legend(
        handles=list(handles), loc="outside lower center", ncols=-(-len(handles) // rows), handlelength=key,
        columnspacing=1.4,
    )  # fmt: skip


def setting_label(setting: str) -> str:
    temperature, top_p = SETTINGS[setting]
    return f"T = {temperature}, top-p = {top_p}"
