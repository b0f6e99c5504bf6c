"""The report as one value, made from records, the paper's printed numbers and, where they are named, run folders.

The committed records hold two experiments, the main one and the ablation, whose cells have the same ids; each is a part
with its own figures, cells and runs.
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
from stapo_repro.pages import outputs
from stapo_repro.records.reading import Loaded, TrainingRun, load_cells, load_theory, load_training_runs
from stapo_repro.report import cells as cell_views
from stapo_repro.report import responses, runs, state
from stapo_repro.report.cells import CellView, Model
from stapo_repro.report.grids import SortedGrid, sortable
from stapo_repro.report.pictures import Glyphs, Picture, picture
from stapo_repro.report.responses import Shown
from stapo_repro.report.runs import RunView
from stapo_repro.report.state import Size, Todo
from stapo_repro.report.text import anchors
from stapo_repro.tables import Table
from stapo_repro.tables.render.view import introduction, main_grid, stamp, state_of_paper_cells
from stapo_repro.tables.render.view_statistics import difference_grid, gains_grid
from stapo_results.schema import Theory

_NOTHING = Shown((), 0)


@dataclass(frozen=True)
class Part:
    """One experiment. `shown`: cell's anchor -> its responses, of cells that a run folder made."""

    title: str
    pictures: tuple[Picture, ...]
    models: tuple[Model, ...]
    shown: Mapping[str, Shown]
    runs: tuple[RunView, ...]


@dataclass(frozen=True)
class ClaimRow:
    """A claim of the paper that the ablation judges, as texts."""

    number: int
    claim: str
    place: str
    quantity: str
    value: str
    interval: str
    verdict: str


@dataclass(frozen=True)
class Masks:
    """The ablation's judged claims."""

    headline: str
    rule: str
    rows: tuple[ClaimRow, ...]
    stamp: str


@dataclass(frozen=True)
class Report:
    """Everything that the page shows.

    Attributes:
        notice: what must be read before anything else; "" where there is nothing.
        links: path of a record as the table has it -> address in the page.
        glyphs: outlines that all pictures use.
        masks: None where the ablation is not among the records.
    """

    title: str
    notice: str
    sizes: tuple[Size, ...]
    counts: tuple[tuple[str, str], ...]
    state: str
    introduction: str
    main: tuple[SortedGrid, ...]
    differences: tuple[SortedGrid, ...]
    gains: SortedGrid
    links: Mapping[str, str]
    glyphs: Glyphs
    audit: Audit
    masks: Masks | None
    todo: Todo
    parts: tuple[Part, ...]
    stamps: tuple[str, ...]


@dataclass(frozen=True)
class _Source:
    name: outputs.Part
    title: str
    roots: Sequence[Path]
    skip: tuple[str, ...]
    cells: Sequence[Loaded]
    trainings: Sequence[TrainingRun]
    theory: Sequence[Theory]
    prefix: str


def _source(name: outputs.Part, title: str, roots: Sequence[Path], skip: tuple[str, ...]) -> _Source:
    theory = load_theory(roots) if name == "main" else []
    cells, trainings = load_cells(roots, skip), load_training_runs(roots, skip)
    return _Source(name, title, roots, skip, cells, trainings, theory, name[0])


def _sources(records: Sequence[Path], run_folders: Sequence[Path]) -> list[_Source]:
    """The folders that were named; without any the committed ones, the ablation apart."""
    named = list(records) or list(run_folders)
    if named:
        return [_source("main", "Runs", named, ())]
    roots, skip = outputs.main_roots(())
    found = [_source("main", "Main experiment", roots, skip)]
    if apart := outputs.ablation_roots(()):
        found.append(_source("ablation", "Ablation", apart, ()))
    return found


def _anchor(source: _Source) -> dict[str, str]:
    return anchors((c.record.cell.id for c in source.cells), source.prefix)


def _first_of_problem(shown: Shown, anchor: str) -> dict[str, str]:
    first: dict[str, str] = {}
    for number, r in enumerate(shown.responses):
        first.setdefault(r.problem, f"{anchor}-r{number}")
    return first


def _part(source: _Source, run_folders: Sequence[Path], page_folder: Path, most: int, glyphs: Glyphs) -> Part:
    anchor = _anchor(source)
    held = responses.load(run_folders, source.cells, most) if run_folders else {}
    listed = runs.load(source.roots, page_folder, source.skip, source.prefix)
    made_by = {run.id: run.anchor for run in listed}

    def view(c: Loaded) -> CellView:
        i = c.record.cell.id
        first = _first_of_problem(held.get(i, _NOTHING), anchor[i])
        return cell_views.view(c, anchor[i], page_folder, first, made_by.get(c.record.run_id, ""))

    drawn = outputs.draw(source.name, source.cells, source.trainings, kinds=("svg",), theory=source.theory)
    return Part(
        title=source.title,
        pictures=tuple(picture(d.name, d.title, d.caption, d.files["svg"], glyphs) for d in drawn),
        models=tuple(cell_views.by_model([view(c) for c in source.cells])),
        shown={anchor[i]: s for i, s in held.items()},
        runs=tuple(listed),
    )  # fmt: skip


