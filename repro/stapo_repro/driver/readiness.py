"""Before anything is started: every check of the machine, all that is wrong at once, and the dry run's listing."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from stapo_repro import calibrate, labels
from stapo_repro.driver.request import Request
from stapo_repro.driver.stages import Stage, StageEvent, hash_inputs, last_event, portable
from stapo_repro.paper import checkout
from stapo_repro.planner import estimates
from stapo_repro.planner.estimates import CPU, GIB, MACHINES, Estimate, places
from stapo_repro.planner.plan import number, total
from stapo_repro.read import APART
from stapo_results import runs, store
from stapo_results.checks import Checks
from stapo_results.errors import BadInput
from stapo_results.provenance import new_run, nvidia_smi
from stapo_results.schema import Run
from stapo_results.sizes import SMALL, is_miniature_size
from stapo_results.terminal import duration

MINIATURE_DISK_GIB, MINIATURE_MEMORY_GIB = 3, 6
SMALL_DISK_GIB, SMALL_MEMORY_GIB = 3, 10
# what an environment needs beyond the suite itself, to be asked before days of work depend on it
NEEDS = {"stapo-train": ("verl", "vllm", "torch"), "stapo-eval": ("vllm", "math_verify", "torch")}
_OTHER_ENVIRONMENT = "name the environment with --train-env DIR or --eval-env DIR (docs/reproduction.md)"

FILLING = (
    "It fills the folder named by --out and does not look at committed records: what is recorded elsewhere is run "
    "again."
)


def new_record(r: Request) -> Run:
    """The run record of a request: what later calls on the same folder are compared with."""
    return new_run("repro", r.config(), seeds={}, deterministic=r.on_cpu)


def stage_costs(r: Request) -> dict[str, Estimate]:
    """Hours and disk of every training and evaluation, by the planner."""
    known = estimates.recorded([checkout() / "results" / "records"], skip=APART)
    machine, found = MACHINES.get(r.hardware, CPU), {}
    for m in r.models:
        labelled = (m.method, labels.MINI if is_miniature_size(m.size) else m.size)  # the worlds' models are alike
        if not m.is_base:
            found[f"train/{m.name}"] = estimates.training(
                *labelled, machine, machine.card, r.steps, known, r.keep_checkpoints
            )
        if m.method == labels.CALIBRATION:
            known_as = calibrate.load().checkpoints[m.size].id
            for p in calibrate.points_of(known_as) if not r.quick else ():
                asked = [(b, p.setting) for b in labels.PAPER_BENCHMARKS]
                found[f"eval/{m.name}-{p.source}"] = estimates.evaluation(
                    *labelled, asked, machine, machine.card, known, p.max_tokens
                )
        elif not r.quick:
            evaluation = estimates.evaluation(*labelled, places(m.size), machine, machine.card, known)
            found[f"eval/{m.name}"] = evaluation
    return found


def make_checks(r: Request, states: Mapping[Stage, State], costs: Mapping[str, Estimate]) -> Checks:
    """Check everything. `states`: of all stages; `costs`: by stage, where something is known."""
    checks, stages = Checks(), [s for s, x in states.items() if x.kind != "there"]
    used = {s: _gib(s.folder) if states[s].kind == "begun" else 0.0 for s in stages}  # what is set aside stays
    checks.attempt("system", check_system)
    checks.attempt("output folder", _check_folder, r)
    if r.on_cpu:
        small = r.experiment == "small"
        if small and any(s.name == "base" for s in stages):
            checks.attempt("fetched model", _check_fetched)
        trainings = sum(s.kind == "train" for s in stages)
        disk = SMALL_DISK_GIB + estimates.SMALL_TRAINING_GIB * trainings if small else MINIATURE_DISK_GIB
        disk = max(0.0, disk - sum(used.values()))
        if stages:
            checks.attempt("memory", check_memory, SMALL_MEMORY_GIB if small else MINIATURE_MEMORY_GIB)
            checks.attempt("disk", check_disk, r.out, disk, disk)
        return checks
    if r.data_dir is not None:
        checks.attempt("benchmarks", check_benchmarks, r.data_dir)
    train, evaluate, _ = r.programs()
    if train:
        checks.attempt("training's environment", check_environment, "stapo-train", Path(train))
    checks.attempt("evaluation's environment", check_environment, "stapo-eval", Path(evaluate))
    if r.judge != "none":  # days before it is asked
        checks.attempt("judge's prompt", _check_prompt, evaluate, r.judge)
    left = [(costs[s.name], there) for s, there in used.items() if s.name in costs]
    disk, least = (max(0.0, sum(getattr(c, x) - there for c, there in left)) for x in ("disk", "least"))
    checks.attempt("disk", check_disk, r.out, disk, least)
    if not r.ray_address:  # a cluster's are counted by the wings, when they join it
        checks.attempt("GPUs", check_gpus, r)
    _check_configurations(checks, stages)
    return checks


def _check_folder(r: Request) -> str:
    previous = runs.previous_of(r.out, new_record(r), "--out")
    return f"{r.out}: {'goes on' if previous else 'new'}"


def check_benchmarks(folder: Path) -> str:
    """What a folder of benchmarks holds. Raises: BadInput where a file is missing."""
    names = [f"{b}.jsonl" for b in labels.PAPER_BENCHMARKS]
    if missing := [n for n in names if not (folder / n).exists()]:
        raise BadInput("the folder of benchmarks is not complete", found=f"{folder} lacks {', '.join(missing)}",
                       next_step="name the right folder with --data-dir, or leave the option out")  # fmt: skip
    return f"{len(names)} files in {folder}"


def _check_fetched() -> str:
    """Raises BadInput where the small model's weights are not in the cache."""
    folder = store.fetched_folder(SMALL) / "model"
    if not folder.is_dir():
        raise BadInput(f"{SMALL} has not been fetched", found=f"no {folder}", expected="its weights, 0.5 GB",
                       next_step=f"stapo-train fetch {SMALL}, or the whole by tox -e small")  # fmt: skip
    return str(folder)


