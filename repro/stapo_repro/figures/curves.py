"""From training runs to curves: mean over seeds with the range between them. Pure: nothing is drawn here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stapo_repro.records.reading import TrainingRun
from stapo_results.errors import BadInput

MOST_POINTS = 300
"""Points a curve keeps: what is finer than a line's width on paper only makes the file large."""


@dataclass(frozen=True)
class Panel:
    """One panel of a figure: the metric in metrics.jsonl, its heading, the axis label with unit, a factor."""

    metric: str
    title: str
    unit: str
    factor: float = 1.0


@dataclass(frozen=True)
class Curve:
    """One method in one panel: steps (S,), mean over seeds, lowest and highest seed (all (S,)).

    `window`: how many consecutive steps each point is the mean of.
    """

    method: str
    steps: NDArray[np.float64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    seeds: int
    window: int = 1


def windowed(values_RS: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Means of consecutive windows of `width` columns, (R, ceil(S / width)); the last window holds the rest."""
    starts = np.arange(0, values_RS.shape[1], width)
    counts = np.diff([*starts, values_RS.shape[1]])
    return np.add.reduceat(values_RS, starts, axis=1) / counts


def curve(runs: Sequence[TrainingRun], panel: Panel, most: int | None = MOST_POINTS) -> Curve | None:
    """Mean and range over the seeds of one method, at the steps that all seeds have; None when no run has the metric.

    Of more than `most` steps, each point is the mean of as many consecutive ones as bring them below.

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
    width = 1 if most is None else math.ceil(len(steps) / most)
    at = windowed(np.array([steps], dtype=np.float64), width)[0]
    matrix = windowed(np.array([[v[s] for s in steps] for v in values]), width)
    return Curve(
        runs[0].method, at, matrix.mean(axis=0), matrix.min(axis=0), matrix.max(axis=0), len(values), width
    )  # fmt: skip
