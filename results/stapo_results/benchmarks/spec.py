"""What a registry entry, a problem and a loaded benchmark are; the registry, and the comparison of a copy with it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from stapo_results.answers import normalise_gold
from stapo_results.errors import BadInput

REGISTRY_FILE = "registry.yaml"

NAME = r"^[a-z0-9][a-z0-9\-]*$"
_INTEGER = re.compile(r"[+-]?\d+")
_SHOWN = 20  # differing rows that a message names


class Spec(BaseModel):
    """One registry entry.

    `columns` maps our fields (id, problem, answer, unit, tolerance) to the hub copy's columns of other names, with
    dots for nested ones (`reward_model.ground_truth`); without an `id` there, ids are the name and the row's place in
    the registry. Files in a data directory use our field names.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    hub: str = ""
    revision: str = "main"
    split: str = "test"
    file: str = ""
    columns: dict[Literal["id", "problem", "answer", "unit", "tolerance"], str] = {}
    rows: int = Field(ge=1)
    golds_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    text_hashes: str = Field(pattern=r"^[0-9a-f]{8}(\s+[0-9a-f]{8})*$")
    samples: int = Field(ge=1)
    answer_type: Literal["integer", "math"] = "math"
    unordered: bool = False
    tolerance: float | None = None
    license: str = ""
    miniature: bool = False


def _empty_as_none(value: Any) -> Any:
    return str(value) if isinstance(value, bool) else None if value == "" else value  # true is no tolerance of 1


def _as_text(value: Any) -> Any:
    """Numbers as text, 3.0 as the integer that it copies; what is neither a number nor text stays and is refused."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


class Problem(BaseModel):
    """One problem, as a row of a file gives it. Columns of other names are ignored.

    `answer` is a tuple where several answers, in any order, are asked for. `tolerance` is the largest absolute error
    that still counts as right; None where an answer has to be exact. `id` is "" until the loader gives one.
    """

    model_config = ConfigDict(frozen=True)

    id: Annotated[str, BeforeValidator(lambda v: "" if v is None else _as_text(v))] = ""
    problem: Annotated[str, Field(pattern=r"\S")]
    answer: str | tuple[str, ...]
    unit: Annotated[str, BeforeValidator(lambda v: v or "")] = ""
    tolerance: Annotated[float | None, Field(ge=0, allow_inf_nan=False), BeforeValidator(_empty_as_none)] = None

    @field_validator("answer", mode="before")
    @classmethod
    def _answers(cls, value: Any) -> Any:
        values = tuple(map(_as_text, value if isinstance(value, list | tuple) else [value]))
        if not values or any(isinstance(v, str) and not v.strip(" \t\r\n$") for v in values):
            raise ValueError("an empty gold answer would say nothing of a response")
        return values[0] if len(values) == 1 else values


FIELDS = tuple(Problem.model_fields)


@dataclass(frozen=True)
class Identity:
    """What was compared with the registry. `variant` is "" for the right copy, else what differs in words."""

    rows: int
    golds_sha256: str
    variant: str
    text_variants: tuple[str, ...]


@dataclass(frozen=True)
class Benchmark:
    """Checked problems in the order of their source; `source` is a path, or the hub's id and commit."""

    name: str
    spec: Spec
    problems: tuple[Problem, ...]
    identity: Identity
    source: str

    @property
    def content(self) -> str:
        """Rows and hashes in words: copies of one content give the same prompts and the same verdicts.

        Unlike the identity, it tells texts apart that differ in white space, and it depends on the order of the rows.
        """
        rows = json.dumps([p.model_dump() for p in self.problems], sort_keys=True)
        problems = hashlib.sha256(rows.encode()).hexdigest()
        return f"{self.identity.rows} rows, golds sha256:{self.identity.golds_sha256}, problems sha256:{problems}"


def golds_sha256(golds: Iterable[str | Sequence[str]]) -> str:
    """Hash of the multiset of normalised gold answers: the order of the rows does not count."""
    return hashlib.sha256("\n".join(sorted(map(normalise_gold, golds))).encode()).hexdigest()


def normal_text(problem: str) -> str:
    """A problem text in NFC with runs of white space as one space: what identifies a problem."""
    return " ".join(unicodedata.normalize("NFC", problem).split())


def text_hash(problem: str) -> str:
    """8 hex digits of a problem text's normal form."""
    return hashlib.sha256(normal_text(problem).encode()).hexdigest()[:8]


def shown(ids: Sequence[str]) -> str:
    """The ids joined by commas, the first twenty of many."""
    return ", ".join(ids[:_SHOWN]) + (" ..." if len(ids) > _SHOWN else "")


class _Registry(BaseModel):
    schema_version: Literal[1]
    benchmarks: dict[Annotated[str, Field(pattern=NAME)], Spec]


def _entries(text: str, where: str) -> dict[str, Spec]:
    try:
        raw = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        return _Registry.model_validate(raw).benchmarks
    except (yaml.YAMLError, ValidationError) as e:
        raise BadInput(
            f"{where} is not a benchmark registry",
            found=e,
            next_step="make its entries with `stapo-eval benchmarks --add FILE --data-dir DIR`",
        ) from None


@cache
def packaged() -> dict[str, Spec]:
    """The paper's six."""
    file = Path(__file__).parents[1] / "benchmarks.yaml"
    return _entries(file.read_text(encoding="utf-8"), str(file))


def own_entries(data_dir: str | os.PathLike | None) -> dict[str, Spec]:
    """The entries of a data directory's registry.yaml; none where it has no such file.

    Raises:
        BadInput: for a file that is no registry, or one that redefines a packaged name.
    """
    if data_dir is None or not (path := Path(data_dir) / REGISTRY_FILE).exists():
        return {}
    specs = _entries(path.read_text(encoding="utf-8"), str(path))
    if taken := specs.keys() & packaged().keys():
        raise BadInput(
            f"{path} redefines a benchmark of the paper",
            found=", ".join(sorted(taken)),
            expected="names that the suite does not use",
            next_step="rename the entry: a score must not change its meaning with a directory",
        )
    return specs


def registry(data_dir: str | os.PathLike | None = None) -> dict[str, Spec]:
    """All known benchmarks by name: the packaged six, then those of the data directory's registry.yaml.

    Raises:
        BadInput: for a file that is no registry, or one that redefines a packaged name.
    """
    return packaged() | own_entries(data_dir)


def describe(problems: Sequence[Problem], *, title: str, samples: int | None = None, **known: Any) -> Spec:
    """The entry of problems as they are: their count and hashes, and the paper's N for their number, which is 32 for
    its sets of 30 and 40 problems and 4 for the larger ones."""
    golds = [p.answer for p in problems]
    integers = all(isinstance(g, str) and _INTEGER.fullmatch(normalise_gold(g)) for g in golds)
    return Spec(
        title=title,
        rows=len(problems),
        golds_sha256=golds_sha256(golds),
        text_hashes=" ".join(text_hash(p.problem) for p in problems),
        samples=samples or (32 if len(problems) <= 100 else 4),
        **{"answer_type": "integer" if integers else "math", **known},
    )
