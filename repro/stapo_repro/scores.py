"""From records to numbers: a score a (size, method, benchmark, setting), averages, paired differences, Holm's p.

Pure functions of the records. A score is a fraction and a difference is in percentage points.

Compared are each method with the base model, and STAPO with each other method, of one size at one setting, on each
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
from itertools import chain
from typing import Literal

import numpy as np

from stapo_repro import labels
from stapo_repro.read import Loaded
from stapo_repro.text import as_written, shown
from stapo_results.benchmarks import registry
from stapo_results.errors import RecordError
from stapo_results.resampling import bootstrap
from stapo_results.schema import SETTINGS, CellRecord
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
UNTRAINED = (labels.BASE, "external")
FLIPS = 100_000
"""Drawn sign flips a test: Holm's correction over a few hundred tests still tells small p-values apart."""

ScoreKey = tuple[str, str, str, str]


@dataclass(frozen=True)
class Score:
    """One benchmark, or the unweighted average of several, of one (size, method, setting).

    With one training seed the interval covers the choice of problems and the sampling: a statement about that model.
    With several it covers the choice of seeds too (`crossed`): a statement about the method.

    Attributes:
        shown: the printed text in percent (two decimals, half to even), or why there is no average.
        estimate: its `samples` count those of all seeds, and `se_problems` has their sampling in it.
        rows: problems the benchmark holds (more than `estimate.problems` when only a part was run).
        fewest_samples: those there are of the problem that has the fewest.
        cells: the records it was made of; none where there is no score.
        by_seed: training seed -> problem id -> mean of its samples, over evaluation seeds; empty for an average.
    """

    status: Literal["run", "not run", "incomplete", "paper"] = "not run"
    shown: str = ""
    estimate: Number = Number()
    rows: int = 0
    fewest_samples: int = 0
    cells: tuple[Loaded, ...] = ()
    by_seed: dict[int, dict[str, float]] = field(default_factory=dict)

    @property
    def percent(self) -> Number:
        """The estimate in percent."""
        return self.estimate.times(100)

    @property
    def seeds(self) -> dict[int, float]:
        """Training seed -> score in percent, where each problem has a sample."""
        seeds = sorted({c.record.cell.train_seed for c in self.cells})
        return {s: x for s, x in zip(seeds, self.percent.seeds, strict=True) if not math.isnan(x)}

    @property
    def records(self) -> list[str]:
        """Paths of the records."""
        return sorted(c.path for c in self.cells)

    @property
    def engines(self) -> set[tuple[str, str]]:
        """What sampled each benchmark, without versions: (benchmark, name)."""
        return {(c.record.cell.benchmark, engine_of(c.record)) for c in self.cells}

    @property
    def conditions(self) -> dict[tuple[str, str], object]:
        """(benchmark, what) -> how each benchmark was evaluated (`_conditions`), and the training step of the model."""
        records = {c.record.cell.benchmark: c.record for c in reversed(self.cells)}
        return {(name, what): value for name, r in records.items() for what, value in _conditions(r).items()}

    @property
    def is_base(self) -> bool:
        """A base model, or one without a method: one model, whose seeds are not drawn."""
        return all(c.record.cell.step == "base" and c.record.cell.method in UNTRAINED for c in self.cells)

    @cached_property
    def means(self) -> dict[str, float]:
        """Problem id -> mean over seeds of the mean of its samples."""
        ids = next(iter(self.by_seed.values()))
        return {i: math.fsum(m[i] for m in self.by_seed.values()) / len(self.by_seed) for i in ids}

    @property
    def truncated(self) -> float:
        """Responses in percent that met the limit of tokens; NaN without a response."""
        ends = sum((Counter(c.record.finish_reasons) for c in self.cells), Counter[str]())
        finished = ends["stop"] + ends["length"]
        return 100 * ends["length"] / finished if finished else math.nan


def engine_of(r: CellRecord) -> str:
    """The name of the engine that sampled, without its version."""
    return r.engine.partition(" ")[0]


def preset_of(r: CellRecord) -> str | None:
    """The grader's preset, such as "ours"; None in an older record, which names the versions alone."""
    name = (r.grader or "rules").partition(",")[0]
    return None if name.startswith("rules") else name


