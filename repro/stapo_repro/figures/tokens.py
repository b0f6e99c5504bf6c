"""What a token log gives: density, gradient norms, entropy threshold, words, cases."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm
from matplotlib.ft2font import FT2Font
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator
from wordcloud import WordCloud

from stapo_repro.figures import style
from stapo_repro.figures.style import GREY, KEPT, SILENCED, SMALL, Sketch
from stapo_repro.tokens import numbers
from stapo_repro.tokens.log import LoggedRun, marked
from stapo_results.errors import BadInput
from stapo_results.statistics import Number
from stapo_results.token_log import ENTROPY_EDGES, LOG10_P_EDGES

_NAMES = {
    (False, False): "frequent,\nhigh entropy",
    (False, True): "frequent,\nlow entropy",
    (True, False): "rare,\nhigh entropy",
    (True, True): "rare,\nlow entropy",
}
_BARS, _FEWEST, _LONGEST = 25, 5, 24  # bars; different words that make a cloud; characters of a token
_CASES = 6
_COUNTS = [n * 10**k for k in range(19) for n in (1, 3)]
_WORDS, _WIDTH, _HEIGHT = 100, 1000, 900  # of a cloud, in words and pixels
# left out of clouds, as the paper does; the bars count them
_COMMON = re.compile(
    "an?|the|of|in|on|at|by|for|from|to|with|into|onto|over|under|about|as|between|through|after|before", re.IGNORECASE
)
_FONT = str(Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf")  # the figures' own
CATEGORIES = {"syntax": "uncommon syntax", "math": "hallucination or math error", "formatting": "formatting error"}
"""The paper's three categories of spurious tokens (Appendix "Supplementary Spurious Cases"). A reader gives them."""
LABELS, CASE = "categories.json", ("step", "prompt_id", "sample", "position")  # beside the token log; of one token


def sketches(run: LoggedRun) -> list[Sketch]:
    """All figures, to be drawn under the style."""
    return [density(run), quadrant_bars(run), clouds(run, numbers.words(run))]


def density(run: LoggedRun) -> Sketch:
    """All tokens with a positive advantage by probability and entropy, S2T's region outlined."""
    title, tau_p = run.heading("Tokens by probability and entropy"), run.header.tau_p
    figure = style.sheet(3.7)
    axes = figure.add_subplot()
    caption = f"{run.caption_opening}Tokens of right responses (A > 0)."
    c = {name: column[run.counts["sign"] == 1] for name, column in run.counts.items()}
    grid = np.zeros((len(LOG10_P_EDGES) - 1, len(ENTROPY_EDGES) - 1), dtype=np.int64)
    np.add.at(grid, (c["log10_p"], c["entropy"]), c["tokens"])
    total = int(grid.sum())
    if not total:
        style.nothing(axes, "no token of a response with a positive advantage")
        return Sketch("tokens_density", title, figure, caption, dense=True)
    right = math.log10(tau_p)
    left = min(float(LOG10_P_EDGES[c["log10_p"].min()]), right - 1) - 0.25
    top = float(ENTROPY_EDGES[c["entropy"].max() + 1]) + 0.125
    _draw_counts(axes, grid)
    axes.set(xlim=(left, 0.05), ylim=(0, top), xlabel="log₁₀ of the token's probability", ylabel="entropy (nats)")
    axes.axvline(right, color="black", linewidth=0.8, dashes=(1, 1))
    axes.annotate(f"p = {tau_p:g}", (right, 1), xycoords=("data", "axes fraction"), xytext=(2, 2),
                  textcoords="offset points", ha="left", va="bottom", size=7)  # fmt: skip
    band = numbers.threshold(run)
    if band is None and np.inf not in run.thresholds:
        none = "q = 0: no token is silenced" if len(run.thresholds) else "no rare token, so no entropy threshold"
        axes.set_title(none, color=GREY, weight="normal")
        return Sketch("tokens_density", title, figure, caption, dense=True)
    low, median, high = band or (top, top, top)  # infinite where q is 1
    axes.add_patch(Rectangle((left, 0), right - left, min(median, top), fill=False, edgecolor=SILENCED, linewidth=1.6,
                             zorder=6, gid="region"))  # fmt: skip
    inside = int(c["tokens"][c["rare"] & c["below"]].sum())
    caption += (
        f" Outlined: S2T's region, p < {tau_p:g} and entropy below the mini-batch's threshold; its count is exact."
    )
    if band is not None:
        axes.add_patch(Rectangle((left, low), right - left, min(high, top) - low, linewidth=0, facecolor=SILENCED,
                                 alpha=0.15, zorder=0))  # fmt: skip
        caption += f" Threshold: median {median:.3g} nats; band: {low:.3g} to {high:.3g}."
    finding = f"S2T's region holds {inside:,} of {total:,} tokens, {100 * inside / total:.3g} %"
    return Sketch("tokens_density", title, figure, caption, finding=finding, dense=True)


