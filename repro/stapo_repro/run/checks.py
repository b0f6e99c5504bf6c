"""Before anything is started: every check of the machine, all that is wrong at once, and the dry run's listing."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from stapo_repro.run.cells import CellRequest
from stapo_repro.run.cost import GIB, MACHINES, Cost
from stapo_repro.run.stages import MAY_DIFFER, Stage, finished, side_by_side
from stapo_results import runs
from stapo_results.checks import Checks
from stapo_results.errors import BadInput
from stapo_results.memory import usable_memory
from stapo_results.provenance import new_run, visible_cards
from stapo_results.schema import Run
from stapo_results.terminal import duration

# packages that an environment needs beyond the suite itself, and the file that pins them
TRAINING, EVALUATION = (("verl", "vllm", "torch"), "gpu"), (("vllm", "math_verify", "torch"), "eval-gpu")
_FILES = (".jsonl", ".parquet")
_VERSIONS = """
import importlib.metadata, sys
try:
    print(", ".join(f"{n} {importlib.metadata.version(n)}" for n in sys.argv[1:]))
except importlib.metadata.PackageNotFoundError as e:
    sys.exit(str(e))
"""


def new_record(r: CellRequest) -> Run:
    """The run record of a request: what later calls on the same folder are compared with."""
    return new_run("repro", r.config, seeds={}, deterministic=r.on_cpu)


def make_checks(r: CellRequest, stages: Sequence[Stage], costs: Mapping[str, Cost]) -> Checks:
    """Check what no stage would refuse within its first minutes. `costs`: by stage, where something is known."""
    checks = Checks()
    checks.attempt("system", check_system)
    checks.attempt("output folder", _check_folder, r)
    done = checks.attempt("finished stages", finished, r.out, stages) or set()
    left = [s for s in stages if s.name not in done and not s.always]
    disk = sum(max(0.0, costs[s.name].disk - _bytes(s.folder) / GIB) for s in left if s.name in costs)
    for flag, place in _places(r, {s.kind for s in left}):
        checks.attempt(flag, _check_place, flag, place)
    checks.attempt("stages at a time", _sharing, r)
    checks.attempt("disk", check_disk, r.out, disk, "" if r.on_cpu else "--keep-checkpoints 1, or ")
    train, evaluate, _ = r.programs
    if r.user_method:  # the training wing alone knows the names of methods; seeds and worlds are one question
        for s in [s for s in left if s.kind == "train"][:1]:
            checks.attempt("configuration", _asked, (*s.command, "--config-only"), f"{r.user_method} cannot be trained")
    if r.judge not in ("none", "base"):  # days before it is asked
        checks.attempt("judge's prompt", check_prompt, evaluate)
    if r.on_cpu:
        if trainings := min(sum(s.kind == "train" for s in left), sharing(r)[0]):
            checks.attempt("memory", check_memory, r.origin.training_gib, trainings)
        return checks
    if r.trained:
        checks.attempt("training's environment", check_environment, train, *TRAINING)
    checks.attempt("evaluation's environment", check_environment, evaluate, *EVALUATION)
    if not r.ray_address:  # a cluster's are counted by the wings, when they join it
        checks.attempt("GPUs", check_gpus, r.hardware)
    return checks


def sharing(r: CellRequest) -> tuple[int, list[str], str]:
    """(stages at a time, GPUs that they share, why). Without GPUs to share each stage sees all."""
    if not r.on_cpu:
        wants, cards = MACHINES[r.hardware].gpus, [] if r.ray_address else list(visible_cards("name"))
        most = max(1, len(cards) // wants)
        jobs = min(r.jobs or most, most)
        why = "the Ray cluster is one stage's" if r.ray_address else f"{len(cards)} GPUs, {wants} a stage"
        return jobs, cards if jobs > 1 else [], why
    if r.hardware != "cpu":
        return 1, [], "the Ray cluster is one stage's"
    most, why = (r.jobs, "--jobs") if r.jobs else r.origin.at_once(r)
    return most, [], why


def _sharing(r: CellRequest) -> str:
    jobs, cards, why = sharing(r)
    return f"{jobs} ({why})" + (f"; shared GPUs: {', '.join(cards)}" if cards else "")


def _bytes(folder: Path) -> int:
    """Of all files below it; what vanishes meanwhile, as a running stage's old checkpoints do, counts nothing."""
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(at, name)).st_size
    return total


