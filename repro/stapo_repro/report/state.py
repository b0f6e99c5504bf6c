"""How far the reproduction is: what of each model has records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stapo_repro import labels
from stapo_repro.read import TrainingRun
from stapo_repro.tables import Section, Table
from stapo_results.schema import SETTINGS


@dataclass(frozen=True)
class ModelState:
    """One model of a size: how many of its cells have complete records, and how many trainings are finished."""

    run: int
    cells: int
    trainings: int

    @property
    def text(self) -> str:
        if not self.run:
            return "not run"
        return f"{self.run} of {self.cells} cells" if self.run < self.cells else f"all {self.cells} cells"


@dataclass(frozen=True)
class Size:
    """A row of the overview."""

    label: str
    size: str
    models: list[ModelState]


def _model(section: Section, method: str, runs: Sequence[TrainingRun]) -> ModelState:
    rows = [r for r in section.rows if r.source == "ours" and r.method == method]
    values = [v for r in rows for b in section.benchmarks for v in r.values[b].values()]
    done = sum((r.method, r.size, r.status) == (method, section.size, "done") for r in runs)
    return ModelState(sum(v.complete for v in values), len(section.benchmarks) * len(SETTINGS), done)


def overview(table: Table, runs: Sequence[TrainingRun]) -> list[Size]:
    """Miniature, small model and the paper's sizes, with the methods of the paper's table."""
    sections = [s for s in table.sections if s.id in ("miniature", "small", *labels.PAPER_SIZES)]
    methods = (labels.BASE, *labels.METHODS)
    return [Size(labels.size_label(s.size), s.size, [_model(s, m, runs) for m in methods]) for s in sections]
