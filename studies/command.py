"""What the commands of studies share: their command line, and their pages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import tyro

from stapo_repro.paper import checkout
from stapo_results import generated, runs, store
from stapo_results.errors import BadInput
from stapo_results.schema import Run
from stapo_results.terminal import run_main

if TYPE_CHECKING:
    from stapo_repro.figures.style import Sketch

RECORDS = checkout() / "results" / "records"
Command = Callable[..., int | None]
Add = Callable[[dict[Path, bytes]], None]
"""Adds the pages of a study to those that are written together."""
TABLES = checkout() / "results" / "tables"


def run(command: Command | dict[str, Command], name: str, extra: str, words: Sequence[str] | None = None) -> NoReturn:
    """Call `command`, or the one that is named of several, with the words of the command line, or with these; exit.

    Args:
        name: of the study.
        extra: of pyproject.toml, with what the study imports.
    """
    config = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)

    def call() -> int | None:
        if callable(command):
            return tyro.cli(command, args=words, prog=f"python -m {name}", config=config)
        return tyro.extras.subcommand_cli_from_dict(command, args=words, prog=f"python -m {name}", config=config)

    sys.exit(run_main(call, extra=extra))


def check_replaced(out: Path, kind: str) -> None:
    """Raises BadInput where --out cannot be written, or has a record of another kind, which would be lost."""
    runs.check_folder(out, "--out")
    if (record := out / runs.RECORD).exists() and (found := store.read_json(record, Run).kind) != kind:
        raise BadInput(f"{out} holds another run", found=found, expected=kind, next_step="give another --out")


def write_run(run: Run, out: Path, seconds: float) -> None:
    """Write the record of a run that is done, in the place of an earlier one."""
    store.write_json(out / runs.RECORD, run.model_copy(update={"status": "done", "wall_seconds": round(seconds, 3)}))


def add_figures(files: dict[Path, bytes], block: str, drawn: Sequence[Sketch]) -> None:
    """Add saved figures, and their captions to a block of the page of all figures."""
    from stapo_repro.figures.paper import gallery  # here: most studies need no matplotlib

    folder = checkout() / "results" / "figures"
    files |= {folder / f"{d.name}.{kind}": data for d in drawn for kind, data in d.files.items()}
    generated.renew(files, folder / "README.md", block, gallery(drawn))


def write(add: Add, *, check: bool) -> int:
    """Write the pages that `add` gives, or compare them with what is on disk; returns the exit code."""
    files: dict[Path, bytes] = {}
    add(files)
    return generated.write(files, check=check)
