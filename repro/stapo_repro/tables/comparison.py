"""Paired differences of two methods: by problem, and by training seed where both have the same several ones.

Pure functions of scores. All values are fractions; the table turns them into percentage points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stapo_repro.tables.scores import Score
from stapo_results.errors import BadInput
from stapo_results.statistics import paired_average
from stapo_results.statistics.crossed import crossed, t_test_p

FLIPS = 100_000
"""Drawn sign flips a test: Holm's correction over a few hundred tests still tells small p-values apart."""


@dataclass(frozen=True)
class Comparison:
    """First minus second, paired by problem and, where `seeds` names them, by training seed.

    Attributes:
        p: of `test`. A sign flip of the problems' differences speaks about the two models; the t test with the standard
            errors over problems and seeds about the two methods.
        p_sign_flip: of the sign flip, whichever test `p` is of.
        seeds: the training seeds that were paired; empty where the interval covers problems alone.
    """

    difference: float
    se: float
    low: float
    high: float
    p: float
    p_sign_flip: float
    test: Literal["sign flip", "t over problems and seeds"]
    problems: int
    seeds: tuple[int, ...] = ()


def _common_seeds(first: Sequence[Score], second: Sequence[Score]) -> tuple[int, ...]:
    """The seeds over which two methods can be paired: the same on both sides and at least two; () otherwise.

    The base model is one model, so it pairs with every seed.
    """
    drawn = {tuple(sorted(s.by_seed)) for s in (*first, *second) if not s.is_base}
    seeds = next(iter(drawn)) if len(drawn) == 1 else ()
    return seeds if len(seeds) > 1 else ()


def _columns(score: Score, ids: Sequence[str], seeds: Sequence[int]) -> NDArray[np.float64]:
    per_seed = [score.means if score.is_base else score.by_seed[s] for s in seeds]
    return np.array([[m[i] for i in ids] for m in per_seed]).T


def compare(first: Sequence[Score], second: Sequence[Score], *, flips: int = FLIPS) -> Comparison:
    """First minus second over one benchmark or, unweighted, over several (the two lists name the same ones in order).

    `flips`: drawn sign flips, few where the p-value is not used.

    Raises:
        BadInput: the two were not evaluated on the same problems or with the same gold answers.
    """
    strata, by_seed = [], []
    seeds = _common_seeds(first, second)
    for a, b in zip(first, second, strict=True):
        _check_pair(a, b)
        ids = sorted(a.means)
        strata.append([a.means[i] - b.means[i] for i in ids])
        if seeds:
            by_seed.append(_columns(a, ids, seeds) - _columns(b, ids, seeds))
    flat = paired_average(strata, resamples=flips)
    if not seeds or math.isnan(flat.difference):
        return Comparison(
            flat.difference, flat.se, flat.low, flat.high, flat.p, flat.p, "sign flip", flat.problems
        )  # fmt: skip
    c = crossed(by_seed)
    test = "t over problems and seeds"
    return Comparison(c.mean, c.se, c.low, c.high, t_test_p(c), flat.p, test, flat.problems, seeds)


def _check_pair(a: Score, b: Score) -> None:
    one, two = a.cells[0].record, b.cells[0].record
    same = a.means.keys() == b.means.keys() and one.benchmark_sha256 == two.benchmark_sha256
    if not same:
        raise BadInput(
            f"{one.cell.method} and {two.cell.method} were not evaluated on the same problems of {one.cell.benchmark}",
            found=f"{a.cells[0].path}: {len(a.means)}, {b.cells[0].path}: {len(b.means)}",
            expected="the same problems and gold answers",
            next_step="evaluate both on the same copy of the benchmark and with the same --limit",
        )
