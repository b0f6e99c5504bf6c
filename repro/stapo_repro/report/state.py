"""How far the reproduction is: what of each model has records, and what each missing cell would take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stapo_repro import labels
from stapo_repro.planner import plan as planner
from stapo_repro.read import TrainingRun
from stapo_repro.tables import Section, Table
from stapo_results.schema import SETTINGS

HARDWARE = "8gpu"  # the default of `stapo-repro run` for these cells; written out, since the hours are this machine's


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


def _missing(row: planner.ModelPlan, machine: str) -> dict[str, Any]:
    lacks = row.lacks
    columns = (
        lacks.words(),
        planner.hours(row.training, "-" if lacks.method == labels.BASE else "there"),
        planner.hours(row.evaluation, "there"),
        planner.number(row.gpu_hours),
        machine,
        f"{planner.number(row.disk)} ({planner.number(row.least)})",
    )
    command = f"stapo-repro run {lacks.method}/{lacks.size} --hardware {HARDWARE} --dry-run"
    words = [w for p in row.parts for w in p.words]
    return {"name": lacks.name, "columns": columns, "command": command, "words": words}


def todo(roots: Sequence[Path], skip: Sequence[str]) -> dict[str, Any]:
    """What every cell of the paper's table that is not run would take on eight GPUs, as texts.

    Raises:
        RecordError: a broken record.
    """
    found = planner.build(planner.all_cells(), roots, hardware=HARDWARE, skip=skip)
    machine = f"{found.machine.gpus} x {found.card}"
    return {
        "machine": machine,
        "rows": [_missing(row, machine) for row in found.rows],
        "gpu_hours": planner.number(planner.total(r.gpu_hours for r in found.rows)),
        "assumptions": planner.assumptions(found.card),
        "paper": planner.paper_words(),
    }
