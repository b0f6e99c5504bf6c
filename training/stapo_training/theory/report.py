"""The statements that are checked (statements.yaml), the record of the check, and its text. Needs no torch."""

from __future__ import annotations

from importlib import resources
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from stapo_results.schema import Record


class TheoryRow(BaseModel):
    """One statement over all its cases: the largest violation, as `measure` says, and the case that has it.

    statements.yaml says what place, reading, claim, measure, tolerance and needs are. failures: cases whose violation
    exceeds `tolerance`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    statement: str
    place: str
    reading: str
    claim: str
    measure: str
    tolerance: float = 1e-9
    cases: int = 0
    failures: int = 0
    largest: float = 0.0
    where: str = ""
    numbers: dict[str, float] = {}
    verdict: Literal["holds", "fails", "not run"] = "not run"
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


_YAML = resources.files("stapo_training.theory").joinpath("statements.yaml").read_text(encoding="utf-8")
STATEMENTS = {key: TheoryRow(statement=key, **entry) for key, entry in yaml.safe_load(_YAML).items()}
"""What is checked, in the order of the tables: rows without cases."""
COLUMNS = {
    "median p": "probability_median",
    "median H": "entropy_median",
    "mean norm": "norm_mean",
    "H rises": "entropy_rises_share",
    "lower": "lower_median",
    "(5 %)": "lower_q05",
    "upper": "upper_median",
    "(95 %)": "upper_q95",
    "vacuous": "lower_says_nothing_share",
    "broken": "broken_bounds",
    "unresolved": "unresolved",
}


def report(result: Theory) -> str:
    """The record as text: a line a statement, where the failing ones fail, the run's quadrants (docs/theory.md)."""
    checked = [r for r in result.rows if r.statement in STATEMENTS]  # an older record may have more
    head = f"{'statement':26} {'reading':23} {'place':29} {'cases':>7} {'fail':>6} {'largest':>8}  verdict"
    lines = ["", head, "-" * len(head)]
    for r in checked:
        counts = f"{r.cases:7,} {r.failures:6,} {r.largest:8.1e}  {r.verdict}"
        lines.append(f"{r.statement:26} {r.reading:23} {r.place:29} {counts}")
    for r in checked:
        if r.verdict == "fails":
            lines += ["", f"{r.statement} fails ({r.reading}): {r.claim}"]
            lines += [f"  worst:  {r.where} ({_numbers(r.numbers)})", f"  {r.measure}: {r.largest:.2g}"]
            lines += [f"  needs:  {r.needs}"]
    if result.source_run:
        about = ", ".join(f"{k} {v}" for k, v in result.source_about.items())
        lines += ["", f"Tokens with A > 0 of run {result.source_run} ({about}): {_numbers(result.source)}.", ""]
    if result.quadrants:
        table = [["quadrant", "tokens", *COLUMNS], ["---"] * (2 + len(COLUMNS))]
        table += [[q.quadrant, f"{q.tokens:,}", *(_cell(q, k) for k in COLUMNS.values())] for q in result.quadrants]
        lines += [*("| " + " | ".join(row) + " |" for row in table), ""]
    return "\n".join([*lines, *(f"Not run, missing: {m}." for m in result.missing)])


def _cell(q: TheoryQuadrant, key: str) -> str:
    """A number of a quadrant; in words why there is none."""
    return f"{q.values[key]:.3g}" if key in q.values else "not resolved" if q.tokens else "no token"


def _numbers(values: dict[str, float]) -> str:
    return ", ".join(f"{k} {v:.4g}" for k, v in values.items())
