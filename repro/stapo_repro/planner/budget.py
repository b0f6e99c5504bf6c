"""What the planner starts from: the paper's stated budget, the machines, the models, the number of samples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from stapo_repro import labels
from stapo_repro.paper import transcribed
from stapo_results.benchmarks import registry
from stapo_results.schema import SETTINGS
from stapo_results.shapes import KNOWN, Shape, shape_from


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Setting(_Strict):
    """A value with where it stands; "inferred" ones are decisions of this project."""

    value: int = Field(ge=1)
    unit: str
    basis: Literal["stated", "inferred"]
    where: str


class Settings(_Strict):
    """What decides the amount of work."""

    steps: Setting
    prompts: Setting
    responses: Setting
    response_limit: Setting
    checkpoint_every: Setting
    evaluation_limit: Setting


class Judge(_Strict):
    """The verifier: parameters, and the most tokens that one question has."""

    model: str
    parameters: int
    question_limit: int
    where: str


class BaseWeights(_Strict):
    """A base model's hub id and the commit of its weights."""

    id: str
    revision: str = Field(pattern=r"^[0-9a-f]{40}$")

    @property
    def shape(self) -> Shape:
        return shape_from(KNOWN[self.id], self.id)


class Budget(_Strict):
    """results/paper/budget.json."""

    schema_version: Literal[1]
    source: str
    settings: Settings
    judge: Judge
    models: dict[str, BaseWeights]


@cache
def load(path: Path | None = None) -> Budget:
    """The transcribed budget.

    Raises:
        BadInput: no such file (an installation without its checkout).
        RecordError: it does not validate.
    """
    return transcribed("budget.json", Budget, path)


@dataclass(frozen=True)
class Machine:
    """A `hardware=` of the training wing: GPUs in all, the card to plan with, GPUs a rollout replica by size."""

    name: str
    gpus: int
    card: str
    parallel: dict[str, int] = field(default_factory=dict)

    def tensor_parallel(self, size: str) -> int:
        return self.parallel.get(size, 1)


MACHINES = {
    "1gpu": Machine("1gpu", 1, "H100"),
    "8gpu": Machine("8gpu", 8, "H100", {"qwen3-14b": 2}),
    "64gpu": Machine("64gpu", 64, "H20", {"qwen3-14b": 2}),
}

Place = tuple[str, str]
"""(benchmark, decoding setting)"""


def places(size: str) -> tuple[Place, ...]:
    """Benchmarks and settings of a size: the paper's six or the miniature's two, at both settings."""
    benchmarks = labels.MINI_BENCHMARKS if size == labels.MINI else labels.PAPER_BENCHMARKS
    return tuple((b, s) for b in benchmarks for s in SETTINGS)


def samples(places: Iterable[Place]) -> int:
    """Responses that these benchmarks and settings take: rows x N each."""
    known = registry()
    return sum(known[b].rows * known[b].samples for b, _ in places)
