"""What a token log says in numbers: quadrants, silenced tokens and the threshold, mismatch of sampler and
trainer, words, single cases. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stapo_repro.statistics import rank_correlation
from stapo_repro.tokens.log import LoggedRun, Vocabulary, batch_keys
from stapo_repro.tokens.shares import Sums
from stapo_results.errors import RunFailed
from stapo_results.statistics import Number, interval

ORDER = ((False, False), (False, True), (True, False), (True, True))
"""(rare, below tau_h) in the order of the paper's table."""
_METRIC = "actor/selector/silenced_tokens"
_ROUNDING = 0.01  # tokens: a mean over mini-batches times their number is a whole number up to float64's rounding
_TOP = 5
_SHARE = 2 / 3  # of the cases that are shown: silenced ones


@dataclass(frozen=True)
class Quadrant:
    """Tokens with a positive advantage on one side of tau_p and of tau_h, of mini-batches that have a tau_h.

    Attributes:
        share: of such tokens; None where there is none.
        norm: mean gradient norm of a token.
        entropy_rises: share of the tokens at which a gradient step raises the entropy; None without a token.
    """

    rare: bool
    below: bool
    tokens: int
    share: float | None
    norm: Number
    entropy_rises: float | None


def _ratio(sums_C: np.ndarray, tokens_C: np.ndarray) -> Number:
    """sum of sums, none below 0, / sum of tokens over C mini-batches, with a t interval for the choice of these.

    Linearised ratio estimator: se = sqrt(C / (C - 1) sum (s_c - r n_c)^2) / sum n_c, C - 1 degrees of freedom
    (Cochran, Sampling Techniques, 1977, 6.4).
    """
    n, part, whole = len(tokens_C), math.fsum(sums_C), float(tokens_C.sum())
    mean = part / whole
    variance = n / (n - 1) * math.fsum((sums_C - mean * tokens_C) ** 2) / whole**2 if n > 1 else math.nan
    number = interval(mean, [(variance, n - 1)]).within(0.0, math.inf)
    return replace(number, part=part, whole=whole, over="mini-batches")


def quadrants(run: LoggedRun) -> tuple[Quadrant, ...]:
    """The four quadrants of the paper's taxonomy, in the order of ORDER."""
    c = run.counts
    _, batch = np.unique(batch_keys(c), return_inverse=True)
    positive = (c["sign"] == 1) & np.isin(batch, batch[c["rare"]])  # tau_h is a quantile of rare tokens
    every = int(c["tokens"][positive].sum())
    out = []
    for rare, below in ORDER:
        inside = positive & (c["rare"] == rare) & (c["below"] == below)
        tokens = int(c["tokens"][inside].sum())
        share = tokens / every if every else None
        norm, rises = Number(), None
        if tokens:
            sums, counts = (np.bincount(batch[inside], c[name][inside]) for name in ("norm_sum", "tokens"))
            norm = _ratio(sums[counts > 0], counts[counts > 0])
            rises = float(c["tokens"][inside & c["rises"]].sum()) / tokens
        out.append(Quadrant(rare, below, tokens, share, norm, rises))
    return tuple(out)


def positive_tokens(run: LoggedRun) -> int:
    """Tokens with a positive advantage, whether their mini-batch has a threshold or not."""
    return int(run.counts["tokens"][run.counts["sign"] == 1].sum())


def by_step(run: LoggedRun) -> list[dict[str, Any]]:
    """A row of counts for each step of the log.

    Returns:
        step, mini_batches; tokens: of all responses; rare, region: those that are rare, and of them those that S2T
        would silence; silenced: by the method, counted in the histogram, in_rows: in the logged rows, metric: in the
        run's metrics, None where they do not hold the step.

    Raises:
        RunFailed: a step whose silenced tokens differ between the log and the run's metrics, or, for a mask over rare
            tokens, between the log's counts and its rows.
    """
    c, r = run.counts, run.rows
    steps, batches = np.unique(np.unique(batch_keys(c)) >> 16, return_counts=True)
    at = np.searchsorted(steps, c["step"])
    parts = {"tokens": True, "rare": c["rare"], "region": c["rare"] & c["below"], "silenced": c["silenced"]}
    totals = {name: np.bincount(at, c["tokens"] * part, len(steps)) for name, part in parts.items()}
    in_rows = Counter(r["step"][r["silenced"]].tolist())
    rows = []
    for i, (step, n) in enumerate(zip(steps.tolist(), batches.tolist(), strict=True)):
        row: dict[str, Any] = {"step": step, "mini_batches": n}
        row |= {name: int(total[i]) for name, total in totals.items()}
        row |= {"in_rows": in_rows[step], "metric": None}
        values = run.metrics[step].values if step in run.metrics else {}
        # a mean over the step's mini-batches; a method that silences nothing has only a share of 0
        mean = values.get(_METRIC, 0.0 if values.get("silenced_share") == 0.0 else None)
        if mean is not None:
            row["metric"] = round(mean * n)
        if difference := _difference(run, row, mean):
            found, expected = difference
            raise RunFailed(
                f"step {step}: the counts of silenced tokens differ",
                found=found,
                expected=expected,
                next_step="they are of different runs or attempts, or incomplete: take the folder as it was written",
            )
        rows.append(row)
    return rows


