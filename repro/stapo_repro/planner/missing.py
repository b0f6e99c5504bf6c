"""Which cells have no record: what a model lacks before its row of the table is whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stapo_repro import labels
from stapo_repro.planner.facts import Where, whole_evaluation
from stapo_repro.records.reading import Loaded, TrainingRun
from stapo_results.benchmarks import registry
from stapo_results.schema import SETTINGS, CellRecord


@dataclass(frozen=True)
class Lacking:
    """What one model (method, size, training seed) lacks: its training, and evaluations by benchmark and setting."""

    method: str
    size: str
    seed: int
    training: bool
    evaluations: tuple[Where, ...]

    @property
    def name(self) -> str:
        return f"{self.method}/{self.size}" + (f" s{self.seed}" if self.seed else "")

    @property
    def nothing(self) -> bool:
        return not (self.training or self.evaluations)

    def words(self) -> str:
        """ "training + 3/12 evaluations" """
        whole = len(places(self.size))
        count = len(self.evaluations)
        parts = ["training"] if self.training else []
        if count:
            parts.append("evaluation" if count == whole else f"{count}/{whole} evaluations")
        return " + ".join(parts) or "nothing"


def places(size: str) -> tuple[Where, ...]:
    """Benchmarks and settings of a size."""
    if size == labels.MINI:
        return tuple((b, s) for b in labels.MINI_BENCHMARKS for s in SETTINGS)
    return whole_evaluation()


def is_whole(record: CellRecord) -> bool:
    """Every problem of the benchmark with all of its samples."""
    wanted = registry().get(record.cell.benchmark)
    enough = wanted is None or record.n >= wanted.samples
    there = all("-" not in p.verdicts for p in record.problems)
    return enough and there and len(record.problems) == record.benchmark_rows


def lacking(
    cells: Sequence[Loaded], runs: Sequence[TrainingRun], asked: Sequence[tuple[str, str]], seeds: Sequence[int]
) -> list[Lacking]:
    """What each asked (method, size) lacks, for each training seed (the base model has none and counts once).

    A training counts as done when its run's record says so, or when its last checkpoint was evaluated.
    """
    found = []
    for method, size in asked:
        for seed in (0,) if method == labels.BASE else seeds:
            mine = [c.record for c in cells if c.record.cell.model[:3] == (method, size, seed)]
            have = {(r.cell.benchmark, r.cell.setting) for r in mine if is_whole(r)}
            trained = method == labels.BASE or bool(mine)
            trained |= any((r.method, r.size, r.seed, r.status) == (method, size, seed, "done") for r in runs)
            left = tuple(p for p in places(size) if p not in have)
            found.append(Lacking(method, size, seed, not trained, left))
    return found
