"""What is asked of a run: miniature, small model, testbed, the paper's cells or a public checkpoint."""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from stapo_repro import labels
from stapo_repro.calibration import published
from stapo_repro.run.cost import MACHINES, STEPS, load
from stapo_repro.testbed import plan
from stapo_results.errors import BadInput, near_name
from stapo_results.sizes import MINI, SMALL

CPUS = ("cpu", "cpu-2nodes")
"""hardware= of the miniature: this machine, or two nodes of a Ray cluster that runs already."""
Experiment = Literal["miniature", "small", "testbed", "cells", "calibration"]
Named = tuple[tuple[str, str], ...]
"""(method, size) of each cell."""
Seeds = tuple[int, ...]

QUICK_STEPS = {"miniature": 4, "small": 2, "cells": 2}
QUICK_METHODS = ("justrl", "stapo")
ON_CPU: dict[str, Experiment] = {MINI: "miniature", SMALL: "small"}
"""The experiment of each size that a CPU trains."""
_EXAMPLE = "stapo-repro run stapo/mini"
_LABEL = re.compile(r"[a-z][a-z0-9.-]*")


@dataclass(frozen=True)
class Model:
    """A model that is evaluated and, unless it is a base model, trained.

    `choices`: what `stapo-train run` is told of the method, where that is more than its name.
    """

    method: str
    size: str
    seed: int = 0
    choices: tuple[str, ...] = ()

    @property
    def is_base(self) -> bool:
        """Whether its weights are taken as they are: a base model's, or a public checkpoint's."""
        return self.method in labels.NOT_TRAINED

    @property
    def name(self) -> str:
        """Of its folders: stapo-s0, stapo-qwen3-1.7b-s0, base-qwen3-1.7b."""
        size = [] if self.size == MINI else [self.size]
        seed = [] if self.is_base else [f"s{self.seed}"]
        return "-".join([self.method, *size, *seed])


@dataclass(frozen=True)
class Request:
    """One run of the driver.

    Attributes:
        models: in the order in which they are trained and evaluated.
        programs: paths of stapo-train, stapo-eval and stapo-repro.
        same: what further calls on the same folder have to agree in, beside experiment, quick and steps.
        hardware: one of `CPUS` for the miniature, "cpu" for small model and testbed, else a key of `MACHINES`.
        rebuild_base: train the miniature's base model anew instead of taking the carried weights.
        part: of the testbed; own: the label of a method that is shown beside the testbed's committed arms.
        data_dir and below: of the paper's cells alone; see `stapo-repro run --help`.

    `out` and `data_dir` are made absolute, so that a relative path and the absolute one give the same commands.
    """

    experiment: Experiment
    models: tuple[Model, ...]
    steps: int
    quick: bool
    out: Path
    programs: tuple[str, str, str]
    same: Mapping[str, Any] = field(default_factory=dict)
    hardware: str = "cpu"
    rebuild_base: bool = False
    part: plan.Part = "main"
    own: str = ""
    data_dir: Path | None = None
    ray_address: str = ""
    source: str = ""
    judge: str = "none"
    keep_checkpoints: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "out", self.out.resolve())
        object.__setattr__(self, "data_dir", self.data_dir and self.data_dir.resolve())

    @property
    def evaluates(self) -> bool:
        """Whether the models are evaluated; of long runs only what they log is asked for."""
        return self.part != "long"

    @property
    def on_cpu(self) -> bool:
        return self.hardware in CPUS

    @property
    def trained(self) -> tuple[Model, ...]:
        return tuple(m for m in self.models if not m.is_base)

    @property
    def cells(self) -> list[str]:
        """ "stapo/qwen3-8b", each once."""
        return list(dict.fromkeys(f"{m.method}/{m.size}" for m in self.models))

    @property
    def grace_seconds(self) -> float:
        """How long a stage has to end in order: a training step of the largest model and its checkpoint."""
        return 1800.0 if not self.on_cpu else 600.0 if self.experiment == "small" else 30.0

    @property
    def config(self) -> dict[str, Any]:
        """What all calls on one output folder have to agree in."""
        return {"experiment": self.experiment, "quick": self.quick, "steps": self.steps, **self.same}


