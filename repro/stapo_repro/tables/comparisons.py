"""Paired differences of methods with Holm's correction over the table, and the paper's own gains beside its noise.

Compared are each method with the base model, and STAPO with each baseline, of one size at one setting, on each
benchmark and on their average: by problem, and by training seed where both have the same several ones. The tests that
one table shows are two families: those on single benchmarks, and those on the averages, which sum the former up and are
not further tests of the same thing. The paper's three sizes are one table; every other section is a table of its own.

Gains are the paper's, beside the smallest difference that its own design (N and row counts) can tell from noise. They
use what is printed and nothing else; formulas in `stapo_results.statistics.comparison`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from stapo_repro import labels
from stapo_repro.paper import PaperTable
from stapo_repro.tables.model import Difference, Gain, Reading, Section
from stapo_repro.tables.scores import Score, ScoreKey
from stapo_repro.text import percent
from stapo_results.benchmarks import registry
from stapo_results.schema import SETTINGS
from stapo_results.statistics import Design, difference_se, holm, minimal_detectable, paired_average
from stapo_results.statistics.crossed import crossed, t_test_p

METHOD = "stapo"
BASELINES = tuple(m for m in labels.METHODS if m != METHOD)
_FLIPS = 100_000  # drawn sign flips a test: Holm's correction over a few hundred tests still tells small p-values apart


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


def _same_problems(a: Score, b: Score) -> bool:
    hashes = {s.cells[0].record.benchmark_sha256 for s in (a, b)}
    return a.means.keys() == b.means.keys() and len(hashes) == 1


def _rounded(p: float) -> float | None:
    return None if math.isnan(p) else round(p, 8)


def difference(
    first: Sequence[Score | None], second: Sequence[Score | None], label: tuple[str, str, str, str], *,
    flips: int = _FLIPS,
) -> Difference:  # fmt: skip
    """First minus second over one benchmark or, unweighted, over several, or why there is none.

    Args:
        first, second: scores on the same benchmarks in order; None where one was not run.
        label: method, against, benchmark, setting.
        flips: drawn sign flips, few where the p-value is not used.
    """
    there = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    if len(there) < len(first):
        return Difference(*label, "not run")
    if not all(_same_problems(a, b) for a, b in there):
        return Difference(*label, "other problems")
    strata, by_seed = [], []
    seeds = _common_seeds([a for a, _ in there], [b for _, b in there])
    for a, b in there:
        ids = sorted(a.means)
        strata.append([a.means[i] - b.means[i] for i in ids])
        if seeds:
            by_seed.append(_columns(a, ids, seeds) - _columns(b, ids, seeds))
    flat = paired_average(strata, resamples=flips)
    values, p, test = (flat.difference, flat.se, flat.low, flat.high), flat.p, "sign flip"
    if seeds and not math.isnan(flat.difference):
        c = crossed(by_seed)
        values, p, test = (c.mean, c.se, c.low, c.high), t_test_p(c), "t over problems and seeds"
    return Difference(
        *label,
        "run",
        *map(percent, values),
        test=test,
        p=_rounded(p),
        p_sign_flip=_rounded(flat.p),
        problems=flat.problems,
        missing=sum(a.estimate.missing + b.estimate.missing for a, b in there),
        seeds=list(seeds) if test != "sign flip" else [],
    )


def differences(
    scores: Mapping[ScoreKey, Score], section_id: str, size: str, methods: Sequence[str], benchmarks: Sequence[str]
) -> list[Difference]:
    """All comparisons of a section, Holm's correction still to come (`adjust`)."""
    columns = {**{b: (b,) for b in benchmarks}, labels.AVERAGE: tuple(benchmarks)}
    table = "the paper's three sizes" if section_id in labels.PAPER_SIZES else section_id
    out = []
    for method, against in [*((m, labels.BASE) for m in methods), *((METHOD, b) for b in BASELINES)]:
        for name, parts in columns.items():
            family = f"{table}, {'averages' if name == labels.AVERAGE else 'single benchmarks'}"
            for s in SETTINGS:
                first, second = ([scores.get((size, m, b, s)) for b in parts] for m in (method, against))
                d = difference(first, second, (method, against, name, s))
                out.append(replace(d, family=family) if d.p is not None else d)
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


def _points(fraction: float) -> float:
    value = percent(fraction)
    assert value is not None  # printed values are numbers
    return value


def _gain(paper: PaperTable, size: str, setting: str, benchmarks: Sequence[str], name: str, baseline: str) -> Gain:
    ours, theirs = paper.get(size, METHOD, setting), paper.get(size, baseline, setting)
    assert ours is not None  # `PaperTable` is complete
    assert theirs is not None
    specs = registry()
    designs = [
        Design(
            float(ours.values[b]) / 100, float(theirs.values[b]) / 100, specs[b].rows, paper.samples_per_problem[b]
        )
        for b in benchmarks
    ]  # fmt: skip
    se = difference_se(designs)
    low, high = _points(minimal_detectable(se.sampling)), _points(minimal_detectable(se.unpaired))
    points = float(Decimal(ours.values[name]) - Decimal(theirs.values[name]))
    reading: Reading = "below both" if abs(points) < low else "between" if abs(points) < high else "above both"
    return Gain(size, setting, name, baseline, points, _points(se.sampling), _points(se.unpaired), low, high, reading)


def paper_gains(paper: PaperTable) -> list[Gain]:
    """Every size, baseline, setting and column (six benchmarks and their average)."""
    columns = {**{b: (b,) for b in labels.PAPER_BENCHMARKS}, labels.AVERAGE: tuple(labels.PAPER_BENCHMARKS)}
    return [
        _gain(paper, size, setting, benchmarks, name, baseline)
        for size in labels.PAPER_SIZES
        for baseline in BASELINES
        for name, benchmarks in columns.items()
        for setting in SETTINGS
    ]
