"""Paired differences of methods, and Holm's correction over the table.

Compared are each method with the base model, and STAPO with each baseline, of one size at one setting, on each
benchmark and on their average. The tests that one table shows are two families: those on single benchmarks, and those
on the averages, which sum the former up and are not further tests of the same thing. The paper's three sizes are one
table; every other section is a table of its own.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from stapo_repro import labels
from stapo_repro.tables.comparison import compare
from stapo_repro.tables.gains import BASELINES, METHOD
from stapo_repro.tables.model import Difference, Section
from stapo_repro.tables.rounding import percent
from stapo_repro.tables.scores import Score, ScoreKey
from stapo_results.errors import BadInput
from stapo_results.schema import SETTINGS
from stapo_results.statistics import holm


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
    points, se, low, high = (percent(x) for x in (c.difference, c.se, c.low, c.high))
    return Difference(
        *label,
        "run",
        points=points,
        se=se,
        low=low,
        high=high,
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
    done = [
        replace(
            s,
            differences=[
                d if d.p is None else replace(d, p_holm=_rounded(next(adjusted[d.family]))) for d in s.differences
            ],
        )
        for s in sections
    ]
    return done, dict(Counter(d.family for s in sections for d in s.differences if d.family))
