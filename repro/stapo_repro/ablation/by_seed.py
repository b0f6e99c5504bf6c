"""What the ablation's records say: accuracies by problem and seed, entropies, rewards and shares by seed. Pure.

A quantity is a sum of terms, such as (+1, stapo) and (-1, justrl). It is formed seed by seed, and accuracies also
problem by problem, before anything is averaged: seed s of two methods starts from the same weights and sees the same
prompts in the same order, so what a seed does to both drops out of their difference.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from stapo_repro import labels
from stapo_repro.records.reading import Loaded, TrainingRun, final_step
from stapo_results.errors import RecordError
from stapo_results.schema import StepMetrics
from stapo_results.statistics import average, clustered, parse_verdicts, problem_means
from stapo_results.statistics.crossed import Crossed, crossed, over_seeds

SEEDS = (0, 1, 2)
"""The planned training seeds. A result over fewer is named incomplete and judges no claim."""

Measure = Literal["reward", "entropy", "entropy_std", "entropy_rise", "silenced_share", "silenced_late"]
MEASURES: tuple[Measure, ...] = get_args(Measure)


@dataclass(frozen=True)
class Number:
    """A quantity over seeds, rounded to eight decimals (beyond that two machines may differ).

    Attributes:
        status: "run" with all planned seeds, "incomplete" with fewer, "not run" without any; "no value" when there are
            trainings, but none that gives it (too few steps, or a metric that was not logged).
        mean, low, high: accuracies and shares in percent, entropies in nats, rewards as they are.
        se_problems, se_seeds: the two standard errors behind the interval.
        seeds: the value of each seed.
        missing: by method, such as "JustRL seeds 1, 2".
    """

    status: Literal["run", "incomplete", "no value", "not run"]
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    se_problems: float | None = None
    se_seeds: float | None = None
    seeds: dict[str, float] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class SeedResults:
    """Everything that was read.

    Attributes:
        scores: (method, benchmark, setting) -> seed -> problem -> mean of its samples (NaN: no sample).
        measures: method -> seed -> measure -> value of a finished training; what was not logged is not there.
        seeds: planned and found.
        steps: training steps of all runs; None without any.
        benchmarks: in the table's order.
    """

    scores: Mapping[tuple[str, str, str], Mapping[int, Mapping[str, float]]]
    measures: Mapping[str, Mapping[int, Mapping[str, float]]]
    seeds: tuple[int, ...]
    steps: int | None
    benchmarks: tuple[str, ...] = tuple(labels.MINI_BENCHMARKS)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _std(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def run_measures(steps: Sequence[StepMetrics]) -> dict[str, float]:
    """The numbers of one training.

    The last quarter holds the steps k with 4 k > 3 K (K the last step), the first those with 1 <= k and 4 k <= K. Of
    40 steps these are 31 to 40 and 1 to 10.

    Returns:
        reward: mean over the last quarter. entropy: the same, in nats. entropy_std: standard deviation over the steps
        of the last quarter (divided by n - 1). entropy_rise: last quarter's mean minus the first's. silenced_share:
        silenced response tokens as a fraction, mean over all steps; silenced_late: over the last quarter. A measure is
        left out when a step lacks its metric or when there are too few steps.
    """
    trained = [s for s in steps if s.step >= 1]
    last = max((s.step for s in trained), default=0)

    def values(metric: str, part: Sequence[StepMetrics]) -> list[float]:
        found = [s.values.get(metric, math.nan) for s in part]
        return found if all(map(math.isfinite, found)) else []

    late, early = [s for s in trained if 4 * s.step > 3 * last], [s for s in trained if 4 * s.step <= last]
    entropy = values("entropy", late)
    all_of_them: dict[str, float] = {
        "reward": _mean(values("reward", late)),
        "entropy": _mean(entropy),
        "entropy_std": _std(entropy),
        "entropy_rise": _mean(entropy) - _mean(values("entropy", early)),
        "silenced_share": _mean(values("silenced_share", trained)),
        "silenced_late": _mean(values("silenced_share", late)),
    }
    return {k: v for k, v in all_of_them.items() if math.isfinite(v)}


def gather(cells: Sequence[Loaded], runs: Sequence[TrainingRun]) -> SeedResults:
    """Order the records by method and seed.

    Trainings that are not finished count as not there.

    Raises:
        RecordError: a record of something else than the ablation, two of one thing, other problems, or other steps.
    """
    final, _ = final_step(cells)
    scores: dict[tuple[str, str, str], dict[int, dict[str, float]]] = defaultdict(dict)
    problems: dict[str, tuple[set[str], str]] = {}
    steps: dict[int, str] = {}
    for c in final:
        cell = c.record.cell
        _check_label(cell.method, cell.size, cell.benchmark, c.path)
        means = problem_means([parse_verdicts(p.verdicts) for p in c.record.problems])
        by_problem = {p.problem_id: float(m) for p, m in zip(c.record.problems, means, strict=True)}
        ids, first = problems.setdefault(cell.benchmark, (set(by_problem), c.path))
        if ids != set(by_problem):
            raise RecordError(
                f"two records of {cell.benchmark} hold different problems",
                found=f"{first}: {len(ids)}, {c.path}: {len(by_problem)}",
                expected="the same problems for every method and seed",
                next_step="evaluate all with the same --limit",
            )
        if cell.train_seed in scores[cell.method, cell.benchmark, cell.setting]:
            raise RecordError(
                f"two evaluations of {cell.method} with training seed {cell.train_seed}",
                found=c.path,
                expected="one evaluation seed in the ablation",
                next_step="leave one of the two out of the records folder",
            )
        scores[cell.method, cell.benchmark, cell.setting][cell.train_seed] = by_problem
        if cell.step != "base":
            steps.setdefault(int(cell.step), c.path)
    measures: dict[str, dict[int, dict[str, float]]] = defaultdict(dict)
    for r in runs:
        _check_label(r.method, r.size, None, r.path)
        if r.status != "done" or not r.steps:
            continue
        if r.seed in measures[r.method]:
            raise RecordError(f"two trainings of {r.method} with seed {r.seed}", found=r.path, expected="one")
        measures[r.method][r.seed] = run_measures(r.steps)
        steps.setdefault(r.steps[-1].step, r.path)
    if len(steps) > 1:
        raise RecordError(
            "the ablation's runs were not trained equally long",
            found=", ".join(f"{path}: {step} steps" for step, path in sorted(steps.items())),
            expected="one number of steps",
            next_step="collect one run of `stapo-repro ablation` into a folder of its own",
        )
    found = {s for by in scores.values() for s in by} | {s for by in measures.values() for s in by}
    return SeedResults(scores, measures, tuple(sorted({*SEEDS, *found})), next(iter(steps), None))


def _check_label(method: str, size: str, benchmark: str | None, path: str) -> None:
    known = benchmark is None or benchmark in labels.MINI_BENCHMARKS
    if size != labels.MINI or method not in (labels.BASE, *labels.ABLATION) or not known:
        raise RecordError(
            f"{path} is no record of the ablation",
            found=f"{method}/{size}" + (f" on {benchmark}" if benchmark else ""),
            expected=f"{' | '.join(labels.ABLATION)} of size {labels.MINI} on {' | '.join(labels.MINI_BENCHMARKS)}",
            next_step="name a folder that holds a run of `stapo-repro ablation` alone",
        )


def rounded(value: float, factor: float = 1.0) -> float | None:
    """Eight decimals, None for NaN."""
    return None if math.isnan(value) else round(value * factor, 8) + 0.0


def _number(found: Crossed, seeds: Sequence[int], missing: list[str], factor: float) -> Number:
    mean, low, high = (rounded(x, factor) for x in (found.mean, found.low, found.high))
    by_seed = {str(s): v for s, x in zip(seeds, found.seeds, strict=True) if (v := rounded(x, factor)) is not None}
    parts = (rounded(found.se_problems, factor), rounded(found.se_seeds, factor))
    return Number("incomplete" if missing else "run", mean, low, high, *parts, by_seed, missing)


def _missing(results: SeedResults, lacking: Mapping[str, set[int]]) -> list[str]:
    out = []
    for method, seeds in lacking.items():
        if gone := [str(s) for s in results.seeds if s in seeds]:
            out.append(f"{labels.method_label(method)} seed{'s' if len(gone) > 1 else ''} {', '.join(gone)}")
    return out


AccuracyTerm = tuple[float, str, str]
"""(sign, method, setting)"""


def accuracy(results: SeedResults, terms: Sequence[AccuracyTerm], benchmarks: Sequence[str]) -> Number:
    """A sum of accuracies in percent, averaged over problems, seeds and (unweighted) benchmarks."""

    def has(method: str, setting: str, seed: int) -> bool:
        found = [results.scores.get((method, b, setting), {}).get(seed) for b in benchmarks]
        return all(f is not None and not any(map(math.isnan, f.values())) for f in found)

    lacking = {m: {s for s in results.seeds for _, n, t in terms if n == m and not has(m, t, s)} for _, m, _ in terms}
    seeds = [s for s in results.seeds if not any(s in gone for gone in lacking.values())]
    missing = _missing(results, lacking)
    if not seeds:
        return Number("not run", missing=missing)
    strata = []
    for b in benchmarks:
        ids = sorted(results.scores[terms[0][1], b, terms[0][2]][seeds[0]])
        columns = [
            [math.fsum(sign * results.scores[m, b, t][s][i] for sign, m, t in terms) for i in ids] for s in seeds
        ]  # fmt: skip
        strata.append(np.array(columns).T)
    return _number(crossed(strata, fractions=len(terms) == 1), seeds, missing, 100.0)


def base_accuracy(results: SeedResults, benchmarks: Sequence[str], setting: str) -> Number:
    """The base model in percent: one model, so its interval is over problems alone."""
    found = [next(iter(results.scores.get((labels.BASE, b, setting), {}).values()), {}) for b in benchmarks]
    if not all(f and not any(map(math.isnan, f.values())) for f in found):
        return Number("not run", missing=[labels.method_label(labels.BASE)])
    c = average([clustered(list(f.values())) for f in found])
    mean, low, high, se = (rounded(x, 100.0) for x in (c.mean, c.low, c.high, c.se))
    return Number("run", mean, low, high, se)


def measure(
    results: SeedResults, terms: Sequence[tuple[float, str]], name: Measure, *, reference: float = 0.0
) -> Number:  # fmt: skip
    """A sum of one measure of the trainings less `reference`, averaged over seeds; shares in percent."""
    lacking = {m: {s for s in results.seeds if name not in results.measures.get(m, {}).get(s, {})} for _, m in terms}
    seeds = [s for s in results.seeds if not any(s in gone for gone in lacking.values())]
    missing = _missing(results, lacking)
    if not seeds:
        trained = [s for s in results.seeds if all(s in results.measures.get(m, {}) for _, m in terms)]
        return Number("no value" if trained else "not run", missing=missing)
    values = [math.fsum(sign * results.measures[m][s][name] for sign, m in terms) - reference for s in seeds]
    return _number(over_seeds(values), seeds, missing, 100.0 if name.startswith("silenced") else 1.0)