def _draw_counts(axes: Axes, grid: np.ndarray) -> None:
    """Tokens per bin, in colours that mean a class of counts: from 1, 3, 10, 30, ... on."""
    edges = _COUNTS[: bisect_right(_COUNTS, grid.max()) + 1]
    colours = mpl.colormaps["viridis_r"].resampled(len(edges) - 1)
    drawn = axes.pcolormesh(LOG10_P_EDGES, ENTROPY_EDGES, np.ma.masked_equal(grid.T, 0), cmap=colours, rasterized=True,
                            norm=BoundaryNorm(edges, len(edges) - 1))  # fmt: skip
    bar = axes.figure.colorbar(drawn, ax=axes, label="tokens per bin", spacing="uniform", pad=0.01)
    bar.set_ticks(edges[:-1], labels=[f"{e:,}" for e in edges[:-1]])


def _end(n: Number) -> float:
    """Where a number's mark ends to the right."""
    return n.high if n.has_interval else n.mean


def quadrant_bars(run: LoggedRun) -> Sketch:
    """Tokens and mean gradient norm of each quadrant."""
    figure, quadrants = style.sheet(2.7), numbers.quadrants(run)
    left, right = figure.subplots(1, 2, sharey=True)
    left.set_title("Tokens with A > 0 (log scale)")
    right.set_title("Mean gradient norm of a token")
    intervals, longest, norms = False, 0.0, list[str]()
    for i, q in enumerate(quadrants):
        norm, colour = q.norm, SILENCED if q.rare and q.below else KEPT
        if not norm.known:
            for axes in (left, right):
                style.number(axes, 0, -i, "no token", 3, color=GREY, xycoords=axes.get_yaxis_transform())
            continue
        left.barh(-i, q.tokens, height=0.62, color=colour, gid=f"tokens-{i}")
        style.number(left, q.tokens, -i, f"{q.tokens:,} ({100 * (q.share or 0):.3g} %)", 4)
        right.barh(-i, norm.mean, height=0.62, color=colour, gid=f"norm-{i}")
        if norm.has_interval:
            intervals = True
            right.plot([max(norm.low, 0), norm.high], [-i, -i], color="black", linewidth=1, solid_capstyle="butt")
        style.number(right, _end(norm), -i, f"{norm.mean:.3g}", 4)
        longest = max(longest, _end(norm), 1e-9)
        if q.rare:
            norms.append(f"{norm.mean:.3g} at {'low' if q.below else 'high'} entropy")
    left.set_yticks([-i for i in range(len(quadrants))], [_NAMES[q.rare, q.below] for q in quadrants])
    if longest:
        left.set_xscale("log")
        left.set_xlim(0.7, 20 * max(q.tokens for q in quadrants))
        right.set_xlim(0, 1.25 * longest)
    for axes in (left, right):
        style.bare(axes, len(quadrants), 0.5)
    left_out = numbers.positive_tokens(run) - sum(q.tokens for q in quadrants)
    no_threshold = f"Left out: {left_out:,} tokens of mini-batches without a rare one, which have no threshold. "
    caption = (
        f"{run.caption_opening}Rare: p < {run.header.tau_p:g}; low entropy: below the mini-batch's threshold. "
        f"{no_threshold if left_out else ''}Norm: of the gradient "
        "with respect to the token's logits, before any silencing. "
        f"{'Whiskers: 95 % t intervals over mini-batches.' if intervals else 'One mini-batch: no intervals.'}"
    )
    finding = f"Mean gradient norm of rare tokens: {', '.join(norms)}" if norms else ""
    return Sketch("tokens_quadrants", run.heading("Gradient norm by quadrant"), figure, caption, finding=finding)


