"""What a token log says in numbers: quadrants, silenced tokens and thresholds by step, words, single cases. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stapo_repro.tokens.logged_run import LoggedRun, Vocabulary, batch_keys
from stapo_results.errors import RunFailed
from stapo_results.schema import StepMetrics
from stapo_results.statistics.estimates import quantile_t

ORDER = ((False, False), (False, True), (True, False), (True, True))
"""(rare, below tau_h) in the order of the paper's table."""
_METRIC = "actor/selector/silenced_tokens"
_ROUNDING = 0.01  # tokens: a mean over mini-batches times their number is a whole number up to float64's rounding
_TOP = 5
_SHARE = 2 / 3  # of the cases that are shown: silenced ones


@dataclass(frozen=True)
class Ratio:
    """A mean over tokens with its 95 % interval (None: fewer than two mini-batches have such tokens)."""

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Quadrant:
    """Tokens with a positive advantage on one side of tau_p and of tau_h.

    Attributes:
        share: of the tokens with a positive advantage; None where there is no such token.
        norm: mean gradient norm of a token; None without a token.
        entropy_rises: share of the tokens at which a gradient step raises the entropy (column `rises` of the log); None
            without a token.
    """

    rare: bool
    below: bool
    tokens: int
    share: float | None
    norm: Ratio | None
    entropy_rises: float | None


def _ratio(sums_C: np.ndarray, tokens_C: np.ndarray) -> Ratio:
    """sum of sums / sum of tokens over C clusters, with a t interval for the choice of clusters.

    Linearised ratio estimator: se = sqrt(C / (C - 1) sum (s_c - r n_c)^2) / sum n_c, C - 1 degrees of freedom
    (Cochran, Sampling Techniques, 1977, 6.4).
    """
    n, total = len(tokens_C), float(tokens_C.sum())
    mean = math.fsum(sums_C) / total
    if n < 2:
        return Ratio(mean, None, None)
    se = math.sqrt(n / (n - 1) * math.fsum((sums_C - mean * tokens_C) ** 2)) / total
    half = quantile_t(0.95, n - 1) * se
    return Ratio(mean, mean - half, mean + half)


def quadrants(run: LoggedRun) -> tuple[Quadrant, ...]:
    """The four quadrants of the paper's taxonomy, in the order of ORDER."""
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
            norm = _ratio(sums[counts > 0], counts[counts > 0])
            rises = float(c["tokens"][of_it & c["rises"]].sum()) / tokens
        found.append(Quadrant(rare, below, tokens, tokens / all_tokens if all_tokens else None, norm, rises))
    return tuple(found)


@dataclass(frozen=True)
class StepCount:
    """One step's response tokens.

    Attributes:
        rare, region: tokens that are rare, and those of them that S2T would silence.
        silenced: by the method, counted in the histogram; in_rows: in the logged rows.
        metric: from the run's metrics; None where they do not hold the step.
    """

    step: int
    mini_batches: int
    tokens: int
    rare: int
    region: int
    silenced: int
    in_rows: int
    metric: int | None


def by_step(run: LoggedRun) -> list[StepCount]:
    """One entry a step of the log.

    Raises:
        RunFailed: a step whose silenced tokens differ between the log and the run's metrics, or, for a mask over rare
            tokens, between the log's counts and its rows.
    """
    c, r = run.counts, run.rows
    steps, batches = np.unique(np.unique(batch_keys(c)) >> 16, return_counts=True)
    at = np.searchsorted(steps, c["step"])
    parts = (np.ones_like(c["rare"]), c["rare"], c["rare"] & c["below"], c["silenced"])
    totals = np.array([np.bincount(at, np.where(p, c["tokens"], 0), minlength=len(steps)) for p in parts])
    in_rows = Counter(r["step"][r["silenced"]].tolist())
    found = []
    for step, n, (tokens, rare, region, silenced) in zip(steps.tolist(), batches.tolist(), totals.T, strict=True):
        metric = _of_metrics(run.metrics.get(step), n)
        one = StepCount(step, n, int(tokens), int(rare), int(region), int(silenced), in_rows[step], metric)
        _check(run, one)
        found.append(one)
    return found


def _of_metrics(metrics: StepMetrics | None, mini_batches: int) -> int | None:
    """The metric is a mean over the step's mini-batches; a method that silences nothing has only a share of 0."""
    values = metrics.values if metrics is not None else {}
    mean = values.get(_METRIC, 0.0 if values.get("silenced_share") == 0.0 else None)
    if metrics is None or mean is None:
        return None
    tokens = mean * mini_batches
    if abs(tokens - round(tokens)) > _ROUNDING:
        raise RunFailed(
            f"step {metrics.step}: the metrics' silenced tokens are no whole number",
            found=f"{_METRIC} {mean:g} x {mini_batches} mini-batches = {tokens:.3f}",
            expected="the log to hold every mini-batch of the step",
            next_step="see whether the step's files are whole",
        )
    return round(tokens)


