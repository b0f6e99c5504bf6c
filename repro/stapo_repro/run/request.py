"""What is asked of a run: miniature, small model, testbed, the paper's cells or a public checkpoint."""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from stapo_repro import calibrate, labels
from stapo_repro.run.cost import MACHINES, STEPS, load
from stapo_repro.testbed import plan
from stapo_results.errors import BadInput, meant, near_name
from stapo_results.sizes import MINI, SMALL

CPUS = ("cpu", "cpu-2nodes")
"""hardware= of the miniature: this machine, or two nodes of a Ray cluster that runs already."""
Experiment = Literal["miniature", "small", "testbed", "cells", "calibration"]
Named = tuple[tuple[str, str], ...]
"""(method, size) of each cell."""
Seeds = tuple[int, ...]

QUICK_STEPS = {MINI: 4, SMALL: 2}
QUICK_PAPER_STEPS = 2
QUICK_METHODS = ("justrl", "stapo")
ON_CPU: dict[str, Experiment] = {MINI: "miniature", SMALL: "small"}
"""The experiment of each size that a CPU trains."""
_EXAMPLE = "stapo-repro run stapo/mini"
_LABEL = re.compile(r"[a-z][a-z0-9.-]*")


@dataclass(frozen=True)
class Model:
    """A model that is evaluated and, unless its weights are taken as they are, trained.

    `choices`: what `stapo-train run` is told of the method, where that is more than its name.
    """

    method: str
    size: str
    seed: int = 0
    choices: tuple[str, ...] = ()

    @property
    def is_base(self) -> bool:
        return self.method in labels.NOT_TRAINED

    @property
    def name(self) -> str:
        """Of its folders: stapo-s0, stapo-qwen3-1.7b-s0, base-qwen3-1.7b."""
        size = [] if self.size == MINI else [self.size]
        return "-".join([self.method, *size, *([] if self.is_base else [f"s{self.seed}"])])


@dataclass(frozen=True)
class Request:
    """One run of the driver. Paths are made absolute, so that both spellings give the same commands.

    Attributes:
        models: in the order in which they are trained and evaluated.
        same: what further calls on the same folder have to agree in, beside experiment, quick and steps.
        programs: paths of stapo-train, stapo-eval and stapo-repro.
        hardware: one of `CPUS`, else a key of `cost.MACHINES`.
        own: the label of a method that is shown beside the testbed's committed arms; part: of the testbed.
        data_dir and below: see `stapo-repro run --help`; keep_checkpoints 0: the training's own number.
    """

    experiment: Experiment
    models: tuple[Model, ...]
    steps: int
    quick: bool
    out: Path
    same: Mapping[str, Any]
    programs: tuple[str, str, str] = field(default_factory=lambda: programs())
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
        at_least("--steps", self.steps, self.experiment != "calibration")

    @property
    def on_cpu(self) -> bool:
        return self.hardware in CPUS

    @property
    def trained(self) -> tuple[Model, ...]:
        return tuple(m for m in self.models if not m.is_base)

    @property
    def config(self) -> dict[str, Any]:
        """What all calls on one output folder have to agree in."""
        return {"experiment": self.experiment, "quick": self.quick, "steps": self.steps, **self.same}


