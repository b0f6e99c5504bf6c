"""The samples of a benchmark: verdicts as numbers, means by problem, pass@k, maj@k, and the split of their variance."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stapo_results.errors import BadInput


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
    meaning = {"1": 1.0, "0": 0.0, "-": math.nan}
    try:
        return [meaning[letter] for letter in verdicts]
    except KeyError as e:
        raise BadInput("an unknown verdict letter", found=e.args[0], expected="1, 0 or -") from None


def problem_means(scores_QN: ArrayLike) -> NDArray[np.float64]:
    """Mean of the samples that are there, a problem each (Q,); NaN for a problem without any."""
    scores = matrix(scores_QN)
    there = ~np.isnan(scores)
    count = there.sum(axis=1)
    total = np.where(there, scores, 0.0).sum(axis=1)
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
    if len(answers) == 1:
        return scores[0] if answers[0] is not None else 0.0
    votes: dict[str, list[float]] = defaultdict(list)
    for answer, score in zip(answers, scores, strict=True):
        if answer is not None:
            votes[answer].append(score)
    if not votes:
        return 0.0
    lead = max(map(len, votes.values()))
    leaders = [v for v in votes.values() if len(v) == lead]
    return math.fsum(itertools.chain.from_iterable(leaders)) / (lead * len(leaders))


@dataclass(frozen=True)
class Variance:
    """Where the spread of single samples comes from: `within` a problem, `between` problems' true accuracies."""

    within: float
    between: float


def variance_components(scores_QN: ArrayLike) -> Variance:
    """Split of the variance of a single sample by the method of moments.

    within = mean over problems of the unbiased variance of their samples; between = variance of the problem means
    minus within / N, not below 0. NaN when a sample is missing, or with fewer than two problems or samples.
    """
    scores = matrix(scores_QN)
    if np.isnan(scores).any() or min(scores.shape) < 2:
        return Variance(math.nan, math.nan)
    within = float(scores.var(axis=1, ddof=1).mean())
    between = float(scores.mean(axis=1).var(ddof=1)) - within / scores.shape[1]
    return Variance(within, max(0.0, between))


def sampling_se(scores_QN: ArrayLike) -> float:
    """The part of avg@N's standard error that more samples of the same problems would remove: sqrt(within / (Q N)).

    NaN where `variance_components` is.
    """
    scores = matrix(scores_QN)
    return math.sqrt(variance_components(scores).within / scores.size)
