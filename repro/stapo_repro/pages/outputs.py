"""Which files the commands `tables` and `figures` write, as paths and bytes.

Two experiments have tables and figures of their own: the main one (all of results/records but the testbed and the
short runs of further methods) and the testbed (results/records/testbed alone). Their cells share ids: both train JustRL
and STAPO with seed 0. So they are never read together.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stapo_repro import labels, paper
from stapo_repro.figures.experiment import Experiment, ExperimentName
from stapo_repro.paper import checkout
from stapo_repro.read import (
    APART,
    LABELS,
    METHODS,
    Loaded,
    TrainingRun,
    load_cells,
    load_training_runs,
)
from stapo_repro.run import engine as times
from stapo_repro.run.request import ON_CPU
from stapo_repro.testbed import claims as testbed_claims
from stapo_repro.testbed import pages as testbed
from stapo_repro.testbed.plan import FOLDER
from stapo_repro.tokens import page as tokens_page
from stapo_repro.tokens import readers
from stapo_results import generated
from stapo_results.schema import Run
from stapo_results.sizes import SMALL
from stapo_results.store import read_json

if TYPE_CHECKING:
    from stapo_repro.figures.canvas import Drawn

_RECORDS = checkout() / "results" / "records"
_FIGURES = "../results/figures"


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
    return testbed.Testbed(testbed.read(_RECORDS / FOLDER, records), testbed_claims.load())


def main_tables(files: dict[Path, bytes], records: Sequence[Path], out: Path | None) -> None:
    """Adds the main table in every form; without `out` also the README's blocks."""
    from stapo_repro.table import build, write

    folder = out or checkout() / "results" / "tables"
    cells = load_cells(*roots(records))
    table = build.build(cells, paper.load())
    forms = {
        "main_table.md": write.to_markdown(table),
        "main_table.csv": write.to_csv(table),
        "main_table.json": write.to_json(table),
        "main_table.tex": write.to_latex(table),
    }
    files |= {folder / name: text.encode() for name, text in forms.items()}
    if out:
        return
    readme, docs = checkout() / "README.md", checkout() / "docs"
    generated.renew(files, readme, "table", write.readme_block(table))
    generated.renew(files, readme, "times", times.page_block(_RECORDS, "miniature", "miniature"))
    of_small = times.page_block(_RECORDS, ON_CPU[SMALL], "run of the small model")
    generated.renew(files, docs / "small-model.md", "small-times", of_small)


def testbed_tables(files: dict[Path, bytes], records: Sequence[Path], out: Path | None) -> None:
    """Adds the testbed's tables and judged claims in two forms."""
    folder, value = out or checkout() / "results" / "tables", load_testbed(records)
    files |= {
        folder / "testbed.md": testbed.to_markdown(value).encode(),
        folder / "testbed.json": testbed.to_json(value).encode(),
    }


def token_tables(files: dict[Path, bytes], records: Sequence[Path], out: Path | None) -> None:
    """Adds what token logs say: planted words, mismatch, rare tokens of the small model, labels of readers."""
    folder, runs = out or checkout() / "results" / "tables", load_training_runs(*roots(records))
    more = [] if records else load_training_runs([_RECORDS / METHODS])
    labelled = (records[0] if records else _RECORDS / LABELS) / "labels" / readers.FILE
    files[folder / "tokens.md"] = tokens_page.tables(runs, [*runs, *more], labelled).encode()


def table_files(of: ExperimentName | None, records: Sequence[Path], out: Path | None) -> dict[Path, bytes]:
    """The tables of one or both experiments, and, unless they go elsewhere, the blocks of the pages that show them."""
    from stapo_repro.audit import page

    files: dict[Path, bytes] = {}
    for part in parts(of, records):
        {"main": main_tables, "testbed": testbed_tables}[part](files, records, out)
    if of != "testbed":
        token_tables(files, records, out)
    if not out:
        files[checkout() / "results" / "tables" / "audit.md"] = page.page(page.load_and_audit()).encode()
    return files


def _load(records: Sequence[Path]) -> tuple[list[Loaded], list[TrainingRun]]:
    where = roots(records)
    return load_cells(*where), load_training_runs(*where)


def draw(
    cells: Sequence[Loaded], runs: Sequence[TrainingRun], only: Sequence[str] = (),
    kinds: Sequence[str] = ("svg",),
) -> list[Drawn]:  # fmt: skip
    """The figures of the main experiment's records, in the gallery's order. Raises: BadInput: no such figure."""
    from stapo_repro.pages import figures

    return figures.draw(Experiment.from_records(cells, runs, paper.load()), only, kinds)


def figure_files(
    of: ExperimentName | None, records: Sequence[Path], out: Path | None, only: Sequence[str] = (), pdf: bool = False
) -> dict[Path, bytes]:
    """The figures of one or both experiments, and the blocks of the pages that show them.

    The pages are renewed only when nothing is left out: no other folder, no choice of figures.
    """
    from stapo_repro.pages import figures

    folder = out or checkout() / "results" / "figures"
    kinds, drawn = ("svg", "png", *(["pdf"] if pdf else [])), {}
    for part in parts(of, records):
        main = part == "main"
        drawn[part] = draw(*_load(records), only, kinds) if main else figures.draw(load_testbed(records), only, kinds)
    if "main" in drawn and not records and (not only or "tokens" in only):
        drawn["main"] += _labelled(kinds)
    every = {d.name: d for found in drawn.values() for d in found}
    files = {folder / f"{d.name}.{kind}": data for d in every.values() for kind, data in d.files.items()}
    if only or out:
        return files
    if "main" in drawn:
        generated.renew(files, checkout() / "README.md", "figure", figures.readme_block(every))
    if len(drawn) == 2:
        page = checkout() / "results" / "figures" / "README.md"
        generated.renew(files, page, "figures", figures.gallery(drawn["main"], drawn["testbed"]))
    return files


def _labelled(kinds: Sequence[str]) -> list[Drawn]:
    """The figures of the labelled sample's probe, whose captions say whose responses they show."""
    from stapo_repro.pages import figures

    folder = _RECORDS / LABELS
    base = read_json(folder / "base" / "run.json", Run).config
    asked = ", ".join(sorted({labels.benchmark_label(c.record.cell.benchmark) for c in load_cells([folder])}))
    name, steps = labels.size_label(base["size"]), base["plan"]["warm_up"]
    what = f"{name} after {steps} steps of warm-up on the benchmark {asked}, not a result of the paper."
    return figures.of_probe(folder / "probe", what, kinds)