def of_cells(
    names: Sequence[str], out: Path | None = None, *, hardware: str | None = None, seeds: Seeds | None = None,
    steps: int | None = None, quick: bool = False, **options: Any,
) -> Request:  # fmt: skip
    """The run that these cells are; None takes the default.

    Args:
        names: METHOD/SIZE each; `all_cells` for the whole table.
        options: of the paper's sizes: data_dir, source, ray_address, judge, keep_checkpoints, train_env, eval_env; None
            and "" where they are not given.

    Raises:
        BadInput: a name that is no cell, cells of several runs, or a value or an option that they do not have.
    """
    run, cells = parse_cells(names)
    given = {k: v for k, v in options.items() if v not in (None, "")}
    out = out or Path("runs") / run
    if run in ON_CPU.values():
        if given := ({} if hardware in (None, *CPUS) else {"hardware": hardware}) | given:
            raise BadInput(f"the {run} run has no such option", found=_flags(given),
                           expected="--quick, --seeds, --seed-count, --steps, --out, --dry-run",
                           next_step="leave it out, or name cells of the paper's sizes")  # fmt: skip
        methods, size = [m for m in labels.METHODS if m in dict(cells)], cells[0][1]
        return cpu_run(
            out, quick=quick, seeds=seeds, methods=methods, steps=steps, hardware=hardware or "cpu", size=size
        )
    hardware = hardware or "8gpu"
    if hardware not in MACHINES:
        raise BadInput("the paper's models need GPUs", found=f"--hardware {hardware}", expected=" | ".join(MACHINES),
                       next_step=f"stapo-repro run {names[0]} --hardware 8gpu --dry-run; without a GPU: {_EXAMPLE}, "
                       "or tox -e eval-cpu -- --model DIR for a model's evaluation alone")  # fmt: skip
    public = run == "calibration"
    asked = given | {k: v for k, v in {"seeds": seeds, "steps": steps}.items() if v is not None}
    if public and (of_training := [k for k in asked if k not in ("data_dir", "ray_address", "judge", "eval_env")]):
        raise BadInput("nothing is trained here", found=_flags(of_training), next_step="leave it out")
    at_least("--keep-checkpoints", given.get("keep_checkpoints", 1), 1)
    count = steps if steps is not None else QUICK_PAPER_STEPS if quick else load().value("steps")
    values: dict[str, Any] = {
        "hardware": hardware,
        "ray_address": given.get("ray_address", "auto" if MACHINES[hardware].gpus > 8 else ""),
        "source": given.get("source", ""),
        "judge": given.get("judge", load().judge["model"]),
        "keep_checkpoints": given.get("keep_checkpoints", 0),
    }
    folder, found = given.get("data_dir"), programs(given.get("train_env"), given.get("eval_env"))
    folder = folder and folder.resolve()
    same = {**values, "data_dir": str(folder or ""), "programs": list(found)}  # one run takes one environment
    models = tuple(Model(m, s, n) for m, s in cells for n in ((0,) if m in labels.NOT_TRAINED else seeds or (0,)))
    return Request("calibration" if public else "cells", models, 0 if public else count, quick, out, same, found,
                   data_dir=folder, **values)  # fmt: skip


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
    names = methods or (QUICK_METHODS if quick else tuple(labels.METHODS))
    count = steps if steps is not None else QUICK_STEPS[size] if quick else STEPS[size]
    numbers, same = seeds or (0,), {}
    if size == MINI:  # to the folder of the small model methods and seeds may be added
        same = {"methods": list(names), "seeds": list(numbers)}
        same |= {"rebuild_base": True} if rebuild_base else {}
        same |= {} if hardware == "cpu" else {"hardware": hardware}
    models = (Model(labels.BASE, size), *(Model(m, size, s) for s in numbers for m in names))
    return Request(ON_CPU[size], models, count, quick, out, same, hardware=hardware, rebuild_base=rebuild_base)


def of_testbed(
    out: Path | None = None, *, part: plan.Part = "main", quick: bool = False, worlds: str | None = None,
    arms: str | None = None, seeds: Seeds | None = None, steps: int | None = None, method: str | None = None,
) -> Request:  # fmt: skip
    """The testbed, or a method that the user brings in its worlds; None takes the default.

    Args:
        method: the name of an overlay, or a YAML file of one.

    Raises:
        BadInput: an unknown world or arm, fewer than one step, a method's file that is not there, or
            options that exclude each other.
    """
    if method is not None and (arms is not None or part != "main"):
        raise BadInput("--method trains that method alone", found="--arms, --pilot or --long beside it",
                       next_step="leave them out: the committed arms are shown beside it")  # fmt: skip
    own = None if method is None else _own_arm(method)
    chosen, names = QUICK_METHODS if quick else None, tuple(labels.WORLDS)[: 1 if quick else None]
    if arms is not None:
        chosen = tuple(meant("arm", a, plan.ARMS, "--arms justrl,stapo") for a in arms.split(","))
    if worlds is not None:
        names = tuple(
            dict.fromkeys(meant("world", w, labels.WORLDS, "--worlds paper,mixed") for w in worlds.split(","))
        )
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
    folder = "-".join(["testbed", *filter(None, [label or part.removeprefix("main")])])
    overlay = _sha256(Path(method)) if method and label != method else ""
    same = {"part": part, "standing": label, "standing_sha256": overlay}
    return Request("testbed", tuple(models), count, quick, out or Path("runs") / folder, same, part=part, own=label)


def _own_arm(method: str) -> plan.Arm:
    """A method that its records name after its overlay, or after the overlay's file."""
    file = Path(method)
    is_file = file.suffix in (".yaml", ".yml")
    label, value = (file.stem, f"{file.resolve()}") if is_file else (method, method)
    if is_file and not file.is_file():
        raise BadInput("no such overlay of a method", found=method, expected="a YAML file, or the name of a method",
                       next_step="stapo-train methods lists the names")  # fmt: skip
    taken = (*plan.ARMS, *labels.METHOD_LABELS, *labels.NO_STYLE) if is_file else (labels.BASE,)
    if label in taken or not _LABEL.fullmatch(label):
        raise BadInput("the label of its records cannot be this one", found=label,
                       expected="a small letter, then small letters, digits, dots and dashes; of a file a new name",
                       next_step="a file such as my-method.yaml; stapo-train methods lists the names")  # fmt: skip
    return plan.Arm(label, (f"method={value}", f"run.method={label}"))