def of_cells(
    names: Sequence[str], out: Path | None = None, *, hardware: str | None = None, quick: bool = False,
    seeds: Seeds | None = None, steps: int | None = None, **options: Any,
) -> Request:  # fmt: skip
    """The run that these cells are; None takes the default.

    Args:
        options: of `paper_cells`; None and "" where they are not given.

    Raises:
        BadInput: a name that is no cell, cells of several runs, or a value or an option that they do not have.
    """
    given = {k: v for k, v in options.items() if v not in (None, "")}
    if any(n.startswith(f"{labels.CALIBRATION}/") for n in names):
        of_trainings = given | {"seeds": seeds, "steps": steps}
        return checkpoint(names, out or Path("runs/calibration"), hardware=hardware or "8gpu", quick=quick,
                          **of_trainings)  # fmt: skip
    cells = parse_cells(names)
    if not (size := size_on_cpu(cells)):
        return paper_cells(cells, out or Path("runs/cells"), hardware=hardware or "8gpu", seeds=seeds, steps=steps,
                           quick=quick, **given)  # fmt: skip
    if hardware is not None and hardware not in CPUS:
        given = {"hardware": hardware, **given}
    if given:
        raise BadInput(f"{size} has no such option", found=", ".join(map(_flag, given)),
                       expected="--quick, --seeds, --seed-count, --steps, --out, --dry-run",
                       next_step="leave it out, or name cells of the paper's sizes")  # fmt: skip
    methods = tuple(m for m in labels.METHODS if (m, size) in cells)
    return cpu_run(out or Path("runs") / ON_CPU[size], quick=quick, seeds=seeds, methods=methods, steps=steps,
                   hardware=hardware or "cpu", size=size)  # fmt: skip


def cpu_run(
    out: Path, *, quick: bool = False, seeds: Seeds | None = None, methods: Sequence[str] | None = None,
    steps: int | None = None, hardware: str = "cpu", rebuild_base: bool = False, size: str = MINI,
) -> Request:  # fmt: skip
    """The miniature, or the same with the small model in its place; None takes the default.

    Raises:
        BadInput: fewer than one step; a machine that the small model does not take.
    """
    if size != MINI and hardware != "cpu":
        raise BadInput(f"{size} is trained on one machine's CPU here", found=f"--hardware {hardware}",
                       expected="cpu", next_step="leave it out")  # fmt: skip
    names, experiment = methods or (QUICK_METHODS if quick else tuple(labels.METHODS)), ON_CPU[size]
    count = steps if steps is not None else QUICK_STEPS[experiment] if quick else STEPS[size]
    numbers, same = seeds or (0,), {}
    if size == MINI:  # to the folder of the small model methods and seeds may be added
        same = {"methods": list(names), "seeds": list(numbers)}
        same |= {"rebuild_base": True} if rebuild_base else {}
        same |= {} if hardware == "cpu" else {"hardware": hardware}
    models = (Model(labels.BASE, size), *(Model(m, size, s) for s in numbers for m in names))
    return Request(experiment, models, at_least("--steps", count, 1), quick, out, _programs(), same, hardware,
                   rebuild_base)  # fmt: skip


