"""Whether a machine can run the paper's cells: looked at before anything is started, all that is wrong at once."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stapo_repro.driver.chain import Stages
from stapo_repro.driver.request import Request
from stapo_repro.planner.hours import Part
from stapo_results.errors import BadInput
from stapo_results.provenance import nvidia_smi

# what an environment needs beyond the suite itself, to be asked before days of work depend on it
NEEDS = {"stapo-train": ("verl", "vllm", "torch"), "stapo-eval": ("vllm", "math_verify", "torch")}
_RAY_SECONDS = 60


@dataclass(frozen=True)
class Checked:
    """One check: what was looked at, what was found, or the refusal."""

    name: str
    found: str = ""
    problem: BadInput | None = None


def attempt(name: str, check: Callable[[], str]) -> Checked:
    """Make a check; a refusal is kept: a reader wants to know all that is wrong at once."""
    try:
        return Checked(name, check())
    except BadInput as e:
        return Checked(name, problem=e)


def refuse(checks: Sequence[Checked]) -> None:
    """Raises BadInput with everything that stands in the way."""
    problems = [c.problem for c in checks if c.problem is not None]
    if len(problems) == 1:
        raise problems[0]
    if problems:
        listed = "\n\n".join(f"{i}. {p}" for i, p in enumerate(problems, 1))
        raise BadInput(f"{len(problems)} things stand in the way; nothing was started\n\n{listed}")


def checks(r: Request, disk: Part) -> list[Checked]:
    """Environments, disk, GPUs. `disk`: of everything that is still to be made."""
    train, evaluate, _ = r.programs()
    found = [attempt("training's environment", lambda: check_environment("stapo-train", Path(train)))] if train else []
    found.append(attempt("evaluation's environment", lambda: check_environment("stapo-eval", Path(evaluate))))
    found.append(attempt("disk", lambda: check_disk(r, disk)))
    found.append(attempt("GPUs", lambda: check_gpus(r)))
    return found


def check_environment(command: str, program: Path) -> str:
    """The versions of what a wing needs in its environment.

    Raises:
        BadInput: something is not installed there.
    """
    versions = installed(program, NEEDS[command])
    lacking = [n for n, v in versions.items() if v is None]
    if lacking:
        pins = "requirements/gpu.txt" if command == "stapo-train" else "requirements/eval-gpu.txt"
        option = "--train-env" if command == "stapo-train" else "--eval-env"
        raise BadInput(
            f"the environment of {command} cannot do this on GPUs",
            found=f"no {', no '.join(lacking)} in {program.parent.parent}",
            expected=f"what {pins} pins",
            next_step=f"make one as docs/reproduction.md says, and name it with {option} DIR",
        )
    return ", ".join(f"{n} {v}" for n, v in versions.items())


def installed(program: Path, names: Sequence[str]) -> dict[str, str | None]:
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
        raise BadInput(f"{program} stands in no environment", found=f"no {python}", expected="a venv's bin folder",
                       next_step="name the environment with --train-env DIR or --eval-env DIR")  # fmt: skip
    command = [str(python), "-I", "-c", code, *names]
    return json.loads(subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout)


def check_disk(r: Request, need: Part) -> str:
    """Raises BadInput where the checkpoints that are kept would not fit, with the cure if keeping fewer is one."""
    parent = next(p for p in (r.out.absolute(), *r.out.absolute().parents) if p.exists())
    free = shutil.disk_usage(parent).free / 2**30
    if free < need.disk:
        fewer = "--keep-checkpoints 1, or " if need.least <= free else ""
        raise BadInput(
            f"too little disk is free at {parent}",
            found=f"{free:,.0f} GiB",
            expected=f"{need.disk:,.0f} GiB, or {need.least:,.0f} with two checkpoints at a time",
            next_step=f"{fewer}another place with --out",
        )
    return f"{free:,.0f} GiB free, {need.disk:,.0f} needed"


def check_gpus(r: Request) -> str:
    """Counts the GPUs, here or in the Ray cluster.

    Raises:
        BadInput: fewer than the hardware has.
    """
    found, where = (_in_cluster(r.ray_address, r), f"the Ray cluster at {r.ray_address}") if r.ray_address else (
        _here(), "this machine")  # fmt: skip
    if found < r.gpus:
        cells = " ".join("/".join(c) for c in r.cells)
        raise BadInput(
            f"{where} has too few GPUs for --hardware {r.hardware}",
            found=f"{found} GPUs",
            expected=f"{r.gpus}",
            next_step=f"stapo-repro plan {cells} --hardware {r.hardware}   says what it takes; on machines that have "
            "them the same command runs it; without a GPU: stapo-repro run stapo/mini",
        )
    return f"{found} in {where}, {r.gpus} needed"


def _here() -> int:
    """GPUs of this machine that CUDA_VISIBLE_DEVICES leaves."""
    count = len(nvidia_smi("index").split())
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return count if chosen is None else min(count, len([c for c in chosen.split(",") if c.strip()]))


def _in_cluster(address: str, r: Request) -> int:
    """GPUs that `ray status` of the training's (else the evaluation's) environment counts."""
    train, evaluate, _ = r.programs()
    ray = Path(train or evaluate).with_name("ray")
    if not ray.exists():
        raise BadInput("Ray is not installed", found=f"no {ray}", expected="the environment that started the cluster",
                       next_step="name it with --train-env DIR or --eval-env DIR")  # fmt: skip
    command = [str(ray), "status", "--address", address]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_RAY_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise _no_cluster(address, f"nothing for {_RAY_SECONDS} s") from None
    if done.returncode != 0:
        raise _no_cluster(address, done.stderr)
    counted = re.search(r"[\d.]+/([\d.]+) GPU", done.stdout)
    return int(float(counted[1])) if counted else 0


def _no_cluster(address: str, said: str) -> BadInput:
    """A cluster that is not there, or one that is and refuses us: the cures differ."""
    last = (said.strip().splitlines() or ["ray status said nothing"])[-1][:200]
    if "AuthenticationError" in said:
        return BadInput(
            f"the Ray cluster at {address} asks for a token",
            found=last,
            expected="the token of whoever started the cluster",
            next_step="the same command with RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH=FILE before it "
            "(docs/reproduction.md)",
        )
    return BadInput(
        "no Ray cluster answers",
        found=f"--ray-address {address}: {last}",
        expected="a running cluster",
        next_step="ray start --head   on the first node, ray start --address=HOST:6379   on the others "
        "(docs/cluster.md)",
    )


def check_configuration(stages: Stages) -> list[Checked]:
    """The training wing's own look at each configuration: it needs veRL, but no GPU, no data and no weights."""
    seen: dict[tuple[str, ...], Checked] = {}
    for stage in stages:
        if stage.kind != "train":
            continue
        same = tuple(a for a in stage.command if not a.startswith(("run.seed=", "run.out=")))
        if not seen and installed(Path(stage.command[0]), ("verl",))["verl"] is None:
            return [Checked("configurations", "not asked: the training's environment has no veRL")]
        if same not in seen:
            seen[same] = attempt(f"configuration of {stage.name}", lambda s=stage: _config_only(s.command))
    return list(seen.values())


def _config_only(command: Sequence[str]) -> str:
    done = subprocess.run([*command, "--config-only"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BadInput(
            "the training wing refuses the configuration",
            found="\n".join(done.stderr.strip().splitlines()[-8:]),
            next_step=f"correct what it names; alone: {Path(command[0]).name} {' '.join(command[1:])} --config-only",
        )
    return "composes; selector, sizes, alarms and veRL's own validation pass"
