"""What a mask silences, against a planted truth: precision and recall over the tokens of a token log.

The miniature's base model was taught meaningless words; their ids are `LogHeader.watch`, and a token is *junk* if and
only if it is one of them; `LogHeader.useful` are words that lead to right answers. The log holds a row for every junk
token of a response with a positive advantage and for every rare one, so that what a method silenced, and what other
masks would have silenced of the same tokens, can be counted. Dimensions: N tokens (rows with A > 0), C clusters of
them, B bootstrap draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stapo_repro import labels
from stapo_repro.read import TrainingRun
from stapo_repro.text import shown, signed
from stapo_repro.tokens.log import batch_keys
from stapo_results import token_log
from stapo_results.errors import RecordError
from stapo_results.statistics import LEVEL, resampled_sums
from stapo_results.token_log import TokenLog

Array = NDArray[np.float64]
Over = Literal["prompts", "mini-batches"]
S2T, FULL, HIGH, RANDOM = "silence_spurious", "silence_low_probability", "silence_high_entropy", "silence_random"
NAMES = {S2T: "S2T", RANDOM: "random", HIGH: "high entropy", FULL: "all rare tokens"}
SELECTORS = {"keep_all": "none", **NAMES, "top_entropy": "all but the top entropies"}
METHODS = {S2T: "stapo", RANDOM: "stapo-random", HIGH: "stapo-high-entropy", FULL: "justrl-fullmask"}
"""Mask -> the method that trains with it."""
OTHERS = (RANDOM, HIGH)  # what S2T is compared with: masks that silence as many tokens
_REFERENCE = "justrl"  # keeps every token: what the masks are compared on
_ENDS = (0.5 - LEVEL / 2, 0.5 + LEVEL / 2)


@dataclass(frozen=True)
class Interval:
    """A number with its 95 % interval; None where it is not defined, or nothing varies between the draws."""

    value: float | None
    low: float | None
    high: float | None

    def text(self, digits: int, factor: float = 1, unit: str = "", sign: bool = False) -> str:
        """Such as "34.2 % (29.1 to 39.5)": each number times `factor`, the value with its sign and its unit."""
        if self.value is None:
            return "n/a"
        value = (signed if sign else shown)(factor * self.value, digits)
        ends = [shown(factor * x, digits) for x in (self.low, self.high) if x is not None]
        return f"{value}{unit}" + (f" ({' to '.join(ends)})" if ends else "")


@dataclass(frozen=True)
class Share(Interval):
    """part / whole as a fraction, with a 95 % percentile interval by a bootstrap over clusters.

    Where the share is 0 or 1 the draws have no spread. The interval then ends at 1 - 0.025^(1 / clusters) from there,
    the exact bound for the mean of as many draws from [0, 1] that all were 0, as in `statistics.clustered`.

    Attributes:
        part, whole: sums, such as tokens.
        clusters: how many have any of the whole. With fewer than two there is no interval.
        over: what the clusters are.
    """

    part: float
    whole: float
    clusters: int
    over: Over


def percentiles(value: float, draws: Array) -> Interval:
    """A value with the percentile interval of its draws, those that are no number left out."""
    known = draws[~np.isnan(draws)]
    if np.isnan(value):
        return Interval(None, None, None)
    if not len(known) or known.max() == known.min():
        return Interval(value, None, None)
    return Interval(value, *map(float, np.quantile(known, _ENDS)))


class Sums:
    """Named sums a cluster (C,), and the same sums of every draw of clusters (B,), the draws the same for all names."""

    def __init__(self, cluster_N: NDArray[np.int64], columns: Mapping[str, ArrayLike], over: Over = "prompts"):
        """Add up N values a column by cluster (numbered from 0) and draw.

        Clusters that have nothing in any column are left out: they move no ratio.
        """
        count = int(cluster_N.max()) + 1 if len(cluster_N) else 0
        sums = [np.bincount(cluster_N, weights=np.asarray(v, np.float64), minlength=count) for v in columns.values()]
        sums_CK = np.stack(sums, axis=1)
        sums_CK = sums_CK[sums_CK.any(axis=1)]
        if not len(sums_CK):
            sums_CK = np.zeros((1, len(sums)))
        self._by_cluster: dict[str, Array] = dict(zip(columns, sums_CK.T, strict=True))
        self._drawn: dict[str, Array] = dict(zip(columns, resampled_sums(sums_CK).T, strict=True))
        self._over: Over = over

    def share(self, part: str, whole: str) -> Share:
        """One column's sum over another's. Draws without any of the whole do not count."""
        a, b = self._by_cluster[part].sum(), self._by_cluster[whole].sum()
        clusters = int(np.count_nonzero(self._by_cluster[whole]))
        low = high = None
        if clusters > 1:
            low, high = map(float, np.nanquantile(self._ratio(part, whole), _ENDS))
            if a in (0.0, b):
                bound = 1.0 - _ENDS[0] ** (1.0 / clusters)
                low, high = (0.0, bound) if a == 0.0 else (1.0 - bound, 1.0)
        return Share(float(a / b) if b else None, low, high, float(a), float(b), clusters, self._over)

    def difference(self, first: tuple[str, str], second: tuple[str, str]) -> Interval:
        """One (part, whole) minus another, paired draw by draw."""
        one, other = self.share(*first), self.share(*second)
        if one.value is None or other.value is None:
            return Interval(None, None, None)
        if min(one.clusters, other.clusters) < 2:
            return Interval(one.value - other.value, None, None)
        return percentiles(one.value - other.value, self._ratio(*first) - self._ratio(*second))

    def _ratio(self, part: str, whole: str) -> Array:
        below = self._drawn[whole]
        return np.divide(self._drawn[part], below, out=np.full(len(below), np.nan), where=below > 0)


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
    have, gone = (np.bincount(batch, weights=v[name], minlength=len(batches)) for name in ("rare", "silenced"))
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
    return Tokens(
        step=v["step"].astype(np.int64),
        batch=batch,
        prompt=np.unique(rows["prompt_id"].to_numpy(), return_inverse=True)[1],
        junk=np.isin(v["token"], log.header.watch),
        useful=np.isin(v["token"], log.header.useful),
        rare=v["rare"].astype(bool),
        silenced=v["silenced"].astype(bool),
        entropy=v["entropy"].astype(np.float64),
        logprob=v["logprob"].astype(np.float64),
        correct=correct,
        silenced_in=silenced,
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


@dataclass(frozen=True)
class Measured:
    """One mask: the junk among the tokens that it silences; what it silences of the junk, and of the rare junk.

    Of the random mask the numbers of tokens are expectations.
    """

    precision: Share
    recall: Share
    rare_recall: Share


def _sums(tokens: Tokens, masks: Mapping[str, NDArray]) -> tuple[Sums, dict[str, Measured]]:
    """The masks on the same draws of prompts. Columns of the sums: "junk", and of each mask "MASK" and "MASK junk"."""
    rare_junk = tokens.junk & tokens.rare
    columns: dict[str, NDArray] = {"junk": tokens.junk, "rare junk": rare_junk}
    for name, weight in masks.items():
        columns |= {name: weight, f"{name} junk": weight * tokens.junk, f"{name} rare junk": weight * rare_junk}
    sums = Sums(tokens.prompt, columns)
    return sums, {
        name: Measured(
            precision=sums.share(f"{name} junk", name),
            recall=sums.share(f"{name} junk", "junk"),
            rare_recall=sums.share(f"{name} rare junk", "rare junk"),
        )
        for name in masks
    }


def as_trained(tokens: Tokens) -> Measured:
    """What the run's own method silenced.

    The interval is over prompts. Where the rows do not hold all silenced tokens (20-Entropy silences frequent ones too)
    precision takes the counts, which know mini-batches and not prompts, and its interval is over those.
    """
    measured = _sums(tokens, {"own": tokens.silenced})[1]["own"]
    if tokens.silenced.sum() == tokens.silenced_in.sum():
        return measured
    junk = np.bincount(tokens.batch, weights=tokens.silenced & tokens.junk, minlength=len(tokens.silenced_in))
    columns = {"junk": junk, "all": tokens.silenced_in}
    by_batch = Sums(np.arange(len(tokens.silenced_in)), columns, "mini-batches")
    return replace(measured, precision=by_batch.share("junk", "all"))


def base_rates(tokens: Tokens) -> tuple[float | None, float | None]:
    """The share of junk among all tokens with A > 0, and among the rare ones; None where there is no such token."""
    junk, every, rare = tokens.junk, tokens.correct.sum(), tokens.rare.sum()
    return (
        float(junk.sum() / every) if every else None,
        float((junk & tokens.rare).sum() / rare) if rare else None,
    )


Differences = dict[str, tuple[Interval, Interval]]
"""Mask -> S2T's precision minus this mask's, and the same of recall."""


def compare(tokens: Tokens, q: float) -> tuple[dict[str, Measured], Differences]:
    """What every mask would silence of these tokens, and S2T minus OTHERS, over the same draws of prompts."""
    sums, masks = _sums(tokens, weights(tokens, q))
    return masks, {
        name: (
            sums.difference((f"{S2T} junk", S2T), (f"{name} junk", name)),
            sums.difference((f"{S2T} junk", "junk"), (f"{name} junk", "junk")),
        )
        for name in OTHERS
    }


class Line(NamedTuple):
    """What one mask silences: `label` names the run or the mask, `method` has its colour, `base` as `base_rates`."""

    label: str
    method: str
    selector: str
    measured: Measured
    base: tuple[float | None, float | None]


@dataclass(frozen=True)
class Part:
    """Masks beside each other: each run's own, or every mask on the tokens of one run, with their differences."""

    title: str
    lines: list[Line]
    differences: Differences = field(default_factory=dict)