def _check(run: LoggedRun, one: StepCount) -> None:
    found = expected = ""
    whole = run.header.left_out == 0
    if one.metric is not None and one.metric != one.silenced:
        found = f"{one.silenced:,} in the log"
        expected = f"{one.metric:,} in the metrics: {_METRIC} x {one.mini_batches} mini-batches"
    elif run.masks_rare and (one.in_rows != one.silenced if whole else one.in_rows > one.silenced):
        found = f"{one.in_rows:,} in the log's rows"
        expected = f"{'' if whole else 'at most '}{one.silenced:,}, as in its counts"
    if found:
        raise RunFailed(
            f"step {one.step}: the counts of silenced tokens differ",
            found=found,
            expected=expected,
            next_step="the files are of different runs or attempts: take the folder as it was written",
        )


@dataclass(frozen=True)
class Threshold:
    """A step's finite tau_h over its mini-batches, in nats."""

    step: int
    low: float
    median: float
    high: float


def thresholds(run: LoggedRun) -> list[Threshold]:
    """tau_h by step, of the steps that have a finite one."""
    by: dict[int, list[float]] = {}
    for (step, _), tau in run.thresholds.items():
        if np.isfinite(tau):
            by.setdefault(step, []).append(tau)
    return [Threshold(step, min(v), float(np.median(v)), max(v)) for step, v in sorted(by.items())]


def all_thresholds(run: LoggedRun) -> Threshold | None:
    """The finite tau_h of all mini-batches together (step 0); None where there is none."""
    found = [t for t in run.thresholds.values() if np.isfinite(t)]
    return Threshold(0, min(found), float(np.median(found)), max(found)) if found else None


def words(run: LoggedRun) -> dict[str, dict[str, int]]:
    """The rare tokens of the rows: name of the part, silenced or kept -> text -> occurrences, most frequent first."""
    return {name: _words(run, w) for name, w in zip(run.part_names, (run.silenced, run.kept), strict=True)}


def _words(run: LoggedRun, which: np.ndarray) -> dict[str, int]:
    by_text: Counter[str] = Counter()
    for token, n in Counter(run.rows["token"][which].tolist()).items():
        by_text[run.vocabulary.one(token)] += n  # ids with one text count together
    return dict(sorted(by_text.items(), key=lambda item: (-item[1], item[0])))


@dataclass(frozen=True)
class Case:
    """One rare token in its context. Texts are a model's: escaped nowhere yet.

    Attributes:
        part: what was done with it, such as "silenced".
        before, after: the text around it, the prompt included.
        tau_h: None where it is not finite.
        top: the most likely tokens with their probabilities under the policy at the update.
    """

    part: str
    step: int
    prompt_id: str
    sample: int
    position: int
    token: str
    before: str
    after: str
    probability: float
    advantage: float
    entropy: float
    tau_h: float | None
    top: tuple[tuple[str, float], ...]


def percent(share: float, digits: int = 4) -> str:
    """0.0115 %; what that form would show as zero, in powers of ten."""
    if share and 100 * share < 0.5 * 10.0**-digits:
        return f"{100 * share:.1e} %"
    return f"{100 * share:.{digits}f} %"


def case(vocabulary: Vocabulary, row: Mapping[str, Any], part: str) -> Case:
    """A row of the log as text."""
    top = zip(row["top_tokens"][:_TOP], row["top_logprobs"][:_TOP], strict=True)
    return Case(
        part=part,
        **{name: row[name] for name in ("step", "prompt_id", "sample", "position", "advantage", "entropy")},
        token=vocabulary.one(row["token"]),
        before=vocabulary.several(row["before"]),
        after=vocabulary.several(row["after"]),
        probability=math.exp(row["logprob"]),
        tau_h=row["tau_h"] if row["tau_h"] is not None and math.isfinite(row["tau_h"]) else None,
        top=tuple((vocabulary.one(t), math.exp(p)) for t, p in top),
    )


def by_probability(run: LoggedRun, which: np.ndarray) -> np.ndarray:
    """The indices of these rows, the least probable token first."""
    index, r = np.flatnonzero(which), run.rows
    return index[np.lexsort((r["position"][index], r["sample"][index], r["step"][index], r["logprob"][index]))]


def cases(run: LoggedRun, n: int) -> Sequence[Case]:
    """The n cases that are shown: two thirds silenced, then kept ones, each from the lowest probability up.

    Where one part has too few, the other fills up.
    """
    silenced, kept = by_probability(run, run.silenced), by_probability(run, run.kept)
    many = min(len(silenced), max(math.ceil(_SHARE * n), n - len(kept)))
    parts = zip(run.part_names, (silenced[:many], kept[: n - many]), strict=True)
    return [case(run.vocabulary, row, name) for name, index in parts for row in run.records(index)]
