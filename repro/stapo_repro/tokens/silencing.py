"""Silenced tokens by step, held against the run's own metrics, and the thresholds by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stapo_repro.tokens.material import Material, batch_keys
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


def by_step(material: Material) -> list[StepCount]:
    """One entry a step of the log.

    Raises:
        RunFailed: a step whose silenced tokens differ between the log and the run's metrics, or, for a mask over rare
            tokens, between the log's counts and its rows.
    """
    c, r = material.counts, material.rows
    steps, at = np.unique(c["step"], return_inverse=True)
    pairs = np.unique(batch_keys(c)) >> 16  # the step of each mini-batch

    def total(which: np.ndarray) -> np.ndarray:
        return np.bincount(at, np.where(which, c["tokens"], 0), minlength=len(steps)).astype(np.int64)

    parts = {
        "tokens": total(np.ones_like(c["rare"])),
        "rare": total(c["rare"]),
        "region": total(c["rare"] & c["below"]),
        "silenced": total(c["silenced"]),
        "in_rows": _counted(r["step"][r["silenced"]], steps),
        "mini_batches": _counted(pairs, steps),
    }
    found = []
    for i, step in enumerate(steps.tolist()):
        numbers = {name: int(values[i]) for name, values in parts.items()}
        metric, own = _of_metrics(material.metrics.get(step), numbers["mini_batches"])
        one = StepCount(step=step, metric=metric, own_share=own, **numbers)
        _check(material, one)
        found.append(one)
    return found


def _counted(values: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """(S,) how often each of the S sorted steps stands among the values."""
    return np.searchsorted(np.sort(values), steps, "right") - np.searchsorted(np.sort(values), steps, "left")


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


def _check(material: Material, one: StepCount) -> None:
    next_step = "log and metrics.jsonl are of different runs or attempts: take both from the same folder"
    if one.metric is not None and one.metric != one.silenced:
        raise RunFailed(
            f"step {one.step}: the token log and the run's metrics count different silenced tokens",
            found=f"{one.silenced:,} in the log",
            expected=f"{one.metric:,}, {_METRIC} x {one.mini_batches} mini-batches",
            next_step=next_step,
        )
    whole = material.facts.left_out == 0
    if material.silences and (one.in_rows != one.silenced if whole else one.in_rows > one.silenced):
        raise RunFailed(
            f"step {one.step}: the log's rows and its counts hold different silenced tokens",
            found=f"{one.in_rows:,} rows",
            expected=f"{'' if whole else 'at most '}{one.silenced:,}",
            next_step="the two files of the step are not of one writing: copy the folder again",
        )


def statement(material: Material, counts: Sequence[StepCount]) -> str:
    """The comparison of log and metrics in words."""
    compared = [c for c in counts if c.metric is not None]
    said = f"silenced: {sum(c.silenced for c in counts):,} in the log"
    if compared:
        here, there = sum(c.silenced for c in compared), sum(c.metric or 0 for c in compared)
        if len(compared) < len(counts):
            said += f", {here:,} of them in the {len(compared)} of {len(counts)} steps that have metrics"
        said += f", {there:,} in the metrics: equal in each of {len(compared)} steps"
    else:
        said += "; no metrics beside it to compare with"
    if material.facts.left_out:
        said += (
            f". {material.facts.left_out:,} rows of the whole log were left out at its bound: rows hold "
            f"{sum(c.in_rows for c in counts):,} of the silenced tokens, counts all"
        )
    return said


def thresholds(material: Material) -> list[Threshold]:
    """tau_h by step, of the steps that have a finite one."""
    by: dict[int, list[float]] = {}
    for (step, _), tau in material.thresholds.items():
        if np.isfinite(tau):
            by.setdefault(step, []).append(tau)
    return [Threshold(s, min(v), float(np.median(v)), max(v)) for s, v in sorted(by.items())]


def spread(material: Material) -> Threshold | None:
    """The finite tau_h of all mini-batches together (step 0); None where there is none."""
    found = [t for t in material.thresholds.values() if np.isfinite(t)]
    return Threshold(0, min(found), float(np.median(found)), max(found)) if found else None
