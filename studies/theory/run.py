"""`python -m studies.theory`: the record of the check, its text, and the command.

The statements are checked on random and extreme distributions, the bounds also on a run's tokens.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from pydantic import Field

from stapo_results import provenance, store
from stapo_results.schema import Record
from studies import command
from studies.theory import tightness
from studies.theory.checks import VOCABULARIES, TheoryRow, check
from studies.theory.tightness import TheoryQuadrant


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


def report(result: Theory) -> str:
    """The record as text: a line a statement, where the failing ones fail, the run's quadrants (docs/theory.md)."""
    head = f"{'statement':26} {'reading':23} {'place':29} {'cases':>7} {'fail':>6} {'largest':>8}  verdict"
    lines = ["", head, "-" * len(head)]
    for r in result.rows:
        counts = f"{r.cases:7,} {r.failures:6,} {r.largest:8.1e}  {r.verdict}"
        lines.append(f"{r.statement:26} {r.reading:23} {r.place:29} {counts}")
    for r in result.rows:
        if r.verdict == "fails":
            lines += ["", f"{r.statement} fails ({r.reading}): {r.claim}"]
            lines += [f"  worst:  {r.where} ({_numbers(r.numbers)})", f"  {r.measure}: {r.largest:.2g}"]
            lines += [f"  needs:  {r.needs}"]
    if result.source_run:
        about = ", ".join(f"{k} {v}" for k, v in result.source_about.items())
        lines += ["", f"Tokens with A > 0 of run {result.source_run} ({about}): {_numbers(result.source)}.", ""]
    lines += [f"{q.quadrant}: {q.tokens:,} tokens; {_numbers(q.values)}" for q in result.quadrants]
    return "\n".join([*lines, *(f"Not run, missing: {m}." for m in result.missing)])


def _numbers(values: dict[str, float]) -> str:
    return ", ".join(f"{k} {v:.4g}" for k, v in values.items())


def run(
    seed: int,
    draws: int,
    vocabularies: tuple[int, ...] = VOCABULARIES,
    *,
    source: Path | None = None,
    out: Path | None = None,
) -> Theory:
    """Check, print the tables, and write run.json and theory.json to `out` where one is given.

    One thread, so that sums are taken in one order and the same command gives the same bytes. An earlier record in
    `out` is replaced.

    Raises:
        BadInput: `out` cannot be written or holds a record of another kind.
    """
    torch.set_num_threads(1)
    if out:
        command.check_replaced(out, "theory")
    began = time.perf_counter()
    found = tightness.measure(source) if source else {}
    plan: dict[str, Any] = {"seed": seed, "draws": draws, "vocabularies": list(vocabularies)}
    parent = found.get("source_run", "")
    record = provenance.new_run("theory", plan, seeds={"run": seed}, deterministic=True, parent_run=parent)
    result = Theory(run_id=record.run_id, rows=check(seed, draws, vocabularies), **plan, **found)
    print(report(result))
    if out:
        store.write_json(out / "theory.json", result)
        command.write_run(record, out, time.perf_counter() - began)
        print(f"\nwritten {out}/theory.json, run.json")
    return result
