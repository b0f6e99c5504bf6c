"""The report as one value, made from records, the paper's printed numbers and, where they are named, run folders.

The committed records hold two experiments, the main one and the ablation, whose cells have the same ids; each has its
own figures, cells and runs in the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stapo_repro import paper, tables
from stapo_repro.ablation import build as ablation
from stapo_repro.ablation import claims
from stapo_repro.ablation import render as render_ablation
from stapo_repro.audit.findings import Audit
from stapo_repro.audit.run import load_and_audit
from stapo_repro.figures.canvas import Drawn
from stapo_repro.figures.experiment import ExperimentName
from stapo_repro.figures.inline import Glyphs, Picture, picture
from stapo_repro.records.reading import Loaded, TrainingRun
from stapo_repro.report import cells as cell_views
from stapo_repro.report import responses, runs, state
from stapo_repro.report.cells import CellView, Model
from stapo_repro.report.responses import ShownResponses
from stapo_repro.report.runs import RunView
from stapo_repro.tables.render.view import (
    Grid,
    difference_grids,
    gains_grid,
    introduction,
    main_grid,
    stamp,
    state_of_paper_cells,
)

_NONE_SHOWN = ShownResponses((), 0)


@dataclass(frozen=True)
class ReportedExperiment:
    """An experiment as it was read and drawn.

    Attributes:
        roots, skip: folders with its records, and folders in them that are left out.
        drawn: its figures, with their SVG.
    """

    name: ExperimentName
    title: str
    roots: Sequence[Path]
    skip: Sequence[str]
    cells: Sequence[Loaded]
    trainings: Sequence[TrainingRun]
    drawn: Sequence[Drawn]

    @property
    def anchors(self) -> dict[str, str]:
        """Cell id -> its anchor in the page."""
        return cell_views.anchors((c.record.cell.id for c in self.cells), self.name[0])


@dataclass(frozen=True)
class ExperimentSection:
    """One experiment in the page. `shown`: cell's anchor -> its responses, of cells that a run folder made."""

    title: str
    pictures: tuple[Picture, ...]
    models: tuple[Model, ...]
    shown: Mapping[str, ShownResponses]
    runs: tuple[RunView, ...]


@dataclass(frozen=True)
class JudgedClaim:
    """A claim of the paper that the ablation judges, as texts."""

    number: int
    claim: str
    place: str
    quantity: str
    value: str
    interval: str
    verdict: str


@dataclass(frozen=True)
class JudgedClaims:
    """All claims that the ablation judges, and the rule by which it does."""

    headline: str
    rule: str
    rows: tuple[JudgedClaim, ...]
    stamp: str


@dataclass(frozen=True)
class ReportPage:
    """Everything that the page shows.

    Attributes:
        notice: what must be read before anything else; "" where there is nothing.
        links: path of a record as the table has it -> address in the page.
        glyphs: outlines that all pictures use.
        masks: None where the ablation is not among the records.
    """

    notice: str
    sizes: Sequence[state.Size]
    counts: Sequence[tuple[str, str]]
    state: str
    introduction: str
    main: Sequence[Grid]
    differences: Sequence[Grid]
    gains: Grid
    links: Mapping[str, str]
    glyphs: Glyphs
    audit: Audit
    masks: JudgedClaims | None
    todo: state.Todo
    parts: Sequence[ExperimentSection]
    stamps: Sequence[str]


def _section(
    e: ReportedExperiment, run_folders: Sequence[Path], page_folder: Path, most: int, glyphs: Glyphs
) -> ExperimentSection:
    anchor = e.anchors
    held = responses.load(run_folders, e.cells, most) if run_folders else {}
    listed = runs.load(e.roots, page_folder, e.skip, e.name[0])
    made_by = {run.id: run.anchor for run in listed}

    def view(c: Loaded) -> CellView:
        i = c.record.cell.id
        first: dict[str, str] = {}
        for number, r in enumerate(held.get(i, _NONE_SHOWN).responses):
            first.setdefault(r.problem, f"{anchor[i]}-r{number}")
        return cell_views.view(c, anchor[i], page_folder, first, made_by.get(c.record.run_id, ""))

    return ExperimentSection(
        title=e.title,
        pictures=tuple(picture(d.name, d.title, d.caption, d.files["svg"], glyphs) for d in e.drawn),
        models=tuple(cell_views.by_model([view(c) for c in e.cells])),
        shown={anchor[i]: s for i, s in held.items()},
        runs=tuple(listed),
    )


