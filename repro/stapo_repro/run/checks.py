"""Before anything is started: every check of the machine, all that is wrong at once, and the dry run's listing."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from stapo_repro import calibrate, labels
from stapo_repro.paper import checkout, load_hyperparameters
from stapo_repro.read import APART
from stapo_repro.run import cost, engine
from stapo_repro.run.cost import GIB, MACHINES, Estimate
from stapo_repro.run.engine import Stage
from stapo_repro.run.request import Request
from stapo_results import runs, store, throughput
from stapo_results.checks import Checks
from stapo_results.errors import BadInput
from stapo_results.provenance import new_run, nvidia_smi
from stapo_results.schema import SETTINGS, Run
from stapo_results.sizes import SMALL
from stapo_results.terminal import duration

STAGES = "finished stages"
CPU_DISK_GIB, MINIATURE_MEMORY_GIB, SMALL_MEMORY_GIB = 3, 6, 10
# packages that an environment needs beyond the suite itself, and the file that pins them
TRAINING, EVALUATION = (("verl", "vllm", "torch"), "gpu"), (("vllm", "math_verify", "torch"), "eval-gpu")
_OTHER_ENVIRONMENT = "name the environment with --train-env DIR or --eval-env DIR (docs/reproduction.md)"


def new_record(r: Request) -> Run:
    """The run record of a request: what later calls on the same folder are compared with."""
    return new_run("repro", r.config, seeds={}, deterministic=r.on_cpu)


def stage_costs(r: Request) -> dict[str, Estimate]:
    """Hours and disk of every training and evaluation, on the card of this machine where it has a known one."""
    judged = () if r.quick else r.models
    if r.on_cpu:
        known = cost.recorded([checkout() / "results" / "records"], skip=APART)
        found = {f"train/{m.name}": cost.on_cpu(known, "train", m.method, m.size, r.steps) for m in r.trained}
        return found | {f"eval/{m.name}": cost.on_cpu(known, "eval", m.method, m.size) for m in judged}
    machine = MACHINES[r.hardware]
    if card := throughput.card_named(nvidia_smi("name")):
        machine = replace(machine, card=card)
    found = {
        f"train/{m.name}": cost.training(m.method, m.size, machine, r.steps, r.keep_checkpoints) for m in r.trained
    }
    for m in judged:
        asked: list[tuple] = [("", SETTINGS, None)]
        if m.method == labels.CALIBRATION:
            points = calibrate.points_of(calibrate.load().checkpoints[m.size].id)
            asked = [(f"-{p.source}", (p.setting,), p.max_tokens) for p in points]
        for ending, settings, limit in asked:
            found[f"eval/{m.name}{ending}"] = cost.evaluation(m.method, m.size, machine, settings, limit)
    return found


def make_checks(r: Request, stages: Sequence[Stage], costs: Mapping[str, Estimate]) -> Checks:
    """Check everything. `costs`: by stage, where something is known."""
    checks = Checks()
    checks.attempt("system", check_system)
    checks.attempt("output folder", _check_folder, r)
    done = checks.attempt(STAGES, engine.finished, r.out, stages) or set()
    left = [s for s in stages if s.name not in done and not s.always]
    there = {s.name: _bytes(s.folder) / GIB for s in left}
    train, evaluate, _ = map(Path, r.programs)
    if r.on_cpu:
        small = r.experiment == "small"
        if small and any(s.name == "base" for s in left):
            cure, weights = (
                f"stapo-train fetch {SMALL}, or the whole by tox -e small",
                store.fetched_folder(SMALL) / "model",
            )
            checks.attempt("fetched model", _check_there, [weights], f"{SMALL} has not been fetched", cure)
        if left:
            checks.attempt("memory", _check_memory, SMALL_MEMORY_GIB if small else MINIATURE_MEMORY_GIB)
            disk = CPU_DISK_GIB + cost.SMALL_TRAINING_GIB * sum(s.kind == "train" for s in left if small)
            checks.attempt("disk", check_disk, r.out, max(0.0, disk - sum(there.values())))
        if r.own:  # the training wing alone knows the names of methods
            checks.attempt("configurations", _check_configurations, train, left)
        return checks
    if r.data_dir is not None:
        files, cure = (
            [r.data_dir / f"{b}.jsonl" for b in labels.PAPER_BENCHMARKS],
            "correct --data-dir, or leave it out",
        )
        checks.attempt("benchmarks", _check_there, files, "the folder of benchmarks is not complete", cure)
    if r.trained:
        checks.attempt("training's environment", check_environment, train, *TRAINING)
    checks.attempt("evaluation's environment", check_environment, evaluate, *EVALUATION)
    if r.judge != "none":  # days before it is asked
        command = (f"{evaluate}", "prompt", "--judge", r.judge)
        refused, cure = "the judge's published prompt is not at hand", "set STAPO_JUDGE_PROMPT=FILE, or --judge none"
        checks.attempt("judge's prompt", _asked, command, refused, cure)
    disk = sum(max(0.0, costs[s.name].disk - there[s.name]) for s in left if s.name in costs)
    checks.attempt("disk", check_disk, r.out, disk, "--keep-checkpoints 1, or " if r.trained else "")
    if not r.ray_address:  # a cluster's are counted by the wings, when they join it
        checks.attempt("GPUs", check_gpus, r.hardware)
    checks.attempt("configurations", _check_configurations, train, left)
    return checks


def _bytes(folder: Path) -> int:
    """Of all files below it; what vanishes meanwhile, as a running stage's old checkpoints do, counts nothing."""
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(at, name)).st_size
    return total


