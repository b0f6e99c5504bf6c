"""The map: what tokens are worth, by probability and entropy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stapo_repro.figures.style import KEPT, SILENCED, Sketch, save, sheet, style
from stapo_repro.text import number_shown
from studies.worth.bins import bins
from studies.worth.record import TokenWorth

_TAU_P = 0.002
_STRONGEST = 50  # points of Q - V: where the colour is full


def worth_map(name: str, title: str, tokens: Sequence[TokenWorth]) -> Sketch:
    """A cell a range of probability and entropy: the mean Q - V, its 95 % interval over problems, and the count."""
    from matplotlib.colors import LinearSegmentedColormap

    cells = bins(tokens)
    rates, entropies = (list(dict.fromkeys(of)) for of in zip(*((c.rate, c.entropy) for c in cells), strict=True))
    mean = np.full((len(rates), len(entropies)), np.nan)
    with style():
        figure = sheet(3.4)
        axes = figure.add_subplot()
        for c in cells:
            y, x = rates.index(c.rate), entropies.index(c.entropy)
            mean[y, x] = 100 * c.worth.mean
            if c.worth.known:
                text = number_shown(c.worth, 0, 100, sign=True).replace(" (", "\n(") + f"\nn {c.tokens}"
                ink = "white" if abs(mean[y, x]) > 0.8 * _STRONGEST else "black"
                axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", size=6, color=ink, parse_math=False)
        for y, rate in enumerate(rates):
            if not any(c.tokens for c in cells if c.rate == rate):
                axes.text(len(entropies) / 2, y + 0.5, "not measured", ha="center", va="center", size=7)
        colours = LinearSegmentedColormap.from_list("worth", [SILENCED, "white", KEPT])
        drawn = axes.pcolormesh(mean, cmap=colours, vmin=-_STRONGEST, vmax=_STRONGEST, edgecolors="white", linewidth=1)
        axes.invert_yaxis()
        axes.grid(visible=False)
        axes.set_xticks(np.arange(len(entropies)) + 0.5, entropies)
        axes.set_yticks(np.arange(len(rates)) + 0.5, rates)
        axes.set(xlabel="entropy (nats)", ylabel="probability of the token")
        rare = sum(float(r.split()[-1]) <= _TAU_P for r in rates)
        axes.axhline(rare, color="black", linewidth=1.2, dashes=(2, 1))
        figure.colorbar(drawn, ax=axes, label="Q - V (points)", pad=0.01)
        known = [c for c in cells if c.worth.has_interval]
        below, above = (sum(sign * c.worth.mean > 0 and sign * c.worth.low > 0 < sign * c.worth.high for c in known)
                        for sign in (-1, 1))  # fmt: skip
        return save(Sketch(
            f"worth_{name}", title, figure,
            "Q - V: the share of right answers of continuations with the token, less that without it, in points. In "
            "each cell the mean, its 95 % interval over problems (by chance one in twenty misses 0), the tokens. "
            f"Dashed: tau_p = {_TAU_P:g}; S2T silences above it, at low entropy.",
            finding=f"{len(known)} cells have an interval: {below} below 0, {above} above, uncorrected",
        ))  # fmt: skip
