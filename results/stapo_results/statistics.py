"""Statistics of avg@N scores: problems are the units that were drawn, samples are repeated measures of them.

Every function takes plain arrays of fractions (0 to 1, not percent). A missing sample is NaN. Dimensions: Q problems,
N samples a problem. Nothing here reads a record or rounds a number.

The random draws use the raw stream of PCG64, which numpy keeps unchanged between its versions (NEP 19), so the same
scores give the same bytes in every table.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from stapo_results.errors import BadInput

Floats = NDArray[np.float64]

RESAMPLES = 10_000
LEVEL = 0.95
_EXACT_FLIPS = 16  # up to 2**16 sign patterns are counted out, beyond that they are drawn


@dataclass(frozen=True)
class Estimate:
    """A mean with its uncertainty, all in fractions.

    Attributes:
        mean: the estimate.
        se: standard error, clustered by problem; NaN for a single problem.
        low, high: ends of the interval at the level that was asked for.
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


@dataclass(frozen=True)
class Variance:
    """Where the spread of single samples comes from: `within` a problem, `between` problems' true accuracies."""

    within: float
    between: float


def _matrix(scores_QN: ArrayLike) -> Floats:
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
    scores = _matrix(scores_QN)
    there = ~np.isnan(scores)
    count = there.sum(axis=1)
    total = np.where(there, scores, 0.0).sum(axis=1)
    return np.divide(total, count, out=np.full(len(scores), math.nan), where=count > 0)


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise BadInput("the level of an interval lies between 0 and 1", found=level, expected=0.95)


def _quantile_t(level: float, df: float) -> float:
    return float(stdtrit(df, 0.5 + level / 2))


def _mean_se(means_Q: Floats) -> tuple[float, float]:
    """Mean and sqrt(sum (s_q - s)^2 / (n (n - 1))), NaN for one problem."""
    n = len(means_Q)
    mean = math.fsum(means_Q) / n
    if n < 2:
        return mean, math.nan
    return mean, math.sqrt(math.fsum((means_Q - mean) ** 2) / (n * (n - 1)))


def clustered(scores_QN: ArrayLike, *, level: float = LEVEL) -> Estimate:
    """avg@N with its standard error clustered by problem and a t interval with Q - 1 degrees of freedom.

    The interval is cut at 0 and 1. Where every problem is all wrong (or all right) the standard error is 0, and a
    zero-width interval would claim certainty; there the interval is the exact bound for the mean of a variable in
    [0, 1] of which Q draws were all 0: up to 1 - ((1 - level) / 2)^(1/Q).

    Args:
        scores_QN: (Q, N) or, with one score a problem, (Q,). NaN marks a missing sample.
        level: coverage of the interval.

    Raises:
        BadInput: empty input, or a score outside 0 to 1.
    """
    scores = _matrix(scores_QN)
    _check_level(level)
    means = problem_means(scores)
    missing = int(np.isnan(scores).sum())
    shape = {"problems": scores.shape[0], "samples": scores.shape[1], "missing": missing}
    if np.isnan(means).any():
        return Estimate(math.nan, math.nan, math.nan, math.nan, **shape)
    mean, se = _mean_se(means)
    n = len(means)
    bound = 1 - ((1 - level) / 2) ** (1 / n)
    if np.all(means == 0):
        return Estimate(mean, se, 0.0, bound, **shape)
    if np.all(means == 1):
        return Estimate(mean, se, 1 - bound, 1.0, **shape)
    if n < 2:
        return Estimate(mean, se, math.nan, math.nan, **shape)
    half = _quantile_t(level, n - 1) * se
    return Estimate(mean, se, max(0.0, mean - half), min(1.0, mean + half), **shape)


def average(estimates: Sequence[Estimate], *, level: float = LEVEL) -> Estimate:
    """Unweighted mean over benchmarks: SE = sqrt(sum SE_b^2) / k, degrees of freedom by Welch and Satterthwaite.

    NaN in any part makes the whole NaN: an average over what happens to be there is not comparable. Where no part has
    a spread (all 0 or all 1) the interval is the mean of the parts' intervals, which is wider than their convolution.

    Raises:
        BadInput: no estimates.
    """
    _check_level(level)
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
    total = math.fsum(e.se**2 for e in estimates)
    se = math.sqrt(total) / k
    if total == 0:
        low, high = (math.fsum(getattr(e, end) for e in estimates) / k for end in ("low", "high"))
        return Estimate(mean, se, low, high, **counts)
    df = total**2 / math.fsum(e.se**4 / (e.problems - 1) for e in estimates)
    half = _quantile_t(level, df) * se
    return Estimate(mean, se, max(0.0, mean - half), min(1.0, mean + half), **counts)


