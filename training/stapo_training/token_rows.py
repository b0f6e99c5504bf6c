"""From a mini-batch's per-token numbers to the rows and counts of the token log. Pure; numpy only.

A rank, or a probe, calls `rows` and `counts` with what it holds of a mini-batch; `joined_rows` and `joined_counts` put
the parts of all ranks and mini-batches of a step together, in an order that does not depend on how they were spread.
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
    logprob_N and entropy_N (nats) are those that the selector judges by; ratio_N, clipped_N and collision_N are the
    current policy's. top_id_NK and top_logprob_NK need values only where a row is written.
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
    ratio_N: np.ndarray
    clipped_N: np.ndarray
    collision_N: np.ndarray
    rare_N: np.ndarray
    silenced_N: np.ndarray
    top_id_NK: np.ndarray
    top_logprob_NK: np.ndarray
    tau_h: float | None


def clipped(advantage_N: np.ndarray, ratio_N: np.ndarray, low: float, high: float) -> np.ndarray:
    """Where the clipped surrogate leaves a token no gradient (STAPO, the weight w of the theorem on gradient norms)."""
    return ((advantage_N > 0) & (ratio_N > 1 + high)) | ((advantage_N < 0) & (ratio_N < 1 - low))


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
    r = m.response_N
    log10_p, entropy = token_log.bins(m.logprob_N[r], m.entropy_N[r])
    below = m.entropy_N[r] < (-np.inf if m.tau_h is None else m.tau_h)
    rises = token_log.entropy_rises(m.logprob_N[r], m.entropy_N[r])
    flags = (np.sign(m.advantage_N[r]), m.rare_N[r], below, m.silenced_N[r], rises)
    keys = np.stack([*flags, log10_p, entropy], 1).astype(int)
    norm = token_log.gradient_norm(m.advantage_N[r], m.ratio_N[r], m.clipped_N[r], m.logprob_N[r], m.collision_N[r])
    return _counted(m.step, m.number, keys, np.ones(len(keys), int), norm)


def _counted(step: int, number: int, keys: np.ndarray, tokens: np.ndarray, norm: np.ndarray) -> Columns:
    found, group = np.unique(keys, axis=0, return_inverse=True)
    group = group.reshape(-1)
    sign, rare, below, silenced, rises, log10_p, entropy = found.reshape(-1, 7).T
    return {
        "step": np.full(len(found), step),
        "mini_batch": np.full(len(found), number),
        "sign": sign,
        "rare": rare.astype(bool),
        "below": below.astype(bool),
        "silenced": silenced.astype(bool),
        "rises": rises.astype(bool),
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
        here = {name: values[whole["mini_batch"] == number] for name, values in whole.items()}
        names = ("sign", "rare", "below", "silenced", "rises", "log10_p", "entropy")
        keys = np.stack([here[name].astype(int) for name in names], 1)
        out.append(_counted(int(here["step"][0]), int(number), keys, here["tokens"], here["norm_sum"]))
    return {name: np.concatenate([part[name] for part in out]) for name in token_log.HISTOGRAM}
