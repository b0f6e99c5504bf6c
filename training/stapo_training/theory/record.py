"""The record of `stapo-train theory`: statements with their largest violation, and the bounds on a run's tokens."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from stapo_results.schema import Record


class TheoryRow(BaseModel):
    """One statement over all its cases: the largest violation, as `measure` says, and the case that has it.

    failures: cases whose violation exceeds `tolerance`. needs: what a statement that fails as printed would need.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    statement: str
    place: str
    reading: str
    claim: str
    measure: str
    tolerance: float
    cases: int
    failures: int
    largest: float
    where: str
    numbers: dict[str, float]
    verdict: Literal["holds", "fails", "not run"]
    needs: str = ""


class TheoryQuadrant(BaseModel):
    """The tokens of a run in one quadrant of probability x entropy, and how far the bounds are from their norms.

    tokens 0: none was logged there, and there are no values. `values`: docs/theory.md explains each name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    quadrant: str
    tokens: Annotated[int, Field(ge=0)]
    values: dict[str, float] = {}


class Theory(Record):
    """What the theory check found, also on the tokens of `source_run`.

    `source_about`: that run's kind, method, size, seed, steps and code, since its folder is not among the records.
    `missing` names what it would have to log for the quadrants.
    """

    run_id: str
    seed: int
    draws: int
    vocabularies: list[int]
    rows: list[TheoryRow]
    source_run: str = ""
    source_about: dict[str, str] = Field(default_factory=dict)
    source: dict[str, float] = Field(default_factory=dict)
    quadrants: list[TheoryQuadrant] = Field(default_factory=list)
    missing: list[str] = Field(default_factory=list)
