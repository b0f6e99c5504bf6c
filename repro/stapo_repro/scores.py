"""From records to numbers: a score a (size, method, benchmark, setting), averages, paired differences, Holm's p.

Pure functions of the records. A score is a fraction and a difference is in percentage points.

Compared are each method with the base model, and STAPO with each baseline, of one size at one setting, on each
benchmark and on their average: by problem, and by training seed where both have the same several ones. The tests that
one table shows are two families: those on single benchmarks, and those on the averages, which sum the former up and are
not further tests of the same thing. The paper's three sizes are one table; every other section is a table of its own.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stapo_repro import labels
from stapo_repro.read import Loaded
from stapo_repro.text import percent, rounded
from stapo_results.errors import RecordError
from stapo_results.resampling import bootstrap
from stapo_results.schema import SETTINGS
from stapo_results.statistics import (
    Number,
    clustered,
    crossed,
    holm,
    paired_average,
    parse_verdicts,
    problem_means,
    sampling_se,
)
from stapo_results.statistics import average as average_estimate

METHOD = "stapo"
FLIPS = 100_000
"""Drawn sign flips a test: Holm's correction over a few hundred tests still tells small p-values apart."""

ScoreKey = tuple[str, str, str, str]


@dataclass(frozen=True)
class Score:
    """One benchmark, or the unweighted average of several, of one (size, method, setting).

    With one training seed the interval covers the choice of problems and the sampling: a statement about that model.
    With several it covers the choice of seeds too (`crossed`): a statement about the method.

    Attributes:
        estimate: mean, standard error and interval; `samples` counts those of all seeds.
        se_problems: standard error over problems (with the sampling in it).
        se_seeds: standard error over training seeds; NaN with one.
        se_sampling: the part of `se_problems` that more samples would remove; NaN where samples are missing.
        bootstrap: percentile interval, problems resampled (seeds are not).
        seeds: training seed -> score.
        rows: problems the benchmark holds (more than `estimate.problems` when only a part was run).
        fewest: present samples of the problem that has the fewest.
        cells: the records it was made of.
        by_seed: training seed -> problem id -> mean of its samples, over evaluation seeds; empty for an average.
    """

    estimate: Number
    se_problems: float
    se_seeds: float
    se_sampling: float
    bootstrap: tuple[float, float]
    seeds: dict[int, float]
    rows: int
    fewest: int
    cells: tuple[Loaded, ...]
    by_seed: dict[int, dict[str, float]] = field(default_factory=dict)

    @property
    def is_base(self) -> bool:
        """An untrained model: one model, whose seeds are not drawn."""
        return all(c.record.cell.step == "base" for c in self.cells)

    @cached_property
    def means(self) -> dict[str, float]:
        """Problem id -> mean over seeds of the mean of its samples."""
        ids = next(iter(self.by_seed.values()))
        return {i: math.fsum(m[i] for m in self.by_seed.values()) / len(self.by_seed) for i in ids}

    @property
    def truncated(self) -> float:
        """Share of the responses that met the limit of tokens; NaN without a response."""
        ends = sum((Counter(c.record.finish_reasons) for c in self.cells), Counter[str]())
        finished = ends["stop"] + ends["length"]
        return ends["length"] / finished if finished else math.nan

    def matrix(self) -> NDArray[np.float64]:
        """Problem means (Q, S), columns in the order of the seeds."""
        return np.array([list(self.by_seed[s].values()) for s in sorted(self.by_seed)]).T


def _check_alike(cells: Sequence[Loaded]) -> None:
    one = cells[0]
    for c in cells[1:]:
        same = {
            "problems": {p.problem_id for p in one.record.problems} == {p.problem_id for p in c.record.problems},
            "gold answers": one.record.benchmark_sha256 == c.record.benchmark_sha256,
        }
        for what in (w for w, equal in same.items() if not equal):
            raise RecordError(
                f"two records of {c.record.cell.method} on {c.record.cell.benchmark} hold different {what}",
                found=f"{one.file} ({len(one.record.problems)} problems) and {c.file} ({len(c.record.problems)})",
                expected=f"the same {what} for every seed",
                next_step="evaluate all seeds on the same copy and --limit, or name one run's folder only",
            )