Logged = Sequence[tuple[TrainingRun, TokenLog]]


def planted_logs(runs: Sequence[TrainingRun]) -> Logged:
    """The miniature's runs that have a token log with planted words, in the order of the methods, then by seed.

    Raises:
        RecordError: a log is damaged, or two logs have other planted ids.
    """
    found = [(run, log) for run in runs if run.size == labels.MINI and (log := token_log.read(run.folder))]
    found = [(run, log) for run, log in found if log.header.watch]
    said = [f"{run.path}: {len(w := log.header.watch)} ids, {min(w)} to {max(w)}" for run, log in found]
    for text, (_, log) in zip(said, found, strict=True):
        if log.header.watch != found[0][1].header.watch:
            raise RecordError(
                "runs with other planted words cannot share a table",
                found=text,
                expected=f"the ids of {said[0]}",
                next_step="name only runs of one base model with --records",
            )
    order = [*labels.METHODS, *labels.ARMS]
    return sorted(found, key=lambda p: order.index(p[0].method) if p[0].method in order else len(order))


def parts(logged: Logged) -> list[Part]:
    """What the runs silenced; then every mask on all tokens of the first JustRL run, and on those of its first step.

    Raises:
        RecordError: a log lacks rows (`tokens_of`).
    """

    def label(run: TrainingRun) -> str:
        return f"{labels.method_label(run.method)}, seed {run.seed}" + f" ({run.status})" * (run.status != "done")

    trained = [(run, log.header.selector, tokens_of(log)) for run, log in logged]
    lines = [Line(label(run), run.method, name, as_trained(t), base_rates(t)) for run, name, t in trained]
    found = [Part("As trained", lines)]
    for run, log in [p for p in logged if p[0].method == _REFERENCE][:1]:
        titles: dict[int | None, str] = {None: f"All tokens of {label(run)}"}
        if int(log.histogram["step"].to_numpy().min()) == 1:  # a longer log's first step is of a trained policy
            titles[1] = f"Base model: step 1 of {label(run)}"
        for step, title in titles.items():
            tokens = tokens_of(log, step)
            (masks, differences), base = compare(tokens, log.header.q), base_rates(tokens)
            same = [Line(NAMES[name], METHODS[name], name, m, base) for name, m in masks.items()]
            found.append(Part(title, same, differences))
    return found
