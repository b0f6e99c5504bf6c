"""What a design or a t test can tell, a score beside a printed one, and a rank correlation.

What the evaluation needs too is `stapo_results.statistics`. Nothing here reads a record or rounds a number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import nctdtr, ndtri, stdtr, stdtrit
from scipy.stats import rankdata

from stapo_results.resampling import LEVEL, uniform_indices
from stapo_results.statistics import Number

POWER = 0.8
ALPHA = 0.05
MOST_RUNS = 10_000
"""Runs beyond which `runs_needed` looks no further."""
_RANK_RESAMPLES = 1_000  # each draw ranks all values anew


@dataclass(frozen=True)
class Design:
    """Two models on one benchmark: their mean scores (fractions), its problems, and the samples a problem."""

    first: float
    second: float
    problems: int
    samples: int


def difference_se(designs: Sequence[Design]) -> tuple[float, float]:
    """Bounds of the standard error of two models' difference, averaged over benchmarks unweighted.

    Let p_q be a model's chance on problem q, p their mean, N the samples a problem. A problem's score has the variance
    p (1 - p) / N + Var(p_q) (1 - 1 / N), and Var(p_q) lies between 0 and p (1 - p).

    Returns:
        (sampling, unpaired): problems alike in difficulty, so that only the sampling of answers is left; each problem
        always right or always wrong, and the models' problems independent. A comparison paired by problem may lie
        below `unpaired` by any amount; below `sampling` only as far as problems are nearly certain for both.
    """
    spread = [(d.first * (1 - d.first) + d.second * (1 - d.second)) / d.problems for d in designs]
    k = len(designs)
    sampling = math.fsum(v / d.samples for v, d in zip(spread, designs, strict=True))
    return math.sqrt(sampling) / k, math.sqrt(math.fsum(spread)) / k


def minimal_detectable(se: float) -> float:
    """The true difference that a two-sided test at `ALPHA` finds with probability `POWER`.

    (z(1 - alpha / 2) + z(power)) SE, by the normal approximation without the far tail (Bloom 1995, Evaluation Review
    19(5)): 2.8016 SE.
    """
    return float(ndtri(1 - ALPHA / 2) + ndtri(POWER)) * se


def t_power(effect: float, se: float, df: float, alpha: float = ALPHA) -> float:
    """The chance that a two-sided t test at `alpha` finds a true mean of `effect`, on the side where it lies.

    P(T > t) for T noncentral t with `df` degrees of freedom and noncentrality |effect| / se, where t is the critical
    value t(1 - alpha / 2, df).
    """
    return 1.0 - float(nctdtr(df, abs(effect) / se, stdtrit(df, 1 - alpha / 2)))


def detectable(se: float, df: float) -> float:
    """The smallest true mean that a two-sided t test at `ALPHA` finds with probability `POWER`; NaN without an SE."""
    if math.isnan(se) or se == 0:
        return se
    return se * brentq(lambda effect: t_power(effect, 1.0, df) - POWER, 0.0, 1e4, xtol=1e-13)  # type: ignore[operator]


def runs_needed(effect: float, sd: float, alpha: float = ALPHA) -> int | None:
    """The fewest runs, from 2 on, whose t test at `alpha` finds a true mean of `effect` with probability `POWER`.

    Args:
        sd: standard deviation between runs, as a pilot gives it. 0 needs two.

    Returns:
        None where more than `MOST_RUNS` are needed.
    """
    counts = range(2, MOST_RUNS + 1)
    return next((n for n in counts if sd == 0 or t_power(effect, sd / math.sqrt(n), n - 1, alpha) >= POWER), None)


def runs_for_equivalence(margin: float, sd: float, alpha: float = ALPHA) -> int | None:
    """The fewest runs whose two one-sided tests find a true mean of 0 to lie within +- margin; None as `runs_needed`.

    The power is 2 P(T < margin / se - t) - 1 with t = t(1 - alpha, df) and T central t with df = n - 1.
    """

    def enough(n: int) -> bool:
        room = margin * math.sqrt(n) / sd - float(stdtrit(n - 1, 1 - alpha)) if sd else math.inf
        return 2 * float(stdtr(n - 1, room)) - 1 >= POWER

    return next(filter(enough, range(2, MOST_RUNS + 1)), None)


def tost_p(found: Number, margin: float) -> float:
    """p of "the true mean lies outside +- margin": the larger p of two one-sided t tests (Schuirmann 1987).

    Below alpha exactly where the 1 - 2 alpha interval lies within the margin. NaN without a standard error; where that
    is 0, 0 within the margin and else 1.
    """
    if found.se == 0:
        return 0.0 if abs(found.mean) < margin else 1.0
    return float(stdtr(found.df, (abs(found.mean) - margin) / found.se))


def rank_correlation(x_N: ArrayLike, y_N: ArrayLike, cluster_N: ArrayLike) -> Number:
    """Spearman's rho: midranks at ties, a 95 % percentile interval by a bootstrap over clusters.

    Not known where all x or all y are equal; without an interval where there are fewer than two clusters.

    Args:
        cluster_N: of each value, such as its prompt. A draw takes whole clusters and ranks what it took.
    """
    clusters, cluster = np.unique(np.asarray(cluster_N), return_inverse=True)
    both = np.array([x_N, y_N], dtype=np.float64)
    rho = _spearman(both)
    if len(clusters) < 2 or math.isnan(rho):
        return Number(mean=rho)
    stream = np.random.PCG64(0)
    draws = np.empty(_RANK_RESAMPLES)
    for b in range(_RANK_RESAMPLES):
        times_C = np.bincount(uniform_indices(stream, len(clusters), len(clusters)), minlength=len(clusters))
        draws[b] = _spearman(np.repeat(both, times_C[cluster], axis=1))
    low, high = np.nanquantile(draws, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2]).tolist()
    return Number(mean=rho, low=low, high=high)


def _spearman(both: NDArray[np.float64]) -> float:
    with np.errstate(invalid="ignore"):  # NaN where all of one are equal
        return float(np.corrcoef(rankdata(both, axis=1))[0, 1])