def score(cells: Sequence[Loaded]) -> Score:
    """The records of one (size, method, benchmark, setting) as one number.

    Raises:
        RecordError: the records hold different problems or gold answers.
    """
    _check_alike(cells)
    ids = [p.problem_id for p in cells[0].record.problems]
    samples: dict[int, dict[str, list[float]]] = defaultdict(lambda: {i: [] for i in ids})
    for c in sorted(cells, key=lambda c: c.record.cell.train_seed):
        for p in c.record.problems:
            samples[c.record.cell.train_seed][p.problem_id] += parse_verdicts(p.verdicts)
    by_seed = {s: dict(zip(ids, problem_means(list(r.values())).tolist(), strict=True)) for s, r in samples.items()}
    sampling = [sampling_se(list(r.values())) for r in samples.values()]
    together = [[x for r in samples.values() for x in r[i]] for i in ids]
    values = np.array([list(m.values()) for m in by_seed.values()]).T
    estimate, se_problems, se_seeds = _over_seeds([values], clustered(together))
    return Score(
        estimate=estimate,
        se_problems=se_problems,
        se_seeds=se_seeds,
        se_sampling=math.sqrt(math.fsum(x**2 for x in sampling)) / len(sampling),
        bootstrap=bootstrap([values.mean(axis=1)]),
        seeds={s: math.fsum(m.values()) / len(m) for s, m in by_seed.items()},
        rows=max(c.record.benchmark_rows for c in cells),
        fewest=min(sum(not math.isnan(x) for x in row) for row in together),
        cells=tuple(cells),
        by_seed=by_seed,
    )


def _over_seeds(matrices: Sequence[NDArray[np.float64]], pooled: Number) -> tuple[Number, float, float]:
    """(estimate, SE over problems, SE over seeds) of matrices (Q, S); with one seed `pooled` itself, and NaN where a
    problem has no sample."""
    if matrices[0].shape[1] == 1:
        return pooled, pooled.se, math.nan
    if any(np.isnan(m).any() for m in matrices):
        return replace(pooled, mean=math.nan, se=math.nan, low=math.nan, high=math.nan), math.nan, math.nan
    c = crossed(matrices, fractions=True)
    return replace(pooled, mean=c.mean, se=c.se, low=c.low, high=c.high), c.se_problems, c.se_seeds


def average(parts: Sequence[Score | None]) -> Score | str:
    """The unweighted mean over benchmarks, or in words why there is none: an average of what happens to be there is not
    comparable, and no model has that of benchmarks with other training seeds."""
    have = [p for p in parts if p is not None]
    if not have:
        return "not run"
    if len(have) < len(parts) or any(math.isnan(p.estimate.mean) for p in have):
        return f"{len(have)} of {len(parts)} run"
    if len({tuple(sorted(p.by_seed)) for p in have}) > 1:
        return "seeds differ"
    pooled = average_estimate([p.estimate for p in have])
    estimate, se_problems, se_seeds = _over_seeds([p.matrix() for p in have], pooled)
    worst = min(have, key=lambda p: (p.fewest / p.estimate.samples, p.estimate.samples))
    return Score(
        estimate=replace(estimate, samples=worst.estimate.samples),
        se_problems=se_problems,
        se_seeds=se_seeds,
        se_sampling=math.sqrt(math.fsum(p.se_sampling**2 for p in have)) / len(have),
        bootstrap=bootstrap([list(p.means.values()) for p in have]),
        seeds={s: math.fsum(p.seeds[s] for p in have) / len(have) for s in sorted(have[0].seeds)},
        rows=sum(p.rows for p in have),
        fewest=worst.fewest,
        cells=tuple(c for p in have for c in p.cells),
    )


def score_all(cells: Sequence[Loaded]) -> dict[ScoreKey, Score]:
    """Scores by (size, method, benchmark, setting), of the cells that are given."""
    groups: dict[ScoreKey, list[Loaded]] = defaultdict(list)
    for c in cells:
        cell = c.record.cell
        groups[cell.size, cell.method, cell.benchmark, cell.setting].append(c)
    return {key: score(groups[key]) for key in sorted(groups)}