def check_system() -> str:
    """Raises BadInput elsewhere than on Linux: the driver finds and measures its processes in /proc."""
    if sys.platform != "linux":
        raise BadInput("the driver runs on Linux alone", found=sys.platform, expected="linux",
                       next_step="use a Linux machine; tables and figures from records need no driver")  # fmt: skip
    return sys.platform


def check_memory(need: float) -> str:
    """Raises BadInput where a CPU's trainings would not find `need` GiB of memory."""
    free = psutil.virtual_memory().available / GIB
    if free < need:
        raise BadInput("too little free memory for veRL and Ray", found=f"{free:.1f} GiB available",
                       expected=f"at least {need} GiB",
                       next_step="close other programs, then run the same command again")  # fmt: skip
    return f"{free:.0f} GiB free"


def _gib(folder: Path) -> float:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) / GIB


def check_disk(out: Path, need: float, least: float) -> str:
    """Raises BadInput where `need` GiB are not free. `least`: GiB that do where fewer checkpoints are kept."""
    parent = next(p for p in (out.absolute(), *out.absolute().parents) if p.exists())
    free = shutil.disk_usage(parent).free / GIB
    if free < need:
        fewer = "--keep-checkpoints 1, or " if least <= free else ""
        with_two = f", or {least:,.0f} with two checkpoints at a time" if least < need else ""
        raise BadInput(
            f"too little disk is free at {parent}",
            found=f"{free:,.1f} GiB",
            expected=f"{need:,.0f} GiB{with_two}",
            next_step=f"{fewer}free some space, or name another place",
        )
    return f"{free:,.0f} GiB free, {need:,.0f} needed"


def check_environment(command: str, program: Path) -> str:
    """The versions of what a wing needs in its environment. Raises: BadInput for what is not installed there."""
    versions = _installed(program, NEEDS[command])
    if lacking := [n for n, v in versions.items() if v is None]:
        raise BadInput(
            f"the environment of {command} cannot do this on GPUs",
            found=f"no {', no '.join(lacking)} in {program.parent.parent}",
            expected=f"what requirements/{'gpu' if command == 'stapo-train' else 'eval-gpu'}.txt pins",
            next_step=_OTHER_ENVIRONMENT,
        )
    return ", ".join(f"{n} {v}" for n, v in versions.items())


def _installed(program: Path, names: Sequence[str]) -> dict[str, str | None]:
    """Versions of these packages in the environment of a console script, None for what is not there.

    Raises:
        BadInput: no Python beside it to ask.
    """
    code = (
        "import importlib.metadata as m, json, sys\n"
        "names = {d.metadata['Name'].lower().replace('-', '_'): d.version for d in m.distributions()}\n"
        "print(json.dumps({n: names.get(n) for n in sys.argv[1:]}))"
    )
    python = program.with_name("python")
    if not python.exists():
        raise BadInput(f"{program} stands in no environment", found=f"no {python}", next_step=_OTHER_ENVIRONMENT)
    command = [str(python), "-I", "-c", code, *names]
    return json.loads(subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout)


def check_gpus(r: Request) -> str:
    """Counts the GPUs that CUDA_VISIBLE_DEVICES leaves. Raises: BadInput for fewer than the hardware has."""
    found, chosen = len(nvidia_smi("index").split()), os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        found = min(found, len([c for c in chosen.split(",") if c.strip()]))
    if found < r.gpus:
        plan = f"stapo-repro plan {' '.join(r.cells)} --hardware {r.hardware}   says what it takes; "
        plan = "" if r.experiment == "calibration" else plan  # which the dry run has said
        raise BadInput(
            f"this machine has too few GPUs for --hardware {r.hardware}",
            found=f"{found} GPUs",
            expected=f"{r.gpus}",
            next_step=f"{plan}on machines that have them the same command runs it; without a GPU: stapo-repro run "
            "stapo/mini",
        )
    return f"{found} in this machine, {r.gpus} needed"


