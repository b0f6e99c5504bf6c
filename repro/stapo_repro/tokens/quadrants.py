"""The tokens of correct responses by probability and entropy: the four quadrants of the paper's taxonomy. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from stapo_repro.tokens.material import Material, batch_keys
from stapo_results.statistics.estimates import quantile_t
from stapo_results.token_log import ENTROPY_EDGES, LOG10_P_EDGES

LEVEL = 0.95
ORDER = ((False, False), (False, True), (True, False), (True, True))
"""(rare, below tau_h) in the order of the paper's table."""


@dataclass(frozen=True)
class Ratio:
    """A mean over tokens with its interval (None: fewer than two mini-batches have such tokens)."""

    mean: float
    low: float | None
    high: float | None
    clusters: int


@dataclass(frozen=True)
class Quadrant:
    """Tokens with a positive advantage on one side of tau_p and of tau_h.

    Attributes:
        share: of the tokens with a positive advantage; None where there is no such token.
        norm: mean gradient norm of a token; None without a token.
        rank: 1 for the quadrant with the largest mean norm.
        rises: share of the tokens at which a gradient step raises the entropy, at least and at most; None without a
            token. One number where every token is logged ("rows"); else the histogram decides those bins that lie on
            one side alone ("bins").
    """

    rare: bool
    below: bool
    tokens: int
    share: float | None
    norm: Ratio | None
    rank: int | None
    rises: tuple[float, float] | None
    rises_from: Literal["rows", "bins"]

    @property
    def name(self) -> str:
        return f"p {'<' if self.rare else '≥'} τp, H {'<' if self.below else '≥'} τh"


def ratio(sums_C: np.ndarray, tokens_C: np.ndarray) -> Ratio:
    """sum of sums / sum of tokens over C clusters, with a t interval for the choice of clusters.

    Linearised ratio estimator: se = sqrt(C / (C - 1) sum (s_c - r n_c)^2) / sum n_c, C - 1 degrees of freedom
    (Cochran, Sampling Techniques, 1977, 6.4).
    """
    n, total = len(tokens_C), float(tokens_C.sum())
    mean = math.fsum(sums_C) / total
    if n < 2:
        return Ratio(mean, None, None, n)
    se = math.sqrt(n / (n - 1) * math.fsum((sums_C - mean * tokens_C) ** 2)) / total
    half = quantile_t(LEVEL, n - 1) * se
    return Ratio(mean, mean - half, mean + half, n)


def entropy_rises(logprob: np.ndarray, entropy: np.ndarray) -> np.ndarray:
    """Whether a natural policy gradient step on a token with a positive advantage raises the entropy.

    STAPO, the lemma on the entropy update: the change is -eta p (log p - E[log p]) (A - E[A]), and E[log p] = -H. For
    an advantage above its expectation it is positive where log p + H < 0.
    """
    return logprob + entropy < 0


def rising_bins() -> tuple[np.ndarray, np.ndarray]:
    """(bins of log10 p, bins of entropy) twice: whether the entropy rises at every token of a bin, and at any.

    The centre of a bin would not do: most tokens are nearly certain, and all of those with p > 0.56 and less than
    0.125 nats share a bin with tokens of either sign. The first bin of log10 p and the last one of entropy are open.
    """
    log_p, entropy = LOG10_P_EDGES * math.log(10.0), ENTROPY_EDGES
    low = np.concatenate([[-math.inf], log_p[1:-1]])[:, None] + entropy[:-1]
    high = log_p[1:, None] + np.concatenate([entropy[1:-1], [math.inf]])
    return high <= 0, low < 0


def build(material: Material) -> tuple[Quadrant, ...]:
    """The four quadrants, in the order of ORDER."""
    c, r = material.counts, material.rows
    positive = c["sign"] == 1
    all_tokens = int(c["tokens"][positive].sum())
    _, batch = np.unique(batch_keys(c), return_inverse=True)
    surely, perhaps = (bins[c["log10_p"], c["entropy"]] for bins in rising_bins())
    found = []
    for rare, below in ORDER:
        here = positive & (c["rare"] == rare) & (c["below"] == below)
        tokens = int(c["tokens"][here].sum())
        rows = (r["advantage"] > 0) & (r["rare"] == rare) & (material.below == below)
        exact = int(rows.sum()) == tokens
        norm = rises = None
        if tokens:
            sums = np.bincount(batch[here], c["norm_sum"][here])
            counts = np.bincount(batch[here], c["tokens"][here])
            norm = ratio(sums[counts > 0], counts[counts > 0])
            if exact:
                share = float(entropy_rises(r["logprob"][rows].astype(np.float64), r["entropy"][rows]).mean())
                rises = share, share
            else:
                rises = (
                    float(c["tokens"][here & surely].sum()) / tokens,
                    float(c["tokens"][here & perhaps].sum()) / tokens,
                )
        share = tokens / all_tokens if all_tokens else None
        found.append(Quadrant(rare, below, tokens, share, norm, None, rises, "rows" if exact else "bins"))
    return _ranked(found)


def _ranked(found: list[Quadrant]) -> tuple[Quadrant, ...]:
    norms = sorted((q.norm.mean for q in found if q.norm is not None), reverse=True)
    return tuple(
        Quadrant(**{**vars(q), "rank": None if q.norm is None else norms.index(q.norm.mean) + 1}) for q in found
    )
