"""What a registry entry, a problem and a loaded benchmark are; what identifies a copy, and its comparison."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from stapo_results.answers import normalise_gold
from stapo_results.errors import BadInput

NAME = re.compile(r"[a-z0-9][a-z0-9\-]*")

_SHOWN = 20  # differing rows that a message names
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


def check_identity(
    name: str,
    spec: Spec,
    problems: Sequence[Problem],
    source: str,
    *,
    accept_variant: bool = False,
    strict: bool = False,
) -> Identity:
    """Compare a copy with the registry.

    Raises:
        BadInput: for another number of rows or other gold answers (unless `accept_variant`), with both values; under
            `strict` also for differing problem texts.
    """
    golds = golds_sha256(p.answer for p in problems)
    known = Counter(spec.text_hashes.split())
    differing = []
    for p in problems:
        h = text_hash(p.problem)
        if known[h] > 0:
            known[h] -= 1
        else:
            differing.append(p.id)
    differs = []
    if len(problems) != spec.rows:
        differs.append(("rows", len(problems), spec.rows))
    if golds != spec.golds_sha256:
        differs.append(("gold answers (sha256)", golds[:16], spec.golds_sha256[:16]))
    if differs and not accept_variant:
        raise BadInput(
            f"{source} is not the benchmark {name}",
            found=", ".join(f"{what} {found}" for what, found, _ in differs),
            expected=", ".join(f"{what} {expected}" for what, _, expected in differs),
            next_step="get the registered copy; stapo-eval run --accept-variant takes this one, and scores then say so",
        )
    if differing and strict:
        raise BadInput(
            f"{source}: {len(differing)} problem texts of {name} differ from the registered copy",
            found=shown(differing),
            expected="the registered texts (up to white space)",
            next_step="leave out --strict: the differing rows are then counted and named in the records",
        )
    variant = "; ".join(f"{what} {found} instead of {expected}" for what, found, expected in differs)
    return Identity(len(problems), golds, variant, tuple(differing))
