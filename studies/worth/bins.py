"""Worth by ranges of probability and entropy: the bins of the map."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stapo_repro.tokens.shares import Sums, interval
from stapo_results.statistics import Number
from studies.worth.record import TokenWorth

_RATES = ((0.0, 1e-5), (1e-5, 1e-4), (1e-4, 5e-4), (5e-4, 2e-3), (2e-3, 0.05), (0.05, 1.01))
_ENTROPIES = ((0.0, 0.1), (0.1, 0.5), (0.5, 1.0), (1.0, 2.0), (2.0, math.inf))


class Bin(NamedTuple):
    """Tokens of a range of probability and of entropy, as texts, with their mean Q - V."""

    rate: str
    entropy: str
    tokens: int
    worth: Number


def bins(tokens: Sequence[TokenWorth]) -> list[Bin]:
    """All ranges, row by row; intervals are over draws of problems."""
    p, h = (np.array([getattr(t, name) for t in tokens]) for name in ("probability", "entropy"))
    gain = np.array([(t.right_with - t.right_without) / t.of for t in tokens])
    _, problem = np.unique([t.prompt_id for t in tokens], return_inverse=True)
    places = [(r, e) for r in _RATES for e in _ENTROPIES]
    inside = [(p >= r[0]) & (p < r[1]) & (h >= e[0]) & (h < e[1]) for r, e in places]
    columns = {f"{i}": which for i, which in enumerate(inside)} | {f"{i} +": w * gain for i, w in enumerate(inside)}
    sums = Sums(problem, columns, over="problems")
    return [
        Bin(
            f"{r[0]:g} to {min(r[1], 1):g}",
            f"{e[0]:g} to {e[1]:g}" if e[1] < math.inf else f"above {e[0]:g}",
            int(inside[i].sum()),
            interval(sums.ratio(f"{i} +", f"{i}"), sums.clusters[f"{i}"]),
        )
        for i, (r, e) in enumerate(places)
    ]
