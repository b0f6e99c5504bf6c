"""Which tokens are silenced and kept, and how often: a cloud of words for each part, beside its ranked counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline
from matplotlib.textpath import text_to_path
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Affine2D
from wordcloud import WordCloud

from stapo_repro.figures.canvas import SMALL, Sketch, bare, nothing, sheet
from stapo_repro.tokens.figures import KEPT, SILENCED
from stapo_repro.tokens.logged_run import LoggedRun
from stapo_repro.tokens.vocabulary import drawable

BARS = 25
FEWEST = 5
_WORDS, _WIDTH, _HEIGHT = 100, 800, 720  # of a cloud; its units are those of its font's size
_SIZES = (320, 270, 230, 195, 165, 140, 120, 100, 85, 72, 60)  # of the most frequent word
# left out of clouds, as the paper does; the bars count them
COMMON = frozenset(
    {
        *("a", "an", "the", "of", "in", "on", "at", "by", "for", "from", "to", "with", "into", "onto", "over", "under"),
        *("about", "as", "between", "through", "after", "before"),
    }
)
FONT = str(Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf")  # the figures' own


@dataclass(frozen=True)
class WordCounts:
    """The rare tokens of one part.

    Attributes:
        part: what the part is called, such as "silenced".
        counts: text -> occurrences, most frequent first; equal ones by text. Ids with one text count together.
    """

    part: str
    counts: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.counts.values())


def count(run: LoggedRun) -> tuple[WordCounts, WordCounts]:
    """(silenced, kept) rare tokens of the logged rows."""
    first, second = run.part_names
    return WordCounts(first, _counts(run, run.silenced)), WordCounts(second, _counts(run, run.kept))


def _counts(run: LoggedRun, which: np.ndarray) -> dict[str, int]:
    ids, counts = np.unique(run.rows["token"][which], return_counts=True)
    by_text: dict[str, int] = {}
    for token, n in zip(ids.tolist(), counts.tolist(), strict=True):
        text = run.vocabulary.one(token)
        by_text[text] = by_text.get(text, 0) + n
    return dict(sorted(by_text.items(), key=lambda item: (-item[1], item[0])))


def clouds(run: LoggedRun, parts: Sequence[WordCounts]) -> Sketch:
    """A row for each part: its cloud, its most frequent tokens."""
    title = run.heading("Rare tokens of correct responses")
    figure = sheet(title, 7.6)
    grid = figure.subplots(2, 2, width_ratios=(3, 2))
    said = []
    for (left, right), part, colour in zip(grid, parts, (SILENCED, KEPT), strict=True):
        left.set_title(f"{part.part[:1].upper()}{part.part[1:]}: {part.total:,} tokens, {len(part.counts):,} different")
        drawn = _cloud(left, part, colour)
        _bars(right, part, colour)
        if drawn:
            said.append(f"{drawn[0]} of {drawn[1]} different ones")
    caption = (
        f"{run.caption_opening}Rare: p < {run.header.tau_p:g}, in a response with a positive advantage. A word is the "
        "larger the more often it occurs; articles and prepositions are left out of the clouds, not of the bars, which "
        f"are the {BARS} most frequent. ␣ is a space, ⏎ the end of a line."
    )
    if said:
        caption += f" The clouds hold {' and '.join(said)}."
    if not run.masks_rare:
        caption += f" {run.header.selector} silences none of them for being rare: shown is what S2T would do."
    if run.header.left_out:
        caption += f" Logged rows only: {run.header.left_out:,} of the whole log were left out at its bound."
    return Sketch("tokens_clouds", title, figure, caption)


def layout(counts: dict[str, int]) -> list[tuple[str, int, int, int]]:
    """(word, font size, left, top) of each of the first _WORDS words, in the largest letters in which all find a place.

    Where even the smallest letters leave some without a place, they are missing. The same each time.
    """
    words = {word: float(n) for word, n in list(counts.items())[:_WORDS]}
    placed = []
    for size in _SIZES:
        made = WordCloud(
            font_path=FONT, width=_WIDTH, height=_HEIGHT, random_state=0, prefer_horizontal=1.0, margin=16,
            max_words=_WORDS, min_font_size=14, max_font_size=size,
        ).generate_from_frequencies(words)  # fmt: skip
        placed = [(word, points, at[1], at[0]) for (word, _), points, at, _, _ in made.layout_]
        if len(placed) == len(words) and placed[0][1] == size:  # it makes letters smaller before it gives up
            break
    return placed


def _drawable_counts(part: WordCounts) -> dict[str, int]:
    counts: dict[str, int] = {}
    for text, n in part.counts.items():
        word = drawable(text, FONT)
        counts[word] = counts.get(word, 0) + n
    return counts


def _cloud(axes: Axes, part: WordCounts, colour: str) -> tuple[int, int] | None:
    """Draw it; returns (words drawn, different words), or None where the panel says that there are too few."""
    axes.set_xticks([])
    axes.spines[:].set_visible(False)
    chosen = WordCounts(part.part, {t: n for t, n in part.counts.items() if t.strip().lower() not in COMMON})
    counts = _drawable_counts(chosen)
    if len(counts) < FEWEST:
        nothing(axes, f"only {len(counts)} different tokens: no cloud" if counts else "no such token")
        return None
    placed = layout(counts)
    for i, (word, size, left, top) in enumerate(placed):
        axes.add_patch(PathPatch(_outline(word, size, left, top), facecolor=colour, linewidth=0, gid=f"word-{i}"))
    axes.set_xlim(0, _WIDTH)
    axes.set_ylim(_HEIGHT, 0)
    axes.set_aspect("equal")
    axes.set_yticks([])
    axes.grid(visible=False)
    return len(placed), len(counts)


def _outline(word: str, size: int, left: float, top: float) -> Outline:
    """A word's letters where the layout's own drawing has them, y downwards. Never read as mathematics.

    Pillow puts the top of the ink at `top` and the pen at `left`, or the ink where it begins left of the pen.
    """
    font = FontProperties(fname=FONT)
    vertices, codes = text_to_path.get_text_path(font, word, ismath=False)
    path = Outline(vertices, codes)
    scale = size / text_to_path.FONT_SCALE
    ink = path.get_extents()
    to = left - scale * min(ink.x0, 0.0), top + scale * ink.y1
    return path.transformed(Affine2D().scale(scale, -scale).translate(*to))


def _bars(axes: Axes, part: WordCounts, colour: str) -> None:
    axes.set_title("occurrences", weight="normal")
    shown = list(_drawable_counts(part).items())[:BARS]
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
