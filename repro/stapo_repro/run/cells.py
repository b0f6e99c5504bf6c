"""What a run is: its models, where their weights come from, and what was asked beside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stapo_repro import labels
from stapo_repro.run.cost import MACHINES, STEPS, Cost
from stapo_repro.run.stages import Stage
from stapo_results.errors import BadInput
from stapo_results.sizes import MINI


@dataclass(frozen=True)
class Model:
    """A model that is evaluated and, unless its weights are taken as they are, trained.

    Attributes:
        choices: what `stapo-train run` is told of the method, where that is more than its name.
        world: of `stapo-train base`, whose base model and data it takes; "" for the miniature's, or of no base folder.
        validation_every: steps between validations, one before the first among them; 0 for none, None as configured.
        evaluated: whether it is exported and evaluated.
        benchmarks: it is evaluated on; those of its size by default.
    """

    method: str
    size: str
    seed: int = 0
    choices: tuple[str, ...] = ()
    world: str = ""
    validation_every: int | None = None
    evaluated: bool = True
    benchmarks: tuple[str, ...] = ()

    @property
    def is_base(self) -> bool:
        return self.method == labels.BASE

    @property
    def name(self) -> str:
        """Of its folders: stapo-s0, stapo-qwen3-1.7b-s0, base-qwen3-1.7b."""
        size = [] if self.size == MINI else [self.size]
        return "-".join([self.method, *size, *([] if self.is_base else [f"s{self.seed}"])])


@dataclass(frozen=True)
class CellRequest:
    """One run of the driver. Paths are made absolute, so that both spellings give the same commands.

    Attributes:
        origin: of its weights, prompts and benchmarks.
        models: in the order in which they are trained and evaluated.
        same: what further calls on the same folder have to agree in, beside experiment, quick and steps.
        programs: paths of stapo-train, stapo-eval and stapo-repro.
        user_method: the label of a method that the training's environment may not know: it is asked before the start.
        model_by_model: a model is trained, exported and evaluated before the next: what is there can be read.
        pages: whether tables and figures are stages.
        data_dir and below: see `stapo-repro run --help`; keep_checkpoints 0: the training's own number. judge: on a CPU
            "base" is the base model, which shows that the path works. jobs: stages at a time; 0: `checks.sharing`.
    """

    experiment: str
    origin: Origin
    models: tuple[Model, ...]
    steps: int
    quick: bool
    out: Path
    same: Mapping[str, Any]
    programs: tuple[str, str, str]
    dry_run: bool = False
    hardware: str = "cpu"
    rebuild_base: bool = False
    user_method: str = ""
    model_by_model: bool = False
    pages: bool = True
    data_dir: Path | None = None
    ray_address: str = ""
    source: str = ""
    judge: str = "none"
    keep_checkpoints: int = 0
    jobs: int = 0
    weights: Path | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "out", self.out.resolve())
        if self.steps < 1:
            raise BadInput("--steps must be at least 1", found=f"--steps {self.steps}", next_step="--steps 1")
        if self.jobs < 0:
            raise BadInput("--jobs must be at least 1", found=f"--jobs {self.jobs}", next_step="--jobs 1")

    @property
    def on_cpu(self) -> bool:
        return self.hardware not in MACHINES

    @property
    def trained(self) -> tuple[Model, ...]:
        return tuple(m for m in self.models if not m.is_base)

    @property
    def config(self) -> dict[str, Any]:
        """What all calls on one output folder have to agree in."""
        return {"experiment": self.experiment, "quick": self.quick, "steps": self.steps, **self.same}


class Origin(ABC):
    """What a run's stages take of where its weights come from.

    Attributes:
        hardware: that it runs on, the default first.
        options: of `stapo-repro run` that not all runs have, and its runs do.
        quick_steps: of a training of the quick form.
        dtype: of its exports.
        training_gib: memory that a training takes at least, without a GPU; 0: none runs without.
    """

    hardware: tuple[str, ...]
    options: tuple[str, ...]
    quick_steps = 2
    dtype: tuple[str, ...] = ("--dtype", "bf16")
    training_gib = 0.0

    def steps(self) -> int:
        """Of a training, by default."""
        return STEPS

    def judge(self) -> str:
        """Of the evaluations, by default."""
        return "none"

    @abstractmethod
    def inputs(self, r: CellRequest) -> list[Stage]:
        """The stages before the first training."""

    @abstractmethod
    def training(self, r: CellRequest, m: Model) -> dict[str, Any]:
        """Overrides of a training; None for none."""

    @abstractmethod
    def evaluation(self, r: CellRequest, m: Model) -> list[str]:
        """Options of an evaluation: of a base model its weights; benchmarks, engine, judge."""

    @abstractmethod
    def costs(self, r: CellRequest) -> dict[str, Cost]:
        """Hours and disk of every training and evaluation."""

    @abstractmethod
    def at_once(self, r: CellRequest) -> tuple[int, str]:
        """How many stages a CPU bears at a time, and why."""

    def needed(self, m: Model, kind: str, inputs: Iterable[Stage]) -> list[str]:
        """The inputs that a stage of this kind reads: all but those of the other kind."""
        return [s.name for s in inputs if s.name != "data"] if kind == "eval" else ["data"]
