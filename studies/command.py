"""What the commands of studies share: their command line, and their pages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import tyro

from stapo_repro.paper import checkout
from stapo_results import generated
from stapo_results.terminal import run_main

RECORDS = checkout() / "results" / "records"
TABLES = checkout() / "results" / "tables"


def run(command: Callable[..., int | None], name: str, extra: str, words: Sequence[str] | None = None) -> NoReturn:
    """Call `command` with the words of the command line, or with these, and exit.

    Args:
        name: of the study.
        extra: of pyproject.toml, with what the study imports.
    """
    config = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)
    sys.exit(run_main(lambda: tyro.cli(command, args=words, prog=f"python -m {name}", config=config), extra=extra))


def write(files: Mapping[Path, bytes], name: str, *, check: bool) -> int:
    """Write pages, or compare them with what is on disk; returns the exit code."""
    return generated.check(files, f"python -m {name}") if check else generated.write(files)
