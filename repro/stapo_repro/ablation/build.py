"""The ablation as one value, made from records alone; `render` writes it as Markdown and JSON."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stapo_repro import labels
from stapo_repro.ablation.by_seed import (
    MEASURES,
    Measure,
    Number,
    SeedResults,
    accuracy,
    base_accuracy,
    gather,
    measure,
)
from stapo_repro.ablation.claims import Claims, JudgedClaim, judge
from stapo_repro.records.reading import Loaded, TrainingRun, inputs_hash
from stapo_repro.tables.build import provenance, scoring
from stapo_results.schema import SETTINGS
from stapo_results.store import to_line

REFERENCE = "justrl"
FOLDER = "ablation"  # below results/records; the main table leaves it out


@dataclass(frozen=True)
class MethodRow:
    """One method.

    Attributes:
        accuracy: benchmark (and "avg") -> setting -> percent.
        difference: the same minus the reference, in percentage points, paired by problem and seed; empty for the
            reference itself and the base model.
        training: measure -> value over seeds (see `by_seed.run_measures`); empty for the base model.
    """

    method: str
    label: str
    accuracy: dict[str, dict[str, Number]]
    difference: dict[str, dict[str, Number]]
    training: dict[Measure, Number]


@dataclass(frozen=True)
class Ablation:
    """Everything that the written formats show."""

    schema_version: int
    inputs_sha256: str
    paper: str
    rule: str
    seeds: list[int]
    steps: int | None
    benchmarks: list[str]
    rows: list[MethodRow]
    claims: list[JudgedClaim]
    not_tested: list[str]
    footnotes: list[str]
    records: list[dict[str, str]]
    trainings: list[dict[str, str]]


def _rows(results: SeedResults) -> list[MethodRow]:
    """The base model, then every method of the ablation."""
    parts = {**{b: (b,) for b in results.benchmarks}, labels.AVERAGE: results.benchmarks}
    base = {name: {s: base_accuracy(results, part, s) for s in SETTINGS} for name, part in parts.items()}
    rows = [MethodRow(labels.BASE, labels.method_label(labels.BASE), base, {}, {})]
    for method in labels.ABLATION:
        own, difference = (
            {name: {s: accuracy(results, [(1.0, method, s), *against(s)], part) for s in SETTINGS}
             for name, part in parts.items()}
            for against in (lambda s: [], lambda s: [(-1.0, REFERENCE, s)])
        )  # fmt: skip
        training: dict[Measure, Number] = {m: _at_least_zero(m, measure(results, [(1.0, method)], m)) for m in MEASURES}
        shown = {} if method == REFERENCE else difference
        rows.append(MethodRow(method, labels.method_label(method), own, shown, training))
    return rows


def _at_least_zero(name: Measure, value: Number) -> Number:
    """One method's value with an interval that ends where the quantity does, as accuracies' intervals do."""
    if name in ("reward", "entropy_rise") or value.low is None:
        return value
    return replace(value, low=max(0.0, value.low))


def _stamp(run: TrainingRun) -> str:
    """Hash of what a training says: labels, status and every step."""
    digest = hashlib.sha256(f"{run.method}\0{run.size}\0{run.seed}\0{run.status}\n".encode())
    for step in run.steps:
        digest.update(to_line(step).encode() + b"\n")
    return digest.hexdigest()


def _footnotes(results: SeedResults, cells: Sequence[Loaded], runs: Sequence[TrainingRun]) -> list[str]:
    if not cells and not runs:
        return []
    out = []
    counts = {(c.record.cell.benchmark, len(c.record.problems), c.record.benchmark_rows, c.record.n) for c in cells}
    if counts:
        shapes = [
            f"{labels.benchmark_label(b)}: {q}{f' of {rows}' if q != rows else ''} problems x {n} samples"
            for b, q, rows, n in sorted(counts)
        ]
        out.append("; ".join(shapes) + ".")
    absent = sum(p.verdicts.count("-") for c in cells for p in c.record.problems)
    if absent:
        out.append(f"MISSING SAMPLES: {absent}; a problem's mean is over those present.")
    if results.steps is not None:
        out.append(f"{results.steps} training steps, all from one base model; the intervals do not cover another one.")
    unfinished = [f"{labels.method_label(r.method)} seed {r.seed} ({r.status})" for r in runs if r.status != "done"]
    if unfinished:
        out.append(f"Trainings that are not finished and not counted: {', '.join(unfinished)}.")
    if cells:
        records = [c.record for c in cells]
        out += [*scoring(records), provenance(records)]
    return out


def build(cells: Sequence[Loaded], runs: Sequence[TrainingRun], claims: Claims) -> Ablation:
    """The whole ablation from all its records.

    Raises:
        RecordError: records that are not of one ablation (see `by_seed.gather`).
    """
    results = gather(cells, runs)
    trainings = [
        {"method": r.method, "seed": str(r.seed), "status": r.status, "path": r.path, "sha256": _stamp(r)} for r in runs
    ]
    return Ablation(
        schema_version=1,
        inputs_sha256=inputs_hash(cells, *sorted(t["sha256"] for t in trainings), claims.model_dump_json()),
        paper=claims.source,
        rule=claims.rule,
        seeds=list(results.seeds),
        steps=results.steps,
        benchmarks=list(results.benchmarks),
        rows=_rows(results),
        claims=judge(claims, results),
        not_tested=claims.not_tested,
        footnotes=_footnotes(results, cells, runs),
        records=[{"cell": c.record.cell.id, "path": c.path, "sha256": c.sha256} for c in cells],
        trainings=trainings,
    )