@dataclass(frozen=True)
class Difference:
    """`method` minus `against` in percentage points, paired by problem; or why there is none.

    Attributes:
        benchmark: or "avg", the unweighted mean over the section's benchmarks.
        p: of `test`; `p_sign_flip` of the sign flip in any case. A sign flip of the problems' differences speaks about
            the two models; the t test with the standard errors over problems and seeds about the two methods.
        family: the tests over which `p_holm` is adjusted.
        seeds: training seeds over which it is paired too; empty with one.
        missing: samples that one of the two lacks; a difference over the others may flatter, so there is none.
    """

    method: str
    against: str
    benchmark: str
    setting: str
    status: Literal["run", "not run", "other problems", "samples missing"]
    points: float | None = None
    se: float | None = None
    low: float | None = None
    high: float | None = None
    test: str = ""
    p: float | None = None
    p_holm: float | None = None
    p_sign_flip: float | None = None
    family: str = ""
    problems: int = 0
    missing: int = 0
    seeds: list[int] = field(default_factory=list)


def _common_seeds(pairs: Sequence[tuple[Score, Score]]) -> tuple[int, ...]:
    """The seeds over which two methods can be paired: the same on both sides and at least two; () otherwise.

    The base model is one model, so it pairs with every seed.
    """
    drawn = {tuple(sorted(s.by_seed)) for pair in pairs for s in pair if not s.is_base}
    seeds = next(iter(drawn)) if len(drawn) == 1 else ()
    return seeds if len(seeds) > 1 else ()


def difference(
    first: Sequence[Score | None], second: Sequence[Score | None], label: tuple[str, str, str, str], *,
    flips: int = FLIPS,
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
    golds = [{s.cells[0].record.benchmark_sha256 for s in pair} for pair in there]
    if any(a.means.keys() != b.means.keys() for a, b in there) or any(len(of) > 1 for of in golds):
        return Difference(*label, "other problems")
    if missing := sum(a.estimate.missing + b.estimate.missing for a, b in there):
        return Difference(*label, "samples missing", missing=missing)
    strata, by_seed, seeds = [], [], _common_seeds(there)
    for a, b in there:
        ids = sorted(a.means)
        strata.append([a.means[i] - b.means[i] for i in ids])
        if seeds:
            first_QS, second_QS = (
                np.array([[(x.means if x.is_base else x.by_seed[s])[i] for s in seeds] for i in ids]) for x in (a, b)
            )
            by_seed.append(first_QS - second_QS)
    flat = paired_average(strata, resamples=flips)
    values, p, test = (flat.mean, flat.se, flat.low, flat.high), flat.sign_flip, "sign flip"
    if seeds:
        c = crossed(by_seed)
        values, p, test = (c.mean, c.se, c.low, c.high), c.p, "t over problems and seeds"
    return Difference(
        *label,
        "run",
        *map(percent, values),
        test=test,
        p=rounded(p),
        p_sign_flip=rounded(flat.sign_flip),
        problems=flat.problems,
        seeds=list(seeds),
    )


def differences(
    scores: Mapping[ScoreKey, Score], size: str, methods: Sequence[str], benchmarks: Sequence[str], table: str
) -> list[Difference]:
    """All comparisons of one size, Holm's correction still to come (`adjust`).

    Args:
        table: names the table that shows them, and with it their family.
    """
    columns = {**{b: (b,) for b in benchmarks}, labels.AVERAGE: tuple(benchmarks)}
    out = []
    for method, against in [
        *((m, labels.BASE) for m in methods),
        *((METHOD, b) for b in labels.METHODS if b != METHOD),
    ]:
        for name, parts in columns.items():
            family = f"{table}, {'averages' if name == labels.AVERAGE else 'single benchmarks'}"
            for s in SETTINGS:
                first, second = ([scores.get((size, m, b, s)) for b in parts] for m in (method, against))
                d = difference(first, second, (method, against, name, s))
                out.append(replace(d, family=family) if d.p is not None else d)
    return out


def adjust(found: Sequence[Difference]) -> tuple[list[Difference], dict[str, int]]:
    """The differences with Holm's adjusted p-values, and how many tests each family holds."""
    p: dict[str, list[float]] = defaultdict(list)
    for d in found:
        if d.p is not None:
            p[d.family].append(d.p)
    adjusted = {family: iter(holm(values)) for family, values in p.items()}
    done = [d if d.p is None else replace(d, p_holm=rounded(next(adjusted[d.family]))) for d in found]
    return done, {family: len(values) for family, values in p.items()}
