"""Differences of two models or settings on the same problems."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from stapo_results.errors import BadInput
from stapo_results.statistics.estimates import LEVEL, mean_se, quantile_t, welch
from stapo_results.statistics.resampling import RESAMPLES, sign_flip_p


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

    Raises:
        BadInput: no benchmark, or one without a problem.
    """
    arrays = [np.asarray(d, dtype=np.float64) for d in strata]
    if not arrays or any(d.ndim != 1 or d.size == 0 for d in arrays):
        raise BadInput("an average of differences needs one or more benchmarks with problems", found=len(arrays))
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