def paper_cells(
    cells: Named, out: Path, *, hardware: str = "8gpu", seeds: Seeds | None = None, steps: int | None = None,
    quick: bool = False, ray_address: str = "", judge: str | None = None, keep_checkpoints: int | None = None,
    data_dir: Path | None = None, source: str = "", train_env: Path | None = None, eval_env: Path | None = None,
) -> Request:  # fmt: skip
    """Cells of the paper's sizes; None and "" take the default. Raises: BadInput for a value that cannot be."""
    if hardware not in MACHINES:
        raise BadInput(
            "the paper's models need GPUs",
            found=f"--hardware {hardware}",
            expected=" | ".join(MACHINES),
            next_step=f"stapo-repro run {'/'.join(cells[0])} --hardware 8gpu --dry-run; without a GPU: {_EXAMPLE}, "
            "or tox -e eval-cpu -- --model DIR for a model's evaluation alone",
        )
    count = steps if steps is not None else QUICK_STEPS["cells"] if quick else load().settings["steps"].value
    r = Request(
        experiment="cells",
        models=tuple(Model(m, s, n) for m, s in cells for n in ((0,) if m in labels.NOT_TRAINED else seeds or (0,))),
        steps=at_least("--steps", count, 1),
        quick=quick,
        out=out,
        programs=_programs(train_env, eval_env),
        hardware=hardware,
        data_dir=data_dir,
        ray_address=ray_address or ("auto" if MACHINES[hardware].gpus > 8 else ""),
        source=source,
        judge=load().judge.model if judge is None else judge,
        # 0: the training's own number
        keep_checkpoints=0 if keep_checkpoints is None else at_least("--keep-checkpoints", keep_checkpoints, 1),
    )
    same = {n: getattr(r, n) for n in ("hardware", "ray_address", "source", "judge", "keep_checkpoints")}
    same |= {"data_dir": str(r.data_dir or ""), "programs": list(r.programs)}  # one run takes one environment
    return replace(r, same=same)


def checkpoint(names: Sequence[str], out: Path, *, hardware: str = "8gpu", **options: Any) -> Request:
    """The evaluation of a public checkpoint, named as calibration/CHECKPOINT, at its published settings.

    Raises:
        BadInput: an unknown one, other cells beside it, a machine without GPUs, or an option of trainings.
    """
    known = published.load().checkpoints
    keys = [n.partition("/")[2] for n in names]
    if len(keys) != 1 or names[0] != f"{labels.CALIBRATION}/{keys[0]}" or keys[0] not in known:
        raise BadInput("no such checkpoint to calibrate on", found=" ".join(names),
                       expected=f"one of {', '.join(f'{labels.CALIBRATION}/{k}' for k in known)}, alone",
                       next_step=f"stapo-repro run {labels.CALIBRATION}/{next(iter(known))} --dry-run")  # fmt: skip
    of_trainings = ("source", "keep_checkpoints", "train_env", "seeds", "steps")
    if given := [k for k in of_trainings if options.pop(k, None) is not None]:
        raise BadInput("nothing is trained here", found=", ".join(map(_flag, given)),
                       expected="no option of a training", next_step="leave it out")  # fmt: skip
    r = paper_cells(((labels.CALIBRATION, keys[0]),), out, hardware=hardware, steps=1, **options)
    return replace(r, experiment="calibration", steps=0)


