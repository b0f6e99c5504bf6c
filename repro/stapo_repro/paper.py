"""The paper's main table and hyperparameters as data: arXiv 2602.15620v4, as printed, transcribed by this project.

Its gains are held against the smallest difference that its own design (N and row counts) can tell from noise; they use
what is printed and nothing else. Formulas in `stapo_repro.statistics`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from stapo_repro.labels import AVERAGE, METHODS, PAPER_BENCHMARKS, PAPER_SIZES, SWEPT
from stapo_repro.statistics import Design, difference_se, minimal_detectable
from stapo_results.benchmarks import registry
from stapo_results.errors import BadInput
from stapo_results.schema import SETTINGS
from stapo_results.store import read_json

Percent = Annotated[str, Field(pattern=r"^\d{1,3}\.\d{2}$")]
Reading = Literal["above both", "between", "below both"]
COLUMNS = (*PAPER_BENCHMARKS, AVERAGE)
TAU_P, Q = 0.002, 0.75  # of S2T (Section "Settings", table of hyperparameters)
_NUMBER = r"\d+(?:\.\d+)?(?:e-?\d+)?"
_VARIANT = re.compile(rf"({'|'.join(SWEPT)})(?:-tau({_NUMBER}))?(?:-q({_NUMBER}))?")


def with_values(method: str, tau_p: float, q: float) -> str:
    """The label of a method's runs with these values, as the trainer writes it: what is the paper's is not in it."""
    return method + (f"-tau{tau_p!r}" if tau_p != TAU_P else "") + (f"-q{q!r}" if q != Q else "")


def variant(label: str) -> tuple[str, float, float] | None:
    """(method, tau_p, q) of a run with another tau_p or q, from its label: `stapo-tau0.0002`, `stapo-random-q0.5`;
    None for any other label, the plain methods among them."""
    match = _VARIANT.fullmatch(label)
    if not match or not (match[2] or match[3]):
        return None
    return match[1], float(match[2] or TAU_P), float(match[3] or Q)


class PaperRow(BaseModel):
    """One method at one decoding setting: seven printed values and which of them are marked best."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: str
    method: str
    setting: Literal["t1.0", "t0.7"]
    values: dict[str, Percent]
    best: list[str]

    @model_validator(mode="after")
    def _known(self) -> PaperRow:
        if self.size not in PAPER_SIZES or self.method not in METHODS:
            raise ValueError(f"unknown size or method: {self.size}, {self.method}")
        if tuple(self.values) != COLUMNS or not set(self.best) <= set(COLUMNS):
            raise ValueError(f"{self.size}/{self.method}: columns must be {', '.join(COLUMNS)}")
        return self


class PaperTable(BaseModel):
    """All 24 rows, each once."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1]
    source: str
    samples_per_problem: dict[str, int]
    rows: list[PaperRow]

    @model_validator(mode="after")
    def _complete(self) -> PaperTable:
        keys = [(r.size, r.method, r.setting) for r in self.rows]
        wanted = {(s, m, t) for s in PAPER_SIZES for m in METHODS for t in ("t1.0", "t0.7")}
        if len(keys) != len(set(keys)) or set(keys) != wanted:
            raise ValueError(f"{len(keys)} rows, expected each of {len(wanted)} once")
        return self

    def get(self, size: str, method: str, setting: str) -> PaperRow | None:
        """The printed row, or None (the paper prints no base model)."""
        return next((r for r in self.rows if (r.size, r.method, r.setting) == (size, method, setting)), None)


@dataclass(frozen=True)
class Gain:
    """STAPO's printed value minus a baseline's, in percentage points, beside what its design can tell from noise.

    Attributes:
        points: exact difference of the two printed values.
        se_sampling, se_unpaired: standard errors from N and row counts (see `statistics.difference_se`).
        mde_sampling, mde_unpaired: minimal detectable differences at 80 % power and a two-sided 5 %.
        reading: where the size of the gain lies beside those two.
    """

    size: str
    setting: str
    benchmark: str
    baseline: str
    points: float
    se_sampling: float
    se_unpaired: float
    mde_sampling: float
    mde_unpaired: float
    reading: Reading


def _gain(ours: PaperRow, theirs: PaperRow, name: str, samples: Mapping[str, int]) -> Gain:
    designs = [
        Design(float(ours.values[b]) / 100, float(theirs.values[b]) / 100, registry()[b].rows, samples[b])
        for b in (PAPER_BENCHMARKS if name == AVERAGE else [name])
    ]
    sampling, unpaired = difference_se(designs)
    numbers = (sampling, unpaired, minimal_detectable(sampling), minimal_detectable(unpaired))
    of_sampling, of_unpaired, low, high = (round(100 * x, 8) for x in numbers)
    points = float(Decimal(ours.values[name]) - Decimal(theirs.values[name]))
    reading: Reading = "below both" if abs(points) < low else "between" if abs(points) < high else "above both"
    key = ours.size, ours.setting, name, theirs.method
    return Gain(*key, points, of_sampling, of_unpaired, low, high, reading)


def gains(paper: PaperTable) -> list[Gain]:
    """STAPO's gains of every size, baseline, column (six benchmarks and their average) and setting."""
    rows = {(r.size, r.method, r.setting): r for r in paper.rows}
    return [
        _gain(rows[size, "stapo", setting], rows[size, baseline, setting], name, paper.samples_per_problem)
        for size in PAPER_SIZES
        for baseline in METHODS
        if baseline != "stapo"
        for name in COLUMNS
        for setting in SETTINGS
    ]


def checkout() -> Path:
    """The root of the checkout that this code runs from."""
    return Path(__file__).resolve().parents[2]


def folder() -> Path:
    """The folder of the transcribed numbers."""
    return checkout() / "results" / "paper"


@cache
def budget() -> dict[str, Any]:
    """results/paper/budget.json.

    settings: steps, prompts and responses of a step, limits in tokens, checkpoints, each with its place; "inferred"
    ones are decisions of this project. judge: model, parameters, most tokens of a question. models: id and commit.
    """
    return json.loads((folder() / "budget.json").read_bytes())


def setting(name: str) -> int:
    """A value of the budget's settings."""
    return budget()["settings"][name]["value"]


def load(path: Path | None = None) -> PaperTable:
    """The transcribed table; `path` names another one.

    Raises:
        BadInput: no such file (an installation without its checkout).
        RecordError: the file does not validate.
    """
    path = path or folder() / "main_table.json"
    if not path.is_file():
        raise BadInput(
            "no such main_table",
            found=path,
            expected="a file in the form of results/paper/main_table.json",
            next_step="run from a checkout of the repository with an editable installation (pip install -e .)",
        )
    return read_json(path, PaperTable)
