"""Statistics of avg@N scores: problems are the units that were drawn, samples are repeated measures of them.

Scores are plain arrays of fractions (0 to 1, not percent); dimensions: Q problems, N samples a problem, S training
seeds. A missing sample is NaN, and so is what is not defined: one problem, one seed, a missing value. Every interval is
a t interval at `LEVEL` whose variance is a sum of independent parts; its degrees of freedom are Welch's and
Satterthwaite's. Nothing here reads a record or rounds a number.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit

from stapo_results.errors import BadInput
from stapo_results.resampling import LEVEL, RESAMPLES, sign_flip_p


def matrix(scores_QN: ArrayLike) -> NDArray[np.float64]:
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
    return [{"1": 1.0, "0": 0.0, "-": math.nan}[letter] for letter in verdicts]


def problem_means(scores_QN: ArrayLike) -> NDArray[np.float64]:
    """Mean of the samples that are there, a problem each (Q,); NaN for a problem without any."""
    scores = matrix(scores_QN)
    known = ~np.isnan(scores)
    count = known.sum(axis=1)
    total = np.where(known, scores, 0.0).sum(axis=1)
    return np.divide(total, count, out=np.full(len(scores), math.nan), where=count > 0)


def pass_at_k(scores_QN: ArrayLike, k: int) -> float:
    """Unbiased pass@k, mean over problems of 1 - C(n - c, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374).

    NaN when a sample is missing or k exceeds N: neither can be estimated without flattering. Scores are 0 or 1.
    """
    scores = matrix(scores_QN)
    n = scores.shape[1]
    if k > n or np.isnan(scores).any():
        return math.nan
    correct = scores.sum(axis=1).astype(int).tolist()
    return math.fsum(1 - math.comb(n - c, k) / math.comb(n, k) for c in correct) / len(correct)


def majority_at_k(answers_QN: Sequence[Sequence[str | None]], scores_QN: ArrayLike, k: int) -> float:
    """maj@k: accuracy of the most frequent answer among k samples, mean over problems.

    For k < N it is the mean over the disjoint consecutive blocks of k samples (N mod k samples at the end are left
    out). Answers are compared as text. A sample without an answer (None) casts no vote; a block without votes is
    wrong. Answers that tie for the lead share the point: the expected value of a random choice among them.

    Returns:
        A fraction, or NaN when a sample is missing (NaN score) or k exceeds N.
    """
    scores = matrix(scores_QN)
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


def variance_components(scores_QN: ArrayLike) -> tuple[float, float]:
    """(within, between): the variance of a single sample split by the method of moments.

    within = mean over problems of the unbiased variance of their samples; between = variance of the problem means
    minus within / N, not below 0. NaN when a sample is missing, or with fewer than two problems or samples.
    """
    scores = matrix(scores_QN)
    if np.isnan(scores).any() or min(scores.shape) < 2:
        return math.nan, math.nan
    within = float(scores.var(axis=1, ddof=1).mean())
    between = float(scores.mean(axis=1).var(ddof=1)) - within / scores.shape[1]
    return within, max(0.0, between)


def sampling_se(scores_QN: ArrayLike) -> float:
    """The part of avg@N's standard error that more samples of the same problems would remove: sqrt(within / (Q N)).

    NaN where `variance_components` is.
    """
    scores = matrix(scores_QN)
    return math.sqrt(variance_components(scores)[0] / scores.size)


_EQUAL = 1e-12  # a mean of the same scores in another order may be another in its last digit


@dataclass(frozen=True, kw_only=True)
class Number:
    """A number and the ends of its 95 % interval. NaN: not defined, or nothing varies. What a number has not is empty.

    Attributes:
        se: standard error. df: degrees of freedom; NaN where `se` is 0 or NaN, inf where the variance is known.
        sign_flip: two-sided p of the sign-flip permutation test of "no difference", of a paired difference.
        problems: Q. samples: N, that each problem should have. missing: of the Q x N; the mean is of the others.
        se_problems: standard error over problems, of their means over training seeds. se_seeds: over seeds, of their
            means over problems. se_sampling: the part that more samples would remove. seeds: the mean of each seed, in
            the columns' order. bootstrap_low, bootstrap_high: percentile interval, problems resampled.
        part, whole: the sums of which a share is made, such as tokens. over: what was drawn anew for its interval.
    """

    mean: float = math.nan
    low: float = math.nan
    high: float = math.nan
    se: float = math.nan
    df: float = math.nan
    sign_flip: float = math.nan
    problems: int = 0
    samples: int = 0
    missing: int = 0
    se_problems: float = math.nan
    se_seeds: float = math.nan
    se_sampling: float = math.nan
    bootstrap_low: float = math.nan
    bootstrap_high: float = math.nan
    seeds: tuple[float, ...] = ()
    part: float = 0.0
    whole: float = 0.0
    over: str = ""

    @property
    def known(self) -> bool:
        return not math.isnan(self.mean)

    @property
    def has_interval(self) -> bool:
        return not math.isnan(self.low)

    @property
    def p(self) -> float:
        """Two-sided p of "the mean is 0" by the t test whose interval this is; without a spread 1, or that of the sign
        flips, or 0. Where the bounds of equal benchmarks widen the interval to hold 0, it is no less than 0.05."""
        if self.se <= _EQUAL * abs(self.mean):
            return 1.0 if self.mean == 0 else 0.0 if math.isnan(self.sign_flip) else self.sign_flip
        p = float(2 * stdtr(self.df, -abs(self.mean) / self.se))
        return max(p, 1 - LEVEL) if self.low <= 0 <= self.high else p

    def within(self, least: float, most: float) -> Number:
        """With an interval that ends where the quantity does."""
        if not self.has_interval:
            return self
        return replace(self, low=max(least, self.low), high=min(most, self.high))

    def times(self, factor: float) -> Number:
        """In another unit: mean, interval, standard errors and seeds."""
        names = ("mean", "low", "high", "se", "se_problems", "se_seeds", "se_sampling", "bootstrap_low",
                 "bootstrap_high")  # fmt: skip
        values = {name: factor * getattr(self, name) for name in names}
        return replace(self, **values, seeds=tuple(factor * x for x in self.seeds))


def mean_variance(values: ArrayLike) -> tuple[float, float]:
    """Mean of n independent values, and its variance sum (x - m)^2 / (n (n - 1)), NaN for one."""
    array = np.asarray(values, dtype=np.float64)
    n = len(array)
    mean = math.fsum(array) / n
    return mean, math.fsum((array - mean) ** 2) / (n * (n - 1)) if n > 1 else math.nan


def interval(mean: float, parts: Sequence[tuple[float, float]]) -> Number:
    """The interval of a mean whose variance is a sum of independent parts, each (variance, degrees of freedom)."""
    total = math.fsum(v for v, _ in parts)
    if math.isnan(total) or math.isnan(mean):
        return Number(mean=mean)
    if total == 0:
        return Number(mean=mean, se=0.0, low=mean, high=mean)
    squares = math.fsum((v / total) ** 2 / df for v, df in parts if v)
    df = 1 / squares if squares else math.inf
    half = float(stdtrit(df, 0.5 + LEVEL / 2)) * math.sqrt(total)
    return Number(mean=mean, se=math.sqrt(total), low=mean - half, high=mean + half, df=df)


def _reach(values: ArrayLike, least: float, most: float) -> tuple[float, float]:
    """How far below and above Q equal values the mean of their variable in [least, most] may lie; 0 where they differ.

    Equal values have no standard error, but an interval of no width would claim certainty. Another value has at most
    the chance 1 - 0.025^(1/Q): the exact bound for what Q draws never had.
    """
    value, chance = np.max(values), 1 - ((1 - LEVEL) / 2) ** (1 / np.size(values))
    return (0.0, 0.0) if np.ptp(values) > _EQUAL else (float(chance * (value - least)), float(chance * (most - value)))


def _reaching(number: Number, reaches: Sequence[tuple[float, float]], least: float, most: float) -> Number:
    """With the reaches of equal parts, each on its side, added by squares to the half width (the limits' own variances:
    Zou and Donner 2008, MOVER), and cut where the quantity ends."""
    if not number.has_interval:
        return number
    half = number.high - number.mean
    low = number.mean - math.hypot(half, *(below for below, _ in reaches))
    high = number.mean + math.hypot(half, *(above for _, above in reaches))
    return replace(number, low=max(least, low), high=min(most, high))


def clustered(scores_QN: ArrayLike) -> Number:
    """avg@N with its standard error clustered by problem and a t interval with Q - 1 degrees of freedom.

    The interval is cut at 0 and 1. Where every problem has the same score, such as 0, the standard error is 0 and the
    interval is the exact bound: up to 1 - 0.025^(1/Q).

    Args:
        scores_QN: (Q, N) or, with one score a problem, (Q,). NaN marks a missing sample.

    Raises:
        BadInput: empty input, or a score outside 0 to 1.
    """
    scores = matrix(scores_QN)
    means = problem_means(scores)
    n = len(means)
    mean, variance = mean_variance(means)
    number = _reaching(interval(mean, [(variance, n - 1)]), [_reach(means, 0.0, 1.0)], 0.0, 1.0)
    missing = int(np.isnan(scores).sum())
    return replace(number, problems=n, samples=scores.shape[1], missing=missing)


def average(estimates: Sequence[Number]) -> Number:
    """Unweighted mean over benchmarks.

    NaN in any part makes the whole NaN: an average over what happens to be there is not comparable. A part without a
    spread has a standard error of 0, but not no uncertainty: its exact bounds are added by squares.
    """
    k = len(estimates)
    mean = math.fsum(e.mean for e in estimates) / k
    number = interval(mean, [((e.se / k) ** 2, e.problems - 1) for e in estimates])
    flat = [((e.mean - e.low) / k, (e.high - e.mean) / k) for e in estimates if e.se <= _EQUAL]
    return replace(
        _reaching(number, flat, 0.0, 1.0),
        problems=sum(e.problems for e in estimates),
        samples=max(e.samples for e in estimates),
        missing=sum(e.missing for e in estimates),
    )


def paired(first: Mapping[str, float], second: Mapping[str, float]) -> Number:
    """Difference of two models problem by problem.

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
    return paired_average([[first[k] - second[k] for k in sorted(first)]])