def _difference(run: LoggedRun, row: Mapping[str, Any], mean: float | None) -> tuple[str, str] | None:
    """(found, expected) where a step's silenced tokens differ; `mean`: a mini-batch's in the metrics."""
    silenced, in_rows, n = row["silenced"], row["in_rows"], row["mini_batches"]
    if mean is not None and abs(mean * n - silenced) > _ROUNDING:
        return f"{silenced:,} in the log", f"{mean * n:,.8g} in the metrics: {_METRIC} x {n} mini-batches"
    complete = run.header.left_out == 0
    if run.masks_rare and (in_rows > silenced or (complete and in_rows < silenced)):
        return f"{in_rows:,} in the log's rows", f"{'' if complete else 'at most '}{silenced:,}, as in its counts"
    return None


def threshold(run: LoggedRun) -> tuple[float, float, float] | None:
    """Lowest, median and highest finite tau_h of the mini-batches, nats; None where there is none."""
    finite = run.thresholds[np.isfinite(run.thresholds)]
    return (float(finite.min()), float(np.median(finite)), float(finite.max())) if len(finite) else None


def mismatch(run: LoggedRun) -> dict[str, Number] | None:
    """Are the tokens that S2T silences those on which sampler and trainer disagree?

    Mismatch: |log p of the trainer - log p of the sampler| of a sampled token, both with the weights that sampled it.
    Masks are of tokens with A > 0, mini-batch by mini-batch; N are the rare ones, which all have a row. Two masks are
    compared with S2T's, each of as many tokens with the largest mismatch.

    Returns:
        correct: share of the tokens that S2T would silence that are also among as many of all tokens with A > 0
            (`token_log`, column mismatched). correct_chance: what a mask without any knowledge would share.
        rare, rare_chance: the same among the rare tokens; where several are equal at its end, each counts in part.
            rare_least: what any two masks of these sizes share.
        entropy, probability: Spearman's correlation of the mismatch with each, over the rare tokens.
        median, largest: mismatch of the rare tokens, nats.
        None where the log does not know the sampler's probabilities, or has no token that S2T would silence.
    """
    known = run.rows["rare"] & np.isfinite(run.rows["sampler_logprob"])
    r = {name: column[known] for name, column in run.rows.items()}
    s2t_N = run.below[known]
    if not s2t_N.any():
        return None
    value_N = np.abs(r["old_logprob"].astype(np.float64) - r["sampler_logprob"])
    _, prompt_N = np.unique(run.table["prompt_id"].to_numpy()[known], return_inverse=True)
    batches, batch_N = np.unique(batch_keys(r), return_inverse=True)
    among_rare_N, chance_rare_N, least = np.zeros(len(value_N)), np.zeros(len(value_N)), 0
    for batch in range(len(batches)):
        rows = np.flatnonzero(batch_N == batch)
        count = int(s2t_N[rows].sum())
        among_rare_N[rows] = _largest(value_N[rows], count)
        chance_rare_N[rows] = count / len(rows)
        least += max(0, 2 * count - len(rows))
    sums = Sums(prompt_N, {"S2T": s2t_N, "correct": s2t_N & r["mismatched"], "rare": s2t_N * among_rare_N})
    return {
        "correct": sums.share("correct", "S2T"),
        "correct_chance": Number(mean=float(_mismatched_share(run, batches)[batch_N][s2t_N].mean())),
        "rare": sums.share("rare", "S2T"),
        "rare_chance": Number(mean=float(chance_rare_N[s2t_N].mean())),
        "rare_least": Number(mean=least / int(s2t_N.sum())),
        "median": Number(mean=float(np.median(value_N))),
        "largest": Number(mean=float(value_N.max())),
        "entropy": rank_correlation(value_N, r["entropy"], prompt_N),
        "probability": rank_correlation(value_N, r["logprob"], prompt_N),
    }


def _mismatched_share(run: LoggedRun, batches: np.ndarray) -> np.ndarray:
    """The share of each mini-batch's tokens with A > 0 that are among those with the largest mismatch."""
    keys = batch_keys(run.counts)
    counted = (run.counts["sign"] == 1) & np.isin(keys, batches)
    c = {name: column[counted] for name, column in run.counts.items()}
    at = np.searchsorted(batches, keys[counted])
    mismatched = np.bincount(at, c["tokens"] * c["mismatched"], len(batches))
    return mismatched / np.bincount(at, c["tokens"], len(batches))


def _largest(values_N: np.ndarray, count: int) -> np.ndarray:
    """The chance (N,) of being among the `count` largest: 1, 0, or equal parts for those that are equal at its end."""
    if not count:
        return np.zeros(len(values_N))
    end = np.sort(values_N)[-count]
    above, equal = values_N > end, values_N == end
    return above + equal * (count - above.sum()) / equal.sum()


def words(run: LoggedRun) -> dict[str, dict[str, int]]:
    """The rare tokens of the rows: name of the part, silenced or kept -> text -> occurrences, most frequent first."""
    out = {}
    for name, which in zip(run.part_names, (run.silenced, run.kept), strict=True):
        occurrences: Counter[str] = Counter()
        for token, n in Counter(run.rows["token"][which].tolist()).items():
            occurrences[run.vocabulary.one(token)] += n  # ids with one text count together
        out[name] = dict(sorted(occurrences.items(), key=lambda item: (-item[1], item[0])))
    return out


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
    silenced, kept = order[run.silenced[order]], order[run.kept[order]]
    count = min(len(silenced), max(math.ceil(_SHARE * n), n - len(kept)))
    parts = zip(run.part_names, (silenced[:count], kept[: n - count]), strict=True)
    return [case(run.vocabulary, row, name) for name, index in parts for row in run.records(index)]
