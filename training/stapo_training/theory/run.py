"""`stapo-train theory`: the statements on random and extreme distributions, the bounds on a run's tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from stapo_results import progress, provenance, store
from stapo_results.schema import Theory, TheoryQuadrant, TheoryRow
from stapo_training.theory import tightness
from stapo_training.theory.cases import VOCABULARIES, batches
from stapo_training.theory.checks import Checks

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
    vocabulary: int | None = None,
    say: Callable[[str], None] = print,
) -> Theory:
    """Check, print the tables, and write run.json and theory.json to `out` where one is given.

    One thread, so that sums are taken in one order and the same command gives the same bytes.
    """
    torch.set_num_threads(1)
    began = time.perf_counter()
    of = tightness.read_source(source, vocabulary) if source else None
    found: list[TheoryQuadrant] = []
    numbers: dict[str, float] = {}
    missing: list[str] = []
    if source and of:
        tokens, missing = tightness.read_tokens(source, of.vocabulary)
        if tokens is not None:
            found, numbers, missing = tightness.quadrants(tokens, of)
    parent = of.run.run_id if of else ""
    record = provenance.new_run("theory", asdict(plan), seeds={"run": plan.seed}, deterministic=True, parent_run=parent)
    result = Theory(
        run_id=record.run_id,
        seed=plan.seed,
        draws=plan.draws,
        vocabularies=list(plan.vocabularies),
        rows=check(plan, say),
        source_run=parent,
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


def _numbers(values: dict[str, float]) -> str:
    return ", ".join(f"{k} {v:.4g}" for k, v in values.items())


def report(result: Theory) -> str:
    """The record as text for a terminal: a line a statement, where the failing ones fail, the run's quadrants."""
    head = f"{'statement':26} {'place':30} {'cases':>7} {'fail':>6} {'largest':>8}  verdict"
    lines = ["", head, "-" * len(head)]
    for r in result.rows:
        lines.append(f"{r.statement:26} {r.place:30} {r.cases:7,} {r.failures:6,} {r.largest:8.1e}  {r.verdict}")
    for r in (r for r in result.rows if r.verdict == "fails"):
        lines += ["", f"{r.statement} fails: {r.claim}", f"  worst:  {r.where} ({_numbers(r.numbers)})"]
        lines += [f"  {r.measure}: {r.largest:.2g}", f"  needs:  {r.needs}"]
    if result.source_run:
        lines += ["", f"run {result.source_run}: {_numbers(result.source)}".rstrip(": ")]
        lines += [
            f"  {q.quadrant:24} {q.tokens:8,} tokens  {_numbers(q.values) or 'not run'}" for q in result.quadrants
        ]
        lines += [f"  not run, missing: {m}" for m in result.missing]
    return "\n".join(lines)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(r) + " |" for r in [head, ["---"] * len(head), *rows]]


def page_block(folder: Path) -> str:
    """The committed record as docs/theory.md shows it; "Not run" where there is none."""
    if not (folder / "theory.json").exists():
        return "Not run: `stapo-train theory --out results/records/theory` checks them."
    result = store.read_json(folder / "theory.json", Theory)
    rows = [
        [f"`{r.statement}`", f"{r.cases:,}", f"{r.failures:,}", f"{r.largest:.1e}", f"**{r.verdict}**", r.place]
        for r in result.rows
    ]
    sizes = ", ".join(f"{v:,}" for v in result.vocabularies)
    lines = [
        f"Seed {result.seed}, vocabularies {sizes}. Record: `results/records/theory`.",
        "",
        *_table(["statement", "cases", "failing", "largest violation", "verdict", "place in the paper's source"], rows),
    ]
    for r in (r for r in result.rows if r.verdict == "fails"):
        lines += ["", f"`{r.statement}` fails. Worst: {r.where} ({_numbers(r.numbers)}). It needs: {r.needs}."]
    return "\n".join(lines)