def of_testbed(
    out: Path | None = None, *, part: plan.Part = "main", quick: bool = False, worlds: str | None = None,
    arms: str | None = None, seeds: Seeds | None = None, steps: int | None = None, method: str | None = None,
) -> Request:  # fmt: skip
    """The testbed, or a method that the user brings in its worlds; None takes the default.

    Args:
        method: the name of an overlay, or a YAML file of one.

    Raises:
        BadInput: an unknown world or arm or one twice, fewer than one step, a method's file that is not there, or
            options that exclude each other.
    """
    if method is not None and (arms is not None or part != "main"):
        raise BadInput("--method trains that method alone", found="--arms, --pilot or --long beside it",
                       next_step="leave them out: the committed arms are shown beside it")  # fmt: skip
    own = None if method is None else _own_arm(method)
    chosen = QUICK_METHODS if quick and arms is None else names_of("--arms", arms, plan.ARMS) if arms else None
    names = names_of("--worlds", worlds, labels.WORLDS) if worlds else tuple(labels.WORLDS)[: 1 if quick else None]
    default = plan.SEEDS[part][:1] if quick else plan.METHOD_SEEDS if own else plan.SEEDS[part]
    numbers = seeds or default
    if part == "pilot" and (judging := sorted({*numbers} & {*plan.SEEDS["main"]})):
        raise BadInput("the pilot's seeds judge nothing, so they are others than those that do", found=judging,
                       expected=f"none of {plan.SEEDS['main']}", next_step="leave --seeds out")  # fmt: skip
    arms_in = {w: [own] if own else plan.arms_of(w, part, chosen) for w in names}
    models = [Model(labels.BASE, labels.WORLDS[w]) for w in names if arms_in[w]]
    # seed by seed: what is there after an interruption can be compared
    models += [Model(a.name, labels.WORLDS[w], s, a.choices) for s in numbers for w in names for a in arms_in[w]]
    if not models:
        raise BadInput("no world has such an arm", found=f"--worlds {','.join(names)} --arms {arms or ''}".strip(),
                       expected="sweeps and long runs are of the world paper",
                       next_step="add paper to --worlds")  # fmt: skip
    count = steps if steps is not None else plan.QUICK_STEPS if quick else plan.STEPS[part]
    label = own.name if own else ""
    folder = "-".join(["testbed", *filter(None, [label or (part if part != "main" else "")])])
    file = Path(method) if method and label != method else None
    same = {"part": part, "standing": label, "standing_sha256": _sha256(file) if file else ""}
    return Request("testbed", tuple(models), at_least("--steps", count, 1), quick, out or Path("runs") / folder,
                   _programs(), same, part=part, own=label)  # fmt: skip


def _own_arm(method: str) -> plan.Arm:
    """A method that its records name after its overlay, or after the overlay's file."""
    file = Path(method)
    if file.suffix not in (".yaml", ".yml"):
        if not _LABEL.fullmatch(method) or method == labels.BASE:
            raise BadInput("this is no name of a method", found=method, expected="such as dapo, or a file NAME.yaml",
                           next_step="stapo-train methods lists the names")  # fmt: skip
        return plan.Arm(method, (f"method={method}", f"run.method={method}"))
    if not file.is_file():
        raise BadInput("no such overlay of a method", found=method, expected="a YAML file, or the name of a method",
                       next_step="stapo-train methods lists the names")  # fmt: skip
    if file.stem in (*plan.ARMS, *labels.METHOD_LABELS, *labels.NO_STYLE) or not _LABEL.fullmatch(file.stem):
        raise BadInput("the file's name is the label of its records, and cannot be this one", found=method,
                       expected="a new name: a small letter, then small letters, digits, dots and dashes",
                       next_step=f"mv {method} my-method.yaml")  # fmt: skip
    return plan.Arm(file.stem, (f"method={file.resolve()}", f"run.method={file.stem}"))


def _sha256(overlay: Path) -> str:
    """Of an overlay and of the file of its selector, where it names one (FILE.py:FUNCTION, beside it)."""
    text = overlay.read_bytes()
    named = [overlay.parent / f for f in re.findall(r"name:\s*['\"]?([^'\"\s:]+):\w", text.decode(errors="replace"))]
    return hashlib.sha256(text + b"".join(f.read_bytes() for f in named if f.is_file())).hexdigest()


def parse_cells(names: Sequence[str]) -> Named:
    """(method, size) of each METHOD/SIZE, each once, in the order given.

    Raises:
        BadInput: none, or one that is no cell of ours.
    """
    sizes = [*ON_CPU, *labels.PAPER_SIZES]
    for name in names or ("",):
        method, _, size = name.partition("/")
        methods = labels.METHODS if size in ON_CPU else labels.METHOD_LABELS
        if size not in sizes or method not in methods:
            raise BadInput(
                f"no such cell: {name or 'none was named'}",
                expected=f"METHOD/{size} with METHOD of {', '.join(methods)}"
                if size in sizes
                else f"METHOD/SIZE with SIZE of {', '.join(sizes)}",
                next_step=f"{near_name(method, methods)}{_EXAMPLE}; other methods alone: stapo-train run method=METHOD "
                "size=SIZE ...",
            )
    return tuple(dict.fromkeys((name.split("/")[0], name.split("/")[1]) for name in names))


