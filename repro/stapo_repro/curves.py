"""From training runs to curves: mean over seeds with the range between them. Pure; `figures` draws them."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stapo_repro import labels
from stapo_repro.records import TrainingRun
from stapo_results.errors import BadInput


@dataclass(frozen=True)
class Panel:
    """One of the four panels: the metric in metrics.jsonl, its heading, the axis label with unit, a factor."""

    metric: str
    title: str
    unit: str
    factor: float = 1.0


PANELS = (
    Panel("reward", "Mean reward", "reward (+1 right, −1 wrong)"),
    Panel("entropy", "Policy entropy", "entropy (nats per token)"),
    Panel("silenced_share", "Silenced tokens", "share of tokens (%), symlog", 100.0),
    Panel("accuracy", "Validation accuracy", "accuracy (%)", 100.0),
)


@dataclass(frozen=True)
class Curve:
    """One method in one panel: steps (S,), mean over seeds, lowest and highest seed (all (S,))."""

    method: str
    steps: NDArray[np.int64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    seeds: int


def curve(runs: Sequence[TrainingRun], panel: Panel) -> Curve | None:
    """Mean and range over the seeds of one method, at the steps that all seeds have; None when no run has the metric.

    Raises:
        BadInput: two runs of one seed.
    """
    seeds = [r.seed for r in runs]
    if len(set(seeds)) != len(seeds):
        raise BadInput(
            f"two training runs of {runs[0].method} with one seed",
            found=", ".join(f"{r.path} (seed {r.seed})" for r in runs),
            expected="one run a seed",
            next_step="name only one of the folders with --records",
        )
    values = [{s.step: s.values[panel.metric] for s in r.steps if panel.metric in s.values} for r in runs]
    values = [{k: v * panel.factor for k, v in by_step.items() if math.isfinite(v)} for by_step in values]
    values = [v for v in values if v]
    if not values:
        return None
    steps = sorted(set.intersection(*map(set, values)))
    if not steps:
        return None
    matrix = np.array([[v[s] for s in steps] for v in values])
    return Curve(
        runs[0].method, np.array(steps), matrix.mean(axis=0), matrix.min(axis=0), matrix.max(axis=0), len(values)
    )


def by_method(
    runs: Sequence[TrainingRun], size: str, methods: Collection[str] = tuple(labels.METHODS)
) -> dict[str, list[TrainingRun]]:
    """The runs of a size by method: `methods` in their order, then others; one without a run has an empty list."""
    here = [r for r in runs if r.size == size]
    extra = sorted({r.method for r in here} - set(methods))
    return {m: [r for r in here if r.method == m] for m in (*methods, *extra)}