def _claim(number: int, judged: claims.JudgedClaim) -> ClaimRow:
    c, n = judged.claim, judged.number
    digits = 2 if c.measure == "accuracy" else render_ablation.MEASURES[c.measure][2]
    interval = "" if n.low is None else f"{tables.shown(n.low, digits)} to {tables.shown(n.high, digits)}"
    value = n.status if n.mean is None else tables.signed(n.mean, digits)
    if n.status == "incomplete":
        value += f", of {len(n.seeds)} seeds"
    quantity = f"{render_ablation.quantity(c)}; claimed {c.direction} 0"
    return ClaimRow(number, c.claim, c.place, quantity, value, interval, judged.verdict)


def _masks(source: _Source) -> Masks:
    a = ablation.build(source.cells, source.trainings, claims.load())
    rows = tuple(_claim(n, j) for n, j in enumerate(a.claims, 1))
    made_of = (
        f"Ablation: {len(a.records)} evaluation records, {len(a.trainings)} trainings, inputs {a.inputs_sha256[:16]}."
    )
    return Masks(render_ablation.headline(a), a.rule, rows, made_of)


def _main(table: Table) -> tuple[SortedGrid, ...]:
    return tuple(sortable(main_grid(s), [r.label for r in s.rows]) for s in table.sections)


def _differences(table: Table) -> tuple[SortedGrid, ...]:
    grids = [difference_grid(s, table.families) for s in table.sections]
    return tuple(sortable(g) for g in grids if g is not None)


def _counts(table: Table, sources: Sequence[_Source], sizes: Sequence[Size], audit: Audit) -> list[tuple[str, str]]:
    paper_models = [m for s in sizes if not s.miniature for m in s.models[1:]]
    mini = [m for s in sizes if s.miniature for m in s.models[1:]]
    findings = sum(len(c.findings) for c in audit.checks)
    return [
        (f"{sum(m.run == m.cells for m in paper_models)} of {len(paper_models)}", "models of the paper run"),
        (f"{sum(m.run == m.cells for m in mini)} of {len(mini)}", "methods run in miniature"),
        (f"{sum(len(s.cells) for s in sources):,}", "evaluation records"),
        (f"{sum(len(s.trainings) for s in sources):,}", "training records"),
        (f"{findings}", "findings of the audit"),
    ]


def _notice(sources: Sequence[_Source]) -> str:
    made_up = sum("synthetic" in c.record.engine for s in sources for c in s.cells)
    total = sum(len(s.cells) for s in sources)
    return f"SYNTHETIC RECORDS: {made_up} of {total} were made up for a test. This is no result." if made_up else ""


def build(
    records: Sequence[Path] = (),
    run_folders: Sequence[Path] = (),
    page_folder: Path = Path(),
    most: int = responses.SHOWN,
) -> Report:
    """The report of the records below `records`, or below the run folders, or else of the committed ones.

    Args:
        run_folders: folders whose single responses are shown.
        page_folder: where the page will stand; records below it are linked.
        most: responses in all.

    Raises:
        BadInput, RecordError: as reading the records does.
    """
    sources, glyphs = _sources(records, run_folders), Glyphs()
    main = sources[0]
    table = tables.build(main.cells, paper.load())
    sizes = state.overview(table, main.trainings)
    audit = load_and_audit()
    masks = next((_masks(s) for s in sources if s.name == "ablation"), None)
    anchor = _anchor(main)
    parts = tuple(_part(s, run_folders, page_folder, most, glyphs) for s in sources)
    audited = f"Audit: inputs {audit.inputs_sha256[:16]}."
    return Report(
        title="STAPO reproduction",
        notice=_notice(sources),
        sizes=tuple(sizes),
        counts=tuple(_counts(table, sources, sizes, audit)),
        state=state_of_paper_cells(table),
        introduction=introduction(table),
        main=_main(table),
        differences=_differences(table),
        gains=sortable(gains_grid(table)),
        links={c.path: f"#{anchor[c.record.cell.id]}" for c in main.cells},
        glyphs=glyphs,
        audit=audit,
        masks=masks,
        todo=state.todo(main.roots, main.skip),
        parts=parts,
        stamps=(stamp(table), *((masks.stamp,) if masks else ()), audited),
    )
