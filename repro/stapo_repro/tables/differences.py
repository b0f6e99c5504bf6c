"""Paired differences of methods, and Holm's correction over the table.

Compared are each method with the base model, and STAPO with each baseline, of one size at one setting, on each
benchmark and on their average: by problem, and by training seed where both have the same several ones. The tests that
one table shows are two families: those on single benchmarks, and those on the averages, which sum the former up and are
not further tests of the same thing. The paper's three sizes are one table; every other section is a table of its own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stapo_repro import labels
from stapo_repro.tables.gains import BASELINES, METHOD
from stapo_repro.tables.model import Difference, Section
from stapo_repro.tables.rounding import percent
from stapo_repro.tables.scores import Score, ScoreKey
from stapo_results.errors import BadInput
from stapo_results.schema import SETTINGS
from stapo_results.statistics import holm, paired_average
from stapo_results.statistics.crossed import crossed, t_test_p

FLIPS = 100_000
"""Drawn sign flips a test: Holm's correction over a few hundred tests still tells small p-values apart."""


@dataclass(frozen=True)
class Comparison:
    """First minus second as fractions, paired by problem and, where `seeds` names them, by training seed.

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
        values = (flat.difference, flat.se, flat.low, flat.high, flat.p, flat.p)
        return Comparison(*values, "sign flip", flat.problems)
    c = crossed(by_seed)
    values = (c.mean, c.se, c.low, c.high, t_test_p(c), flat.p)
    return Comparison(*values, "t over problems and seeds", flat.problems, seeds)


def _check_pair(a: Score, b: Score) -> None:
    one, two = a.cells[0].record, b.cells[0].record
    if a.means.keys() != b.means.keys() or one.benchmark_sha256 != two.benchmark_sha256:
        raise BadInput(
            f"{one.cell.method} and {two.cell.method} were not evaluated on the same problems of {one.cell.benchmark}",
            found=f"{a.cells[0].path}: {len(a.means)}, {b.cells[0].path}: {len(b.means)}",
            expected="the same problems and gold answers",
            next_step="evaluate both on the same copy of the benchmark and with the same --limit",
        )


def pairs(methods: Sequence[str]) -> list[tuple[str, str]]:
    """(method, against) in the table's order."""
    return [*((m, labels.BASE) for m in methods), *((METHOD, b) for b in BASELINES)]


def _family(section_id: str, benchmark: str) -> str:
    table = "the paper's three sizes" if section_id in labels.PAPER_SIZES else section_id
    return f"{table}, {'averages' if benchmark == labels.AVERAGE else 'single benchmarks'}"


def _rounded(p: float) -> float | None:
    return None if math.isnan(p) else round(p, 8)


def _difference(
    first: Sequence[Score | None], second: Sequence[Score | None], label: tuple[str, str, str, str]
) -> Difference:
    there = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    if len(there) < len(first):
        return Difference(*label, "not run")
    try:
        c = compare([a for a, _ in there], [b for _, b in there])
    except BadInput:  # the table says so in the place of the number
        return Difference(*label, "other problems")
    return Difference(
        *label,
        "run",
        *(percent(x) for x in (c.difference, c.se, c.low, c.high)),
        test=c.test,
        p=_rounded(c.p),
        p_sign_flip=_rounded(c.p_sign_flip),
        problems=c.problems,
        missing=sum(a.estimate.missing + b.estimate.missing for a, b in there),
        seeds=list(c.seeds),
    )


def differences(
    scores: Mapping[ScoreKey, Score], section_id: str, size: str, methods: Sequence[str], benchmarks: Sequence[str]
) -> list[Difference]:
    """All comparisons of a section, Holm's correction still to come (`adjust`)."""
    columns = {**{b: (b,) for b in benchmarks}, labels.AVERAGE: tuple(benchmarks)}
    out = []
    for method, against in pairs(methods):
        for name, parts in columns.items():
            for s in SETTINGS:
                first, second = ([scores.get((size, m, b, s)) for b in parts] for m in (method, against))
                d = _difference(first, second, (method, against, name, s))
                out.append(replace(d, family=_family(section_id, name)) if d.p is not None else d)
    return out


def adjust(sections: Sequence[Section]) -> tuple[list[Section], dict[str, int]]:
    """The sections with Holm's adjusted p-values, and how many tests each family holds."""
    p: dict[str, list[float]] = defaultdict(list)
    for d in (d for s in sections for d in s.differences):
        if d.p is not None:
            p[d.family].append(d.p)
    adjusted = {family: iter(holm(values)) for family, values in p.items()}

    def adjusted_difference(d: Difference) -> Difference:
        return d if d.p is None else replace(d, p_holm=_rounded(next(adjusted[d.family])))

    done = [replace(s, differences=[adjusted_difference(d) for d in s.differences]) for s in sections]
    return done, {family: len(values) for family, values in p.items()}
