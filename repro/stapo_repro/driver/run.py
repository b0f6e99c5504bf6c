"""The driver: checks, then every stage as a process of its wing's command, then the summary.

The output folder follows the protocol of `stapo_results.runs`: run.json holds what was asked (kind "repro"), and
stages.jsonl what was done (see `stages`). The same command goes on from any kind of death.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from textwrap import fill
from types import FrameType
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stapo_repro import labels
from stapo_repro.driver import readiness
from stapo_repro.driver.chain import make_stages
from stapo_repro.driver.display import StageDisplay
from stapo_repro.driver.request import Request
from stapo_repro.driver.stages import Engine, Stage, read_ledger
from stapo_repro.driver.times import committed_seconds, of_ledger
from stapo_repro.read import ARITHMETIC
from stapo_repro.testbed import plan
from stapo_repro.testbed.evidence import EARLY
from stapo_results import runs
from stapo_results.provenance import ARITHMETIC as ARITHMETIC_VARIABLES
from stapo_results.schema import SETTINGS, Run
from stapo_results.terminal import duration


def main(r: Request, dry: bool = False) -> int:
    """Run what the request lacks in its folder; with `dry` print it, make every check, and start and write nothing.

    Raises:
        BadInput: the machine, an environment, the disk or the folder does not do; nothing was started.
        RunFailed: a stage failed; the same command goes on.
    """
    began = time.monotonic()
    stages, ledger, costs = make_stages(r), read_ledger(r.out), readiness.stage_costs(r)
    states = readiness.states(r.out, stages, ledger)
    checks = readiness.make_checks(r, states, costs)
    if dry:
        readiness.show_plan(r, states, costs, checks)
        return 0
    checks.refuse()
    execute(r.out, readiness.new_record(r), stages, r.grace_seconds)
    show_summary(r, time.monotonic() - began)
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
    with interrupt_once(), runs.opened(out, record) as folder:
        with folder.working():
            display = StageDisplay([s.name for s in stages], elsewhere=committed_seconds(record.config))
            with display.display:
                made = Engine(out, display, grace, patience).run(stages)
        if folder.finished and not made:
            folder.restore()
        return made


@contextlib.contextmanager
def interrupt_once() -> Iterator[None]:
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


def _shown(by_setting: dict[str, Any]) -> str:
    """62.50 (70.31); a status where there is no number."""
    first, second = (v["shown"] if v["status"] == "run" else v["status"] for v in (by_setting[s] for s in SETTINGS))
    return f"{first} ({second})"


def _tables(r: Request) -> Iterator[Table | str]:
    """What a finished miniature or testbed says, in short."""
    if r.standing:
        yield from _standing(r)
        return
    if r.experiment == "testbed":
        file = r.out / "tables" / "testbed.json"
        for judged in json.loads(file.read_text())["claims"] if file.exists() else ():
            yield f"{judged['verdict']:<20}{judged['claim']['number']:<4}{judged['claim']['id']}"
        return
    for section in json.loads((r.out / "tables" / "main_table.json").read_text())["sections"]:
        if section["size"] == r.models[0].size:
            shown = Table(title=section["title"], caption="{}, in brackets {}".format(*SETTINGS))
            for name in ("Method", *map(labels.benchmark_label, (*section["benchmarks"], labels.AVERAGE))):
                shown.add_column(name)
            for row in section["rows"]:
                if any(v["status"] == "run" for by in row["values"].values() for v in by.values()):
                    shown.add_row(row["label"], *map(_shown, row["values"].values()))
            yield shown


def _standing(r: Request) -> Iterator[Table]:
    """The method beside the committed arms, world by world."""
    from stapo_repro.paper import checkout
    from stapo_repro.read import load_cells, load_training_runs
    from stapo_repro.testbed import build, evidence, standing

    mine = [r.out / "eval", r.out / "train"]
    own = evidence.gather(load_cells(mine), load_training_runs(mine))
    records = build.read(checkout() / "results" / "records" / plan.FOLDER)["main"]
    committed = evidence.gather(*records)
    for world, lines in groupby(standing.standing(own, committed, r.standing), key=lambda s: s.world):
        # 80 columns hold it, and nothing is cut: a name that is cut names nothing
        shown = Table(title=f"{world}: {labels.method_label(r.standing)} beside the committed arms", box=SIMPLE_HEAD,
                      padding=(0, 1, 0, 0), title_justify="left", caption_justify="left",
                      caption="accuracy in percent, words per 100 responses, n seeds; 95 % intervals")  # fmt: skip
        shown.add_column(no_wrap=True)
        for name in ("T=1.0", "T=0.7", f"Reward 1-{EARLY}", f"Useful 1-{EARLY}", "Spurious, late"):
            shown.add_column(name, overflow="fold")
        for name, *cells in standing.rows(list(lines)):
            shown.add_row(*map(Text, (fill(name, 15, break_on_hyphens=False), *cells)))
        yield shown


def show_summary(r: Request, wall_seconds: float) -> None:
    """Print the closing words of a finished run; `wall_seconds` are this call's."""
    console = Console(highlight=False)
    for line in _tables(r) if r.on_cpu else ():
        console.print(Text(line) if isinstance(line, str) else line)
    times, _ = of_ledger(read_ledger(r.out))
    whole, peak = sum(s.seconds for s in times), max(s.peak_mib for s in times) / 1024
    name, records = "main_table", r.out.name
    if r.experiment == "testbed":
        name, records = "testbed", plan.FOLDER if r.part == "main" else f"{plan.FOLDER}/{r.part}"
    elif r.experiment == "miniature" and any(v in os.environ for v in ARITHMETIC_VARIABLES):
        records = f"{ARITHMETIC}/{records}"  # beside the committed runs, with whose cells they share their ids
    lines = [f"This call {duration(wall_seconds)}, all stages {duration(whole)}, peak memory {peak:.1f} GiB."]
    if (r.out / "tables").exists():
        lines += [f"  table      {r.out / 'tables' / f'{name}.md'}", f"  figures    {r.out / 'figures'}"]
    if r.experiment == "calibration":
        lines.append(f"  page       {r.out / 'calibration' / 'calibration.md'}")
    lines += [
        f"  records    {r.out / 'eval'}" + (f", {r.out / 'train'}" if r.trained else ""),
        f"  logs       {r.out / 'logs'}",
    ]
    if not r.standing:
        lines.append(f"  to commit  stapo-repro collect {r.out} --out results/records/{records}, then tox -e tables")
    print("\n".join(lines))