def _check_configurations(checks: Checks, stages: Sequence[Stage]) -> None:
    """The training wing's own look at each configuration: it needs veRL, but no GPU, no data and no weights.

    Trainings that differ in the seed alone are asked once. Where veRL is missing, the environment's check says so.
    """
    trainings = [s for s in stages if s.kind == "train"]
    if not trainings or _installed(Path(trainings[0].command[0]), ("verl",))["verl"] is None:
        return
    different = {tuple(a for a in s.command if not a.startswith(("run.seed=", "run.out="))): s for s in trainings}
    for stage in different.values():
        checks.attempt(f"configuration of {stage.name}", _check_configuration, stage.command)


def _check_prompt(evaluate: str, judge: str) -> str:
    """The published prompt that this judge will be asked in; the evaluation wing finds or fetches it."""
    done = subprocess.run([evaluate, "prompt", "--judge", judge], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BadInput(
            "the judge's published prompt is not at hand",
            found=" ".join(done.stderr.split()),
            next_step="set STAPO_JUDGE_PROMPT=FILE, or leave the judge out: --judge none",
        )
    return done.stdout.strip()


def _check_configuration(command: Sequence[str]) -> str:
    done = subprocess.run([*command, "--config-only"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BadInput(
            "the training wing refuses the configuration",
            found="\n".join(done.stderr.strip().splitlines()[-8:]),
            next_step=f"correct what it names; alone: {Path(command[0]).name} {' '.join(command[1:])} --config-only",
        )
    return "composes; selector, sizes, alarms and veRL's own validation pass"


@dataclass(frozen=True)
class State:
    """What is there of a stage. `kind`: "again" where what is there will be set aside; `words`: as it is shown."""

    kind: Literal["there", "to do", "begun", "again"]
    words: str


def states(out: Path, stages: Sequence[Stage], ledger: Sequence[StageEvent]) -> dict[Stage, State]:
    """What is there of each stage, in their order, without reading outputs."""
    found: dict[Stage, State] = {}
    there: dict[str, str] = {}  # hashes of outputs
    for stage in stages:
        found[stage] = _state(out, stage, last_event(ledger, stage.name), there)
        if found[stage].kind == "there":
            there[stage.name] = next(e.outputs for e in reversed(ledger) if e.stage == stage.name)
    return found


def _state(out: Path, stage: Stage, last: StageEvent | None, there: Mapping[str, str]) -> State:
    if last is None:
        return State("to do", "to do")
    if portable(last.command, out) != portable(stage.command, out):
        return State("again", "to do again: its command changed")
    if first := [n for n in stage.needs if n not in there]:
        return State("again", f"to do again, unless {first[0]} is what it was when this stage read it")
    if last.inputs != hash_inputs(stage.needs, there):
        return State("again", "to do again: what it reads changed")
    if last.event != "done":
        return State("begun", "begun: goes on")
    if missing := [p for p in stage.outputs if not p.exists()]:
        return State("again", f"to do again: {missing[0]} is not there")
    return State("there", "there")


def show_plan(r: Request, states: Mapping[Stage, State], costs: Mapping[str, Estimate], checks: Checks) -> None:
    """Print each stage with its command, what is there, hours and disk, and the checks; then refuse what cannot start.

    Raises:
        BadInput: with everything that stands in the way.
    """
    place = f"the Ray cluster at {r.ray_address}" if r.ray_address else "this machine"
    steps = f", {r.steps:,} steps" if r.steps else ""
    print(f"{r.experiment}: {', '.join(r.cells)}{steps}, {r.hardware} of {place}, into {r.out}\n{FILLING}")
    for i, (stage, what) in enumerate(states.items(), 1):
        print(f"\n{i:>3}. {stage.name}: {what.words}")
        print(f"     {shlex.join([Path(stage.command[0]).name, *stage.command[1:]])}")
        if stage.name in costs:
            print(f"     {cost_text(costs[stage.name])}")
    left = [s.name for s, what in states.items() if what.kind != "there"]
    hours = total(costs[name].hours for name in left if name in costs)
    print(f"\nStill to do: {len(left)} of {len(states)} stages, {_hours(hours)}\n\nChecks")
    for c in checks.made:
        print(f"  {'NOT OK' if c.problem else 'ok':<8}{c.name}: {c.problem.what if c.problem else c.found}")
    print("")
    checks.refuse()
    print("All checks passed; nothing was started (--dry-run).")


def cost_text(estimate: Estimate) -> str:
    """ "about 72 h 0 min, 576 GPU h (formula); disk 577 GiB" """
    if not estimate.gpus:
        return _hours(estimate.hours) + ("" if estimate.hours is None else f" ({estimate.basis})")
    least = f" (two checkpoints at a time: {number(estimate.least)})" if estimate.least < estimate.disk else ""
    disk = f"disk {number(estimate.disk, 1 if estimate.disk < 10 else 0)} GiB{least}"
    return f"{_hours(estimate.hours)}, {number(estimate.gpu_hours)} GPU h ({estimate.basis}); {disk}"


def _hours(hours: float | None) -> str:
    return "no time on record" if hours is None else f"about {duration(hours * 3600)}"