def _uniform_indices(stream: np.random.PCG64, n: int, size: int) -> NDArray[np.int64]:
    """`size` indices in [0, n) from the raw stream (multiply and shift; the bias is below n / 2**32)."""
    raw = stream.random_raw(size) >> np.uint64(32)
    return ((raw * np.uint64(n)) >> np.uint64(32)).astype(np.int64)


def bootstrap(
    strata: Sequence[ArrayLike], *, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of the unweighted mean over strata, problems resampled inside each stratum.

    Args:
        strata: one array of problem means (or of paired differences) a benchmark; a single benchmark is one stratum.
        level: coverage.
        resamples: B.
        seed: fixed, so that a table is a function of its records.

    Returns:
        (low, high); NaN twice when a problem mean is NaN or a stratum has fewer than two problems.

    Raises:
        BadInput: no strata, an empty one, or fewer than 100 resamples.
    """
    arrays = [np.asarray(s, dtype=np.float64) for s in strata]
    if not arrays or any(a.ndim != 1 or a.size == 0 for a in arrays):
        raise BadInput("the bootstrap needs one or more non-empty lists of problem means", found=f"{len(arrays)} lists")
    if resamples < 100:
        raise BadInput("too few bootstrap resamples", found=resamples, expected=">= 100, 10,000 in every table")
    _check_level(level)
    if any(a.size < 2 or np.isnan(a).any() for a in arrays):
        return math.nan, math.nan
    stream = np.random.PCG64(seed)
    totals = np.zeros(resamples)
    for a in arrays:
        block = max(1, 2_000_000 // a.size)  # keeps the index matrix below about 50 MB
        for start in range(0, resamples, block):
            rows = min(block, resamples - start)
            index = _uniform_indices(stream, a.size, rows * a.size).reshape(rows, a.size)
            totals[start : start + rows] += a[index].mean(axis=1)
    low, high = np.quantile(totals / len(arrays), [0.5 - level / 2, 0.5 + level / 2])
    return float(low), float(high)


def sign_flip_p(differences_Q: ArrayLike, *, resamples: int = RESAMPLES, seed: int = 0) -> float:
    """Two-sided p-value of "the differences are symmetric about 0": how often a random flip of signs is as extreme.

    Exact (all 2^m patterns of the m non-zero differences) up to m = 16, otherwise drawn, with (1 + hits) / (1 + B) so
    that it is never 0. NaN when a difference is NaN.
    """
    d = np.asarray(differences_Q, dtype=np.float64)
    if d.ndim != 1 or d.size == 0:
        raise BadInput("differences must be a list with one number a problem", found=f"shape {d.shape}")
    if np.isnan(d).any():
        return math.nan
    d = d[d != 0]
    if d.size == 0:
        return 1.0
    # sums that differ by rounding alone count as equally extreme
    bar = abs(math.fsum(d)) - 1e-9 * float(np.abs(d).sum())
    if d.size <= _EXACT_FLIPS:
        patterns = np.arange(2**d.size)[:, None] >> np.arange(d.size) & 1
        return float(np.mean(np.abs((1 - 2 * patterns) @ d) >= bar))
    stream, hits = np.random.PCG64(seed), 0
    for start in range(0, resamples, 1000):
        rows = min(1000, resamples - start)
        bits = _uniform_indices(stream, 2, rows * d.size).reshape(rows, d.size)
        hits += int(np.sum(np.abs((1 - 2 * bits) @ d) >= bar))
    return (1 + hits) / (1 + resamples)


def paired(
    first: Mapping[str, float], second: Mapping[str, float], *, level: float = LEVEL, resamples: int = RESAMPLES
) -> Paired:
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
    _check_level(level)
    d = np.array([first[k] - second[k] for k in sorted(first)])
    if np.isnan(d).any():
        return Paired(math.nan, math.nan, math.nan, math.nan, math.nan, len(d))
    mean, se = _mean_se(d)
    p = sign_flip_p(d, resamples=resamples)
    if len(d) < 2:
        return Paired(mean, se, math.nan, math.nan, p, len(d))
    half = _quantile_t(level, len(d) - 1) * se
    return Paired(mean, se, mean - half, mean + half, p, len(d))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p-values, in the given order; NaN stays NaN and is not counted as a test."""
    order = sorted((i for i, p in enumerate(p_values) if not math.isnan(p)), key=lambda i: p_values[i])
    out, running = [math.nan] * len(p_values), 0.0
    for rank, i in enumerate(order):
        if not 0 <= p_values[i] <= 1:
            raise BadInput("a p-value lies outside 0 to 1", found=p_values[i])
        running = max(running, (len(order) - rank) * p_values[i])
        out[i] = min(1.0, running)
    return out


def pass_at_k(scores_QN: ArrayLike, k: int) -> float:
    """Unbiased pass@k, mean over problems of 1 - C(n - c, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374).

    NaN when a sample is missing or k exceeds N: neither can be estimated without flattering.

    Raises:
        BadInput: k below 1, or scores that are not 0 or 1.
    """
    scores = _matrix(scores_QN)
    if k < 1:
        raise BadInput("pass@k needs k >= 1", found=k, expected=">= 1")
    n = scores.shape[1]
    if k > n or np.isnan(scores).any():
        return math.nan
    if np.any((scores != 0) & (scores != 1)):
        raise BadInput("pass@k needs right or wrong samples", found="a score between 0 and 1", expected="0 or 1")
    correct = scores.sum(axis=1).astype(int).tolist()
    return math.fsum(1 - math.comb(n - c, k) / math.comb(n, k) for c in correct) / len(correct)


def majority_at_k(answers_QN: Sequence[Sequence[str | None]], scores_QN: ArrayLike, k: int) -> float:
    """maj@k: accuracy of the most frequent answer among k samples, mean over problems.

    For k < N it is the mean over the disjoint consecutive blocks of k samples (N mod k samples at the end are left
    out). Answers are compared as text. A sample without an answer (None) casts no vote; a block without votes is
    wrong. Answers that tie for the lead share the point: the expected value of a random choice among them.

    Returns:
        A fraction, or NaN when a sample is missing (NaN score) or k exceeds N.

    Raises:
        BadInput: k below 1, or answers and scores of different shape.
    """
    scores = _matrix(scores_QN)
    if k < 1:
        raise BadInput("maj@k needs k >= 1", found=k, expected=">= 1")
    if [len(row) for row in answers_QN] != [scores.shape[1]] * scores.shape[0]:
        raise BadInput("answers and scores differ in shape", found=len(answers_QN), expected=scores.shape)
    n = scores.shape[1]
    if k > n or np.isnan(scores).any():
        return math.nan
    values = []
    for answers, row in zip(answers_QN, scores.tolist(), strict=True):
        blocks = [slice(start, start + k) for start in range(0, n - k + 1, k)]
        values.append(math.fsum(_majority(answers[b], row[b]) for b in blocks) / len(blocks))
    return math.fsum(values) / len(values)


def _majority(answers: Sequence[str | None], scores: Sequence[float]) -> float:
    votes: dict[str, list[float]] = defaultdict(list)
    for answer, score in zip(answers, scores, strict=True):
        if answer is not None:
            votes[answer].append(score)
    if not votes:
        return 0.0
    lead = max(map(len, votes.values()))
    leaders = [v for v in votes.values() if len(v) == lead]
    return math.fsum(itertools.chain.from_iterable(leaders)) / (lead * len(leaders))


def variance_components(scores_QN: ArrayLike) -> Variance:
    """Split of the variance of a single sample by the method of moments.

    within = mean over problems of the unbiased variance of their samples; between = variance of the problem means
    minus within / N, not below 0. NaN when a sample is missing, or with fewer than two problems or samples.
    """
    scores = _matrix(scores_QN)
    if np.isnan(scores).any() or min(scores.shape) < 2:
        return Variance(math.nan, math.nan)
    within = float(scores.var(axis=1, ddof=1).mean())
    between = float(scores.mean(axis=1).var(ddof=1)) - within / scores.shape[1]
    return Variance(within, max(0.0, between))
