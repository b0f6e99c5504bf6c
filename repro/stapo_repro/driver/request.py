"""What the driver is asked for: miniature, small model, testbed or the paper's cells; their values are checked here."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from stapo_repro import calibrate, labels
from stapo_repro.planner.estimates import MACHINES, STEPS, load
from stapo_repro.testbed.plan import Part
from stapo_results.errors import BadInput, near_name
from stapo_results.sizes import MINI, SMALL

CPUS = ("cpu", "cpu-2nodes")
"""hardware= of the miniature: this machine, or two nodes of a Ray cluster that runs already."""
Experiment = Literal["miniature", "small", "testbed", "cells", "calibration"]
Named = tuple[tuple[str, str], ...]
"""(method, size) of each cell."""

QUICK_STEPS = {"miniature": 4, "small": 2, "cells": 2}
ON_CPU: dict[str, Experiment] = {MINI: "miniature", SMALL: "small"}
"""The experiment of each size that a CPU trains."""
QUICK_METHODS = ("justrl", "stapo")  # of these two
_EXAMPLE = "stapo-repro run stapo/mini"


@dataclass(frozen=True)
class Model:
    """A model that is evaluated and, unless it is a base model, trained.

    `choices`: what `stapo-train run` is told of the method, where that is more than its name.
    """

    method: str
    size: str
    seed: int
    choices: tuple[str, ...] = ()

    @property
    def is_base(self) -> bool:
        """Whether its weights are taken as they are: a base model's, or a public checkpoint's."""
        return self.method in labels.NOT_TRAINED

    @property
    def name(self) -> str:
        """Of its folders: stapo-s0, stapo-qwen3-1.7b-s0, base-qwen3-1.7b."""
        size = [] if self.size == labels.MINI else [self.size]
        seed = [] if self.is_base else [f"s{self.seed}"]
        return "-".join([self.method, *size, *seed])


@dataclass(frozen=True)
class Request:
    """One run of the driver.

    Attributes:
        experiment: which of the five it is. "cells" are the paper's; further ones may be added to its folder.
            "calibration" evaluates a public checkpoint as its published results were made.
        models: in the order in which they are trained and evaluated.
        hardware: one of `CPUS` for the miniature, "cpu" for small model and testbed, else a key of `MACHINES`.
        part: of the testbed. standing: a method of one's own, to be shown beside the testbed's committed arms;
            its hash is that of its files, so that a changed one is another run.
        rebuild_base: train the miniature's base model anew instead of taking the carried weights.
        data_dir and below: of the paper's cells alone; see `stapo-repro run --help`.

    `out` and `data_dir` are made absolute, so that a relative path and the absolute one give the same commands.
    """

    experiment: Experiment
    models: tuple[Model, ...]
    steps: int
    quick: bool
    out: Path
    hardware: str = "cpu"
    rebuild_base: bool = False
    data_dir: Path | None = None
    ray_address: str = ""
    source: str = ""
    judge: str = "none"
    keep_checkpoints: int = 0
    train_env: Path | None = None
    eval_env: Path | None = None
    part: Part = "main"
    standing: str = ""
    standing_sha256: str = ""

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
    def gpus(self) -> int:
        return 0 if self.on_cpu else MACHINES[self.hardware].gpus

    @property
    def grace_seconds(self) -> float:
        """How long a stage has to end in order: a training step of the largest model and its checkpoint."""
        return 1800.0 if not self.on_cpu else 600.0 if self.experiment == "small" else 30.0

    def programs(self) -> tuple[str, str, str]:
        """stapo-train ("" where nothing is trained), stapo-eval, stapo-repro. Raises: BadInput for a missing one."""
        return (
            console_script("stapo-train", self.train_env) if self.trained else "",
            console_script("stapo-eval", self.eval_env),
            console_script("stapo-repro"),
        )

    def config(self) -> dict[str, Any]:
        """What all calls on one output folder have to agree in.

        Of the paper's cells the programs are part of it: one run takes one environment.
        """
        same = {"experiment": self.experiment, "quick": self.quick, "steps": self.steps}
        if self.experiment == "small":  # further methods and seeds may be added to its folder
            return same
        if self.experiment == "testbed":  # further worlds, arms and seeds
            return same | {"part": self.part, "standing": self.standing, "standing_sha256": self.standing_sha256}
        if self.on_cpu:
            methods, seeds = zip(*((m.method, m.seed) for m in self.trained), strict=True)
            same |= {"methods": list(dict.fromkeys(methods)), "seeds": list(dict.fromkeys(seeds))}
            same |= {"rebuild_base": True} if self.rebuild_base else {}
            return same | ({} if self.hardware == "cpu" else {"hardware": self.hardware})
        _, evaluate, repro = self.programs()
        same |= {n: getattr(self, n) for n in ("hardware", "ray_address", "source", "judge", "keep_checkpoints")}
        same["data_dir"] = str(self.data_dir or "")
        return same | {"programs": [console_script("stapo-train", self.train_env), evaluate, repro]}


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


def size_on_cpu(cells: Named) -> str:
    """The one size of `ON_CPU` that the cells have; "" for the paper's. Raises: BadInput for cells of several runs."""
    kinds = {s if s in ON_CPU else "": [f"{m}/{z}" for m, z in cells if z == s or {s, z}.isdisjoint(ON_CPU)]
             for _, s in cells}  # fmt: skip
    if len(kinds) > 1:
        raise BadInput(
            "these cells are several runs: the miniature's, the small model's and the paper's each are one",
            found=", ".join(f"{m}/{s}" for m, s in cells),
            expected="one kind a command",
            next_step="   and: ".join(f"stapo-repro run {' '.join(names)}" for names in kinds.values()),
        )
    return next(iter(kinds))


