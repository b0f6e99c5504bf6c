"""What a mask silences, against a planted truth: precision and recall over the tokens of a token log.

The miniature's base model was taught meaningless words; their ids are `LogHeader.watch`, and a token is *junk* if and
only if it is one of them; `LogHeader.useful` are words that lead to right answers. The log holds a row for every junk
token of a response with a positive advantage and for every rare one, so that what a method silenced, and what other
masks would have silenced of the same tokens, can be counted. Dimension: N tokens (rows with A > 0).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stapo_repro.tokens.logged_run import batch_keys
from stapo_repro.tokens.shares import Interval, Share, Sums
from stapo_results.errors import RecordError
from stapo_results.token_log import TokenLog

Array = NDArray[np.float64]
S2T, FULL, HIGH, RANDOM = "silence_spurious", "silence_low_probability", "silence_high_entropy", "silence_random"
NAMES = {S2T: "S2T", RANDOM: "random", HIGH: "high entropy", FULL: "all rare tokens"}
METHODS = {S2T: "stapo", RANDOM: "stapo-random", HIGH: "stapo-high-entropy", FULL: "justrl-fullmask"}
"""Mask -> the method that trains with it."""
OTHERS = (RANDOM, HIGH)  # what S2T is compared with: masks that silence as many tokens


@dataclass(frozen=True)
class Tokens:
    """The rows with A > 0 of a log, and its counts a mini-batch.

    Attributes:
        step: (N,) of the training.
        batch, prompt: (N,) the mini-batch and the prompt, numbered from 0 in sorted order.
        junk, useful, rare, silenced: (N,) booleans.
        entropy, logprob: (N,) nats.
        correct, silenced_in: (mini-batches,) all tokens with A > 0, and those of them that were silenced.
    """

    step: NDArray[np.int64]

    batch: NDArray[np.int64]
    prompt: NDArray[np.int64]
    junk: NDArray[np.bool_]
    useful: NDArray[np.bool_]
    rare: NDArray[np.bool_]
    silenced: NDArray[np.bool_]
    entropy: Array
    logprob: Array
    correct: Array
    silenced_in: Array


@dataclass(frozen=True)
class Measured:
    """One mask: the junk among the tokens that it silences; what it silences of the junk, and of the rare junk.

    Of the random mask the numbers of tokens are expectations.
    """

    precision: Share
    recall: Share
    rare_recall: Share


@dataclass(frozen=True)
class BaseRates:
    """How much of what a mask could silence is junk: of all tokens with A > 0, and of the rare ones."""

    correct: Share
    rare: Share


@dataclass(frozen=True)
class Compared:
    """Every mask on the same tokens; S2T minus the random and the high-entropy mask, by the other's name."""

    masks: dict[str, Measured]
    precision: dict[str, Interval]
    recall: dict[str, Interval]


def tokens_of(log: TokenLog, step: int | None = None) -> Tokens:
    """The rows that count of a log with planted words, of one step or of all, checked against the log's counts.

    Raises:
        RecordError: rows were left out of the log, or a mini-batch's rows are not those that its counts say.
    """
    rows, counts = log.tokens.filter(log.tokens["advantage"].to_numpy() > 0), log.histogram
    if step is not None:
        rows, counts = (table.filter(table["step"].to_numpy() == step) for table in (rows, counts))
    names = ("step", "mini_batch", "token", "rare", "silenced", "entropy", "logprob")
    v = {n: rows[n].to_numpy() for n in names}
    h = {n: counts[n].to_numpy() for n in ("step", "mini_batch", "sign", "rare", "silenced", "tokens")}
    batches, of_count = np.unique(batch_keys(h), return_inverse=True)
    batch = np.searchsorted(batches, batch_keys(v)).clip(0, max(0, len(batches) - 1))
    in_correct = np.where(h["sign"] > 0, h["tokens"], 0)
    correct, rare, silenced = (
        np.bincount(of_count, weights=in_correct * flag, minlength=len(batches)).astype(np.float64)
        for flag in (np.ones(len(of_count)), h["rare"], h["silenced"])
    )
    _check(log, batches, batch, v, rare, silenced)
    _, prompt = np.unique(rows["prompt_id"].to_numpy(), return_inverse=True)
    return Tokens(
        v["step"].astype(np.int64),
        batch,
        prompt,
        np.isin(v["token"], log.header.watch),
        np.isin(v["token"], log.header.useful),
        v["rare"].astype(bool),
        v["silenced"].astype(bool),
        v["entropy"].astype(np.float64),
        v["logprob"].astype(np.float64),
        correct,
        silenced,
    )


