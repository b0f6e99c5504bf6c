"""What a token log says in numbers: quadrants, silenced tokens and thresholds by step, words, single cases. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stapo_repro.tokens.log import LoggedRun, Vocabulary, batch_keys
from stapo_results.errors import RunFailed
from stapo_results.statistics import interval

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
    variance = n / (n - 1) * math.fsum((sums_C - mean * tokens_C) ** 2) / total**2
    found = interval(mean, [(variance, n - 1)])
    return Ratio(mean, found.low, found.high)


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
    totals = np.array([np.bincount(at, np.where(p, c["tokens"], 0), minlength=len(steps)) for p in parts], np.int64)
    totals = totals.T.tolist()
    in_rows = Counter(r["step"][r["silenced"]].tolist())
    found = []
    for step, n, (tokens, rare, region, silenced) in zip(steps.tolist(), batches.tolist(), totals, strict=True):
        values = run.metrics[step].values if step in run.metrics else {}
        # a mean over the step's mini-batches; a method that silences nothing has only a share of 0
        mean = values.get(_METRIC, 0.0 if values.get("silenced_share") == 0.0 else None)
        metric = None if mean is None else round(mean * n)
        found.append(StepCount(step, n, tokens, rare, region, silenced, in_rows[step], metric))
        _check(run, found[-1], mean)
    return found


def _check(run: LoggedRun, one: StepCount, mean: float | None) -> None:
    whole = run.header.left_out == 0
    if mean is not None and abs(mean * one.mini_batches - one.silenced) > _ROUNDING:
        found = f"{one.silenced:,} in the log"
        expected = f"{mean * one.mini_batches:,.8g} in the metrics: {_METRIC} x {one.mini_batches} mini-batches"
    elif run.masks_rare and (one.in_rows != one.silenced if whole else one.in_rows > one.silenced):
        found = f"{one.in_rows:,} in the log's rows"
        expected = f"{'' if whole else 'at most '}{one.silenced:,}, as in its counts"
    else:
        return
    raise RunFailed(
        f"step {one.step}: the counts of silenced tokens differ",
        found=found,
        expected=expected,
        next_step="the files are of different runs or attempts, or incomplete: take the folder as it was written",
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
    found = {}
    for name, which in zip(run.part_names, (run.silenced, run.kept), strict=True):
        by_text: Counter[str] = Counter()
        for token, n in Counter(run.rows["token"][which].tolist()).items():
            by_text[run.vocabulary.one(token)] += n  # ids with one text count together
        found[name] = dict(sorted(by_text.items(), key=lambda item: (-item[1], item[0])))
    return found


Case = dict[str, Any]
"""One rare token in its context, as `case` makes it. Texts are a model's: escaped nowhere yet."""


def case(vocabulary: Vocabulary, row: Mapping[str, Any], part: str) -> Case:
    """A row of the log as text.

    part: what was done with the token, such as "silenced". before, after: the text around it, prompt included. tau_h:
    None where it is not finite. top: the most likely tokens with their probabilities under the policy at the update.
    """
    top = zip(row["top_tokens"][:_TOP], row["top_logprobs"][:_TOP], strict=True)
    return {
        "part": part,
        **{name: row[name] for name in ("step", "prompt_id", "sample", "position")},
        "token": vocabulary.one(row["token"]),
        "before": vocabulary.several(row["before"]),
        "after": vocabulary.several(row["after"]),
        "probability": math.exp(row["logprob"]),
        "advantage": row["advantage"],
        "entropy": row["entropy"],
        "tau_h": row["tau_h"] if row["tau_h"] is not None and math.isfinite(row["tau_h"]) else None,
        "top": [(vocabulary.one(t), math.exp(p)) for t, p in top],
    }


def cases(run: LoggedRun, n: int) -> Sequence[Case]:
    """The n cases that are shown: two thirds silenced, then kept ones, each from the lowest probability up.

    Where one part has too few, the other fills up.
    """
    r = run.rows
    order = np.lexsort((r["position"], r["sample"], r["step"], r["logprob"]))
    silenced, kept = (order[which[order]] for which in (run.silenced, run.kept))
    many = min(len(silenced), max(math.ceil(_SHARE * n), n - len(kept)))
    parts = zip(run.part_names, (silenced[:many], kept[: n - many]), strict=True)
    return [case(run.vocabulary, row, name) for name, index in parts for row in run.records(index)]
