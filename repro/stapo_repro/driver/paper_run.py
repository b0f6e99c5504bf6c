"""The driver on the paper's cells: checks that refuse before anything starts, then the same stage engine."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

from stapo_repro import labels
from stapo_repro.ablation import build as ablation
from stapo_repro.driver import dry_run, readiness, summary
from stapo_repro.driver.chain import Stages
from stapo_repro.driver.paper_chain import GRACE_SECONDS, make_stages, name_of
from stapo_repro.driver.readiness import Checked, attempt
from stapo_repro.driver.request import Request
from stapo_repro.driver.run import check_data, check_parameters, execute
from stapo_repro.paper import checkout
from stapo_repro.planner import facts, hours
from stapo_repro.planner.hours import Part


def main(r: Request, dry: bool = False) -> int:
    """Run what the cells lack in their folder; with `dry` print it, make every check, and start and write nothing.

    Raises:
        BadInput: the machine, an environment, the disk or the folder does not do; nothing was started.
        RunFailed: a stage failed; the same command goes on.
    """
    began = time.monotonic()
    stages = make_stages(r)
    costs = stage_costs(r)
    checks = _checks(r, stages, costs)
    if dry:
        cells = ", ".join("/".join(c) for c in r.cells)
        seeds = ", ".join(map(str, r.seeds))
        where = f"the Ray cluster at {r.ray_address}" if r.ray_address else "this machine"
        title = f"{cells}, seeds {seeds}, {r.steps:,} steps, on {r.hardware} of {where}, into {r.out}"
        dry_run.show(title, stages, r.out, costs, [*checks, *readiness.check_configuration(stages)])
        return 0
    ledger = dry_run.events(r.out / "stages.jsonl")
    left = [s for s in stages if not dry_run.state(s, ledger).startswith("there")]
    readiness.refuse([*checks, *readiness.check_configuration(left)])
    r.out.mkdir(parents=True, exist_ok=True)
    check_parameters(r.out, r.parameters())
    outcomes = execute(stages, r.out, GRACE_SECONDS)
    summary.costs(Console(highlight=False), outcomes, time.monotonic() - began)
    _closing(r)
    return 0


def _checks(r: Request, stages: Stages, costs: dict[str, Part]) -> list[Checked]:
    ledger = dry_run.events(r.out / "stages.jsonl")
    left = [s for s in stages if s.name in costs and not dry_run.state(s, ledger).startswith("there")]
    used = sum(_gib(s.folder) for s in left)  # of stages that were begun
    disk, least = (sum(getattr(costs[s.name], what) for s in left) for what in ("disk", "least"))
    need = Part(None, 0, max(0.0, disk - used), max(0.0, least - used), "not known", ())
    found = [attempt("output folder", lambda: check_parameters(r.out, r.parameters(), write=False) or str(r.out))]
    if (folder := r.data_dir) is not None:
        found.append(attempt("benchmarks", lambda: check_data(folder, tuple(labels.PAPER_BENCHMARKS))))
    return found + readiness.checks(r, need)


def _gib(folder: Path) -> float:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) / hours.GIB


def stage_costs(r: Request) -> dict[str, Part]:
    """Hours and disk of every training and evaluation, by the planner."""
    known = hours.recorded([checkout() / "results" / "records"], skip=(ablation.FOLDER,))
    budget, machine = facts.load(), facts.MACHINES[r.hardware]
    found = {}
    for model in r.models:
        method, size, _ = model
        if method != labels.BASE:
            part = hours.training(budget, method, size, machine, machine.card, r.steps, known, r.keep_checkpoints)
            found[f"train/{name_of(model)}"] = part
        if not r.quick:
            part = hours.evaluation(budget, size, facts.whole_evaluation(), machine, machine.card, known,
                                    method == labels.BASE)  # fmt: skip
            found[f"eval/{name_of(model)}"] = part
    return found


def _closing(r: Request) -> None:
    console = Console(highlight=False)
    for what, where in (
        ("table", r.out / "tables" / "main_table.md"),
        ("figures", r.out / "figures"),
        ("records", r.out / "eval"),
        ("to share them", f"stapo-repro pack {r.out} --out {r.out.name}.zip"),
        ("to commit them", f"stapo-repro collect {r.out} --out results/records/{r.out.name}, then tox -e tables"),
    ):
        console.print(Text(f"  {what:<15}{where}"))
