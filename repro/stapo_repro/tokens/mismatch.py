"""Are the tokens that S2T silences those on which sampler and trainer disagree?

Mismatch: |log p of the trainer - log p of the sampler| of a sampled token, both with the weights that sampled it. Masks
are of tokens with A > 0, mini-batch by mini-batch. Dimension N: the rare ones, which all have a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stapo_repro.statistics import rank_correlation
from stapo_repro.tokens.log import LoggedRun, batch_keys
from stapo_repro.tokens.masks import Array, Interval, Share, Sums


@dataclass(frozen=True)
class Mismatch:
    """A run's numbers. Two masks are compared with S2T's, each of as many tokens with the largest mismatch.

    Attributes:
        correct: share of the tokens that S2T would silence that are also among as many of all tokens with A > 0
            (`token_log`, column mismatched). chance: what a mask without any knowledge would share.
        rare: the same among the rare tokens; where several are equal at its end, each counts in part. least: what any
            two masks of these sizes share.
        entropy, probability: Spearman's correlation of the mismatch with each, over the rare tokens.
        median, largest: mismatch of the rare tokens, nats.
    """

    correct: Share
    correct_chance: float
    rare: Share
    rare_chance: float
    rare_least: float
    entropy: Interval
    probability: Interval
    median: float
    largest: float


def measured(run: LoggedRun) -> Mismatch | None:
    """None where the log does not know the sampler's probabilities, or has no token that S2T would silence."""
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
        mine = np.flatnonzero(batch_N == batch)
        count = int(s2t_N[mine].sum())
        among_rare_N[mine] = _largest(value_N[mine], count)
        chance_rare_N[mine] = count / len(mine)
        least += max(0, 2 * count - len(mine))
    c = run.counts
    positive = (c["sign"] == 1) & np.isin(batch_keys(c), batches)
    at = np.searchsorted(batches, batch_keys(c)[positive])
    every, flagged = (np.bincount(at, c["tokens"][positive] * f, len(batches)) for f in (1, c["mismatched"][positive]))
    sums = Sums(prompt_N, {"S2T": s2t_N, "correct": s2t_N & r["mismatched"], "rare": s2t_N * among_rare_N})

    def correlation(column: str) -> Interval:
        found = rank_correlation(value_N, r[column], prompt_N)
        return Interval(*(None if np.isnan(x) else float(x) for x in found))

    return Mismatch(
        correct=sums.share("correct", "S2T"),
        correct_chance=float((flagged / every)[batch_N][s2t_N].mean()),
        rare=sums.share("rare", "S2T"),
        rare_chance=float(chance_rare_N[s2t_N].mean()),
        rare_least=least / int(s2t_N.sum()),
        entropy=correlation("entropy"),
        probability=correlation("logprob"),
        median=float(np.median(value_N)),
        largest=float(value_N.max()),
    )


def _largest(values_N: Array, count: int) -> Array:
    """The chance (N,) of being among the `count` largest: 1, 0, or equal parts for those that are equal at its end."""
    if not count:
        return np.zeros(len(values_N))
    end = np.sort(values_N)[-count]
    above, equal = values_N > end, values_N == end
    return above + equal * (count - above.sum()) / equal.sum()