@cache
def _charmap() -> frozenset[int]:
    return frozenset(FT2Font(_FONT).get_charmap())


def _drawn(text: str) -> str:
    """`marked`, with the code point of each character that the font lacks."""
    return "".join(c if ord(c) in _charmap() else f"⟨U+{ord(c):04X}⟩" for c in marked(text))


def _drawable(counts: Mapping[str, int], spaces: bool = True) -> dict[str, int]:
    """The counts by what is drawn (`_drawn`), most frequent first, cut after _LONGEST characters. Without `spaces`
    white space around a word has no mark, and common words are left out."""
    occurrences: Counter[str] = Counter()
    for text, n in counts.items():
        word = text if spaces else text.strip()
        if not spaces and (not word or _COMMON.fullmatch(word)):
            continue
        word = _drawn(word)
        word = word if len(word) <= _LONGEST else word[: _LONGEST - 1] + "…"
        occurrences[word] += n
    return dict(occurrences.most_common())


def clouds(run: LoggedRun, parts: Mapping[str, Mapping[str, int]]) -> Sketch:
    """A row for each part (`numbers.words`): its cloud of words, its most frequent tokens."""
    bars = max(10, *(min(_BARS, len(counts)) for counts in parts.values()))
    figure = style.sheet(0.6 + 0.28 * bars)
    grid = figure.subplots(2, 2, width_ratios=(3, 2))
    for (left, right), (part, counts), colour in zip(grid, parts.items(), (SILENCED, KEPT), strict=True):
        n = sum(counts.values())
        left.set_title(f"{part[:1].upper()}{part[1:]}: {n:,} token{'s' * (n != 1)}, {len(counts):,} different")
        _cloud(left, _drawable(counts, spaces=False), colour)
        _bars(right, counts, colour, bars)
    caption = (
        f"{run.caption_opening}Tokens with p < {run.header.tau_p:g} in responses with A > 0, larger the more often "
        "they occur. Clouds leave out articles, prepositions and white space. ␣ is a space, ⏎ the end of a line."
    )
    if not run.masks_rare:
        caption += f" {run.header.selector} is no mask over them alone: shown is what S2T would do."
    if run.header.left_out:
        caption += f" Logged rows only: {run.header.left_out:,} of the whole log were left out at its bound."
    return Sketch("tokens_clouds", run.heading("Rare tokens of correct responses"), figure, caption, dense=True)


def laid_out(counts: Mapping[str, int], colour: str) -> WordCloud:
    """A cloud in which words of one count have one size: the largest for which that holds, or else the smallest.

    Where room ends the library shrinks what is left: a size would no longer mean a count.
    """
    largest = _HEIGHT // 6
    while True:
        made = WordCloud(
            font_path=_FONT, width=_WIDTH, height=_HEIGHT, random_state=0, prefer_horizontal=1.0, margin=16,
            max_words=_WORDS, min_font_size=12, max_font_size=largest, relative_scaling=1,  # type: ignore[arg-type]
            background_color="white", color_func=lambda *_, **__: colour,
        ).generate_from_frequencies(counts)  # fmt: skip
        sizes = {(frequency, size) for (_, frequency), size, *_ in made.layout_}
        if len(sizes) == len({frequency for frequency, _ in sizes}) or largest < 24:
            return made
        largest -= 12


