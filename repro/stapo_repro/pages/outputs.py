"""Which files the commands `tables`, `figures` and `report` write, as paths and bytes.

Two experiments have tables and figures of their own: the main one (all of results/records but the testbed and the
short runs of further methods) and the testbed (results/records/testbed alone). Their cells share ids: both train JustRL
and STAPO with seed 0. So they are never read together.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from stapo_repro import labels, paper
from stapo_repro.calibration import graders
from stapo_repro.calibration import page as calibration
from stapo_repro.driver import times
from stapo_repro.driver.request import ON_CPU
from stapo_repro.pages import verified
from stapo_repro.paper import checkout
from stapo_repro.read import (
    APART,
    CAUSES,
    LABELS,
    METHODS,
    Loaded,
    TrainingRun,
    load_cells,
    load_training_runs,
)
from stapo_repro.testbed import build as testbed
from stapo_repro.testbed import claims as testbed_claims
from stapo_repro.testbed.plan import FOLDER
from stapo_repro.tokens import example, mismatch_page, planted_page, rare_page, readings
from stapo_results import generated, walks
from stapo_results.schema import Run
from stapo_results.sizes import SMALL
from stapo_results.store import read_json

if TYPE_CHECKING:
    from stapo_repro.figures.style import Drawn

ExperimentName = Literal["main", "testbed"]
_RECORDS = checkout() / "results" / "records"
_TESTBED_PAGE, _FIGURES = checkout() / "docs" / "testbed.md", "../results/figures"


def parts(of: ExperimentName | None, records: Sequence[Path]) -> tuple[ExperimentName, ...]:
    """Both from the committed records; the main one from a folder that was named, unless `of` says otherwise."""
    if of is not None:
        return (of,)
    return ("main",) if records else ("main", "testbed")


def roots(records: Sequence[Path]) -> tuple[list[Path], tuple[str, ...]]:
    """(folders with the main experiment's records, folders in them that are left out)"""
    return (list(records), ()) if records else ([_RECORDS], APART)


def load_testbed(records: Sequence[Path]) -> testbed.Testbed:
    """The testbed of the committed records, or of folders of main runs alone."""
    return testbed.build(testbed.read(_RECORDS / FOLDER, records), testbed_claims.load())


def main_tables(files: dict[Path, bytes], records: Sequence[Path], out: Path | None) -> None:
    """Adds the main table in every form; without `out` also the README's blocks, the gains' and the bench's."""
    from stapo_repro import tables
    from stapo_repro.pages import bench
    from stapo_repro.tables import render

    folder = out or checkout() / "results" / "tables"
    cells = load_cells(*roots(records))
    table = tables.build(cells, paper.load())
    links = {c.path: Path(os.path.relpath(c.file.resolve(), folder.resolve())).as_posix() for c in cells}
    forms = {
        "main_table.md": render.to_markdown(table),
        "main_table.csv": render.to_csv(table),
        "main_table.json": render.to_json(table),
        "main_table.html": render.to_page(table, links),
        "main_table.tex": render.to_latex(table),
        "main_table_document.tex": render.document(),
    }
    files |= {folder / name: text.encode() for name, text in forms.items()}
    if out:
        return
    readme, docs = checkout() / "README.md", checkout() / "docs"
    generated.renew(files, readme, "table", render.readme_block(table))
    generated.renew(files, readme, "times", times.page_block(_RECORDS, "miniature", "miniature"))
    of_small = times.page_block(_RECORDS, ON_CPU[SMALL], "run of the small model")
    generated.renew(files, docs / "small-model.md", "small-times", of_small)
    generated.renew(files, readme, "example", example.example_block(_RECORDS))
    generated.renew(files, docs / "statistics.md", "gains", render.gains_block(table))
    generated.renew(files, docs / "evaluation.md", "bench", bench.page_block(_RECORDS / "bench"))


def testbed_tables(files: dict[Path, bytes], records: Sequence[Path], out: Path | None) -> None:
    """Adds the testbed's tables and judged claims in two forms; without `out` also the blocks of its page."""
    from stapo_repro.testbed import render

    folder, value = out or checkout() / "results" / "tables", load_testbed(records)
    files |= {
        folder / "testbed.md": render.to_markdown(value).encode(),
        folder / "testbed.json": render.to_json(value).encode(),
    }
    for name, block in render.blocks(value).items() if not out else ():
        generated.renew(files, _TESTBED_PAGE, name, block)


def planted_tables(files: dict[Path, bytes], records: Sequence[Path], out: Path | None) -> None:
    """Adds what the masks silence of the miniature's planted words, as a file and on its page."""
    section = planted_page.section(load_training_runs(*roots(records)), "The miniature")
    folder, block = out or checkout() / "results" / "tables", planted_page.page_block(section)
    head = "# What the masks silence of the planted words (a tiny model on additions)"
    files[folder / "planted.md"] = f"{head}\n\n{block}\n".encode()
    if not out:
        generated.renew(files, checkout() / "docs" / "tokens.md", "planted", block)


def table_files(of: ExperimentName | None, records: Sequence[Path], out: Path | None) -> dict[Path, bytes]:
    """The tables of one or both experiments, and, unless they go elsewhere, the blocks of the pages that show them."""
    from stapo_repro.audit import findings, run

    files: dict[Path, bytes] = {}
    for part in parts(of, records):
        {"main": main_tables, "testbed": testbed_tables}[part](files, records, out)
    if of != "testbed":
        planted_tables(files, records, out)
    if not out:
        docs = checkout() / "docs"
        generated.renew(files, docs / "statistics.md", "audit", findings.page_block(run.load_and_audit()))
        logged = [*load_training_runs([_RECORDS], APART), *load_training_runs([_RECORDS / METHODS])]
        generated.renew(files, docs / "tokens.md", "mismatch", mismatch_page.page_block(logged))
        generated.renew(files, docs / "tokens.md", "labels", readings.page_block(_RECORDS / LABELS / "labels"))
        base = _RECORDS / ON_CPU[SMALL] / "eval" / f"base-{SMALL}"
        generated.renew(files, docs / "evaluation.md", "causes", calibration.page_block(base, _RECORDS / CAUSES))
        generated.renew(files, docs / "evaluation.md", "graders", graders.page_block([_RECORDS]))
        small = [r for r in logged if r.size == SMALL]
        generated.renew(files, docs / "small-model.md", "small-tokens", rare_page.page_block(small))
        generated.renew(files, docs / "verified.md", "verified", verified.page_block(_RECORDS / walks.FOLDER))
    return files


def _load(records: Sequence[Path]) -> tuple[list[Loaded], list[TrainingRun]]:
    where = roots(records)
    return load_cells(*where), load_training_runs(*where)


def draw(
    cells: Sequence[Loaded], runs: Sequence[TrainingRun], only: Sequence[str] = (),
    kinds: Sequence[str] = ("svg",),
) -> list[Drawn]:  # fmt: skip
    """The figures of the main experiment's records, in the gallery's order. Raises: BadInput: no such figure."""
    from stapo_repro.figures import groups
    from stapo_repro.figures import paper as figures

    return figures.draw(groups.Experiment.from_records(cells, runs, paper.load()), only, kinds)


def paper_figures(records: Sequence[Path]) -> str:
    """The paper's figures and tables, each with its state, as a Markdown table."""
    from stapo_repro.figures import groups
    from stapo_repro.figures import paper as figures

    return figures.listing(groups.Experiment.from_records(*_load(records), paper.load()))


def figure_files(
    of: ExperimentName | None, records: Sequence[Path], out: Path | None, only: Sequence[str] = (), pdf: bool = False
) -> dict[Path, bytes]:
    """The figures of one or both experiments, and the blocks of the pages that show them.

    The committed records give results/figures those that carry a finding. The pages are renewed only when nothing is
    left out: no other folder, no choice of figures.
    """
    from stapo_repro.figures import groups
    from stapo_repro.figures import paper as figures

    folder, committed = out or checkout() / "results" / "figures", not (out or records)
    kinds, blocks = ("pdf",) if pdf else (), {}
    drawn: list[Drawn] = []
    if "main" in parts(of, records):
        e = groups.Experiment.from_records(*_load(records), paper.load())
        drawn += figures.draw(e, only, kinds, committed)
        if not records and (not only or "tokens" in only):
            drawn += (probe := _labelled(kinds))
            blocks[checkout() / "docs" / "tokens.md", "probe"] = "\n\n".join(d.block(_FIGURES) for d in probe)
            blocks[checkout() / "results" / "figures" / "README.md", "paper"] = figures.listing(e)
    if "testbed" in parts(of, records):
        drawn += (found := figures.draw(load_testbed(records), only, kinds, committed))
        blocks |= {(_TESTBED_PAGE, d.name.replace("_", "-figure-")): d.block(_FIGURES) for d in found}
    files = {folder / f"{d.name}.{kind}": data for d in drawn for kind, data in d.files.items()}
    if only or not committed:
        return files
    if of != "testbed":
        blocks[checkout() / "README.md", "figure"] = figures.readme_block(drawn)
    if of is None:
        blocks[checkout() / "results" / "figures" / "README.md", "figures"] = figures.gallery(drawn)
    for (page, name), block in blocks.items():
        generated.renew(files, page, name, block)
    return files


def _labelled(kinds: Sequence[str]) -> list[Drawn]:
    """The figures of the labelled sample's probe, whose captions say whose responses they show."""
    from stapo_repro.figures import paper as figures

    folder = _RECORDS / LABELS
    base = read_json(folder / "base" / "run.json", Run).config
    asked = ", ".join(sorted({labels.benchmark_label(c.record.cell.benchmark) for c in load_cells([folder])}))
    name, steps = labels.size_label(base["size"]), base["plan"]["warm_up"]
    what = f"{name} after {steps} steps of warm-up on the benchmark {asked}, not a result of the paper."
    return figures.of_probe(folder / "probe", what, kinds)


def report_page(records: Sequence[Path], runs: Sequence[Path], out: Path | None, most: int) -> dict[Path, bytes]:
    """The report of the records, or of those of the run folders, or else of the committed ones (results/report.html).

    Args:
        runs: run folders whose single responses are shown.
        most: responses in all.

    Raises:
        BadInput, RecordError: as reading the records does.
    """
    from stapo_repro import report
    from stapo_repro.figures import paper as figures

    page = out or (Path("report.html") if records or runs else checkout() / "results" / "report.html")
    named = list(records) or list(runs)
    (folders, skip), (cells, trainings) = roots(named), _load(named)
    drawn = draw(cells, trainings)
    if not named:
        drawn += _labelled(("svg",))
    main = report.ReportedExperiment("Runs" if named else "Main experiment", folders, skip, cells, trainings, drawn)
    judged = None
    if not named:
        value = load_testbed(())
        judged = report.ReportedTestbed(value, figures.draw(value, kinds=("svg",)))
    return {page: report.to_html(main, judged, runs, page.parent, most).encode()}
