"""From records to scores: one score a (size, method, benchmark, setting), and the average over benchmarks.

Pure functions of the records. All values are fractions; the table turns them into percent.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from stapo_repro.read import Loaded
from stapo_results.errors import RecordError
from stapo_results.statistics import (
    Estimate,
    average,
    bootstrap,
    clustered,
    parse_verdicts,
    problem_means,
    sampling_se,
)
from stapo_results.statistics.crossed import crossed


@dataclass(frozen=True)
class Score:
    """What the records say of one (size, method, benchmark, setting).

    With one training seed the interval covers the choice of problems and the sampling: a statement about that model.
    With several it covers the choice of seeds too (`crossed`): a statement about the method.

    Attributes:
        estimate: mean, standard error and interval; `samples` counts those of all seeds.
        se_problems: standard error over problems (with the sampling in it).
        se_seeds: standard error over training seeds; NaN with one.
        se_sampling: the part of `se_problems` that more samples would remove; NaN where samples are missing.
        bootstrap: percentile interval, problems resampled (seeds are not).
        by_seed: training seed -> problem id -> mean of its samples, over evaluation seeds.
        rows: problems the benchmark holds (more than `estimate.problems` when only a part was run).
        fewest: present samples of the problem that has the fewest.
        cells: the records it was made of.
    """

    estimate: Estimate
    se_problems: float
    se_seeds: float
    se_sampling: float
    bootstrap: tuple[float, float]
    by_seed: dict[int, dict[str, float]]
    rows: int
    fewest: int
    cells: tuple[Loaded, ...]

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
    def seeds(self) -> dict[int, float]:
        """Training seed -> score."""
        return {s: math.fsum(m.values()) / len(m) for s, m in self.by_seed.items()}

    def matrix(self) -> NDArray[np.float64]:
        """Problem means (Q, S), columns in the order of the seeds."""
        return np.array([list(self.by_seed[s].values()) for s in sorted(self.by_seed)]).T


ScoreKey = tuple[str, str, str, str]


def _check_alike(cells: Sequence[Loaded]) -> None:
    one = cells[0]
    for c in cells[1:]:
        for what, (a, b) in {
            "problems": [sorted(p.problem_id for p in x.record.problems) for x in (one, c)],
            "gold answers": [x.record.benchmark_sha256 for x in (one, c)],
        }.items():
            if a != b:
                shown = [f"{x.file}: {len(v) if isinstance(v, list) else v[:16]}" for x, v in ((one, a), (c, b))]
                raise RecordError(
                    f"two records of {c.record.cell.method} on {c.record.cell.benchmark} hold different {what}",
                    found=", ".join(shown),
                    expected=f"the same {what} for every seed",
                    next_step="evaluate all seeds on the same copy and --limit, or name one run's folder only",
                )


def score(cells: Sequence[Loaded]) -> Score:
    """Put the records of one (size, method, benchmark, setting) together.

    Raises:
        RecordError: the records hold different problems or gold answers.
    """
    _check_alike(cells)
    ids = [p.problem_id for p in cells[0].record.problems]
    rows: dict[int, dict[str, list[float]]] = defaultdict(lambda: {i: [] for i in ids})
    for c in sorted(cells, key=lambda c: c.record.cell.train_seed):
        for p in c.record.problems:
            rows[c.record.cell.train_seed][p.problem_id] += parse_verdicts(p.verdicts)
    by_seed = {s: dict(zip(ids, problem_means(list(r.values())).tolist(), strict=True)) for s, r in rows.items()}
    sampling = [sampling_se(list(r.values())) for r in rows.values()]
    together = [[x for r in rows.values() for x in r[i]] for i in ids]
    pooled = clustered(together)
    values = np.array([list(m.values()) for m in by_seed.values()]).T
    estimate, se_problems, se_seeds = pooled, pooled.se, math.nan
    if len(by_seed) > 1:
        estimate, se_problems, se_seeds = _over_seeds([values], pooled)
    return Score(
        estimate=estimate,
        se_problems=se_problems,
        se_seeds=se_seeds,
        se_sampling=math.sqrt(math.fsum(x**2 for x in sampling)) / len(sampling),
        bootstrap=bootstrap([values.mean(axis=1)]),
        by_seed=by_seed,
        rows=max(c.record.benchmark_rows for c in cells),
        fewest=min(sum(not math.isnan(x) for x in row) for row in together),
        cells=tuple(cells),
    )


def _over_seeds(matrices: Sequence[NDArray[np.float64]], counts: Estimate) -> tuple[Estimate, float, float]:
    """(estimate, SE over problems, SE over seeds) with the counts of `counts`; NaN where a problem has no sample."""
    size = (counts.problems, counts.samples, counts.missing)
    if any(np.isnan(m).any() for m in matrices):
        return Estimate(math.nan, math.nan, math.nan, math.nan, *size), math.nan, math.nan
    c = crossed(matrices, fractions=True)
    return Estimate(c.mean, c.se, c.low, c.high, *size), c.se_problems, c.se_seeds


def average_score(parts: Sequence[Score]) -> tuple[Estimate, float, float] | None:
    """(estimate, SE over problems, SE over seeds) of the unweighted mean over benchmarks.

    Returns:
        None where the benchmarks were not evaluated with the same training seeds: no model has that average.
    """
    seeds = {tuple(sorted(p.by_seed)) for p in parts}
    if len(seeds) > 1:
        return None
    plain = average([p.estimate for p in parts])
    if len(seeds.pop()) == 1:
        return plain, plain.se, math.nan
    return _over_seeds([p.matrix() for p in parts], plain)


def score_all(cells: Sequence[Loaded]) -> dict[ScoreKey, Score]:
    """Scores by (size, method, benchmark, setting), of final checkpoints only (see `records.final_step`)."""
    groups: dict[ScoreKey, list[Loaded]] = defaultdict(list)
    for c in cells:
        cell = c.record.cell
        groups[cell.size, cell.method, cell.benchmark, cell.setting].append(c)
    return {key: score(groups[key]) for key in sorted(groups)}
