"""What the planner starts from: the paper's stated budget, the machines, the models, the number of samples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from stapo_repro import labels
from stapo_repro.paper import checkout
from stapo_results.benchmarks import registry
from stapo_results.errors import BadInput
from stapo_results.schema import SETTINGS
from stapo_results.shapes import KNOWN, Shape, shape_from
from stapo_results.store import read_json


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Stated(_Part):
    """The paper's own words on cost: GPUs, and days of one training."""

    gpus: int
    card: str
    days_low: float
    days_high: float
    of: str
    where: str


class Setting(_Part):
    """A value with where it stands; "inferred" ones are decisions of this project."""

    value: int = Field(ge=1)
    unit: str
    basis: Literal["stated", "inferred"]
    where: str


class Settings(_Part):
    """What decides the amount of work."""

    steps: Setting
    prompts: Setting
    responses: Setting
    response_limit: Setting
    checkpoint_every: Setting
    evaluation_limit: Setting


class Judge(_Part):
    """The verifier: parameters, and the most tokens that one question has."""

    model: str
    parameters: int
    question_limit: int
    where: str


class Model(_Part):
    """A base model's hub id and the commit of its weights."""

    id: str
    revision: str = Field(pattern=r"^[0-9a-f]{40}$")

    @property
    def shape(self) -> Shape:
        return shape_from(KNOWN[self.id], self.id)


class Budget(_Part):
    """results/paper/budget.json."""

    schema_version: Literal[1]
    source: str
    stated: Stated
    settings: Settings
    judge: Judge
    models: dict[str, Model]


@cache
def load(path: Path | None = None) -> Budget:
    """The transcribed budget.

    Raises:
        BadInput: no such file (an installation without its checkout).
        RecordError: it does not validate.
    """
    path = path or checkout() / "results" / "paper" / "budget.json"
    if not path.exists():
        raise BadInput(
            "the paper's transcribed budget is not there",
            found=path,
            expected="results/paper/budget.json of the checkout",
            next_step="run from a checkout of the repository with an editable installation (pip install -e .)",
        )
    return read_json(path, Budget)


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

Where = tuple[str, str]
"""(benchmark, decoding setting)"""


def whole_evaluation() -> tuple[Where, ...]:
    """The paper's six benchmarks at both settings."""
    return tuple((b, s) for b in labels.PAPER_BENCHMARKS for s in SETTINGS)


def samples(places: Iterable[Where]) -> int:
    """Responses that these benchmarks and settings take: rows x N each."""
    known = registry()
    return sum(known[b].rows * known[b].samples for b, _ in places)