def _conditions(r: CellRecord) -> dict[str, object]:
    """What has to be the same in all records that are one number; None where a record does not say it.

    A judge is its weights, prompt, scope and mode: a folder and the hub's id of one model have two names.
    """
    judge = r.judge.rpartition("weights sha256:")[2] if r.judge and r.scored_by == "rule+judge" else None
    return {
        "problems": {p.problem_id for p in r.problems},
        "gold answers": r.benchmark_sha256,
        # ids of an own benchmark count its rows: in another order they are other problems
        "copies": None if r.cell.benchmark in registry() else r.revisions.get(f"data:{r.cell.benchmark}"),
        "limits of tokens": r.max_tokens,
        "prompts": r.chat,
        "refused options": sorted(r.options_refused),
        "contexts": r.context_limit.context if r.context_limit else 0,
        "graders": preset_of(r),
        "kinds of scoring": r.scored_by,
        "judges": judge,
        "engines": engine_of(r),
        "training steps": r.cell.step,
    }


def unlike(first: Score, second: Score) -> set[str]:
    """What two scores of the same benchmarks differ in; a base model has no training step."""
    here, there = first.conditions, second.conditions
    differing = {
        what for (name, what), value in here.items()
        if (other := there.get((name, what))) != value and None not in (value, other)
    }  # fmt: skip
    return differing - ({"training steps"} if first.is_base or second.is_base else set())


def _check_alike(cells: Sequence[Loaded]) -> None:
    first = dict[str, tuple[Loaded, object]]()  # what -> the first record that says it
    for c in cells:
        for what, value in _conditions(c.record).items():
            if value is None:
                continue
            one, expected = first.setdefault(what, (c, value))
            if value == expected:
                continue
            found = {x.file: len(y) if isinstance(y, set) else y for x, y in ((one, expected), (c, value))}
            raise RecordError(
                f"two records of {c.record.cell.method} on {c.record.cell.benchmark} have different {what}",
                found=" and ".join(f"{file} ({y})" for file, y in found.items()),
                expected=f"the same {what} for every seed",
                next_step="evaluate all seeds alike, or name one run's folder only",
            )


def score(cells: Sequence[Loaded]) -> Score:
    """The records of one (size, method, benchmark, setting) as one number.

    Raises:
        RecordError: the records differ in what one number has to have the same.
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
    estimate = _over_seeds([by_seed], clustered(together), sampling)
    return Score(
        "run" if estimate.known else "incomplete",
        shown(100 * estimate.mean),
        estimate,
        rows=max(c.record.benchmark_rows for c in cells),
        fewest_samples=min(sum(not math.isnan(x) for x in row) for row in together),
        cells=tuple(cells),
        by_seed=by_seed,
    )


def _over_seeds(parts: Sequence[dict[int, dict[str, float]]], pooled: Number, sampling: Sequence[float]) -> Number:
    """The number of parts, each a `Score.by_seed`, or with one seed `pooled`, which is over the samples of all seeds.
    Where a problem has no sample, only the seeds' means are known. `sampling`: standard errors of the parts."""
    matrices = [np.array([list(m.values()) for m in part.values()]).T for part in parts]  # (Q, S), by seed
    if matrices[0].shape[1] == 1:
        number = replace(pooled, se_problems=pooled.se, seeds=(pooled.mean,))
    elif any(np.isnan(m).any() for m in matrices):
        number = Number(seeds=tuple(math.fsum(seed) / len(seed) for seed in matrices[0].T))
    else:
        number = crossed(matrices, fractions=True)
    low, high = bootstrap([m.mean(axis=1) for m in matrices])
    return replace(
        number,
        problems=pooled.problems,
        samples=pooled.samples,
        missing=pooled.missing,
        se_sampling=math.sqrt(math.fsum(x**2 for x in sampling)) / len(sampling),
        bootstrap_low=low,
        bootstrap_high=high,
    )


def seeds_differ(parts: Sequence[Score]) -> bool:
    """Whether benchmarks were run with different training seeds: no model has their average."""
    return len({tuple(sorted(p.by_seed)) for p in parts}) > 1


