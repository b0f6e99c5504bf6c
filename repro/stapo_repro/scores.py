"""From records to scores: one score a (size, method, benchmark, setting), and paired differences of two of them.

Pure functions of the records. All values are fractions; the table turns them into percent.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from stapo_repro.records import Loaded
from stapo_results.errors import RecordError
from stapo_results.statistics import Estimate, Paired, bootstrap, clustered, paired, parse_verdicts, problem_means


@dataclass(frozen=True)
class Score:
    """What the records say of one (size, method, benchmark, setting), pooled over seeds.

    Attributes:
        estimate: avg@N clustered by problem; samples of several training seeds of one problem stand side by side, so
            the interval covers the choice of problems and the sampling, not the spread between training runs.
        bootstrap: percentile interval, problems resampled.
        means: problem id -> mean of its samples.
        rows: problems the benchmark holds (more than `estimate.problems` when only a part was run).
        fewest: present samples of the problem that has the fewest.
        seeds: training seed -> score.
        cells: the records it was made of.
    """

    estimate: Estimate
    bootstrap: tuple[float, float]
    means: dict[str, float]
    rows: int
    fewest: int
    seeds: dict[int, float]
    cells: tuple[Loaded, ...]

    @property
    def complete(self) -> bool:
        """All problems of the benchmark with all their samples."""
        return self.estimate.missing == 0 and self.estimate.problems == self.rows


ScoreKey = tuple[str, str, str, str]


def score(cells: Sequence[Loaded]) -> Score:
    """Pool the records of one (size, method, benchmark, setting).

    Raises:
        RecordError: the records hold different problems.
    """
    first = cells[0]
    ids = [p.problem_id for p in first.record.problems]
    rows: dict[str, list[float]] = {i: [] for i in ids}
    by_seed: dict[int, list[list[float]]] = defaultdict(list)
    for c in cells:
        if {p.problem_id for p in c.record.problems} != set(ids):
            raise RecordError(
                f"two records of {c.record.cell.method} on {c.record.cell.benchmark} hold different problems",
                found=f"{first.path}: {len(ids)}, {c.path}: {len(c.record.problems)}",
                expected="the same problems for every seed",
                next_step="evaluate all seeds with the same --limit, or name one run's folder only",
            )
        verdicts = {p.problem_id: parse_verdicts(p.verdicts) for p in c.record.problems}
        for i in ids:
            rows[i] += verdicts[i]
        by_seed[c.record.cell.train_seed].append([float(m) for m in problem_means([verdicts[i] for i in ids])])
    scores = [rows[i] for i in ids]
    means = dict(zip(ids, (float(m) for m in problem_means(scores)), strict=True))
    return Score(
        estimate=clustered(scores),
        bootstrap=bootstrap([list(means.values())]),
        means=means,
        rows=max(c.record.benchmark_rows for c in cells),
        fewest=min(sum(not math.isnan(x) for x in row) for row in scores),
        seeds={s: math.fsum(m for run in runs for m in run) / sum(map(len, runs)) for s, runs in by_seed.items()},
        cells=tuple(cells),
    )


def score_all(cells: Sequence[Loaded]) -> dict[ScoreKey, Score]:
    """Scores by (size, method, benchmark, setting), of final checkpoints only (see `records.final_step`)."""
    groups: dict[ScoreKey, list[Loaded]] = defaultdict(list)
    for c in cells:
        cell = c.record.cell
        groups[cell.size, cell.method, cell.benchmark, cell.setting].append(c)
    return {key: score(groups[key]) for key in sorted(groups)}


def difference(first: Score, second: Score) -> Paired:
    """First minus second, paired by problem.

    Raises:
        BadInput: the two were not evaluated on the same problems.
    """
    return paired(first.means, second.means)