def _cloud(axes: Axes, counts: dict[str, int], colour: str) -> None:
    axes.spines[:].set_visible(False)
    if len(counts) < _FEWEST:
        style.nothing(axes, f"fewer than {_FEWEST} different words: no cloud" if counts else "no such token")
        return
    made = laid_out(counts, colour)
    axes.imshow(made.to_array(), interpolation="none")
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)


def _bars(axes: Axes, part: Mapping[str, int], colour: str, room: int) -> None:
    axes.set_title("occurrences", weight="normal")
    words = list(_drawable(part).items())[:_BARS]
    if not words:
        style.nothing(axes, "no such token")
        return
    for i, (_, n) in enumerate(words):
        axes.barh(i, n, height=0.72, color=colour)
        style.number(axes, n, i, f"{n:,}", 3, size=SMALL - 1)
    axes.set_yticks(range(len(words)), [word for word, _ in words], size=SMALL, parse_math=False)
    axes.set_ylim(room - 0.4, -0.6)
    axes.set_xlim(0, 1.18 * words[0][1])
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    style.bare(axes)


def categories(folder: Path) -> dict[tuple[int, str, int, int], str]:
    """(step, prompt_id, sample, position) -> category, from a reader's file categories.json in the run folder: a list
    of {"step", "prompt_id", "sample", "position", "category"}; empty without the file.

    Raises:
        BadInput: not such a list, or a category that is none of CATEGORIES.
    """
    file = folder / LABELS
    try:
        read = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
        return {_place(case): CATEGORIES[case["category"]] for case in read}
    except (ValueError, TypeError, KeyError) as e:
        raise BadInput(f"{file} is no list of labelled cases", found=repr(e)[:200],
                       expected=f"{', '.join(CASE)} and a category ({' | '.join(CATEGORIES)}) of each case",
                       next_step="mend the file, or move it away") from None  # fmt: skip


def _place(case: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(case[key] for key in CASE)


def case_bars(run: LoggedRun, labelled: Mapping[tuple[int, str, int, int], str]) -> Sketch:
    """Tokens that S2T silences in their context, each beside the two most likely ones; those that a reader put into a
    category first, then the least probable ones."""
    rows = run.records(np.flatnonzero(run.silenced))
    chosen = sorted(rows, key=lambda row: (_place(row) not in labelled, row["logprob"]))[:_CASES]
    figure = style.sheet(1.0 + 0.55 * max(1, len(chosen)))
    axes, ticks, left, unread = figure.subplots(), [], 1e-3, 0
    for y, row in enumerate(chosen):
        category, case = labelled.get(_place(row)), numbers.case(run.vocabulary, row, "")
        likely = [text_p for t, text_p in zip(row["top_tokens"], case["top"], strict=False) if t != row["token"]]
        for k, (text, p) in enumerate([(case["token"], case["probability"]), *likely[:2]]):
            at = -y - 0.27 * k
            axes.barh(at, p, height=0.25, color=KEPT if k else SILENCED)
            style.number(axes, p, at, f"{_drawn(text)}   {100 * p:.3g} %", 3, parse_math=False, annotation_clip=False)
        before, token, after = (_drawn(case[part]) for part in ("before", "token", "after"))
        ticks.append(f"…{before[-26:]}⟦{token}⟧{after[:12]}…\n{category or 'no category'}, H = {case['entropy']:.2f}")
        left = min(left, case["probability"])
        unread += category is None
    axes.set_yticks([-y - 0.27 for y in range(len(chosen))], ticks, size=SMALL, parse_math=False)
    axes.set(xscale="log", xlabel="probability", xlim=(left / 3, 1))
    style.bare(axes)
    if not chosen:
        style.nothing(axes, "no such token")
    style.legend(figure, [Patch(color=SILENCED, label=f"the token: {run.part_names[0]}"),
                          Patch(color=KEPT, label="the two most likely ones in its place")])  # fmt: skip
    missing = (f"a reader's category of {unread} of {len(chosen)} cases",) if unread else ()
    caption = f"{run.caption_opening}H: entropy in nats. A case's category is a reader's judgement."
    return Sketch("tokens_cases", run.heading("Cases of spurious tokens"), figure, caption, missing)