def _check(log: TokenLog, batches: NDArray, batch: NDArray, v: Mapping, rare: Array, silenced: Array) -> None:
    have, gone = (np.bincount(batch, weights=v[name], minlength=len(batches)) for name in ("rare", "silenced"))
    wrong = np.flatnonzero((have != rare) | (gone > silenced))
    if not (log.header.left_out or len(wrong) or not np.isin(batch_keys(v), batches).all()):
        return
    where = ""
    if len(wrong):
        step, number = int(batches[wrong[0]]) >> 16, int(batches[wrong[0]]) & 0xFFFF
        where = f"; step {step}, mini-batch {number}: {have[wrong[0]]:.0f} rows of {rare[wrong[0]]:.0f} rare tokens"
    raise RecordError(
        "the token log does not hold every rare and every planted token: shares of them would be wrong",
        found=f"{log.header.left_out} rows left out{where}",
        expected="a row for each of them",
        next_step="train again with larger token_log.most_rows and token_log.largest_gib, or leave out the run's log",
    )


def _quantile(values: Array, q: float) -> float:
    """The linear-interpolated quantile as the selectors take it: -inf at q = 0, +inf at q = 1 (contracts of S2T)."""
    if q <= 0.0 or len(values) == 0:
        return -np.inf
    return np.inf if q >= 1.0 else float(np.quantile(values, q))


def weights(tokens: Tokens, q: float, rare: NDArray[np.bool_] | None = None) -> dict[str, Array]:
    """The chance (N,) with which each mask silences each token, mini-batch by mini-batch.

    0 or 1, but for the random mask: of a mini-batch's M rare tokens it silences floor(q M), whichever, so that each has
    the chance floor(q M) / M. The expectation over its draws is then a sum of these chances.

    Args:
        rare: (N,) the tokens among which the masks choose; by default those that the log calls rare.
    """
    out = {name: np.zeros(len(tokens.rare)) for name in (S2T, FULL, HIGH, RANDOM)}
    rare = tokens.rare if rare is None else rare
    out[FULL][rare] = 1.0
    for batch in np.unique(tokens.batch[rare]):
        rows = np.flatnonzero(rare & (tokens.batch == batch))
        entropy = tokens.entropy[rows]
        out[S2T][rows] = entropy < _quantile(entropy, q)
        out[HIGH][rows] = entropy > _quantile(entropy, 1.0 - q)
        out[RANDOM][rows] = int(q * len(rows) + 1e-9) / len(rows)  # the selector's rounding: 0.7 x 10 is 7
    return out


def as_trained(tokens: Tokens) -> Measured:
    """What the run's own method silenced.

    The interval is over prompts. Where the rows do not hold all silenced tokens (20-Entropy silences frequent ones too)
    precision takes the counts, which know mini-batches and not prompts, and its interval is over those.
    """
    measured = _measured(_sums(tokens, {"own": tokens.silenced}), "own")
    if tokens.silenced.sum() == tokens.silenced_in.sum():
        return measured
    return replace(measured, precision=_by_batch(tokens, tokens.silenced & tokens.junk, tokens.silenced_in))


def base_rates(tokens: Tokens) -> BaseRates:
    """Junk among all tokens with A > 0 (interval over mini-batches) and among the rare ones (over prompts)."""
    rare = _measured(_sums(tokens, {"rare": tokens.rare}), "rare").precision
    return BaseRates(_by_batch(tokens, tokens.junk, tokens.correct), rare)


def compare(tokens: Tokens, q: float) -> Compared:
    """What every mask would silence of these tokens, with intervals over the same draws of prompts."""
    sums = _sums(tokens, weights(tokens, q))
    return Compared(
        {name: _measured(sums, name) for name in (S2T, FULL, HIGH, RANDOM)},
        {name: sums.difference((f"{S2T} junk", S2T), (f"{name} junk", name)) for name in OTHERS},
        {name: sums.difference((f"{S2T} junk", "junk"), (f"{name} junk", "junk")) for name in OTHERS},
    )


def _sums(tokens: Tokens, masks: Mapping[str, NDArray]) -> Sums:
    """By prompt: the junk, the rare junk, and of each mask the tokens, the junk and the rare junk that it silences."""
    columns: dict[str, NDArray] = {"junk": tokens.junk, "rare junk": tokens.junk & tokens.rare}
    for name, weight in masks.items():
        columns[name] = weight
        columns[f"{name} junk"] = weight * tokens.junk
        columns[f"{name} rare junk"] = weight * (tokens.junk & tokens.rare)
    return Sums(tokens.prompt, columns, "prompts")


def _measured(sums: Sums, name: str) -> Measured:
    pairs = ((f"{name} junk", name), (f"{name} junk", "junk"), (f"{name} rare junk", "rare junk"))
    return Measured(*(sums.share(*pair) for pair in pairs))


def _by_batch(tokens: Tokens, part: NDArray[np.bool_], whole: Array) -> Share:
    """Rows among the counts of mini-batches."""
    found = np.bincount(tokens.batch, weights=part, minlength=len(whole))
    return Sums(np.arange(len(whole)), {"part": found, "whole": whole}, "mini-batches").share("part", "whole")
