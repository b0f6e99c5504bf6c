"""What is asked of a run: the miniature, a real model's cells, the paper's cells, or the models of a study."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from stapo_repro import labels
from stapo_repro.paper import TAU_P, Q, variant, with_values
from stapo_repro.run.cells import CellRequest, Model
from stapo_repro.run.cost import MACHINES, STEPS
from stapo_repro.run.origins import ORIGINS
from stapo_results.errors import BadInput, near_name
from stapo_results.sizes import MINI

Seeds = Annotated[str | None, tyro.conf.arg(help="Training seeds, such as 0,1,4. Default: 0.")]
DryRun = Annotated[
    bool, tyro.conf.arg(help="Print each stage with its command, hours and disk; make every check; start nothing.")
]

Jobs = Annotated[
    int, tyro.conf.arg(help="Stages at a time. Default: as many as cores and memory, or the GPUs, bear (--dry-run).")
]

QUICK_METHODS = ("justrl", "stapo")
_EXAMPLE = "stapo-repro run stapo/mini"
_SELECTOR = "actor_rollout_ref.selector"


def run(
    cells: tyro.conf.Positional[tuple[str, ...]] = (), all: bool = False, dry_run: DryRun = False, quick: bool = False,
    seeds: Seeds = None, steps: int | None = None, data_dir: Path | None = None, out: Path | None = None,
    hardware: Literal["1gpu", "8gpu", "64gpu", "cpu", "cpu-2nodes"] | None = None, ray_address: str = "",
    source: str = "", judge: str | None = None, keep_checkpoints: int | None = None, rebuild_base: bool = False,
    train_env: Path | None = None, eval_env: Path | None = None, jobs: Jobs = 0, weights: Path | None = None,
) -> CellRequest:  # fmt: skip
    """Run what the named cells lack: data, train, export, evaluate, tables. The same command resumes.

    A cell is METHOD/SIZE: stapo/mini, stapo/qwen2.5-coder-0.5b, base/qwen3-8b. The paper's sizes need GPUs; two cores
    and 24 GB bear qwen2.5-coder-0.5b (a day or more, with --quick minutes). `miniature` is the whole reproduction in
    miniature: the paper's four methods, with --quick JustRL and STAPO.
    Results go to --out. Committed records are ignored.

    Args:
        cells: Of the miniature, of a real model or of the paper's models; or miniature.
        all: All cells of the paper's table, base models included; with --dry-run: what the reproduction takes.
        quick: Few steps, samples and problems: shows that the path works.
        steps: Training steps. Default: 30 for the miniature, 3,000 for the paper's models.
        data_dir: Folder with the six benchmarks, for the paper's cells. Default: the hub's copies.
        out: Where everything goes. Default: runs/miniature, runs/real or runs/cells, of a quick
            run with -quick behind it.
        hardware: Default: 8gpu for the paper's models, cpu for the miniature. cpu-2nodes: on a Ray cluster.
        ray_address: A Ray cluster that runs already (HOST:PORT or auto) for training and evaluation; 64gpu: auto.
        source: Training prompts: a .jsonl or .parquet file, or a data set's id. Default: DAPO-Math-17k from the hub.
        judge: Verifier of the paper's cells: a folder, a hub id or none. Default: opencompass/CompassVerifier-3B.
        keep_checkpoints: How many checkpoints of each training are kept, and one more while it is written. Default: 3,
            of a real model on a CPU 1.
        rebuild_base: Train the miniature's base model anew (2 minutes) instead of taking the carried weights.
        train_env: Folder of the environment whose stapo-train is used. Default: this one.
        eval_env: Folder of the environment whose stapo-eval is used. Default: this one.
        weights: GGUF file of the real model, where it is not to come from the hub.

    Raises:
        BadInput: a name that is no cell, cells of several runs, or a value or an option that they do not have.
    """
    if all and cells:
        raise BadInput("--all and named cells exclude each other", found=" ".join(cells), next_step="leave one out")
    if all:
        cells = tuple(f"{m}/{s}" for s in labels.PAPER_SIZES for m in (labels.BASE, *labels.METHODS))
    if cells == ("miniature",):
        cells = tuple(f"{m}/{MINI}" for m in (QUICK_METHODS if quick else labels.METHODS))
    experiment, named = parse_cells(cells)
    options = {"seeds": seeds, "steps": steps, "data_dir": data_dir, "ray_address": ray_address, "source": source,
               "judge": judge, "keep_checkpoints": keep_checkpoints, "train_env": train_env,
               "eval_env": eval_env, "weights": weights, "rebuild_base": rebuild_base or None}  # fmt: skip
    origin = ORIGINS[experiment]
    if unknown := [k for k, v in options.items() if v not in (None, "") and k not in origin.options]:
        raise BadInput(f"a cell of the {experiment} run takes no {_flags(unknown)}", found=" ".join(cells),
                       expected=f"of such options {_flags(origin.options)}", next_step="leave it out")  # fmt: skip
    of_trainings = [k for k in ("seeds", "keep_checkpoints") if options[k] is not None]  # steps bind the folder
    if of_trainings and {method for method, _ in named} == {labels.BASE}:
        raise BadInput(f"nothing is trained that {_flags(of_trainings)} could change", found=" ".join(cells),
                       next_step="leave it out, or name a method's cell too")  # fmt: skip
    machine, out = hardware or origin.hardware[0], out or Path("runs") / f"{experiment}{'-quick' * quick}"
    if machine not in origin.hardware:
        raise BadInput(f"the {experiment} run does not take this hardware", found=machine,
                       next_step=f"--hardware {' | '.join(origin.hardware)}; without a GPU: {_EXAMPLE}")  # fmt: skip
    numbers = seeds_of(seeds) or (0,)
    if steps is None:
        steps = origin.quick_steps if quick else origin.steps()
    if experiment == "miniature":
        methods = sorted(dict(named), key=[*labels.METHOD_LABELS, *dict(named)].index)  # one order, however named
        return cpu_run(
            out, methods, quick=quick, seeds=numbers, steps=steps, hardware=machine, rebuild_base=rebuild_base,
            dry_run=dry_run, jobs=jobs,
        )  # fmt: skip
    if keep_checkpoints is not None and keep_checkpoints < 1:
        raise BadInput(
            "--keep-checkpoints must be at least 1", found=keep_checkpoints, next_step="--keep-checkpoints 1"
        )
    commands = programs(train_env, eval_env)
    folder = data_dir and data_dir.resolve()
    values: dict[str, Any] = {
        "hardware": machine,
        "ray_address": ray_address or ("auto" if machine in MACHINES and MACHINES[machine].gpus > 8 else ""),
        "source": source,
        "judge": judge or origin.judge(),
        "keep_checkpoints": keep_checkpoints or 0,
    }
    same = {**values, "data_dir": str(folder or ""), "programs": list(commands)}
    every = 0 if quick else None  # validating would take longest
    models = list[Model]()
    for method, size in named:
        its_seeds = (0,) if method == labels.BASE else numbers
        models += [Model(method, size, seed, validation_every=every) for seed in its_seeds]
    return CellRequest(
        experiment, origin, tuple(models), steps, quick, out, same, commands, dry_run, data_dir=folder, jobs=jobs,
        weights=weights and weights.resolve(), **values,
    )  # fmt: skip


def _flags(names: Sequence[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


def cpu_run(
    out: Path, methods: Sequence[str], *, quick: bool = False, seeds: tuple[int, ...] = (0,),
    steps: int = STEPS, hardware: str = "cpu", rebuild_base: bool = False, dry_run: bool = False, jobs: int = 0,
) -> CellRequest:  # fmt: skip
    """The miniature with these methods."""
    same: dict[str, Any] = {"methods": list(methods), "seeds": list(seeds)}
    same |= {"rebuild_base": True} if rebuild_base else {}
    same |= {} if hardware == "cpu" else {"hardware": hardware}
    models = (Model(labels.BASE, MINI), *(Model(m, MINI, s) for s in seeds for m in methods))
    origin = ORIGINS["miniature"]
    return CellRequest(
        "miniature", origin, models, steps, quick, out, same, programs(), dry_run, hardware, rebuild_base,
        judge=origin.judge(), jobs=jobs,
    )  # fmt: skip


def choices(label: str) -> tuple[str, ...]:
    """What `stapo-train run` is told of a method, or of one with another tau_p or q (`paper.variant`)."""
    method, tau_p, q = variant(label) or (label, TAU_P, Q)
    words = [f"method={method}"]
    words += [f"{_SELECTOR}.tau_p={tau_p}"] if tau_p != TAU_P else []
    words += [f"{_SELECTOR}.q={q}"] if q != Q else []
    return tuple(words)


def parse_cells(names: Sequence[str]) -> tuple[str, tuple[tuple[str, str], ...]]:
    """(experiment, (method, size) of each METHOD/SIZE once, in the order given).

    Raises:
        BadInput: for none, no such cell, or cells of several runs.
    """
    trained = [m for m in labels.METHOD_LABELS if m != labels.BASE]
    methods = {size: [labels.BASE, *trained] for size in (MINI, *labels.REAL_SIZES, *labels.PAPER_SIZES)}
    methods |= {MINI: trained, "qwen2.5-coder-1.5b": [labels.BASE]}  # no overlay trains the latter
    runs: dict[str, dict[str, tuple[str, str]]] = {}
    for name in names or ("",):
        method, _, size = name.partition("/")
        values = variant(method)
        written = with_values(*values) if values and 0 < values[1] <= 1 and values[2] <= 1 else None
        if size not in methods or method not in (*methods[size], written):
            near = near_name(name, [f"{m}/{s}" for s, of_size in methods.items() for m in of_size])
            known = ", ".join(methods.get(size, trained))
            raise BadInput(f"no such cell: {name or 'none was named'}",
                           expected=f"METHOD/SIZE with SIZE of {', '.join(methods)}, METHOD of {known}, or "
                           "stapo-q0.5 and the like",
                           next_step=f"{near}{_EXAMPLE}")  # fmt: skip
        experiment = "real" if size in labels.REAL_SIZES else "cells"
        runs.setdefault("miniature" if size == MINI else experiment, {})[name] = method, size
    if len(runs) > 1:
        commands = (f"stapo-repro run {' '.join(of_run)}" for of_run in runs.values())
        raise BadInput("these cells need separate runs", found=", ".join(names), next_step="   and: ".join(commands))
    ((experiment, cells),) = runs.items()
    return experiment, tuple(cells.values())


def seeds_of(text: str | None) -> tuple[int, ...] | None:
    """ "0,2" as (0, 2); None where none is given. Raises: BadInput for no whole numbers from 0 on, or one twice."""
    if text is None:
        return None
    words = text.split(",")
    numbers = tuple(int(word) for word in words if word.strip().isdecimal())
    if len({*numbers}) != len(words):
        raise BadInput("invalid --seeds", found=text, expected="whole numbers from 0 on, each once",
                       next_step="--seeds 0,1")  # fmt: skip
    return numbers


def programs(train_env: Path | None = None, eval_env: Path | None = None) -> tuple[str, str, str]:
    """Paths of stapo-train, stapo-eval and stapo-repro. Raises: BadInput as `console_script`."""
    train, evaluate = console_script("stapo-train", train_env), console_script("stapo-eval", eval_env)
    return train, evaluate, console_script("stapo-repro")


def console_script(name: str, environment: Path | None = None) -> str:
    """The path of a console command of this very environment, or of another one (the folder of a venv).

    Raises:
        BadInput: it is not installed.
    """
    folder = environment.absolute() / "bin" if environment else Path(sys.executable).parent
    path = shutil.which(name, path=folder)
    if path is None and environment is None:
        path = shutil.which(name)
    if path:
        return path
    raise BadInput(f"the command {name} is not installed", found=f"no {folder / name}",
                   next_step=f"{folder}/python -m pip install --no-deps -e .   (docs/reproduction.md)")  # fmt: skip