def _check_folder(r: Request) -> str:
    return f"{r.out}: {'is filled further' if runs.previous_of(r.out, new_record(r), '--out') else 'new'}"


def _check_there(paths: Sequence[Path], what: str, cure: str) -> str:
    if missing := [p for p in paths if not p.exists()]:
        raise BadInput(what, found=f"no {', '.join(map(str, missing))}", next_step=cure)
    return f"{paths[0].parent}"


def check_system() -> str:
    """Raises BadInput elsewhere than on Linux: the driver finds and measures its processes in /proc."""
    if sys.platform != "linux":
        raise BadInput("the driver runs on Linux alone", found=sys.platform, expected="linux",
                       next_step="use a Linux machine; tables and figures from records need no driver")  # fmt: skip
    return sys.platform


def _check_memory(need: float) -> str:
    free = psutil.virtual_memory().available / GIB
    if free < need:
        raise BadInput("too little free memory for veRL and Ray", found=f"{free:.1f} GiB available",
                       expected=f"at least {need} GiB",
                       next_step="close other programs, then run the same command again")  # fmt: skip
    return f"{free:.0f} GiB free"


def check_disk(out: Path, need: float, cure: str = "") -> str:
    """Raises BadInput where `need` GiB are not free. `cure`: what to try first, with its "or"."""
    parent = next(p for p in (out.absolute(), *out.absolute().parents) if p.exists())
    free = shutil.disk_usage(parent).free / GIB
    if free < need:
        raise BadInput(f"too little disk is free at {parent}", found=f"{free:,.1f} GiB", expected=f"{need:,.0f} GiB",
                       next_step=f"{cure}free some space, or name another place")  # fmt: skip
    return f"{free:,.0f} GiB free, {need:,.0f} needed"


def check_environment(program: Path, names: Sequence[str], pins: str) -> str:
    """The versions of what a wing needs in its environment. Raises: BadInput for what is not installed there."""
    versions = _installed(program, names)
    if lacking := [n for n, v in versions.items() if v is None]:
        raise BadInput(f"the environment of {program.name} cannot do this on GPUs",
                       found=f"no {', no '.join(lacking)} in {program.parent.parent}",
                       expected=f"what requirements/{pins}.txt pins", next_step=_OTHER_ENVIRONMENT)  # fmt: skip
    return ", ".join(f"{n} {v}" for n, v in versions.items())


def _installed(program: Path, names: Sequence[str]) -> dict[str, str | None]:
    """Versions of these packages in the environment of a console script, None for what is not there."""
    code = (
        "import importlib.metadata as m, json, sys\n"
        "names = {d.metadata['Name'].lower().replace('-', '_'): d.version for d in m.distributions()}\n"
        "print(json.dumps({n: names.get(n) for n in sys.argv[1:]}))"
    )
    python = program.with_name("python")
    if not python.exists():
        raise BadInput(f"{program} is in no environment", found=f"no {python}", next_step=_OTHER_ENVIRONMENT)
    command = [str(python), "-I", "-c", code, *names]
    return json.loads(subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout)


def check_gpus(hardware: str) -> str:
    """Counts the GPUs that CUDA_VISIBLE_DEVICES leaves. Raises: BadInput for fewer than the hardware has."""
    found, chosen = len(nvidia_smi("index").split()), os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        found = min(found, len([c for c in chosen.split(",") if c.strip()]))
    if found < (needed := MACHINES[hardware].gpus):
        raise BadInput(f"this machine has too few GPUs for --hardware {hardware}", found=f"{found} GPUs",
                       expected=f"{needed}", next_step="--dry-run says what it takes; on machines that have them the "
                       "same command runs it; without a GPU: stapo-repro run stapo/mini")  # fmt: skip
    return f"{found} in this machine, {needed} needed"