def named_or_counted(seeds: str | None, count: int | None) -> str | None:
    """The text of --seeds, or "0,1,2" for a --seed-count of 3; None where neither is given.

    Raises:
        BadInput: both, or a count below one.
    """
    if count is None:
        return seeds
    if seeds is not None:
        raise BadInput("seeds are named or counted", found=f"--seeds {seeds} --seed-count {count}",
                       expected="one of the two", next_step="leave one out")  # fmt: skip
    return ",".join(map(str, range(at_least("--seed-count", count, 1))))


def parse_seeds(text: str) -> tuple[int, ...]:
    """ "0,2" as (0, 2), and "3" as (3,).

    Raises:
        BadInput: no whole numbers from 0 on, or one twice.
    """
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


def cpu_run(
    out: Path, *, quick: bool = False, seeds: str | None = None, methods: str | None = None, steps: int | None = None,
    hardware: str = "cpu", rebuild_base: bool = False, size: str = MINI,
) -> Request:  # fmt: skip
    """The miniature, or the same with the small model in its place; None takes the default.

    Raises:
        BadInput: an unknown method or one twice, a seed that is no number, fewer than one step; an option that the
            small model does not have.
    """
    if size != MINI and rebuild_base:
        raise BadInput("only the miniature's base model is carried by the repository", found="--rebuild-base",
                       expected=f"no such option with {size}", next_step="leave it out")  # fmt: skip
    if size != MINI and hardware != "cpu":
        raise BadInput(f"{size} is trained on one machine's CPU here", found=f"--hardware {hardware}",
                       expected="cpu", next_step="leave it out")  # fmt: skip
    names, experiment = QUICK_METHODS if quick else tuple(labels.METHODS), ON_CPU[size]
    names = names if methods is None else names_of("--methods", methods, labels.METHODS)
    count = steps if steps is not None else QUICK_STEPS[experiment] if quick else STEPS[size]
    numbers = parse_seeds("0" if seeds is None else seeds)
    models = (Model(labels.BASE, size, 0), *(Model(m, size, s) for s in numbers for m in names))
    return Request(experiment, models, at_least("--steps", count, 1), quick, out, hardware,
                   rebuild_base=rebuild_base)  # fmt: skip


