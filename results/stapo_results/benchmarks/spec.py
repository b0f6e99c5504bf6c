"""What a registry entry, a problem and a loaded benchmark are."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

NAME = re.compile(r"[a-z0-9][a-z0-9\-]*")

# our fields; the first three are in every file, `unit` and `tolerance` where a problem has one
FIELDS = ("id", "problem", "answer", "unit", "tolerance")


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


@dataclass(frozen=True)
class Problem:
    """One problem; `answer` is a tuple where several answers, in any order, are asked for.

    `tolerance` is the largest absolute error that still counts as right; None where an answer has to be exact.
    """

    id: str
    problem: str
    answer: str | tuple[str, ...]
    unit: str = ""
    tolerance: float | None = None


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
        rows = json.dumps([asdict(p) for p in self.problems], sort_keys=True)
        problems = hashlib.sha256(rows.encode()).hexdigest()
        return f"{self.identity.rows} rows, golds sha256:{self.identity.golds_sha256}, problems sha256:{problems}"
