"""Differences of two models on the same problems; and what a design can tell from noise, from N and row counts alone.

Let p_q be a model's chance on problem q, p their mean, and N the samples a problem. A problem's score has the variance
p (1 - p) / N + Var(p_q) (1 - 1 / N), and Var(p_q) lies between 0 (problems alike) and p (1 - p) (each problem always
right or always wrong). So a printed mean alone bounds its standard error between sqrt(p (1 - p) / (Q N)) and
sqrt(p (1 - p) / Q). Values are fractions; dimensions: Q problems, N samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from stapo_results.errors import BadInput
from stapo_results.statistics.estimates import LEVEL, mean_se, quantile_t, welch
from stapo_results.statistics.resampling import RESAMPLES, sign_flip_p

POWER = 0.8
ALPHA = 0.05


@dataclass(frozen=True)
class Paired:
    """Difference of two models on the same problems (first minus second), in fractions.

    `p` is the two-sided p-value of the sign-flip permutation test of "no difference".
    """

    difference: float
    se: float
    low: float
    high: float
    p: float
    problems: int


def paired(first: Mapping[str, float], second: Mapping[str, float], *, resamples: int = RESAMPLES) -> Paired:
    """Difference of two models problem by problem: mean, SE of the mean difference, t interval, sign-flip p.

    Args:
        first, second: problem id -> mean of its samples, over the same problems.

    Raises:
        BadInput: the two do not hold the same problems (a difference over a part of them would mislead).
    """
    if first.keys() != second.keys() or not first:
        only = sorted(first.keys() ^ second.keys())
        raise BadInput(
            "a paired difference needs the same problems on both sides",
            found=f"{len(first)} and {len(second)} problems, {len(only)} on one side only, first {only[:3]}",
            expected="identical problem ids",
            next_step="evaluate both models on the same benchmark file and the same --limit",
        )
    d = np.array([first[k] - second[k] for k in sorted(first)])
    if np.isnan(d).any():
        return Paired(math.nan, math.nan, math.nan, math.nan, math.nan, len(d))
    mean, se = mean_se(d)
    p = sign_flip_p(d, resamples=resamples)
    if len(d) < 2:
        return Paired(mean, se, math.nan, math.nan, p, len(d))
    half = quantile_t(LEVEL, len(d) - 1) * se
    return Paired(mean, se, mean - half, mean + half, p, len(d))


def paired_average(strata: Sequence[ArrayLike], *, resamples: int = RESAMPLES) -> Paired:
    """Unweighted mean over benchmarks of paired differences.

    The interval is `welch`'s; the sign-flip test flips problems, each weighted so that every benchmark counts alike.

    Args:
        strata: the differences (Q_b,) of each benchmark's problems.
    """
    arrays = [np.asarray(d, dtype=np.float64) for d in strata]
    k, problems = len(arrays), sum(d.size for d in arrays)
    if any(np.isnan(d).any() for d in arrays):
        return Paired(math.nan, math.nan, math.nan, math.nan, math.nan, problems)
    parts = [mean_se(d) for d in arrays]
    difference = math.fsum(mean for mean, _ in parts) / k
    p = sign_flip_p(np.concatenate([d / (d.size * k) for d in arrays]), resamples=resamples)
    if any(d.size < 2 for d in arrays):
        return Paired(difference, math.nan, math.nan, math.nan, p, problems)
    if not any(se for _, se in parts):
        return Paired(difference, 0.0, difference, difference, p, problems)
    se, half = welch([se for _, se in parts], [d.size for d in arrays])
    return Paired(difference, se, difference - half, difference + half, p, problems)


@dataclass(frozen=True)
class Design:
    """Two models on one benchmark: their mean scores (fractions), its problems, and the samples a problem."""

    first: float
    second: float
    problems: int
    samples: int


@dataclass(frozen=True)
class Bounds:
    """Two standard errors of a difference between which an unpaired comparison lies.

    Attributes:
        sampling: problems alike in difficulty, so that only the sampling of answers is left.
        unpaired: each problem always right or always wrong, and the models' problems independent of one another.
    """

    sampling: float
    unpaired: float


def difference_se(designs: Sequence[Design]) -> Bounds:
    """Standard error of the difference of two models, averaged over benchmarks unweighted.

    A comparison paired by problem may lie below `unpaired` by any amount, since what makes a problem hard for both
    models drops out; below `sampling` only as far as problems are nearly certain for both.
    """
    spread = [(d.first * (1 - d.first) + d.second * (1 - d.second)) / d.problems for d in designs]
    k = len(designs)
    return Bounds(
        sampling=math.sqrt(math.fsum(v / d.samples for v, d in zip(spread, designs, strict=True))) / k,
        unpaired=math.sqrt(math.fsum(spread)) / k,
    )


def minimal_detectable(se: float, *, power: float = POWER, alpha: float = ALPHA) -> float:
    """The true difference that a two-sided test at `alpha` finds with probability `power`.

    (z(1 - alpha / 2) + z(power)) SE, by the normal approximation without the far tail (Bloom 1995, Evaluation Review
    19(5)): 2.8016 SE at 0.05 and 0.8.
    """
    return float(ndtri(1 - alpha / 2) + ndtri(power)) * se