def all_cells() -> list[str]:
    """The cells of the paper's table, base models included."""
    return [f"{m}/{s}" for s in labels.PAPER_SIZES for m in (labels.BASE, *labels.METHODS)]


def size_on_cpu(cells: Named) -> str:
    """The one size of `ON_CPU` that the cells have; "" for the paper's. Raises: BadInput for cells of several runs."""
    kinds: dict[str, list[str]] = {}
    for method, size in cells:
        kinds.setdefault(size if size in ON_CPU else "", []).append(f"{method}/{size}")
    if len(kinds) > 1:
        raise BadInput(
            "these cells are several runs: the miniature's, the small model's and the paper's each are one",
            found=", ".join(f"{m}/{s}" for m, s in cells),
            expected="one kind a command",
            next_step="   and: ".join(f"stapo-repro run {' '.join(names)}" for names in kinds.values()),
        )
    return next(iter(kinds))


def seeds_of(text: str | None, count: int | None = None) -> Seeds | None:
    """ "0,2" as (0, 2), and "3" as (3,); the first ones for a count; None where neither is given.

    Raises:
        BadInput: both, a count below one, no whole numbers from 0 on, or one twice.
    """
    if text is None:
        return None if count is None else tuple(range(at_least("--seed-count", count, 1)))
    if count is not None:
        raise BadInput("seeds are named or counted", found=f"--seeds {text} --seed-count {count}",
                       expected="one of the two", next_step="leave one out")  # fmt: skip
    try:
        numbers = tuple(int(s) for s in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or len(set(numbers)) != len(numbers) or min(numbers) < 0:
        raise BadInput("seeds are whole numbers from 0 on, each once", found=text, expected="such as 0,1",
                       next_step="--seeds 0,1; for the first so many: --seed-count 2")  # fmt: skip
    return numbers


def at_least(flag: str, value: int, least: int) -> int:
    if value < least:
        raise BadInput(f"{flag} is at least {least}", found=value, next_step=f"{flag} {least}")
    return value


def names_of(flag: str, text: str, known: Iterable[str]) -> tuple[str, ...]:
    """ "a,b" as ("a", "b"). Raises: BadInput for one that is not known, or one twice."""
    names = tuple(n.strip() for n in text.split(","))
    if not set(names) <= set(known) or len(set(names)) != len(names):
        raise BadInput(f"{flag} cannot be used", found=", ".join(names),
                       expected=f"each at most once, out of {', '.join(known)}",
                       next_step=f"{flag} {','.join(list(known)[:2])}")  # fmt: skip
    return names


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _programs(train_env: Path | None = None, eval_env: Path | None = None) -> tuple[str, str, str]:
    """stapo-train, stapo-eval, stapo-repro. Raises: BadInput for a missing one."""
    return (
        console_script("stapo-train", train_env),
        console_script("stapo-eval", eval_env),
        console_script("stapo-repro"),
    )


def console_script(name: str, environment: Path | None = None) -> str:
    """The path of a console command of this very environment, or of another one (the folder of a venv).

    Raises:
        BadInput: it is not installed.
    """
    path = environment.absolute() / "bin" / name if environment else Path(sys.executable).with_name(name)
    if path.exists():
        return str(path)
    if environment is None and (found := shutil.which(name)):
        return found
    python = f"{environment}/bin/python" if environment else "python"
    raise BadInput(f"the command {name} is not installed", found=f"no {path}",
                   expected="an environment with the suite in it",
                   next_step=f"{python} -m pip install --no-deps --editable .   (docs/reproduction.md)")  # fmt: skip
