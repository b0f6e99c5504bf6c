"""The driver: checks, then every stage of the miniature as processes of the other wings' commands, then the summary."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

import psutil
from filelock import FileLock, Timeout

from stapo_repro.ablation import build as ablation
from stapo_repro.driver import display, dry_run, summary
from stapo_repro.driver.chain import Parameters, Plan, Stages, make_stages, plan
from stapo_repro.driver.readiness import attempt
from stapo_repro.driver.request import Parameters as CellParameters
from stapo_repro.driver.stages import Engine, Outcome
from stapo_repro.paper import checkout
from stapo_repro.planner import hours
from stapo_results import store
from stapo_results.errors import BadInput

__all__ = ["Plan", "main", "plan"]

NEEDED_DISK_GIB = 3
NEEDED_MEMORY_GIB = 6


def check_machine(out: Path) -> str:
    """What there is of disk and memory. Raises: BadInput when they would not last to the end."""
    parent = next(p for p in (out.absolute(), *out.absolute().parents) if p.exists())
    free = shutil.disk_usage(parent).free / 2**30
    if free < NEEDED_DISK_GIB:
        raise BadInput(
            f"too little disk space at {parent}",
            found=f"{free:.1f} GiB free",
            expected=f"at least {NEEDED_DISK_GIB} GiB",
            next_step="free some space, or name another place with --out",
        )
    memory = psutil.virtual_memory().available / 2**30
    if memory < NEEDED_MEMORY_GIB:
        raise BadInput(
            "too little free memory for veRL and Ray",
            found=f"{memory:.1f} GiB available",
            expected=f"at least {NEEDED_MEMORY_GIB} GiB",
            next_step="close other programs, then run the same command again",
        )
    return f"{free:.0f} GiB of disk and {memory:.0f} GiB of memory free"


def check_parameters(out: Path, wanted: Parameters | CellParameters, write: bool = True) -> None:
    """Write down what this folder is a run of, or compare with what stands there.

    Args:
        write: False only compares.

    Raises:
        BadInput: the folder holds a run of other parameters, or something that is no run at all.
    """
    file = out / "parameters.json"
    if not file.exists():
        foreign = [x.name for x in out.iterdir() if x.name != ".lock"] if out.exists() else []
        if foreign:
            raise BadInput(
                f"{out} is not empty and holds no run of this driver",
                found=", ".join(sorted(foreign)[:5]),
                expected="an empty or new folder",
                next_step="name another folder with --out",
            )
        if write:
            store.write_json(file, wanted.model_dump(mode="json"))
        return
    kind = json.loads(file.read_text(encoding="utf-8")).get("kind", "miniature")  # the first ones did not say
    if (kind == "cells") != (wanted.kind == "cells"):
        raise BadInput(f"{out} is a run of another kind", found=kind, expected=wanted.kind,
                       next_step="name another folder with --out")  # fmt: skip
    found = store.read_json(file, type(wanted))
    differing = [k for k in type(wanted).model_fields if getattr(found, k) != getattr(wanted, k)]
    if differing:
        raise BadInput(
            f"{out} is a run of other parameters",
            found=", ".join(f"{k} {getattr(found, k)}" for k in differing),
            expected=", ".join(f"{k} {getattr(wanted, k)}" for k in differing),
            next_step="name another folder with --out, or give the parameters of the first run",
        )


@contextlib.contextmanager
def _interrupt_once() -> Iterator[None]:
    """Ctrl-C, TERM and HUP all end the run in order; a second one does not disturb the ending."""
    asked = False

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            print("already ending: the stage's processes get some seconds", file=sys.stderr)
            return
        asked = True
        raise KeyboardInterrupt

    before = {n: signal.signal(n, handler) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def execute(stages: Stages, out: Path, grace: float = 30.0, patience: float = 5.0) -> dict[str, Outcome]:
    """Run the stages of one folder under its lock, with a display.

    Raises:
        BadInput: another driver works in this folder.
        RunFailed: a stage failed.
        KeyboardInterrupt: after everything that was started is gone.
    """
    out.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(out / ".lock", timeout=0), _interrupt_once():
            shown = display.make(stages)
            try:
                return Engine(out, shown, grace, patience).run(stages)
            finally:
                shown.close()
    except Timeout:
        raise BadInput(
            f"another driver works in {out}",
            found=f"{out / '.lock'} is held",
            expected="one driver a folder",
            next_step="wait for it to end, or name another folder with --out",
        ) from None


def main(p: Plan, dry: bool = False) -> int:
    """The miniature or its ablation: checks, stages, closing summary; with `dry` what would run, and nothing else."""
    began = time.monotonic()
    stages = make_stages(p)
    if dry:
        return _show(p, stages)
    check_machine(p.out)
    if p.data_dir is not None:
        check_data(p.data_dir, p.real_benchmarks)
    p.out.mkdir(parents=True, exist_ok=True)
    check_parameters(p.out, p.parameters())
    outcomes = execute(stages, p.out)
    summary.show(p, outcomes, time.monotonic() - began)
    return 0


def _show(p: Plan, stages: Stages) -> int:
    known = hours.recorded([checkout() / "results" / "records"], skip=(ablation.FOLDER,))
    costs = {}
    for s in stages:
        method = s.name.partition("/")[2].rpartition("-s")[0] or "base"
        if s.kind == "train":
            costs[s.name] = hours.miniature("train", method, known, p.steps)
        elif s.kind == "eval" and not p.quick:
            costs[s.name] = hours.miniature("eval", method, known)
    checks = [attempt("disk and memory", lambda: check_machine(p.out))]
    if (folder := p.data_dir) is not None:
        checks.append(attempt("benchmarks", lambda: check_data(folder, p.real_benchmarks)))
    checks.append(attempt("output folder", lambda: check_parameters(p.out, p.parameters(), write=False) or str(p.out)))
    seeds = ", ".join(map(str, p.seeds))
    title = f"{p.kind}: {', '.join(p.methods)} on mini, seeds {seeds}, {p.steps} steps, without a GPU, into {p.out}"
    dry_run.show(title, stages, p.out, costs, checks)
    return 0


def check_data(folder: Path, benchmarks: Sequence[str]) -> str:
    """What a folder of benchmarks holds. Raises: BadInput where a file is missing."""
    missing = [f"{b}.jsonl" for b in benchmarks if not (folder / f"{b}.jsonl").exists()]
    if missing:
        raise BadInput(
            "the folder of benchmarks is not complete",
            found=f"{folder} lacks {', '.join(missing)}",
            expected="the six files of the paper's benchmarks",
            next_step="name the right folder with --data-dir, or leave the option out",
        )
    return f"{len(benchmarks)} files in {folder}"