def paired_average(strata: Sequence[ArrayLike], *, resamples: int = RESAMPLES) -> Number:
    """Unweighted mean over benchmarks of paired differences of scores, with the bounds of those that are all equal.

    The sign-flip test flips problems, each weighted so that every benchmark counts alike.

    Args:
        strata: the differences (Q_b,) of each benchmark's problems.
    """
    arrays = [np.asarray(d, dtype=np.float64) for d in strata]
    k = len(arrays)
    parts = [mean_variance(d) for d in arrays]
    mean = math.fsum(m for m, _ in parts) / k
    number = interval(mean, [(v / k**2, d.size - 1) for (_, v), d in zip(parts, arrays, strict=True)])
    number = _reaching(number, [_reach(d / k, -1 / k, 1 / k) for d in arrays], -1.0, 1.0)
    flips = sign_flip_p(np.concatenate([d / (d.size * k) for d in arrays]), resamples=resamples)
    return replace(number, sign_flip=flips, problems=sum(d.size for d in arrays))


def crossed(strata: Sequence[ArrayLike], *, fractions: bool = False) -> Number:
    """Mean over benchmarks, problems and seeds; its interval holds the variance of problems and of seeds.

    Every seed's model answers the same problems, so two choices could have come out otherwise: which problems, and
    which seeds. Problems are drawn independently in each benchmark; a seed is one model, so its deviations are averaged
    over the benchmarks before they are squared. The squared standard error is the sum of the two one-way ones. What
    differs from problem to problem and seed to seed alike is in both, so the interval is rather too wide than too
    narrow (coverage: docs/statistics.md, and a test).

    Args:
        strata: a matrix (Q, S) a benchmark; Q may differ, the columns are the same seeds in the same order.
        fractions: the values are scores in [0, 1]; else differences of such. The interval is cut where they end, and a
            benchmark of equal problems has its exact bounds.

    Raises:
        BadInput: no matrix, an empty one, matrices with different numbers of seeds, or a value that is not finite.
    """
    matrices = [np.asarray(s, dtype=np.float64) for s in strata]
    shapes = [m.shape for m in matrices]
    alike = len({s[1:] for s in shapes}) == 1 and len(shapes[0]) == 2
    if not alike or not all(m.size and np.isfinite(m).all() for m in matrices):
        raise BadInput("each benchmark needs problems x seeds", found=shapes, expected="finite (Q, S), one S")
    k, seeds = len(matrices), shapes[0][1]
    by_seed = [math.fsum(math.fsum(m[:, s]) / len(m) for m in matrices) / k for s in range(seeds)]
    mean, between = mean_variance(by_seed)
    problems = [(mean_variance(m.mean(axis=1))[1] / k**2, len(m) - 1) for m in matrices]
    number = interval(mean, [*problems, (between, seeds - 1)])
    least = 0.0 if fractions else -1.0
    reaches = [_reach(m.mean(axis=1) / k, least / k, 1 / k) for m in matrices]
    return replace(
        _reaching(number, reaches, least, 1.0),
        se_problems=math.sqrt(math.fsum(v for v, _ in problems)),
        se_seeds=math.sqrt(between),
        seeds=tuple(by_seed),
    )


def over_seeds(values_S: Sequence[float]) -> Number:
    """Mean of one number a training run (an entropy, a share) with the t interval over seeds; no problems enter.

    Raises:
        BadInput: no value, or one that is not finite.
    """
    values = np.asarray(values_S, dtype=np.float64)
    if not values.size or not np.isfinite(values).all():
        raise BadInput("each seed needs one finite number", found=list(values_S), expected="(S,)")
    mean, variance = mean_variance(values)
    number = interval(mean, [(variance, len(values) - 1)])
    return replace(number, se_problems=0.0, se_seeds=math.sqrt(variance), seeds=tuple(values.tolist()))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p-values, in the given order; NaN stays NaN and is not counted as a test."""
    order = sorted((i for i, p in enumerate(p_values) if not math.isnan(p)), key=lambda i: p_values[i])
    out, running = [math.nan] * len(p_values), 0.0
    for rank, i in enumerate(order):
        running = max(running, (len(order) - rank) * p_values[i])
        out[i] = min(1.0, running)
    return out
