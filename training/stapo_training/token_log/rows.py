"""From a mini-batch's per-token numbers to the rows and counts of the token log. Pure; numpy only.

A rank, or a probe, calls `logged` with what it holds of a mini-batch; `joined_rows` and `joined_counts` put the parts
of all ranks and mini-batches of a step together. Rows and numbers of tokens do not depend on how sequences were spread
over ranks; sums of norms do to float64's rounding, and which rows a bound leaves out does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stapo_results import token_log

BEFORE, AFTER = 24, 8
"""Ids of context that a row keeps."""
TOP = 5
"""Most probable tokens that a row names."""

Columns = dict[str, Any]
"""A sequence a column, by the column's name."""


@dataclass(frozen=True)
class MiniBatch:
    """What is known of B sequences with N response tokens, one sequence after the other.

    ids: all B sequences' token ids, prompt first, packed; end_B: where each sequence ends in it. response_B: lengths
    of the responses. The vectors over N: response_N is False for padding and for tokens that the environment wrote;
    logprob_N and entropy_N (nats) are those that the selector judges by; logprob_now_N, ratio_N, clipped_N and
    collision_N are the current policy's; sampler_logprob_N is NaN where it is not known. top_id_NK and top_logprob_NK
    need values only where a row is written.
    """

    step: int
    number: int
    prompt_id_B: Sequence[str]
    sample_B: Sequence[int]
    ids: np.ndarray
    end_B: np.ndarray
    response_B: np.ndarray
    response_N: np.ndarray
    advantage_N: np.ndarray
    logprob_N: np.ndarray
    entropy_N: np.ndarray
    logprob_now_N: np.ndarray
    ratio_N: np.ndarray
    clipped_N: np.ndarray
    collision_N: np.ndarray
    rare_N: np.ndarray
    silenced_N: np.ndarray
    top_id_NK: np.ndarray
    top_logprob_NK: np.ndarray
    tau_h: float | None
    old_logprob_N: np.ndarray
    sampler_logprob_N: np.ndarray
    mismatched_N: np.ndarray

    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """(N,), (N,): the sequence of each response token, and its place in `ids`."""
        sequence_N = np.repeat(np.arange(len(self.response_B)), self.response_B)
        return sequence_N, np.arange(len(sequence_N)) + (self.end_B - np.cumsum(self.response_B))[sequence_N]

    def finite(self) -> np.ndarray:
        """The response tokens (N,) whose statistics are numbers; those of a policy that has diverged are not."""
        known = (
            self.logprob_N, self.logprob_now_N, self.entropy_N, self.ratio_N, self.collision_N, self.advantage_N
        )  # fmt: skip
        return np.logical_and.reduce([self.response_N, *map(np.isfinite, known)])


def clipped(advantage_N: np.ndarray, ratio_N: np.ndarray, low: float, high: float, dual: float = np.inf) -> np.ndarray:
    """Where the clipped surrogate leaves a token no gradient (STAPO, the weight w of the theorem on gradient norms).

    dual: veRL's clip_ratio_c, beyond which a token with A < 0 has none either; the paper's objective has no such limit.
    """
    falls = (advantage_N < 0) & ((ratio_N < 1 - low) | (ratio_N > dual))
    return ((advantage_N > 0) & (ratio_N > 1 + high)) | falls


def norm_factor(logprob: np.ndarray, collision: np.ndarray) -> np.ndarray:
    """1 - 2 p + sum of p_n^2, float64: a squared gradient norm in units of w^2 (STAPO, the decomposition lemma).

    Its absolute error is the precision of p and of the sum: tokens with a small (1 - p)^2 have no correct digit.
    """
    return 1.0 - 2.0 * np.exp(logprob.astype(np.float64)) + collision.astype(np.float64)


def gradient_norm(
    advantage: np.ndarray, ratio: np.ndarray, cut: np.ndarray, logprob: np.ndarray, collision: np.ndarray
) -> np.ndarray:
    """The norm of each token's gradient with respect to its logits: |w| sqrt(`norm_factor`).

    w of the theorem on gradient norms: ratio x advantage, 0 where the clip takes hold (`cut`). logprob and collision
    are the current policy's, as the gradient is. Without the division by the number of tokens and without what
    silencing does.
    """
    weight = np.where(cut, 0.0, np.abs(ratio.astype(np.float64) * advantage))
    return weight * np.sqrt(np.maximum(norm_factor(logprob, collision), 0.0))


def entropy_rises(logprob: np.ndarray, entropy: np.ndarray) -> np.ndarray:
    """Whether a natural policy gradient step on a token with a positive advantage raises the entropy.

    STAPO, the lemma on the entropy update: the change is -eta p (log p - E[log p]) (A - E[A]), and E[log p] = -H. For
    an advantage above its expectation it is positive where log p + H < 0.
    """
    return logprob.astype(np.float64) + entropy.astype(np.float64) < 0


_OF_TOKENS = (
    *("advantage", "logprob", "entropy", "ratio", "old_logprob", "sampler_logprob", "mismatched", "clipped"),
    *("collision", "rare", "silenced"),
)
"""Columns of rows that are a mini-batch's vectors of the same name."""


