"""`stapo-train theory`: the statements on random and extreme distributions, the bounds on a run's tokens."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from stapo_results import provenance, runs, store, terminal
from stapo_training.theory import tightness
from stapo_training.theory.cases import VOCABULARIES, batches
from stapo_training.theory.checks import StatementChecks
from stapo_training.theory.report import Theory, TheoryRow, report

_LARGE = 10_000
"""From this vocabulary on one draw of each family: a row of logits takes milliseconds there."""


@dataclass(frozen=True)
class TheoryPlan:
    """What is drawn. The default takes about 20 s on one core."""

    seed: int = 0
    draws: int = 3
    vocabularies: tuple[int, ...] = VOCABULARIES


def check(plan: TheoryPlan) -> list[TheoryRow]:
    """Every statement over the plan's cases."""
    checks = StatementChecks(plan.seed)
    for done, vocabulary in enumerate(plan.vocabularies, 1):
        for batch in batches(vocabulary, plan.seed, plan.draws if vocabulary < _LARGE else 1):
            checks.add(batch)
        checks.two_levels(vocabulary)
        terminal.report_progress("theory", done, len(plan.vocabularies))
    return checks.rows()


def run(plan: TheoryPlan, *, source: Path | None = None, out: Path | None = None) -> Theory:
    """Check, print the tables, and write run.json and theory.json to `out` where one is given.

    One thread, so that sums are taken in one order and the same command gives the same bytes. An earlier record in
    `out` is replaced.
    """
    torch.set_num_threads(1)
    if out:
        runs.check_folder(out, "--out")
    began = time.perf_counter()
    found = tightness.measure(source) if source else {}
    parent, seeds = found.get("source_run", ""), {"run": plan.seed}
    record = provenance.new_run("theory", asdict(plan), seeds=seeds, deterministic=True, parent_run=parent)
    result = Theory(
        run_id=record.run_id,
        seed=plan.seed,
        draws=plan.draws,
        vocabularies=list(plan.vocabularies),
        rows=check(plan),
        **found,
    )
    print(report(result))
    if out:
        store.write_json(out / "theory.json", result)
        provenance.close_run(record, out / "run.json", "done", time.perf_counter() - began)
        print(f"\nwritten {out}/theory.json, run.json")
    return result
