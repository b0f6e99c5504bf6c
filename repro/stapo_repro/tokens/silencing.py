"""Silenced tokens by step, held against the run's own metrics, and the thresholds by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stapo_repro.tokens.logged_run import LoggedRun, batch_keys
from stapo_results.errors import RunFailed
from stapo_results.schema import StepMetrics

_METRIC = "actor/selector/silenced_tokens"
_ROUNDING = 0.01  # tokens: a mean over mini-batches times their number is a whole number up to float64's rounding


@dataclass(frozen=True)
class StepCount:
    """One step's response tokens.

    Attributes:
        rare, region: tokens that are rare, and those of them that S2T would silence.
        silenced: by the method, counted in the histogram; in_rows: in the logged rows.
        metric: from the run's metrics; None where they do not hold the step.
        own_share: the metrics' `silenced_share`.
    """

    step: int
    mini_batches: int
    tokens: int
    rare: int
    region: int
    silenced: int
    in_rows: int
    metric: int | None
    own_share: float | None


@dataclass(frozen=True)
class Threshold:
    """A step's finite tau_h over its mini-batches, in nats."""

    step: int
    low: float
    median: float
    high: float


def by_step(run: LoggedRun) -> list[StepCount]:
    """One entry a step of the log.

    Raises:
        RunFailed: a step whose silenced tokens differ between the log and the run's metrics, or, for a mask over rare
            tokens, between the log's counts and its rows.
    """
    c, r = run.counts, run.rows
    steps, at = np.unique(c["step"], return_inverse=True)

    def total(which: np.ndarray) -> list[int]:
        return np.bincount(at, np.where(which, c["tokens"], 0), minlength=len(steps)).astype(int).tolist()

    def often(values: np.ndarray) -> list[int]:
        """How often each step stands among the values."""
        left, right = (np.searchsorted(np.sort(values), steps, side) for side in ("left", "right"))
        return (right - left).tolist()

    mini_batches = often(np.unique(batch_keys(c)) >> 16)
    tokens, rare = total(np.ones_like(c["rare"])), total(c["rare"])
    region, silenced = total(c["rare"] & c["below"]), total(c["silenced"])
    in_rows = often(r["step"][r["silenced"]])
    found = []
    for i, step in enumerate(steps.tolist()):
        metric, share = _of_metrics(run.metrics.get(step), mini_batches[i])
        counts = (mini_batches[i], tokens[i], rare[i], region[i], silenced[i], in_rows[i])
        one = StepCount(step, *counts, metric, share)
        _check(run, one)
        found.append(one)
    return found


def _of_metrics(metrics: StepMetrics | None, mini_batches: int) -> tuple[int | None, float | None]:
    """(tokens, share); the metric is a mean over the step's mini-batches. Who counts nothing has a share of 0."""
    if metrics is None:
        return None, None
    share = metrics.values.get("silenced_share")
    mean = metrics.values.get(_METRIC, 0.0 if share == 0.0 else None)
    if mean is None:
        return None, share
    tokens = mean * mini_batches
    if abs(tokens - round(tokens)) > _ROUNDING:
        raise RunFailed(
            f"step {metrics.step}: the metrics' silenced tokens are no whole number",
            found=f"{_METRIC} {mean:g} x {mini_batches} mini-batches = {tokens:.3f}",
            expected="the log to hold every mini-batch of the step",
            next_step="see whether the step's files are whole; leave the step out with --steps",
        )
    return round(tokens), share


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


def statement(run: LoggedRun, counts: Sequence[StepCount]) -> str:
    """The comparison of log and metrics in words."""
    compared = [c for c in counts if c.metric is not None]
    said = f"silenced: {sum(c.silenced for c in counts):,} in the log"
    if compared:
        in_log, in_metrics = sum(c.silenced for c in compared), sum(c.metric or 0 for c in compared)
        if len(compared) < len(counts):
            said += f", {in_log:,} of them in the {len(compared)} of {len(counts)} steps that have metrics"
        said += f", {in_metrics:,} in the metrics: equal in each of {len(compared)} steps"
    else:
        said += "; no metrics beside it to compare with"
    if run.header.left_out:
        said += (
            f". The log left out {run.header.left_out:,} rows at its bound: rows hold "
            f"{sum(c.in_rows for c in counts):,} of the silenced tokens, counts all"
        )
    return said


def thresholds(run: LoggedRun) -> list[Threshold]:
    """tau_h by step, of the steps that have a finite one."""
    by: dict[int, list[float]] = {}
    for (step, _), tau in run.thresholds.items():
        if np.isfinite(tau):
            by.setdefault(step, []).append(tau)
    return [_spread(step, values) for step, values in sorted(by.items())]


def all_thresholds(run: LoggedRun) -> Threshold | None:
    """The finite tau_h of all mini-batches together (step 0); None where there is none."""
    found = [t for t in run.thresholds.values() if np.isfinite(t)]
    return _spread(0, found) if found else None


def _spread(step: int, values: list[float]) -> Threshold:
    return Threshold(step, min(values), float(np.median(values)), max(values))