def average(parts: Sequence[Score]) -> Score:
    """The unweighted mean over benchmarks, or in words why there is none: an average of what happens to be there is not
    comparable."""
    have = [p for p in parts if p.cells]
    if not have:
        return Score()
    if len(have) < len(parts) or not all(p.estimate.known for p in have):
        return Score("incomplete", f"{len(have)} of {len(parts)} run")
    if seeds_differ(have):
        return Score("incomplete", "seeds differ")
    pooled = average_estimate([p.estimate for p in have])
    estimate = _over_seeds([p.by_seed for p in have], pooled, [p.estimate.se_sampling for p in have])
    worst = min(have, key=lambda p: (p.fewest_samples / p.estimate.samples, p.estimate.samples))
    return Score(
        "run",
        shown(100 * estimate.mean),
        replace(estimate, samples=worst.estimate.samples),
        rows=sum(p.rows for p in have),
        fewest_samples=worst.fewest_samples,
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
        number: in points, `as_written`. `missing`: samples that one of the two lacks; a difference over the others may
            flatter, so there is none.
        p: of `test`, with the digits that are written. A sign flip of the problems' differences speaks about the two
            models; the t test with the standard errors over problems and seeds about the two methods.
        family: the tests over which `p_holm` is adjusted; empty without a p.
        seeds: training seeds over which it is paired too; empty with one.
    """

    method: str
    against: str
    benchmark: str
    setting: str
    status: Literal[
        "run", "not run", "other problems", "other engine", "evaluated otherwise", "samples missing", "seeds differ"
    ]
    number: Number = Number()
    test: str = ""
    p: float = math.nan
    p_holm: float = math.nan
    family: str = ""
    seeds: tuple[int, ...] = ()


def _common_seeds(pairs: Sequence[tuple[Score, Score]]) -> tuple[int, ...]:
    """The seeds over which two methods can be paired: the same on both sides and at least two; () otherwise.

    The base model is one model, so it pairs with every seed.
    """
    drawn = {tuple(sorted(s.by_seed)) for pair in pairs for s in pair if not s.is_base}
    seeds = next(iter(drawn)) if len(drawn) == 1 else ()
    return seeds if len(seeds) > 1 else ()


def difference(
    first: Sequence[Score], second: Sequence[Score], label: tuple[str, str, str, str], *,
    flips: int = FLIPS, across_engines: bool = False,
) -> Difference:  # fmt: skip
    """First minus second over one benchmark or, unweighted, over several, or why there is none.

    Args:
        first, second: scores on the same benchmarks in order.
        label: method, against, benchmark, setting.
        flips: drawn sign flips, few where the p-value is not used.
        across_engines: of two engines too: the difference is theirs as well.
    """
    pairs = list(zip(first, second, strict=True))
    if not all(s.cells for pair in pairs for s in pair):
        return Difference(*label, "not run")
    differing = {what for a, b in pairs for what in unlike(a, b)} - ({"engines"} if across_engines else set())
    if differing & {"problems", "gold answers", "copies"}:
        return Difference(*label, "other problems")
    if "engines" in differing:
        return Difference(*label, "other engine")
    if differing:
        return Difference(*label, "evaluated otherwise")
    if missing := sum(s.estimate.missing for pair in pairs for s in pair):
        return Difference(*label, "samples missing", Number(missing=missing))
    if any(seeds_differ(side) for side in (first, second)):
        return Difference(*label, "seeds differ")
    strata, by_seed, seeds = [], [], _common_seeds(pairs)
    for a, b in pairs:
        ids = sorted(a.means)
        strata.append([a.means[i] - b.means[i] for i in ids])
        if seeds:
            first_QS, second_QS = (
                np.array([[(x.means if x.is_base else x.by_seed[s])[i] for s in seeds] for i in ids]) for x in (a, b)
            )
            by_seed.append(first_QS - second_QS)
    number = paired_average(strata, resamples=flips)
    p, test = number.sign_flip, "sign flip"
    if seeds:
        number = replace(crossed(by_seed), sign_flip=number.sign_flip, problems=number.problems)
        p, test = number.p, "t over problems and seeds"
    return Difference(*label, "run", as_written(number.times(100)), test, round(p, 8), seeds=seeds)


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
        *((METHOD, b) for b in dict.fromkeys((*labels.METHODS, *methods)) if b != METHOD),
    ]:
        for name, parts in columns.items():
            family = f"{table}, {'averages' if name == labels.AVERAGE else 'single benchmarks'}"
            for s in SETTINGS:
                first, second = ([scores.get((size, m, b, s), Score()) for b in parts] for m in (method, against))
                d = difference(first, second, (method, against, name, s))
                out.append(d if math.isnan(d.p) else replace(d, family=family))
    return out


def adjust(sections: Mapping[str, Sequence[Difference]]) -> tuple[dict[str, list[Difference]], dict[str, int]]:
    """The differences with Holm's adjusted p-values, and how many tests each family holds."""
    p: dict[str, list[float]] = defaultdict(list)
    for d in chain.from_iterable(sections.values()):
        if d.family:
            p[d.family].append(d.p)
    adjusted = {family: iter(holm(values)) for family, values in p.items()}
    done = {id: [replace(d, p_holm=next(adjusted[d.family])) if d.family else d for d in found]
            for id, found in sections.items()}  # fmt: skip
    return done, {family: len(values) for family, values in p.items()}
