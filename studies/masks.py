"""What a mask silences, against a planted truth: precision and recall over the tokens of a token log.

The miniature's base model was taught meaningless words; their ids are `LogHeader.watch`, and a token is *junk* if and
only if it is one of them; `LogHeader.useful` are words that lead to right answers. The log holds a row for every junk
token of a response with a positive advantage and for every rare one, so that what a method silenced, and what other
masks would have silenced of the same tokens, can be counted. N: tokens (rows with A > 0).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stapo_repro import labels
from stapo_repro.read import TrainingRun
from stapo_repro.tokens.log import Columns, batch_keys, run_label
from stapo_repro.tokens.shares import Array, Sums
from stapo_results import token_log
from stapo_results.errors import RecordError
from stapo_results.methods import methods
from stapo_results.statistics import Number
from stapo_results.token_log import TokenLog

S2T, FULL, HIGH, RANDOM = "silence_spurious", "silence_low_probability", "silence_high_entropy", "silence_random"
NAMES = {e.get("definition", {}).get("selector", "keep_all"): e["mask"] for e in methods().values() if "mask" in e}
"""Selector -> what it silences."""
METHODS = {methods()[m]["definition"]["selector"]: m for m in reversed(labels.ARMS) if m in labels.RARE_TOKEN_MASKS}
"""Mask -> the method that trains with it, S2T first."""
_OTHERS = (RANDOM, HIGH)  # what S2T is compared with: masks that silence as many tokens
_REFERENCE = "justrl"  # keeps every token: what the masks are compared on


def tokens_of(log: TokenLog, step: int | None = None) -> Columns:
    """The rows with A > 0 of a log with planted words, of one step or of all, checked against the log's counts.

    Returns:
        Columns (N,): "step"; "batch" and "prompt", numbered from 0 in sorted order; "junk", "useful", "rare" and
        "silenced", booleans; "entropy" and "logprob", nats. Columns (mini-batches,): "correct", all tokens with A > 0;
        "silenced_in", those of them that were silenced.

    Raises:
        RecordError: rows were left out of the log, or a mini-batch's rows are not those that its counts say.
    """
    rows, counts = log.tokens.filter(log.tokens["advantage"].to_numpy() > 0), log.histogram
    if step is not None:
        rows, counts = (table.filter(table["step"].to_numpy() == step) for table in (rows, counts))
    v = {n: rows[n].to_numpy() for n in ("step", "mini_batch", "token", "rare", "silenced", "entropy", "logprob")}
    h = {n: counts[n].to_numpy() for n in ("step", "mini_batch", "sign", "rare", "silenced", "tokens")}
    batches, batch_of_count = np.unique(batch_keys(h), return_inverse=True)
    batch = np.searchsorted(batches, batch_keys(v)).clip(0, max(0, len(batches) - 1))
    positive = np.where(h["sign"] > 0, h["tokens"], 0)
    correct, rare, silenced = (
        np.bincount(batch_of_count, positive * flag, len(batches)) for flag in (1.0, h["rare"], h["silenced"])
    )
    have, gone = (np.bincount(batch, v[name], len(batches)) for name in ("rare", "silenced"))
    wrong = np.flatnonzero((have != rare) | (gone > silenced))
    if log.header.left_out or len(wrong) or not np.isin(batch_keys(v), batches).all():
        where = ""
        if len(wrong):
            at, key = wrong[0], int(batches[wrong[0]])
            where = f"; step {key >> 16}, mini-batch {key & 0xFFFF}: {have[at]:.0f} rows of {rare[at]:.0f} rare tokens"
        raise RecordError(
            "the token log does not hold every rare and every planted token: shares of them would be wrong",
            found=f"{log.header.left_out} rows left out{where}",
            expected="a row for each of them",
            next_step="train again with larger token_log.most_rows and token_log.largest_gib, or leave out the log",
        )
    return {
        "step": v["step"].astype(np.int64),
        "batch": batch,
        "prompt": np.unique(rows["prompt_id"].to_numpy(), return_inverse=True)[1],
        "junk": np.isin(v["token"], log.header.watch),
        "useful": np.isin(v["token"], log.header.useful),
        "rare": v["rare"].astype(bool),
        "silenced": v["silenced"].astype(bool),
        "entropy": v["entropy"].astype(np.float64),
        "logprob": v["logprob"].astype(np.float64),
        "correct": correct,
        "silenced_in": silenced,
    }


def weights(tokens: Columns, q: float) -> dict[str, Array]:
    """The chance (N,) with which each mask silences each token, mini-batch by mini-batch.

    0 or 1, but for the random mask: of a mini-batch's M rare tokens it silences floor(q M), whichever, so that each has
    the chance floor(q M) / M. The expectation over its draws is then a sum of these chances.
    """
    rare = tokens["rare"]
    out = {name: np.zeros(len(rare)) for name in (S2T, FULL, HIGH, RANDOM)}
    out[FULL][rare] = 1.0
    for batch in np.unique(tokens["batch"][rare]):
        rows = np.flatnonzero(rare & (tokens["batch"] == batch))
        entropy = tokens["entropy"][rows]
        out[S2T][rows] = entropy < _quantile(entropy, q)
        out[HIGH][rows] = entropy > _quantile(entropy, 1.0 - q)
        out[RANDOM][rows] = int(q * len(rows) + 1e-9) / len(rows)  # the selector's rounding: 0.7 x 10 is 7
    return out


def _quantile(values: Array, q: float) -> float:
    """As the selectors take it: below nothing at q = 0, below everything at q = 1."""
    if q <= 0:
        return -math.inf
    return math.inf if q >= 1 else float(np.quantile(values, q))


Measured = dict[str, Number]
"""Of one mask: "precision", the junk among the tokens that it silences; "recall" and "rare_recall", what it silences of
the junk and of the rare junk. Beside it "base" and "rare_base", the junk among all tokens with A > 0 and among the rare
ones. Of the random mask the numbers of tokens are expectations."""


def compare(tokens: Columns, masks: Mapping[str, NDArray]) -> tuple[dict[str, Measured], dict[str, Measured]]:
    """What each mask silences, by the chance (N,) of each token; and precision and recall of S2T minus those of others,
    over the same draws of prompts."""
    rare_junk = tokens["junk"] & tokens["rare"]
    columns: dict[str, NDArray] = {"junk": tokens["junk"], "rare junk": rare_junk}
    for name, weight in masks.items():
        columns |= {name: weight, f"{name} junk": weight * tokens["junk"], f"{name} rare junk": weight * rare_junk}
    sums = Sums(tokens["prompt"], columns)
    every, rare = tokens["correct"].sum(), tokens["rare"].sum()
    base = Number(mean=float(tokens["junk"].sum() / every) if every else math.nan)
    rare_base = Number(mean=float(rare_junk.sum() / rare) if rare else math.nan)
    measured, differences = dict[str, Measured](), dict[str, Measured]()
    for name in masks:
        pairs = {"precision": (f"{name} junk", name), "recall": (f"{name} junk", "junk")}
        measured[name] = {what: sums.share(*pair) for what, pair in pairs.items()}
        measured[name]["rare_recall"] = sums.share(f"{name} rare junk", "rare junk")
        measured[name] |= {"base": base, "rare_base": rare_base}
    for name in _OTHERS:
        if masks.keys() >= {name, S2T}:
            differences[name] = {
                "precision": sums.difference((f"{S2T} junk", S2T), (f"{name} junk", name)),
                "recall": sums.difference((f"{S2T} junk", "junk"), (f"{name} junk", "junk")),
            }
    return measured, differences


def as_trained(tokens: Columns) -> Measured:
    """What the run's own method silenced.

    The interval is over prompts. Where the rows do not hold all silenced tokens (20-Entropy silences frequent ones too)
    precision takes the counts, which know mini-batches and not prompts, and its interval is over those.
    """
    measured = compare(tokens, {"own": tokens["silenced"]})[0]["own"]
    in_batch = tokens["silenced_in"]
    if tokens["silenced"].sum() != in_batch.sum():
        junk = np.bincount(tokens["batch"], tokens["silenced"] & tokens["junk"], len(in_batch))
        by_batch = Sums(np.arange(len(in_batch)), {"junk": junk, "all": in_batch}, "mini-batches")
        measured["precision"] = by_batch.share("junk", "all")
    return measured


class MaskRow(NamedTuple):
    """What one mask silences: `label` names the run or the mask, `method` has its colour."""

    label: str
    method: str
    selector: str
    measured: Measured


def planted_logs(runs: Sequence[TrainingRun]) -> list[tuple[TrainingRun, TokenLog]]:
    """The miniature's runs that have a token log with planted words, in the order of the methods, then by seed.

    Raises:
        RecordError: a log is damaged, or two logs have other planted ids.
    """
    read = [(run, token_log.read(run.folder)) for run in runs if run.size == labels.MINI]
    logged = [(run, log) for run, log in read if log and log.header.watch]
    planted = {log.header.watch: run.path for run, log in logged}
    if len(planted) > 1:
        first, *others = (f"{path}: {len(ids)} ids, {min(ids)} to {max(ids)}" for ids, path in planted.items())
        raise RecordError(
            "runs with other planted words cannot share a table",
            found="; ".join(others),
            expected=f"the ids of {first}",
            next_step="name only runs of one base model with --records",
        )
    order = [*labels.METHODS, *labels.ARMS]
    return sorted(logged, key=lambda p: order.index(p[0].method) if p[0].method in order else len(order))


def parts(logged: Sequence[tuple[TrainingRun, TokenLog]]) -> dict[str, tuple[list[MaskRow], dict[str, Measured]]]:
    """What the runs silenced; then every mask on all tokens of the first JustRL run, and on those of its first step.

    Returns:
        A heading -> its masks, and S2T minus others by mask.

    Raises:
        RecordError: a log lacks rows (`tokens_of`).
    """
    trained = [MaskRow(run_label(r), r.method, log.header.selector, as_trained(tokens_of(log))) for r, log in logged]
    out: dict[str, tuple[list[MaskRow], dict[str, Measured]]] = {"As trained": (trained, {})}
    for run, log in [(run, log) for run, log in logged if run.method == _REFERENCE][:1]:
        steps: dict[str, int | None] = {f"All tokens of {run_label(run)}": None}
        if int(log.histogram["step"].to_numpy().min()) == 1:  # a longer log's first step is of a trained policy
            steps[f"Base model: step 1 of {run_label(run)}"] = 1
        for title, step in steps.items():
            tokens = tokens_of(log, step)
            masks, differences = compare(tokens, weights(tokens, log.header.q))
            out[title] = [MaskRow(NAMES[m], METHODS[m], m, measured) for m, measured in masks.items()], differences
    return out