def rows(m: MiniBatch, chosen_N: np.ndarray) -> Columns:
    """A row for each chosen token (N,), as token_log.TOKENS wants them."""
    at_R = np.flatnonzero(chosen_N)
    sequence_R, place_R = (values_N[at_R] for values_N in m.places())
    start_B = np.concatenate([[0], m.end_B[:-1]])
    around_R = list(zip(start_B[sequence_R], place_R, m.end_B[sequence_R], strict=True))
    return {
        **{name: getattr(m, f"{name}_N")[at_R] for name in _OF_TOKENS},
        "step": np.full(len(at_R), m.step),
        "mini_batch": np.full(len(at_R), m.number),
        "prompt_id": [m.prompt_id_B[b] for b in sequence_R],
        "sample": [m.sample_B[b] for b in sequence_R],
        "position": place_R - (m.end_B - m.response_B)[sequence_R],
        "token": m.ids[place_R],
        "tau_h": [m.tau_h] * len(at_R),
        "top_tokens": list(m.top_id_NK[at_R]),
        "top_logprobs": list(m.top_logprob_NK[at_R]),
        "before": [m.ids[max(start, place - BEFORE) : place] for start, place, _ in around_R],
        "after": [m.ids[place + 1 : min(end, place + 1 + AFTER)] for _, place, end in around_R],
    }


def counts(m: MiniBatch) -> Columns:
    """The response tokens of a mini-batch counted by sign, flags and bins, as token_log.HISTOGRAM wants them."""
    r = m.finite()
    log10_p, entropy = token_log.bins(m.logprob_N[r], m.entropy_N[r])
    return _summed(
        {
            "step": np.full(len(log10_p), m.step),
            "mini_batch": np.full(len(log10_p), m.number),
            "sign": np.sign(m.advantage_N[r]),
            "rare": m.rare_N[r],
            # in float64, as the selector compares: a threshold between two float32 numbers is one of them in float32
            "below": m.entropy_N[r].astype(np.float64) < (-np.inf if m.tau_h is None else m.tau_h),
            "silenced": m.silenced_N[r],
            "mismatched": m.mismatched_N[r],
            "rises": entropy_rises(m.logprob_N[r], m.entropy_N[r]),
            "log10_p": log10_p,
            "entropy": entropy,
            "tokens": np.ones(len(log10_p)),
            "norm_sum": gradient_norm(
                m.advantage_N[r], m.ratio_N[r], m.clipped_N[r], m.logprob_now_N[r], m.collision_N[r]
            ),
        }
    )


def _summed(columns: Columns) -> Columns:
    """The columns of token_log.HISTOGRAM with one line for all that are equal but for `tokens` and `norm_sum`."""
    *names, _, _ = token_log.HISTOGRAM
    keys = [np.asarray(columns[name]).astype(np.int64) + (name == "sign") for name in names]  # none below 0
    sizes = [int(key.max(initial=0)) + 1 for key in keys]
    cell = np.ravel_multi_index(keys, sizes)  # one number a token: it sorts faster than ten
    cells, group = np.unique(cell, return_inverse=True)
    of_cell = dict(zip(names, np.unravel_index(cells, sizes), strict=True))
    tokens, norm_sum = (np.bincount(group, columns[name], len(cells)) for name in ("tokens", "norm_sum"))
    flags = {name: of_cell[name].astype(bool) for name, kind in token_log.HISTOGRAM.items() if kind == "bool"}
    return of_cell | flags | {"sign": of_cell["sign"] - 1, "tokens": tokens.astype(int), "norm_sum": norm_sum}


@dataclass(frozen=True)
class LogPart:
    """A mini-batch, or a rank's part of one: its rows, its counts, how many rows the bound kept out, and how many
    tokens without finite statistics are in neither."""

    rows: Columns
    counts: Columns
    left_out: int
    not_finite: int


def logged(m: MiniBatch, mode: str, watch: Sequence[int], most: int) -> LogPart:
    """What the log keeps of a mini-batch.

    Args:
        mode: "on": rare tokens, and those of `watch` in responses with A > 0; "full": all.
        most: rows; more are thinned evenly before any is made, since a mini-batch may have millions.
    """
    chosen_N = known_N = m.finite()
    if mode != "full":
        _, place_N = m.places()
        chosen_N = known_N & (m.rare_N | (np.isin(m.ids[place_N], watch) & (m.advantage_N > 0)))
    at = np.flatnonzero(chosen_N)
    if left_out := max(0, len(at) - most):
        chosen_N = np.zeros_like(chosen_N)
        chosen_N[at[np.arange(most) * len(at) // most]] = True
    return LogPart(rows(m, chosen_N), counts(m), left_out, int((m.response_N & ~known_N).sum()))


def joined_rows(parts: Sequence[Columns], most: int) -> tuple[Columns, int]:
    """The rows of a step's parts by mini-batch, prompt, sample and position; at most `most`, evenly spread over them.

    Returns:
        The rows, and how many were left out.
    """
    joined = {name: [v for part in parts for v in part[name]] for name in token_log.TOKENS}
    keys = list(zip(*(joined[k] for k in ("mini_batch", "prompt_id", "sample", "position")), strict=True))
    order = sorted(range(len(keys)), key=keys.__getitem__)
    kept = order if len(order) <= most else [order[i * len(order) // most] for i in range(most)]
    return {name: [values[i] for i in kept] for name, values in joined.items()}, len(order) - len(kept)


def joined_counts(parts: Sequence[Columns]) -> Columns:
    """The counts of a step's parts: those of a mini-batch that came from several ranks are added up."""
    return _summed({name: np.concatenate([p[name] for p in parts]) for name in token_log.HISTOGRAM})
