"""Which files the commands `tables` and `figures` write, as paths and bytes.

Two experiments have tables and figures of their own: the main one (all of results/records but the testbed and the
short runs of further methods) and the testbed (results/records/testbed alone). Their cells share ids: both train JustRL
and STAPO with seed 0. So they are never read together.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from stapo_repro import paper, read
from stapo_repro.figures import paper as figures
from stapo_repro.figures.groups import Group, groups
from stapo_repro.figures.style import Sketch
from stapo_repro.table import build, write
from stapo_repro.testbed import claims
from stapo_repro.testbed import pages as testbed
from stapo_repro.testbed.plan import FOLDER
from stapo_repro.text import code_shown, grid
from stapo_repro.tokens import tables
from stapo_results import generated
from stapo_results.errors import BadInput
from stapo_results.schema import Bench, Run
from stapo_results.store import read_json

ExperimentName = Literal["main", "testbed"]
_RESULTS = paper.checkout() / "results"
_RECORDS = _RESULTS / "records"


def parts(of: ExperimentName | None, records: Sequence[Path]) -> tuple[ExperimentName, ...]:
    """Both from the committed records; the main one from a folder that was named, unless `of` says otherwise."""
    if of is not None:
        return (of,)
    return ("main",) if records else ("main", "testbed")


def roots(records: Sequence[Path], but: str = "") -> tuple[list[Path], tuple[str, ...]]:
    """(folders with the main experiment's records, folders in them that are left out, all apart from `but`)"""
    return (list(records), ()) if records else ([_RECORDS], tuple(name for name in read.APART if name != but))


def load_testbed(records: Sequence[Path]) -> testbed.Testbed:
    """The testbed of the committed records, or of folders of main runs alone."""
    return testbed.Testbed(testbed.read(_RECORDS / FOLDER, records), claims.load())


def table_files(of: ExperimentName | None, records: Sequence[Path], out: Path | None) -> dict[Path, bytes]:
    """The tables of one or both experiments; those of the committed records with the README's blocks.

    Raises:
        BadInput, RecordError: as reading the records does.
    """
    folder, named = out or _RESULTS / "tables", parts(of, records)
    texts: dict[str, str] = {}
    files: dict[Path, bytes] = {}
    if "main" in named:
        table = build.build(read.load_cells(*roots(records)), paper.load())
        texts = {f"main_table.{kind}": written(table) for kind, written in write.FORMS.items()}
        runs, logged = (read.load_training_runs(*roots(records, but)) for but in ("", read.METHODS))
        texts["tokens.md"] = tables.tables(runs, logged)
        if not out:
            texts["gpu.md"] = _on_gpus()
            generated.renew(files, paper.checkout() / "README.md", "table", write.readme_block(table))
    if "testbed" in named:
        value = load_testbed(records)
        texts |= {"testbed.md": testbed.to_markdown(value), "testbed.json": testbed.to_json(value)}
    return files | {folder / name: text.encode() for name, text in texts.items()}


def _on_gpus() -> str:
    """The page of what was timed on GPUs."""
    lines = ["# Timed on GPUs", "", "[What these do not show](../../docs/reproduction.md#what-has-run)."]
    for path in sorted((_RECORDS / "bench").glob("*/*/bench.json")):
        found, run = read_json(path, Bench), read_json(path.with_name("run.json"), Run)
        on, versions = run.hardware, ("torch", "verl", "vllm", "transformers", "triton")
        lines += ["", f"## {on['gpus'][0].split(',')[0]}: {found.part}", ""]
        packages = ", ".join(f"{name} {run.packages[name]}" for name in versions)
        code = code_shown(run.code_commit, bool(run.code_dirty))
        lines += [f"Driver {on['driver']}, {packages}; {run.started}, code {code}. {' '.join(run.notes)}", ""]
        rows = [
            [" ".join([r.name, *r.labels.values()]), f"{r.seconds:.4g}", f"{r.ratio:.3f}",
             "; ".join(f"{name} {value:.5g}" for name, value in r.values.items())]
            for r in found.rows
        ]  # fmt: skip
        lines += [*grid(["", "seconds", f"to {found.baseline}", "beside it"], rows), ""]
        lines += [f"[Record](../records/{path.relative_to(_RECORDS).as_posix()})"]
    return "\n".join([*lines, ""])


def _experiment(records: Sequence[Path]) -> dict[str, Group]:
    where = roots(records)
    return groups(read.load_cells(*where), read.load_training_runs(*where), paper.load())


def papers_figures(records: Sequence[Path]) -> str:
    """The paper's figures and tables, each with its state, as a Markdown table."""
    return figures.listing(_experiment(records))


def figure_files(
    of: ExperimentName | None, records: Sequence[Path], out: Path | None, only: Sequence[str] = (), pdf: bool = False
) -> dict[Path, bytes]:
    """The figures of one or both experiments.

    Of the committed records, results/figures gets those that carry a finding; its page and the README's picture are
    renewed when no figure is left out.

    Raises:
        BadInput: no such figure.
        BadInput, RecordError: as reading the records does.
    """
    folder, committed = out or _RESULTS / "figures", not (out or records)
    kinds, named = ("pdf",) if pdf else (), parts(of, records)
    renewed, listing = committed and not only and of is None, ""
    drawn: list[Sketch] = []
    if "main" in named:
        experiment = _experiment(records)
        drawn += figures.draw(experiment, only, kinds, committed)
        if renewed:
            listing = figures.listing(experiment)
    if "testbed" in named:
        drawn += figures.draw(load_testbed(records), only, kinds, committed)
    if only and not drawn:
        raise BadInput(f"nothing is drawn of {', '.join(only)}", found="no record of it, or none of results/figures",
                       expected="a figure that the records give", next_step="--out DIR for figures that are not "
                       "committed; stapo-repro figures --paper says what is run")  # fmt: skip
    files = {folder / f"{d.name}.{kind}": data for d in drawn for kind, data in d.files.items()}
    if renewed:
        generated.renew(files, paper.checkout() / "README.md", "figure", figures.readme_block(drawn))
        generated.renew(files, folder / "README.md", "paper", listing)
        generated.renew(files, folder / "README.md", "figures", figures.gallery(drawn))
    return files
