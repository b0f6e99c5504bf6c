"""`stapo-train theory`: the statements on random and extreme distributions, the bounds on a run's tokens."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from stapo_results import progress, provenance, store
from stapo_results.schema import Theory, TheoryRow
from stapo_training.theory import tightness
from stapo_training.theory.cases import VOCABULARIES, batches
from stapo_training.theory.checks import Checks
from stapo_training.theory.report import report

_LARGE = 10_000
"""From this vocabulary on one draw of each family: a row of logits takes milliseconds there."""


@dataclass(frozen=True)
class Plan:
    """What is drawn. The default takes about 20 s on one core."""

    seed: int = 0
    draws: int = 3
    vocabularies: tuple[int, ...] = VOCABULARIES


def check(plan: Plan, say: Callable[[str], None] = print) -> list[TheoryRow]:
    """Every statement over the plan's cases."""
    checks = Checks(plan.seed)
    for done, vocabulary in enumerate(plan.vocabularies):
        progress.report("theory", done, len(plan.vocabularies))
        began, count = time.perf_counter(), 0
        for batch in batches(vocabulary, plan.seed, plan.draws if vocabulary < _LARGE else 1):
            checks.add(batch)
            count += len(batch.target_N)
        checks.two_levels(vocabulary)
        say(f"vocabulary {vocabulary:,}: {count} cases, {time.perf_counter() - began:.1f} s")
    progress.report("theory", len(plan.vocabularies), len(plan.vocabularies))
    return checks.rows()


def run(
    plan: Plan,
    *,
    source: Path | None = None,
    out: Path | None = None,
    say: Callable[[str], None] = print,
) -> Theory:
    """Check, print the tables, and write run.json and theory.json to `out` where one is given.

    One thread, so that sums are taken in one order and the same command gives the same bytes.
    """
    torch.set_num_threads(1)
    began = time.perf_counter()
    of = tightness.read_source(source) if source else None
    found, numbers, missing = tightness.quadrants(of) if of else ([], {}, [])
    parent = of.run.run_id if of else ""
    record = provenance.new_run("theory", asdict(plan), seeds={"run": plan.seed}, deterministic=True, parent_run=parent)
    result = Theory(
        run_id=record.run_id,
        seed=plan.seed,
        draws=plan.draws,
        vocabularies=list(plan.vocabularies),
        rows=check(plan, say),
        source_run=parent,
        source_about=tightness.about(of.run) if of else {},
        source=numbers,
        quadrants=found,
        missing=missing,
    )
    say(report(result))
    if out:
        store.write_json(out / "theory.json", result)
        provenance.close_run(record, out / "run.json", "done", time.perf_counter() - began)
        say(f"\nwritten {out}/theory.json, run.json")
    return result
