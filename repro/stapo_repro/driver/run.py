"""The driver: checks, then every stage as a process of its wing's command, then the summary.

The output folder follows the protocol of `stapo_results.runs`: run.json holds what was asked (kind "repro"), and
stages.jsonl what was done (see `stages`). The same command goes on from any kind of death.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from stapo_repro.ablation import build as ablation
from stapo_repro.driver import readiness, summary
from stapo_repro.driver.chain import make_stages
from stapo_repro.driver.display import StageDisplay
from stapo_repro.driver.request import Request
from stapo_repro.driver.stages import Engine, Stage, read_ledger
from stapo_repro.paper import checkout
from stapo_repro.planner import estimates
from stapo_repro.planner.budget import MACHINES, load, places
from stapo_repro.planner.estimates import Estimate
from stapo_results import runs
from stapo_results.schema import Run


def main(r: Request, dry: bool = False) -> int:
    """Run what the request lacks in its folder; with `dry` print it, make every check, and start and write nothing.

    Raises:
        BadInput: the machine, an environment, the disk or the folder does not do; nothing was started.
        RunFailed: a stage failed; the same command goes on.
    """
    began = time.monotonic()
    stages, ledger, costs = make_stages(r), read_ledger(r.out), stage_costs(r)
    states = {s: readiness.state(s, ledger) for s in stages}
    checks = readiness.make_checks(r, [s for s in stages if states[s]], costs)
    if dry:
        readiness.show_plan(r, states, costs, checks)
        return 0
    checks.refuse()
    execute(r.out, readiness.new_record(r), stages, r.grace_seconds)
    summary.show(r, time.monotonic() - began)
    return 0


def execute(out: Path, record: Run, stages: Sequence[Stage], grace: float = 30.0, patience: float = 5.0) -> set[str]:
    """Run the stages of one folder as its only writer, with a display.

    Args:
        record: of the run, as `provenance.new_run` makes it.
        grace, patience: as `Engine`.

    Returns:
        The names of the stages that had to run.

    Raises:
        BadInput: another driver works in this folder, or it holds another run.
        RunFailed: a stage failed.
        KeyboardInterrupt: after everything that was started is gone.
    """
    with _interrupt_once(), runs.opened(out, record) as folder:
        with folder.working():
            display = StageDisplay([s.name for s in stages])
            with display.display:
                made = Engine(out, display, grace, patience).run(stages)
        if folder.finished and not made:
            folder.restore()
        return made


def stage_costs(r: Request) -> dict[str, Estimate]:
    """Hours and disk of every training and evaluation, by the planner; without those of which nothing is known."""
    known = estimates.recorded([checkout() / "results" / "records"], skip=(ablation.FOLDER,))
    found = {}
    for m in r.models:
        if r.on_cpu:
            train = estimates.miniature("train", m.method, known, r.steps)
            evaluation = estimates.miniature("eval", m.method, known)
        else:
            budget, machine = load(), MACHINES[r.hardware]
            card, keep = machine.card, r.keep_checkpoints
            train = estimates.training(budget, m.method, m.size, machine, card, r.steps, known, keep)
            evaluation = estimates.evaluation(budget, m.size, places(m.size), machine, card, known, m.is_base)
        found |= {} if m.is_base else {f"train/{m.name}": train}
        found |= {} if r.quick else {f"eval/{m.name}": evaluation}
    return found


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
