"""Means with their uncertainty: scores of one benchmark, and the unweighted average of several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from stapo_results.errors import BadInput

Floats = NDArray[np.float64]

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean with its uncertainty, all in fractions.

    Attributes:
        mean: the estimate.
        se: standard error, clustered by problem; NaN for a single problem.
        low, high: ends of the 95 % interval.
        problems: Q.
        samples: N, the samples that each problem should have.
        missing: how many of the Q x N samples are absent; the mean is then over those present.
    """

    mean: float
    se: float
    low: float
    high: float
    problems: int
    samples: int
    missing: int = 0


def matrix(scores_QN: ArrayLike) -> Floats:
    """Scores as (Q, N); one score a problem is N = 1.

    Raises:
        BadInput: empty input, another shape, or a score outside 0 to 1.
    """
    array = np.asarray(scores_QN, dtype=np.float64)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or array.size == 0:
        raise BadInput("scores must be problems x samples", found=f"shape {array.shape}", expected="(Q, N), not empty")
    if np.any((array < 0) | (array > 1)):
        raise BadInput(
            "a score lies outside 0 to 1", found=f"{np.nanmin(array)} to {np.nanmax(array)}", expected="fractions"
        )
    return array


def parse_verdicts(verdicts: str) -> list[float]:
    """The scores of a string of verdicts: 1 correct, 0 wrong, - missing (NaN)."""
    meaning = {"1": 1.0, "0": 0.0, "-": math.nan}
    try:
        return [meaning[letter] for letter in verdicts]
    except KeyError as e:
        raise BadInput("an unknown verdict letter", found=e.args[0], expected="1, 0 or -") from None


def problem_means(scores_QN: ArrayLike) -> Floats:
    """Mean of the samples that are there, a problem each (Q,); NaN for a problem without any."""
    scores = matrix(scores_QN)
    there = ~np.isnan(scores)
    count = there.sum(axis=1)
    total = np.where(there, scores, 0.0).sum(axis=1)
    return np.divide(total, count, out=np.full(len(scores), math.nan), where=count > 0)


def quantile_t(level: float, df: float) -> float:
    """Half width, in standard errors, of a two-sided t interval with `df` degrees of freedom."""
    return float(stdtrit(df, 0.5 + level / 2))


def mean_variance(values: Floats) -> tuple[float, float]:
    """Mean of n independent values, and its variance sum (x - m)^2 / (n (n - 1)), NaN for one."""
    n = len(values)
    mean = math.fsum(values) / n
    return mean, math.fsum((values - mean) ** 2) / (n * (n - 1)) if n > 1 else math.nan


def mean_se(means_Q: Floats) -> tuple[float, float]:
    """Mean and its standard error, NaN for one problem."""
    mean, variance = mean_variance(means_Q)
    return mean, math.sqrt(variance)


def welch(ses: Sequence[float], sizes: Sequence[int]) -> tuple[float, float]:
    """(standard error, half width of the t interval) of the mean of k independent means with these standard errors.

    sqrt(sum SE^2) / k, degrees of freedom by Welch and Satterthwaite, each part's being its size less one.
    """
    total = math.fsum(se**2 for se in ses)
    df = total**2 / math.fsum(se**4 / (n - 1) for se, n in zip(ses, sizes, strict=True))
    se = math.sqrt(total) / len(ses)
    return se, quantile_t(LEVEL, df) * se


def clustered(scores_QN: ArrayLike) -> Estimate:
    """avg@N with its standard error clustered by problem and a t interval with Q - 1 degrees of freedom.

    The interval is cut at 0 and 1. Where every problem is all wrong (or all right) the standard error is 0, and a
    zero-width interval would claim certainty; there the interval is the exact bound for the mean of a variable in
    [0, 1] of which Q draws were all 0: up to 1 - 0.025^(1/Q).

    Args:
        scores_QN: (Q, N) or, with one score a problem, (Q,). NaN marks a missing sample.

    Raises:
        BadInput: empty input, or a score outside 0 to 1.
    """
    scores = matrix(scores_QN)
    means = problem_means(scores)
    missing = int(np.isnan(scores).sum())
    shape = {"problems": scores.shape[0], "samples": scores.shape[1], "missing": missing}
    if np.isnan(means).any():
        return Estimate(math.nan, math.nan, math.nan, math.nan, **shape)
    mean, se = mean_se(means)
    n = len(means)
    bound = 1 - ((1 - LEVEL) / 2) ** (1 / n)
    if np.all(means == 0):
        return Estimate(mean, se, 0.0, bound, **shape)
    if np.all(means == 1):
        return Estimate(mean, se, 1 - bound, 1.0, **shape)
    if n < 2:
        return Estimate(mean, se, math.nan, math.nan, **shape)
    half = quantile_t(LEVEL, n - 1) * se
    return Estimate(mean, se, max(0.0, mean - half), min(1.0, mean + half), **shape)


def average(estimates: Sequence[Estimate]) -> Estimate:
    """Unweighted mean over benchmarks, its interval by `welch`.

    NaN in any part makes the whole NaN: an average over what happens to be there is not comparable. A part without a
    spread (all 0 or all 1) has a standard error of 0, but not no uncertainty: on the side where its exact bound lies,
    its distance from the mean is added by squares (the limits' own variances: Zou and Donner 2008, MOVER).

    Raises:
        BadInput: no estimates.
    """
    if not estimates:
        raise BadInput("an average needs at least one estimate", found=0, expected=">= 1")
    k = len(estimates)
    counts = {
        "problems": sum(e.problems for e in estimates),
        "samples": max(e.samples for e in estimates),
        "missing": sum(e.missing for e in estimates),
    }
    if k == 1:
        e = estimates[0]
        return Estimate(e.mean, e.se, e.low, e.high, **counts)
    mean = math.fsum(e.mean for e in estimates) / k
    if math.isnan(mean) or any(math.isnan(e.se) for e in estimates):
        return Estimate(mean, math.nan, math.nan, math.nan, **counts)
    spread, flat = [e for e in estimates if e.se], [e for e in estimates if not e.se]
    se, half = welch([e.se for e in estimates], [e.problems for e in estimates]) if spread else (0.0, 0.0)
    below, above = (math.hypot(half, *((getattr(e, end) - e.mean) / k for e in flat)) for end in ("low", "high"))
    return Estimate(mean, se, max(0.0, mean - below), min(1.0, mean + above), **counts)