def _check_folder(r: CellRequest) -> str:
    previous = runs.previous_of(r.out, new_record(r), "--out", may_differ=MAY_DIFFER.__contains__)
    return f"{r.out}: {'is filled further' if previous else 'new'}"


def _places(r: CellRequest, kinds: Collection[str]) -> list[tuple[str, str]]:
    """(option, what it says) of what stages of these kinds read; without what may be an id of the hub: OWNER/NAME."""
    named = (("--weights", r.weights, "fetch"), ("--source", r.source, "data"), ("--data-dir", r.data_dir, "eval"),
             ("--judge", r.judge, "eval"))  # fmt: skip
    given = [(flag, f"{place}") for flag, place, kind in named if place and kind in kinds]
    return [(f, p) for f, p in given if p.startswith((".", "/", "~")) or p.count("/") > 1 or Path(p).suffix in _FILES]


def _check_place(flag: str, place: str) -> str:
    """Raises BadInput for a file or a folder that is not there: the stage that reads it may come hours later."""
    if not Path(place).exists():
        raise BadInput(f"what {flag} names is not there", found=place, next_step=f"correct {flag}")
    if flag == "--judge" and not any(Path(place).glob("*.safetensors")):
        raise BadInput("--judge names a folder without a model", found=place, next_step="correct --judge")
    return place


def check_system() -> str:
    """Raises BadInput elsewhere than on Linux: the driver finds and measures its processes in /proc."""
    if sys.platform != "linux":
        raise BadInput("the driver runs on Linux alone", found=sys.platform, expected="linux",
                       next_step="use a Linux machine; tables and figures from records need no driver")  # fmt: skip
    return sys.platform


def check_disk(out: Path, need: float, cure: str = "") -> str:
    """Raises BadInput where `need` GiB are not free. `cure`: what to try first, with its "or"."""
    parent = runs.nearest(out)
    free = shutil.disk_usage(parent).free / GIB
    if free < need:
        raise BadInput(f"too little disk is free at {parent}", found=f"{free:,.1f} GiB", expected=f"{need:,.1f} GiB",
                       next_step=f"{cure}free some space, or name another place")  # fmt: skip
    return f"{free:,.0f} GiB free, {need:,.1f} needed"


def check_memory(each: float, trainings: int) -> str:
    """Raises BadInput where `each` GiB are not free for as many trainings as run at a time.

    A training says it too, after hours of preparation, but not what those beside it will take.
    """
    free, need = usable_memory()[1] / GIB, each * trainings
    if free < need:
        many = f"{trainings} trainings" if trainings > 1 else "a training"
        cure = "a smaller --jobs, or " if trainings > 1 else ""
        raise BadInput(f"too little memory is free for {many}", found=f"{free:.1f} GiB", expected=f"{need:.1f} GiB",
                       next_step=f"{cure}end what else runs, or take a machine with more")  # fmt: skip
    return f"{free:.0f} GiB free, {each:g} a training"


def check_environment(program: str, names: Sequence[str], pins: str) -> str:
    """The versions of what a wing needs in its environment. Raises: BadInput for what is not installed there."""
    refused = f"the environment of {Path(program).name} cannot do this on GPUs: {Path(program).parent.parent}"
    cure = f"install requirements/{pins}.txt, or name the environment with --train-env DIR or --eval-env DIR"
    return _asked((f"{Path(program).with_name('python')}", "-I", "-c", _VERSIONS, *names), refused, cure)