def names_of(flag: str, text: str, known: Iterable[str]) -> tuple[str, ...]:
    """ "a,b" as ("a", "b"). Raises: BadInput for one that is not known, or one twice."""
    names = tuple(n.strip() for n in text.split(","))
    if not set(names) <= set(known) or len(set(names)) != len(names):
        expected = f"each at most once, out of {', '.join(known)}"
        raise BadInput(f"{flag} cannot be used", found=", ".join(names), expected=expected,
                       next_step=f"{flag} {','.join(list(known)[:2])}")  # fmt: skip
    return names


def paper_cells(
    cells: Named, out: Path, *, hardware: str = "8gpu", seeds: str | None = None, steps: int | None = None,
    quick: bool = False, ray_address: str = "", judge: str | None = None, **options: Any,
) -> Request:  # fmt: skip
    """Cells of the paper's sizes; None and "" take the default, `options` are further attributes of `Request`.

    Raises:
        BadInput: a value that cannot be.
    """
    if hardware not in MACHINES:
        raise BadInput(
            "the paper's models need GPUs",
            found=f"--hardware {hardware}",
            expected=" | ".join(MACHINES),
            next_step=f"stapo-repro run {'/'.join(cells[0])} --hardware 8gpu --dry-run; without a GPU: {_EXAMPLE}, "
            "or tox -e eval-cpu -- --model DIR for a model's evaluation alone",
        )
    numbers = parse_seeds("0" if seeds is None else seeds)
    count = steps if steps is not None else QUICK_STEPS["cells"] if quick else load().settings.steps.value
    if options.get("keep_checkpoints") is None:
        options["keep_checkpoints"] = 0  # the training's own number
    else:
        at_least("--keep-checkpoints", options["keep_checkpoints"], 1)
    return Request(
        experiment="cells",
        models=tuple(Model(m, s, n) for m, s in cells for n in ((0,) if m in labels.NOT_TRAINED else numbers)),
        steps=at_least("--steps", count, 1),
        quick=quick,
        out=out,
        hardware=hardware,
        ray_address=ray_address or ("auto" if MACHINES[hardware].gpus > 8 else ""),
        judge=load().judge.model if judge is None else judge,
        **options,
    )


def calibration(names: Sequence[str], out: Path, *, hardware: str = "8gpu", **options: Any) -> Request:
    """The evaluation of public checkpoints, named as calibration/CHECKPOINT, at their published settings.

    Raises:
        BadInput: an unknown one, other cells among them, several, a machine without GPUs, or an option of trainings.
    """
    known = calibrate.load().checkpoints
    keys = [n.partition("/")[2] for n in names]
    if len(keys) != 1 or names[0] != f"{labels.CALIBRATION}/{keys[0]}" or keys[0] not in known:
        raise BadInput("no such checkpoint to calibrate on", found=" ".join(names),
                       expected=f"one of {', '.join(f'{labels.CALIBRATION}/{k}' for k in known)}, alone",
                       next_step=f"stapo-repro run {labels.CALIBRATION}/{next(iter(known))} --dry-run")  # fmt: skip
    of_trainings = ("source", "keep_checkpoints", "train_env", "seeds", "seed_count", "steps")
    if given := [k for k in of_trainings if options.pop(k, None)]:
        flags = ", ".join(f"--{k.replace('_', '-')}" for k in given)
        raise BadInput("nothing is trained here", found=flags, expected="no option of a training",
                       next_step=f"stapo-repro run {names[0]}   without it")  # fmt: skip
    request = paper_cells(((labels.CALIBRATION, keys[0]),), out, hardware=hardware, steps=1, **options)
    return replace(request, experiment="calibration", steps=0)


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
