"""Which tokens are silenced and kept, and how often: a cloud of words for each part, beside its ranked counts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.ft2font import FT2Font
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline
from matplotlib.textpath import text_to_path
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Affine2D
from wordcloud import WordCloud

from stapo_repro.figures.canvas import SMALL, Sketch, bare, nothing, sheet
from stapo_repro.tokens.logged_run import LoggedRun, marked

SILENCED, KEPT = "#D55E00", "#0072B2"  # Okabe and Ito (2008)
_BARS, _FEWEST, _LONGEST = 25, 5, 24  # bars; different words that make a cloud; characters of a token
_WORDS, _WIDTH, _HEIGHT = 100, 800, 720  # of a cloud; its units are those of its font's size
_SIZES = (320, 270, 230, 195, 165, 140, 120, 100, 85, 72, 60)  # of the most frequent word
# left out of clouds, as the paper does; the bars count them
_COMMON = frozenset(
    {
        *("a", "an", "the", "of", "in", "on", "at", "by", "for", "from", "to", "with", "into", "onto", "over", "under"),
        *("about", "as", "between", "through", "after", "before"),
    }
)
_FONT = str(Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf")  # the figures' own


@cache
def _charmap() -> frozenset[int]:
    return frozenset(FT2Font(_FONT).get_charmap())


def _drawable(counts: Mapping[str, int]) -> dict[str, int]:
    """The counts by what is drawn: `marked`, what the font lacks as its code point, cut after _LONGEST characters."""
    found: dict[str, int] = {}
    for text, n in counts.items():
        word = "".join(c if ord(c) in _charmap() else f"⟨U+{ord(c):04X}⟩" for c in marked(text))
        word = word if len(word) <= _LONGEST else word[: _LONGEST - 1] + "…"
        found[word] = found.get(word, 0) + n
    return found


def clouds(run: LoggedRun, parts: Mapping[str, Mapping[str, int]]) -> Sketch:
    """A row for each part (`numbers.words`): its cloud, its most frequent tokens."""
    title = run.heading("Rare tokens of correct responses")
    figure = sheet(title, 7.6)
    grid = figure.subplots(2, 2, width_ratios=(3, 2))
    said = []
    for (left, right), (part, counts), colour in zip(grid, parts.items(), (SILENCED, KEPT), strict=True):
        n = sum(counts.values())
        left.set_title(f"{part[:1].upper()}{part[1:]}: {n:,} token{'s' * (n != 1)}, {len(counts):,} different")
        drawn = _cloud(left, counts, colour)
        _bars(right, counts, colour)
        if drawn:
            said.append(f"{drawn[0]} of {drawn[1]} different ones")
    caption = (
        f"{run.caption_opening}Rare: p < {run.header.tau_p:g}, in a response with a positive advantage. A word is the "
        "larger the more often it occurs; articles and prepositions are left out of the clouds, not of the bars, which "
        f"are the {_BARS} most frequent. ␣ is a space, ⏎ the end of a line."
    )
    if said:
        caption += f" The clouds hold {' and '.join(said)}."
    if not run.masks_rare:
        caption += f" {run.header.selector} silences none of them for being rare: shown is what S2T would do."
    if run.header.left_out:
        caption += f" Logged rows only: {run.header.left_out:,} of the whole log were left out at its bound."
    return Sketch("tokens_clouds", title, figure, caption)


def _layout(counts: dict[str, int]) -> list[tuple[str, int, int, int]]:
    """(word, font size, left, top) of each of the first _WORDS words, in the largest letters in which all find a place.

    Where even the smallest letters leave some without a place, they are missing. The same each time.
    """
    words = {word: float(n) for word, n in list(counts.items())[:_WORDS]}
    placed = []
    for size in _SIZES:
        made = WordCloud(
            font_path=_FONT, width=_WIDTH, height=_HEIGHT, random_state=0, prefer_horizontal=1.0, margin=16,
            max_words=_WORDS, min_font_size=14, max_font_size=size,
        ).generate_from_frequencies(words)  # fmt: skip
        placed = [(word, points, at[1], at[0]) for (word, _), points, at, _, _ in made.layout_]
        if len(placed) == len(words) and placed[0][1] == size:  # it makes letters smaller before it gives up
            break
    return placed


def _cloud(axes: Axes, part: Mapping[str, int], colour: str) -> tuple[int, int] | None:
    """Draw it; returns (words drawn, different words), or None where the panel says that there are too few."""
    axes.set_xticks([])
    axes.spines[:].set_visible(False)
    counts = _drawable({t: n for t, n in part.items() if t.strip().lower() not in _COMMON})
    if len(counts) < _FEWEST:
        nothing(axes, f"fewer than {_FEWEST} different words: no cloud" if part else "no such token")
        return None
    placed = _layout(counts)
    for i, (word, size, left, top) in enumerate(placed):
        axes.add_patch(PathPatch(_outline(word, size, left, top), facecolor=colour, linewidth=0, gid=f"word-{i}"))
    axes.set(xlim=(0, _WIDTH), ylim=(_HEIGHT, 0), aspect="equal", yticks=[])
    axes.grid(visible=False)
    return len(placed), len(counts)


def _outline(word: str, size: int, left: float, top: float) -> Outline:
    """A word's letters where the layout's own drawing has them, y downwards. Never read as mathematics.

    Pillow puts the top of the ink at `top` and the pen at `left`, or the ink where it begins left of the pen.
    """
    vertices, codes = text_to_path.get_text_path(FontProperties(fname=_FONT), word, ismath=False)
    path = Outline(vertices, codes)
    scale = size / text_to_path.FONT_SCALE
    ink = path.get_extents()
    to = left - scale * min(ink.x0, 0.0), top + scale * ink.y1
    return path.transformed(Affine2D().scale(scale, -scale).translate(*to))


def _bars(axes: Axes, part: Mapping[str, int], colour: str) -> None:
    axes.set_title("occurrences", weight="normal")
    shown = list(_drawable(part).items())[:_BARS]
    if not shown:
        nothing(axes, "no such token")
        return
    axes.barh(range(len(shown)), [n for _, n in shown], height=0.72, color=colour)
    axes.set_yticks(range(len(shown)), [word for word, _ in shown], size=SMALL)
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    for i, (_, n) in enumerate(shown):
        axes.annotate(f"{n:,}", (n, i), xytext=(3, 0), textcoords="offset points", va="center", size=SMALL - 1)
    axes.set_ylim(max(len(shown), 10) - 0.4, -0.6)
    axes.set_xlim(0, 1.18 * shown[0][1])
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    bare(axes)
