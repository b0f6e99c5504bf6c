"""Which files the commands `tables` and `figures` write, as paths and bytes.

The committed records are all of results/records but those of studies and the short runs of further methods
(`read.APART`): their cells share ids, so they are never read together.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stapo_repro import paper, read
from stapo_repro.figures import paper as figures
from stapo_repro.figures.groups import Group, groups
from stapo_repro.table import build, write
from stapo_repro.text import code_shown, grid
from stapo_repro.tokens import tables
from stapo_results import generated
from stapo_results.errors import BadInput
from stapo_results.schema import Bench, Run
from stapo_results.store import read_json

_RESULTS = paper.checkout() / "results"
_RECORDS = _RESULTS / "records"


def roots(records: Sequence[Path]) -> tuple[list[Path], tuple[str, ...]]:
    """(folders with the main experiment's records, folders in them that are left out)"""
    return (list(records), ()) if records else ([_RECORDS], read.APART)


def table_files(records: Sequence[Path], out: Path | None) -> dict[Path, bytes]:
    """The tables; those of the committed records with the README's block.

    Raises:
        BadInput, RecordError: as reading the records does.
    """
    folder, files = out or _RESULTS / "tables", dict[Path, bytes]()
    table = build.build(read.load_cells(*roots(records)), paper.load())
    texts = {name: written(table) for name, written in write.FILES.items()}
    texts["tokens.md"] = tables.tables(read.load_training_runs(*roots(records)))
    if not out:
        texts["gpu.md"] = _on_gpus()
        generated.renew(files, paper.checkout() / "README.md", "table", write.readme_block(table))
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
    records: Sequence[Path], out: Path | None, only: Sequence[str] = (), pdf: bool = False
) -> dict[Path, bytes]:
    """The figures.

    Of the committed records, results/figures gets those that carry a finding; its page is renewed when no figure is
    left out.

    Raises:
        BadInput: no such figure.
        BadInput, RecordError: as reading the records does.
    """
    folder, committed = out or _RESULTS / "figures", not (out or records)
    experiment = _experiment(records)
    drawn = figures.draw(experiment, only, ("pdf",) if pdf else (), committed)
    if only and not drawn:
        raise BadInput(f"nothing is drawn of {', '.join(only)}", found="no record of it, or none of results/figures",
                       expected="a figure that the records give", next_step="--out DIR for figures that are not "
                       "committed; stapo-repro figures --paper says what is run")  # fmt: skip
    files = {folder / f"{d.name}.{kind}": data for d in drawn for kind, data in d.files.items()}
    if committed and not only:
        generated.renew(files, folder / "README.md", "paper", figures.listing(experiment))
        generated.renew(files, folder / "README.md", "figures", figures.gallery(drawn))
    return files
