"""The tokens of correct responses by probability and entropy: the four quadrants of the paper's taxonomy. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from stapo_repro.tokens.logged_run import LoggedRun, batch_keys
from stapo_results.statistics.estimates import quantile_t

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
        entropy_rises: share of the tokens at which a gradient step raises the entropy (`token_log.entropy_rises`); None
            without a token.
    """

    rare: bool
    below: bool
    tokens: int
    share: float | None
    norm: Ratio | None
    rank: int | None
    entropy_rises: float | None


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


def measure(run: LoggedRun) -> tuple[Quadrant, ...]:
    """The four quadrants, in the order of ORDER."""
    c = run.counts
    positive = c["sign"] == 1
    all_tokens = int(c["tokens"][positive].sum())
    _, batch = np.unique(batch_keys(c), return_inverse=True)
    found = []
    for rare, below in ORDER:
        of_it = positive & (c["rare"] == rare) & (c["below"] == below)
        tokens = int(c["tokens"][of_it].sum())
        norm = rises = None
        if tokens:
            sums, counts = (np.bincount(batch[of_it], c[name][of_it]) for name in ("norm_sum", "tokens"))
            norm = ratio(sums[counts > 0], counts[counts > 0])
            rises = float(c["tokens"][of_it & c["rises"]].sum()) / tokens
        share = tokens / all_tokens if all_tokens else None
        found.append(Quadrant(rare, below, tokens, share, norm, None, rises))
    norms = sorted((q.norm.mean for q in found if q.norm is not None), reverse=True)
    return tuple(q if q.norm is None else replace(q, rank=norms.index(q.norm.mean) + 1) for q in found)
