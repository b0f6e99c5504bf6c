"""The claims on real trainings as data, written before the runs, and the rule that judges them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat

from stapo_repro import labels
from stapo_repro.read import Loaded, TrainingRun, check_seeds
from stapo_repro.text import escape, grid, number_shown
from stapo_results.statistics import Number
from stapo_results.store import read_json
from studies.real.accuracies import SIZE, STEPS, of_seed, paired

FILE = Path(__file__).with_name("claims.json")
WARM_UP = 2
"""Steps of these runs (results/records/real/whole, `lr_warmup_steps`); the paper's trainings have 10."""
# `first` and `last` are five at its ends
_STEPS = {"all": range(1, STEPS + 1), "first": range(1, 6), "last": range(STEPS - 4, STEPS + 1)}
Verdict = Literal["holds", "near", "fails", "undecided", "not run"]


class TrainingClaim(BaseModel):
    """A quantity and the range in which it should lie.

    Attributes:
        methods: it is of each of these; where two are compared, the first with the second.
        measure: a field of metrics.jsonl, or two: the first's mean over the second's; or an accuracy.
        of: the mean over all steps or the last ones, or the last ones' with the first ones'; or a paired difference of
            accuracies, from the base's unless two methods are compared.
        compared: how the second method's value is set against the first's.
        margin: a value that is outside the range by less is near.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(pattern=r"^[a-z0-9-]+$")
    methods: tuple[str, ...] = Field(min_length=1)
    measure: tuple[str, ...] = Field(min_length=1, max_length=2)
    of: Literal["all", "last", "last - first", "last / first", "paired"]
    compared: Literal["", "-", "/"] = ""
    low: float
    high: float
    margin: PositiveFloat
    place: str
    claim: str
    contradicted_by: str


class TrainingClaims(BaseModel):
    """claims.json. seeds: of each the methods that are trained with it; a claim is judged of each seed alone."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[2]
    source: str
    written: str
    runs: str
    seeds: dict[int, tuple[str, ...]]
    rule: str
    claims: tuple[TrainingClaim, ...]


def load() -> TrainingClaims:
    return read_json(FILE, TrainingClaims)


def verdict(claim: TrainingClaim, value: Number) -> Verdict:
    """By the file's rule. A value with an interval is undecided where that reaches over an end of the range."""
    if not value.known:
        return "not run"
    if value.has_interval:
        inside = claim.low <= value.low and value.high <= claim.high
        outside = value.high < claim.low or value.low > claim.high
        return "holds" if inside else "fails" if outside else "undecided"
    beyond = max(claim.low - value.mean, value.mean - claim.high)
    return "holds" if beyond <= 0 else "near" if beyond < claim.margin else "fails"


def values(claim: TrainingClaim, runs: Mapping[str, TrainingRun], cells: Sequence[Loaded]) -> dict[str, Number]:
    """What is judged, by the method or the pair that it is of; not known where a run is missing or too short,
    or where none of the second is of the first's engine."""
    pairs = [(claim.methods[0], claim.methods[1])] if claim.compared else [(m, labels.BASE) for m in claim.methods]
    names = [" against ".join(pair) if claim.compared else pair[0] for pair in pairs]
    if claim.of == "paired":
        return {
            name: paired(*pair, claim.measure[0].removeprefix("accuracy "), cells)
            for name, pair in zip(names, pairs, strict=True)
        }
    found = {}
    for name, (one, other) in zip(names, pairs, strict=True):
        value = _of_run(claim, runs.get(one))
        if claim.compared:
            second = _of_run(claim, runs.get(other))
            value = value - second if claim.compared == "-" else value / second if second else math.nan
        found[name] = Number(mean=value)
    return found


def _of_run(claim: TrainingClaim, run: TrainingRun | None) -> float:
    """The quantity of one training; NaN where it lacks a step."""
    if run is None or run.status != "done" or not {*_STEPS["all"]} <= {s.step for s in run.steps}:
        return math.nan
    if claim.of in ("all", "last"):
        return _mean(claim, run, claim.of)
    first, last = (_mean(claim, run, part) for part in ("first", "last"))
    return last - first if claim.of == "last - first" else last / first if first else math.nan


def _mean(claim: TrainingClaim, run: TrainingRun, part: str) -> float:
    """The mean of a field over steps, or the quotient of two such means; of a field that no step has NaN."""
    sums = [mean_of(run, name, _STEPS[part]) for name in claim.measure]
    return sums[0] if len(sums) == 1 else sums[0] / sums[1] if sums[1] else math.nan


def mean_of(run: TrainingRun, name: str, steps: Iterable[int]) -> float:
    """The mean of a field over those of the steps that have it; NaN where none has."""
    series = run.series(name)
    known = [series[i] for i in steps if i in series]
    return math.fsum(known) / len(known) if known else math.nan


def section(runs: Sequence[TrainingRun], cells: Sequence[Loaded]) -> list[str]:
    """The claims as a table, each with what was found of each seed; `cells` hold the base by each engine."""
    check_seeds([r for r in runs if r.size == SIZE])
    claims, rows = load(), []
    for c in claims.claims:
        about = f"{' / '.join(c.measure)}, {c.of}" + (f", first {c.compared} second" if c.compared else "")
        told = [c.claim, about, f"{c.low:g} to {c.high:g}", "" if c.of == "paired" else f"{c.margin:g}"]
        for seed, trained in claims.seeds.items():
            by_method = {r.method: r for r in runs if (r.size, r.seed) == (SIZE, seed)}
            named = [m for m in c.methods if m in trained]
            if c.compared and len(named) < 2:
                continue
            for name, value in values(c.model_copy(update={"methods": named}), by_method, of_seed(cells, seed)).items():
                found = number_shown(value, 1) if c.of == "paired" else f"{value.mean:.3g}"
                rows.append([*told, name, f"{seed}", found if value.known else "not run", verdict(c, value)])
                told = [""] * 4
    head = ("Claim", "Measure", "Range", "Margin", "Of", "Seed", "Found", "It")
    lines = ["## Claims on thirty steps of training, each seed alone", "", f"{claims.rule}", ""]
    return [*lines, *grid(head, [[escape(x) for x in row] for row in rows], 2), ""]