def check_prompt(evaluate: str) -> str:
    """Asks the evaluation for the judge's published prompt. Raises: BadInput where it has none."""
    cure = "set STAPO_JUDGE_PROMPT=FILE, or --judge none"
    return _asked((evaluate, "judge"), "the judge's published prompt is not at hand", cure)


def check_gpus(hardware: str) -> str:
    """Counts the GPUs that this process sees. Raises: BadInput for fewer than the hardware has."""
    found = len(visible_cards("name"))
    if found < (needed := MACHINES[hardware].gpus):
        raise BadInput(f"this machine has too few GPUs for --hardware {hardware}", found=f"{found} GPUs",
                       expected=f"{needed}", next_step="--dry-run says what it takes; on machines that have them the "
                       "same command runs it; without a GPU: stapo-repro run stapo/mini")  # fmt: skip
    return f"{found} in this machine, {needed} needed"


def _asked(command: Sequence[str], refused: str, cure: str = "") -> str:
    """The last line that a command prints.

    Raises:
        BadInput: with the end of its errors where it refuses, and where it does not end within two minutes.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as e:  # a folder that is no environment; a shared disk that hangs
        raise BadInput(refused, found=e, next_step=cure) from None
    if done.returncode != 0:
        raise BadInput(refused, found="\n".join(done.stderr.strip().splitlines()[-8:]), next_step=cure)
    return done.stdout.strip().rpartition("\n")[2]


def show_plan(r: CellRequest, stages: Sequence[Stage], costs: Mapping[str, Cost]) -> None:
    """Print each stage with its command, what is there, hours and disk; then the sum of what is left."""
    steps = f", {r.steps:,} steps" if r.steps else ""
    cells = ", ".join(dict.fromkeys(f"{m.method}/{m.size}" for m in r.models))
    print(f"{r.experiment}: {cells}{steps}, on {r.ray_address or r.hardware}, into {r.out}")
    done = set[str]()
    with contextlib.suppress(BadInput):  # the checks say it
        done = finished(r.out, stages)
    left = [s.name for s in stages if s.name not in done and not s.always]
    for i, stage in enumerate(stages, 1):
        state = "begun" if stage.folder.exists() else "to do"
        if stage.name not in left:
            state = "there" if stage.name in done else "made at every call"
        print(f"\n{i:>3}. {stage.name}: {state}")
        print(f"     {shlex.join([Path(stage.command[0]).name, *stage.command[1:]])}")
        if stage.name in costs:
            print(f"     {cost_text(costs[stage.name])} ({costs[stage.name].basis})")
    ahead = {name: costs[name] for name in left if name in costs}
    hours = {name: c.hours or 0.0 for name, c in ahead.items()}
    sums = cost_text(*ahead.values())
    with contextlib.suppress(BadInput):  # the checks say it
        jobs, _, _ = sharing(r)
        wall = side_by_side(stages, hours, jobs)
        if wall < sum(hours.values()):
            sums += f"; about {duration(3600 * wall)} with {jobs} at a time"
    print(f"\nStill to do: {len(left)} of {len(stages)} stages, {sums}\n", flush=True)


def show_checks(checks: Checks) -> None:
    """Print what each check found."""
    for c in checks.made:
        text = ", ".join(sorted(c.found)) or "none" if isinstance(c.found, set) else c.found
        if c.problem:
            text = c.problem.what
        print(f"{'NOT OK' if c.problem else 'ok':<8}{c.name}: {text}")
    if not checks.problems:
        print("All checks passed; nothing was started (--dry-run).")


def cost_text(*estimates: Cost) -> str:
    """ "about 72 h 0 min, 576 GPU h, disk 577.0 GiB": of all together, one after the other."""
    hours = [e.hours for e in estimates if e.hours is not None]
    text = f"about {duration(3600 * sum(hours))}" if len(hours) == len(estimates) else "no time on record"
    if gpu_hours := sum((e.hours or 0.0) * e.gpus for e in estimates):
        text += f", {gpu_hours:,.0f} GPU h"
    return f"{text}, disk {sum(e.disk for e in estimates):,.1f} GiB"
