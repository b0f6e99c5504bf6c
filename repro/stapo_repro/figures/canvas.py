"""What every figure shares: the style, the sheet it is drawn on, legends of methods, panels without data, saving."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import matplotlib.style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from stapo_repro import labels
from stapo_repro.figures.looks import look
from stapo_results.schema import SETTINGS

STYLE = Path(__file__).with_name("stapo.mplstyle")
WIDTH = 7.0  # inches: the text width of a page with one column
GREY, FAINT = "#666666", "#BBBBBB"
SMALL = 6.5
# no date, no version: a figure changes when its data or its looks change
_METADATA: dict[str, dict[str, str | None]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
KINDS = ("svg", "png")


@dataclass(frozen=True)
class Sketch:
    """A figure that is drawn but not saved. It is saved under the style that it was drawn with."""

    name: str
    title: str
    figure: Figure
    caption: str


@dataclass(frozen=True)
class Drawn:
    """A figure as files (kind -> bytes), and what it says of itself."""

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


def handle(method: str, text: str = "", *, run: bool = True, line: bool = True, why: str = "not run") -> Line2D:
    """A method's entry in a legend; grey, and with the reason, where nothing of it is drawn."""
    how = look(method)
    shown = Line2D([], [], color=how.colour if run else FAINT, label=labels.method_label(method) + text)
    shown.set_marker(how.marker)
    shown.set_markersize(4)
    if not line:
        shown.set_linestyle("none")
        shown.set_markersize(5)
    elif how.dashes:
        shown.set_dashes(how.dashes)
    if not run:
        shown.set_label(f"{labels.method_label(method)} ({why})")
    return shown


def legend(figure: Figure, handles: Sequence[Artist]) -> None:
    """One legend below all panels, in as few rows as the width of the sheet allows, none much shorter than another."""
    widest = max(len(str(h.get_label())) for h in handles)
    most = max(1, int((WIDTH - 0.2) / (0.55 + 0.068 * widest)))  # inches of a handle and of a letter at 8 points
    rows = -(-len(handles) // most)
    figure.legend(
        handles=list(handles), loc="outside lower center", ncols=-(-len(handles) // rows), handlelength=3.0,
        columnspacing=1.4,
    )  # fmt: skip


def bare(axes: Axes) -> None:
    """An axis of names: no ticks, no grid along it."""
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")


def setting_label(setting: str) -> str:
    temperature, top_p = SETTINGS[setting]
    return f"T = {temperature}, top-p = {top_p}"
