"""`stapo-repro`: the table, the figures, and the driver that runs the whole chain.

A function a command; those of the driver are in `run.request` and return what is asked of it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from stapo_repro.run import request
from stapo_repro.run.cells import CellRequest
from stapo_results import generated
from stapo_results.errors import BadInput
from stapo_results.runs import check_file, check_folder
from stapo_results.terminal import check_command, run_main

Records = Annotated[
    tuple[Path, ...],
    tyro.conf.arg(help="Folders with records; the committed ones by default, the studies' apart."),
]


def _check_out(out: Path | None, records: Sequence[Path], *, written: bool) -> None:
    """Raises: BadInput for a file; and for other records without a folder: results/ is made of the committed ones."""
    if out is not None and written:
        check_folder(out, "--out")
    elif records and not out:
        raise BadInput("--records needs --out", found="no --out", expected="a folder other than results/",
                       next_step="--out DIR")  # fmt: skip


def tables(records: Records = (), out: Path | None = None, check: bool = False) -> int:
    """Regenerate the main table (Markdown, LaTeX, CSV, JSON).

    Args:
        out: Where to write. Default: results/tables, and the README's table.
        check: Write nothing; compare with what is on disk and exit 1 with a diff if it is stale.
    """
    from stapo_repro import pages

    _check_out(out, records, written=not check)
    return generated.write(pages.table_files(records, out), check=check)


def figures(
    records: Records = (), only: tuple[str, ...] = (), out: Path | None = None, pdf: bool = False,
    paper: bool = False, check: bool = False,
) -> int:  # fmt: skip
    """Draw all figures from records alone: training curves, differences, token logs, ...

    Args:
        only: Names of figures, such as pareto or forest; all by default. A wrong name lists them.
        out: Where to write. Default: results/figures, and their page.
        pdf: PDF beside SVG and PNG.
        paper: List the paper's figures and tables by name, each with its state; draw nothing.
        check: Write nothing; compare with what is on disk and exit 1 if it is stale.
    """
    from stapo_repro import pages

    if paper:
        if only or pdf or check or out:
            raise BadInput("--paper draws nothing", found="--only, --pdf, --check or --out with it",
                           next_step="leave --paper out, or the others")  # fmt: skip
        print(pages.papers_figures(records))
        return 0
    _check_out(out, records, written=not check)
    return generated.write(pages.figure_files(records, out, only, pdf), check=check)


def report(
    records: tuple[Path, ...] = (), runs: tuple[Path, ...] = (), responses: int = 600, out: Path | None = None
) -> int:
    """One HTML page of what the records say: table, gaps, figures, single responses, runs.

    Args:
        records: Folders with records. Default: those of --runs, or else the committed ones.
        runs: Run folders, such as runs/miniature, whose single responses are shown.
        responses: How many responses in all, spread evenly over the cells.
        out: The page. Default: results/report.html, or report.html in the first folder named.
    """
    from stapo_repro import report

    if out is not None:
        check_file(out, "--out")
    print(report.write(records, runs, out, responses))
    return 0


def collect(run_folder: tyro.conf.Positional[Path], out: Path) -> int:
    """Copy a finished run's records (no responses, no paths of this machine) to where they can be committed.

    What each of its stages took goes to stages.json there.

    Args:
        run_folder: Folder of the run, such as runs/miniature.
        out: Folder to write, such as results/records/miniature.
    """
    from stapo_repro.collect import collect

    check_folder(out, "--out")
    print(f"{len(collect(run_folder, out))} files written below {out}")
    return 0


def tokens(run_folder: tyro.conf.Positional[Path], out: Path | None = None, top: int = 30) -> int:
    """The analysis of a token log: a page, figures and numbers of the tokens that S2T silences.

    Args:
        run_folder: A folder with token_log/: a training run, its collected record, or a probe.
        out: Where to write. Default: tokens/ in that folder.
        top: How many single tokens are shown with their context.
    """
    from stapo_repro.report import analyse
    from stapo_repro.tokens import log
    from stapo_results.store import write_atomic

    if top < 0:
        raise BadInput("--top must be at least 0", found=top, expected="0 or more", next_step="--top 30")
    check_folder(folder := out or run_folder / "tokens", "--out")  # a log may have gigabytes
    files, messages = analyse(log.load(run_folder), top)
    for name, data in files.items():
        write_atomic(folder / name, data)
    print("\n".join(messages))
    print(f"{len(files)} files in {folder}; the page is {folder / 'index.html'}")
    return 0


_COMMANDS = {f.__name__.replace("_", "-"): f for f in (tables, figures, report, request.run, collect, tokens)}


def main(argv: list[str] | None = None) -> None:
    """Entry point of the console script."""

    def command() -> int:
        check_command("stapo-repro", argv, _COMMANDS)
        chosen = tyro.extras.subcommand_cli_from_dict(
            _COMMANDS,
            prog="stapo-repro",
            description="Tables, figures and the driver of the STAPO reproduction.",
            args=argv,
            config=(tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff),
        )
        if isinstance(chosen, CellRequest):
            from stapo_repro.run import chain

            return chain.main(chosen)
        return chosen

    sys.exit(run_main(command, extra="tables"))


if __name__ == "__main__":
    main()
