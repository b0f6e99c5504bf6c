"""The command: `python -m studies.testbed run | page | collect`."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import tyro

from stapo_repro.run.cells import CellRequest
from stapo_results.runs import check_folder
from studies import command
from studies.testbed.plan import FOLDER
from studies.testbed.request import request


@functools.wraps(request)
def run(*given: Any, **named: Any) -> int:
    """As `request` says."""
    return carry_out(request(*given, **named))


def carry_out(r: CellRequest) -> int:
    """Train and evaluate what is asked for, and show it; a dry run shows the plan."""
    from stapo_repro.run import chain

    if (seconds := chain.run(r)) is not None:
        show(r, seconds)
    return 0


def show(r: CellRequest, seconds: float) -> None:
    """Print what a finished run says; of the main part its pages are written. `seconds`: of this call."""
    from stapo_repro.run import chain
    from stapo_results import generated
    from studies.testbed import page

    if r.user_method:
        chain.show(page.beside_committed(r))
        chain.show_end(r, seconds)
        return
    if r.same["part"] == "main":  # a pilot judges nothing, and is beside the others when collected
        generated.write(page.of_run(r.out))
        chain.show((r.out / "tables" / "testbed.md").read_text(encoding="utf-8").partition("\n## ")[0])
    folder = f"{FOLDER}/{r.same['part']}".removesuffix("/main")
    chain.show_end(r, seconds, f"python -m studies.testbed collect {r.out} --out results/records/{folder}")


def page(check: bool = False) -> int:
    """Write tables and figures, with their page, from the committed records.

    Args:
        check: Write nothing; compare with what is on disk and exit 1 with a diff if it is stale.
    """
    from studies.testbed import page

    return command.write(page.add, check=check)


def collect(run_folder: tyro.conf.Positional[Path], out: Path) -> None:
    """Copy a finished run's records to where they can be committed, with counts in the place of token logs.

    Args:
        run_folder: Folder of the run, such as runs/testbed.
        out: Folder to write, such as results/records/testbed.
    """
    from stapo_repro.collect import collect
    from studies.testbed import counts

    check_folder(out, "--out")
    print(f"{len(collect(run_folder, out, counts.shorten))} files written below {out}")


if __name__ == "__main__":
    command.run({"run": run, "page": page, "collect": collect}, "studies.testbed", "tables")
