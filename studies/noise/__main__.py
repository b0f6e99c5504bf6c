"""The command: `python -m studies.noise run | page | collect`."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import tyro

from studies import command
from studies.noise.request import request


@functools.wraps(request)
def run(*given: Any, **named: Any) -> int:
    """As `request` says."""
    from stapo_repro.run import chain

    r = request(*given, **named)
    if (seconds := chain.run(r)) is not None:
        chain.show_end(r, seconds, "" if r.quick else f"python -m studies.noise collect {r.out}")
    return 0


def page(check: bool = False) -> int:
    """Write the page from the committed records.

    Args:
        check: Write nothing; compare with what is on disk and exit 1 with a diff if it is stale.
    """
    from studies.noise import page

    return command.write(page.add, check=check)


def collect(run_folder: tyro.conf.Positional[Path]) -> None:
    """Copy a finished run's records, without token logs, to results/records/noise."""
    from stapo_repro.collect import collect as copied
    from stapo_results.errors import BadInput
    from stapo_results.schema import Run
    from stapo_results.store import read_json

    config = read_json(run_folder / "run.json", Run).config
    if config.get("experiment") != "noise" or config.get("quick"):
        raise BadInput(f"{run_folder} is no run of this study", found=f"{config.get('experiment')} run",
                       expected="no quick form", next_step="python -m studies.noise run")  # fmt: skip
    out = command.RECORDS / "noise" / ("pilot" if config["pilot"] else config["noise"])
    print(f"{len(copied(run_folder, out, lambda folder, run_id: ({}, {})))} files written below {out}")


if __name__ == "__main__":
    command.run({"run": run, "page": page, "collect": collect}, "studies.noise", "tables")