def _claim(number: int, judged: claims.JudgedClaim) -> JudgedClaim:
    c, n = judged.claim, judged.number
    digits = 2 if c.measure == "accuracy" else render_ablation.MEASURES[c.measure][2]
    interval = "" if n.low is None else f"{tables.shown(n.low, digits)} to {tables.shown(n.high, digits)}"
    value = n.status if n.mean is None else tables.signed(n.mean, digits)
    if n.status == "incomplete":
        value += f", of {len(n.seeds)} seeds"
    quantity = f"{render_ablation.quantity(c)}; claimed {c.direction} 0"
    return JudgedClaim(number, c.claim, c.place, quantity, value, interval, judged.verdict)


def _masks(e: ReportedExperiment) -> JudgedClaims:
    a = ablation.build(e.cells, e.trainings, claims.load())
    rows = tuple(_claim(n, j) for n, j in enumerate(a.claims, 1))
    made_of = f"{len(a.records)} evaluation records, {len(a.trainings)} trainings, inputs {a.inputs_sha256[:16]}"
    return JudgedClaims(render_ablation.headline(a), a.rule, rows, f"Ablation: {made_of}.")


def _counts(read: Sequence[ReportedExperiment], sizes: Sequence[state.Size], audit: Audit) -> list[tuple[str, str]]:
    def complete(miniature: bool) -> str:
        models = [m for s in sizes if s.miniature == miniature for m in s.models[1:]]
        return f"{sum(m.run == m.cells for m in models)} of {len(models)}"

    return [
        (complete(miniature=False), "models of the paper run"),
        (complete(miniature=True), "methods run in miniature"),
        (f"{sum(len(e.cells) for e in read):,}", "evaluation records"),
        (f"{sum(len(e.trainings) for e in read):,}", "training records"),
        (f"{sum(len(c.findings) for c in audit.checks)}", "findings of the audit"),
    ]


def _notice(read: Sequence[ReportedExperiment]) -> str:
    cells = [c.record for e in read for c in e.cells]
    made_up = sum(r.synthetic for r in cells)
    if not made_up:
        return ""
    return f"SYNTHETIC RECORDS: {made_up} of {len(cells)} were made up for a test. This is no result."


def build(
    read: Sequence[ReportedExperiment], run_folders: Sequence[Path], page_folder: Path, most: int = responses.SHOWN
) -> ReportPage:
    """The report of the main experiment, which stands first in `read`, and of what follows it.

    Args:
        run_folders: folders whose single responses are shown.
        page_folder: where the page will stand; records below it are linked.
        most: responses in all.

    Raises:
        BadInput, RecordError: as reading the records does.
    """
    main, glyphs = read[0], Glyphs()
    table = tables.build(main.cells, paper.load())
    sizes = state.overview(table, main.trainings)
    audit = load_and_audit()
    masks = next((_masks(e) for e in read if e.name == "ablation"), None)
    anchor = main.anchors
    return ReportPage(
        notice=_notice(read),
        sizes=sizes,
        counts=_counts(read, sizes, audit),
        state=state_of_paper_cells(table),
        introduction=introduction(table),
        main=[main_grid(s) for s in table.sections],
        differences=difference_grids(table),
        gains=gains_grid(table),
        links={c.path: f"#{anchor[c.record.cell.id]}" for c in main.cells},
        glyphs=glyphs,
        audit=audit,
        masks=masks,
        todo=state.todo(main.roots, main.skip),
        parts=[_section(e, run_folders, page_folder, most, glyphs) for e in read],
        stamps=[stamp(table), *([masks.stamp] if masks else []), f"Audit: inputs {audit.inputs_sha256[:16]}."],
    )
