"""From a mini-batch's per-token numbers to the rows and counts of the token log. Pure; numpy only.

A rank, or a probe, calls `logged` with what it holds of a mini-batch; `joined_rows` and `joined_counts` put the parts
of all ranks and mini-batches of a step together. Rows and numbers of tokens do not depend on how sequences were spread
over ranks; sums of norms do to float64's rounding, and which rows a bound leaves out does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stapo_results import token_log

BEFORE, AFTER = 24, 8
"""Ids of context that a row keeps."""

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


def rows(m: MiniBatch, chosen_N: np.ndarray) -> Columns:
    """A row for each chosen token (N,), as token_log.TOKENS wants them."""
    at_R = np.flatnonzero(chosen_N)
    first_B = np.cumsum(m.response_B) - m.response_B
    sequence_R = np.searchsorted(first_B + m.response_B, at_R, side="right")
    position_R = at_R - first_B[sequence_R]
    start_B = np.concatenate([[0], m.end_B[:-1]])
    place_R = (m.end_B - m.response_B)[sequence_R] + position_R
    return {
        "step": np.full(len(at_R), m.step),
        "mini_batch": np.full(len(at_R), m.number),
        "prompt_id": [m.prompt_id_B[b] for b in sequence_R],
        "sample": [m.sample_B[b] for b in sequence_R],
        "position": position_R,
        "token": m.ids[place_R],
        "advantage": m.advantage_N[at_R],
        "logprob": m.logprob_N[at_R],
        "entropy": m.entropy_N[at_R],
        "ratio": m.ratio_N[at_R],
        "old_logprob": m.old_logprob_N[at_R],
        "sampler_logprob": m.sampler_logprob_N[at_R],
        "mismatched": m.mismatched_N[at_R],
        "clipped": m.clipped_N[at_R],
        "collision": m.collision_N[at_R],
        "rare": m.rare_N[at_R],
        "silenced": m.silenced_N[at_R],
        "tau_h": [m.tau_h] * len(at_R),
        "top_tokens": list(m.top_id_NK[at_R]),
        "top_logprobs": list(m.top_logprob_NK[at_R]),
        "before": [
            m.ids[max(start, place - BEFORE) : place] for start, place in zip(start_B[sequence_R], place_R, strict=True)
        ],
        "after": [
            m.ids[place + 1 : min(end, place + 1 + AFTER)]
            for end, place in zip(m.end_B[sequence_R], place_R, strict=True)
        ],
    }


def counts(m: MiniBatch) -> Columns:
    """The response tokens of a mini-batch counted by sign, flags and bins, as token_log.HISTOGRAM wants them."""
    r = m.response_N & finite(m)
    log10_p, entropy = token_log.bins(m.logprob_N[r], m.entropy_N[r])
    # in float64, as the selector compares: a threshold between two float32 numbers is one of them in float32
    below = m.entropy_N[r].astype(np.float64) < (-np.inf if m.tau_h is None else m.tau_h)
    rises = entropy_rises(m.logprob_N[r], m.entropy_N[r])
    flags = (m.rare_N[r], below, m.silenced_N[r], m.mismatched_N[r], rises)
    keys = (np.sign(m.advantage_N[r]), *flags, log10_p, entropy)
    norm = gradient_norm(m.advantage_N[r], m.ratio_N[r], m.clipped_N[r], m.logprob_now_N[r], m.collision_N[r])
    return _counted(m.step, m.number, keys, np.ones(len(norm), int), norm)


def finite(m: MiniBatch) -> np.ndarray:
    """The tokens (N,) whose statistics are numbers; those of a policy that has diverged are not."""
    known = (m.logprob_N, m.logprob_now_N, m.entropy_N, m.ratio_N, m.collision_N, m.advantage_N)
    return np.logical_and.reduce([np.isfinite(x) for x in known])


@dataclass(frozen=True)
class Part:
    """A mini-batch, or a rank's part of one: its rows, its counts, how many rows the bound kept out, and how many
    tokens without finite statistics are in neither."""

    rows: Columns
    counts: Columns
    left_out: int
    not_finite: int


def logged(m: MiniBatch, mode: str, watch: Sequence[int], most: int) -> Part:
    """What the log keeps of a mini-batch.

    Args:
        mode: "on": rare tokens, and those of `watch` in responses with A > 0; "full": all.
        most: rows; more are thinned evenly before any is made, since a mini-batch may have millions.
    """
    known_N = m.response_N & finite(m)
    chosen_N = known_N
    if mode != "full":
        first_B = np.cumsum(m.response_B) - m.response_B
        place_N = np.repeat(m.end_B - m.response_B - first_B, m.response_B) + np.arange(int(m.response_B.sum()))
        chosen_N = known_N & (m.rare_N | (np.isin(m.ids[place_N], watch) & (m.advantage_N > 0)))
    at = np.flatnonzero(chosen_N)
    if left_out := max(0, len(at) - most):
        chosen_N = np.zeros_like(chosen_N)
        chosen_N[at[np.arange(most) * len(at) // most]] = True
    return Part(rows(m, chosen_N), counts(m), left_out, int((m.response_N & ~known_N).sum()))


_FLAGS = ("rare", "below", "silenced", "mismatched", "rises")
_KEYS = ("sign", *_FLAGS, "log10_p", "entropy")
_SIZES = (3, *(2 for _ in _FLAGS), len(token_log.LOG10_P_EDGES) - 1, len(token_log.ENTROPY_EDGES) - 1)


def _counted(step: int, number: int, keys: Sequence[np.ndarray], tokens: np.ndarray, norm: np.ndarray) -> Columns:
    """Tokens and norms (N,) summed over equal keys: vectors (N,) by _KEYS."""
    sign, *rest = (k.astype(np.int64) for k in keys)
    cell = np.ravel_multi_index((sign + 1, *rest), _SIZES)  # one number a token: it sorts faster than eight
    found, group = np.unique(cell, return_inverse=True)
    sign, *flags, log10_p, entropy = np.unravel_index(found, _SIZES)
    return {
        "step": np.full(len(found), step),
        "mini_batch": np.full(len(found), number),
        "sign": sign - 1,
        **{name: flag.astype(bool) for name, flag in zip(_FLAGS, flags, strict=True)},
        "log10_p": log10_p,
        "entropy": entropy,
        "tokens": np.bincount(group, tokens, len(found)).astype(int),
        "norm_sum": np.bincount(group, norm, len(found)),
    }


def joined_rows(parts: Sequence[Columns], most: int) -> tuple[Columns, int]:
    """The rows of a step's parts by mini-batch, prompt, sample and position; at most `most`, evenly spread over them.

    Returns:
        The rows, and how many were left out.
    """
    whole = {name: [v for part in parts for v in part[name]] for name in token_log.TOKENS}
    keys = list(zip(*(whole[k] for k in ("mini_batch", "prompt_id", "sample", "position")), strict=True))
    order = sorted(range(len(keys)), key=keys.__getitem__)
    kept = order if len(order) <= most else [order[i * len(order) // most] for i in range(most)]
    return {name: [values[i] for i in kept] for name, values in whole.items()}, len(order) - len(kept)


def joined_counts(parts: Sequence[Mapping[str, Any]]) -> Columns:
    """The counts of a step's parts: those of a mini-batch that came from several ranks are added up."""
    whole = {name: np.concatenate([np.asarray(p[name]) for p in parts]) for name in token_log.HISTOGRAM}
    if not len(whole["step"]):
        return whole
    out = []
    for number in np.unique(whole["mini_batch"]):
        part = {name: values[whole["mini_batch"] == number] for name, values in whole.items()}
        keys = [part[name] for name in _KEYS]
        out.append(_counted(int(part["step"][0]), int(number), keys, part["tokens"], part["norm_sum"]))
    return {name: np.concatenate([part[name] for part in out]) for name in token_log.HISTOGRAM}