def _sha256(overlay: Path) -> str:
    """Of an overlay and of the file of its selector, where it names one (FILE.py:FUNCTION, beside it)."""
    text = overlay.read_bytes()
    named = [overlay.parent / f for f in re.findall(r"name:\s*['\"]?([^'\"\s:]+):\w", text.decode(errors="replace"))]
    return hashlib.sha256(text + b"".join(f.read_bytes() for f in named if f.is_file())).hexdigest()


def parse_cells(names: Sequence[str]) -> tuple[str, Named]:
    """(experiment, (method, size) of each METHOD/SIZE once, in the order given).

    Raises:
        BadInput: for none, no such cell, or cells of several runs.
    """
    of: dict[str, Collection[str]] = dict.fromkeys(ON_CPU, labels.METHODS)
    of |= dict.fromkeys(labels.PAPER_SIZES, labels.METHOD_LABELS)
    of |= dict.fromkeys(calibrate.load().checkpoints, (labels.CALIBRATION,))
    runs: dict[str, list[str]] = {}
    for name in names or ("",):
        method, _, size = name.partition("/")
        if method not in of.get(size, ()):
            known = of.get(size, labels.METHOD_LABELS)
            raise BadInput(f"no such cell: {name or 'none was named'}",
                           expected=f"METHOD/SIZE with SIZE of {', '.join(of)}, METHOD of {', '.join(known)}",
                           next_step=f"{near_name(method, known)}{_EXAMPLE}; other methods alone: stapo-train run "
                           "method=METHOD size=SIZE ...")  # fmt: skip
        public = name if method == labels.CALIBRATION else "cells"  # each checkpoint is a run of its own
        runs.setdefault(ON_CPU.get(size, public), []).append(name)
    if len(runs) > 1:
        raise BadInput("these cells are several runs", found=", ".join(names),
                       expected="one run a command: the miniature's, the small model's, the paper's, a checkpoint's",
                       next_step="   and: ".join(f"stapo-repro run {' '.join(n)}" for n in runs.values()))  # fmt: skip
    cells = tuple((method, size) for method, _, size in (n.partition("/") for n in dict.fromkeys(names)))
    return next(iter(runs)).partition("/")[0], cells


def all_cells() -> list[str]:
    """The cells of the paper's table, base models included."""
    return [f"{m}/{s}" for s in labels.PAPER_SIZES for m in (labels.BASE, *labels.METHODS)]


def seeds_of(text: str | None, count: int | None = None) -> Seeds | None:
    """ "0,2" as (0, 2), and "3" as (3,); the first ones for a count; None where neither is given.

    Raises:
        BadInput: both, a count below one, no whole numbers from 0 on, or one twice.
    """
    if text is None:
        return None if count is None else tuple(range(at_least("--seed-count", count, 1)))
    numbers = tuple(int(s) for s in text.split(",") if s.strip().isdecimal())
    if count is not None or len({*numbers}) != len(text.split(",")):
        beside = "" if count is None else f" --seed-count {count}"
        raise BadInput("seeds are whole numbers from 0 on, each once, or their count", found=f"--seeds {text}{beside}",
                       next_step="--seeds 0,1; for the first so many: --seed-count 2")  # fmt: skip
    return numbers


def at_least(flag: str, value: int, least: int) -> int:
    if value < least:
        raise BadInput(f"{flag} is at least {least:d}", found=value, next_step=f"{flag} {least:d}")
    return value


def _flags(names: Iterable[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


def programs(train_env: Path | None = None, eval_env: Path | None = None) -> tuple[str, str, str]:
    """Paths of stapo-train, stapo-eval and stapo-repro. Raises: BadInput as `console_script`."""
    train, evaluate = console_script("stapo-train", train_env), console_script("stapo-eval", eval_env)
    return train, evaluate, console_script("stapo-repro")


def console_script(name: str, environment: Path | None = None) -> str:
    """The path of a console command of this very environment, or of another one (the folder of a venv).

    Raises:
        BadInput: it is not installed.
    """
    path = environment.absolute() / "bin" / name if environment else Path(sys.executable).with_name(name)
    found = str(path) if path.exists() else None if environment else shutil.which(name)
    if found is None:
        python = f"{environment}/bin/python" if environment else "python"
        raise BadInput(f"the command {name} is not installed", found=f"no {path}",
                       expected="an environment with the suite in it",
                       next_step=f"{python} -m pip install --no-deps -e .   (docs/reproduction.md)")  # fmt: skip
    return found