def _check_configurations(train: Path, stages: Sequence[Stage]) -> str:
    """The training wing's own check of each configuration: it needs veRL, but no GPU, no data and no weights.

    Trainings that differ in seed and folders alone are asked once, and all by one process: its start takes longest.
    Where veRL is missing, the environment's check says so.
    """
    aside = ("run.seed=", "run.out=", "run.base=", "run.size=")
    trainings = [s for s in stages if s.kind == "train"]
    asked = {tuple(a for a in s.command if not a.startswith(aside)): s for s in trainings}
    if not trainings or _installed(train, ("verl",))["verl"] is None:
        return "nothing to ask"
    refused, cure = "the training wing refuses configurations", "correct what it names; alone: stapo-train run ..."
    commands = json.dumps([[*s.command[1:], "--config-only"] for s in asked.values()])
    said = _asked((f"{train.with_name('python')}", "-c", _ASK, commands), refused, cure)
    answers = zip(asked.values(), json.loads(said.splitlines()[-1]), strict=True)
    if found := [f"{s.name}: {said.partition('error: ')[2] or said}" for s, said in answers if said]:
        raise BadInput(refused, found="\n".join(found), next_step=cure)
    return f"{len(asked)} pass"


_ASK = """
import contextlib, io, json, sys
from stapo_training.cli import main
answers = []
for command in json.loads(sys.argv[1]):
    sys.argv[1:], said = command, io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        code = main()
    answers.append(said.getvalue().strip() if code else "")
print(json.dumps(answers))
"""


def _asked(command: Sequence[str], refused: str, cure: str) -> str:
    """What a command of a wing prints. Raises: BadInput with the end of its errors where it refuses."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BadInput(refused, found="\n".join(done.stderr.strip().splitlines()[-8:]), next_step=cure)
    return done.stdout.strip()


def show_plan(r: Request, stages: Sequence[Stage], costs: Mapping[str, Estimate]) -> None:
    """Print each stage with its command, what is there, hours and disk; then the sums, by kind of stage."""
    steps = f", {r.steps:,} steps" if r.steps else ""
    cells = ", ".join(dict.fromkeys(f"{m.method}/{m.size}" for m in r.models))
    print(f"{r.experiment}: {cells}{steps}, on {r.ray_address or r.hardware}, into {r.out}")
    done = set[str]()
    with contextlib.suppress(BadInput):  # the checks say it
        done = engine.finished(r.out, stages)
    for i, stage in enumerate(stages, 1):
        begun = "begun" if stage.folder.exists() else "to do"
        what = "there" if stage.name in done else "made at every call" if stage.always else begun
        print(f"\n{i:>3}. {stage.name}: {what}")
        print(f"     {shlex.join([Path(stage.command[0]).name, *stage.command[1:]])}")
        if stage.name in costs:
            print(f"     {cost_text(costs[stage.name])} ({costs[stage.name].basis})")
    left = [s for s in stages if s.name not in done and not s.always]
    kinds = {kind: [costs[s.name] for s in left if s.kind == kind and s.name in costs] for kind in ("train", "eval")}
    print(f"\nStill to do: {len(left)} of {len(stages)} stages, {cost_text(*kinds['train'], *kinds['eval'])}")
    for kind, estimates in kinds.items():
        if estimates:
            print(f"  {kind} ({len(estimates)}): {cost_text(*estimates)}")
    if not r.on_cpu:
        days, paper = cost.paper_days(), load_hyperparameters()
        print(f"The mean is {sum(days.values()) / len(days):.1f} days a training on 64 H20 by this formula; "
              f"the paper states {paper['days-low']['value']} to {paper['days-high']['value']}")  # fmt: skip
    print("", flush=True)


def show_checks(checks: Checks) -> None:
    """Print what each check found.

    Raises:
        BadInput: with everything that is in the way of a start.
    """
    print("Checks")
    for c in checks.made:
        found = len(c.found) if c.name == STAGES and not c.problem else c.found
        print(f"  {'NOT OK' if c.problem else 'ok':<8}{c.name}: {c.problem.what if c.problem else found}")
    print("")
    checks.refuse()
    print("All checks passed; nothing was started (--dry-run).")


def cost_text(*estimates: Estimate) -> str:
    """ "about 72 h 0 min, 576 GPU h, disk 577 GiB": of all together, one after the other."""
    hours = [e.hours for e in estimates]
    if None in hours:
        return "no time on record"
    text = f"about {duration(3600 * sum(h or 0.0 for h in hours))}"
    if gpu_hours := sum((e.hours or 0.0) * e.gpus for e in estimates):
        disk = sum(e.disk for e in estimates)
        text += f", {gpu_hours:,.0f} GPU h, disk {disk:,.{0 if disk >= 10 else 1}f} GiB"
    return text
