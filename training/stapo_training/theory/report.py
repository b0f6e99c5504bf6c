"""The theory check's record as text: for a terminal, and for docs/theory.md. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stapo_results import store
from stapo_results.schema import Theory, TheoryQuadrant


def _numbers(values: dict[str, float]) -> str:
    return ", ".join(f"{k} {v:.4g}" for k, v in values.items())


def report(result: Theory) -> str:
    """The record as text for a terminal: a line a statement, where the failing ones fail, the run's quadrants."""
    head = f"{'statement':26} {'reading':23} {'place':29} {'cases':>7} {'fail':>6} {'largest':>8}  verdict"
    lines = ["", head, "-" * len(head)]
    for r in result.rows:
        counts = f"{r.cases:7,} {r.failures:6,} {r.largest:8.1e}  {r.verdict}"
        lines.append(f"{r.statement:26} {r.reading:23} {r.place:29} {counts}")
    for r in (r for r in result.rows if r.verdict == "fails"):
        lines += ["", f"{r.statement} fails ({r.reading}): {r.claim}", f"  worst:  {r.where} ({_numbers(r.numbers)})"]
        lines += [f"  {r.measure}: {r.largest:.2g}", f"  needs:  {r.needs}"]
    if result.source_run:
        lines += ["", f"run {result.source_run}: {_numbers(result.source)}".rstrip(": ")]
        lines += _quadrant_lines(result.quadrants)
        lines += [f"  not run, missing: {m}" for m in result.missing]
    return "\n".join(lines)


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


def _quadrant_lines(quadrants: Sequence[TheoryQuadrant]) -> list[str]:
    """A line a quadrant; bounds as multiples of the squared norm. A quadrant without tokens says "not run"."""
    if not quadrants:
        return []
    lines = [f"  {'A > 0 and':24} {'tokens':>9} " + " ".join(f"{c:>10}" for c in COLUMNS)]
    for q in quadrants:
        found = [f"{q.values[k]:10.4g}" if k in q.values else f"{_cell(q, k):>10}" for k in COLUMNS.values()]
        lines.append(f"  {q.quadrant:24} {q.tokens:9,} " + " ".join(found))
    return lines


def _cell(q: TheoryQuadrant, key: str) -> str:
    """A number of a quadrant; in words why there is none."""
    return f"{q.values[key]:.3g}" if key in q.values else "not resolved" if q.tokens else "no token"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(r) + " |" for r in [head, ["---"] * len(head), *rows]]


def page_block(folder: Path) -> str:
    """The committed record as docs/theory.md shows it; "Not run" where there is none."""
    if not (folder / "theory.json").exists():
        return "Not run: `stapo-train theory --out results/records/theory` checks them."
    result = store.read_json(folder / "theory.json", Theory)
    rows = [
        [f"`{r.statement}`", r.claim, r.reading, f"{r.cases:,}", f"{r.failures:,}", f"{r.largest:.1e}", r.verdict]
        for r in result.rows
    ]
    sizes = ", ".join(f"{v:,}" for v in result.vocabularies)
    lines = [
        f"Seed {result.seed}, vocabularies {sizes}. Record: `results/records/theory`.",
        "",
        *_table(["statement", "claim", "reading", "cases", "failing", "largest violation", "verdict"], rows),
    ]
    for r in (r for r in result.rows if r.verdict == "fails"):
        lines += [
            "",
            f"`{r.statement}` fails ({r.reading}). Worst: {r.where} ({_numbers(r.numbers)}). It needs: {r.needs}.",
        ]
    if result.quadrants:
        about = ", ".join(f"{k} {v}" for k, v in result.source_about.items())
        lines += ["", f"Tokens with A > 0 of run {result.source_run} ({about}): {_numbers(result.source)}.", ""]
        cells = [[q.quadrant, f"{q.tokens:,}", *(_cell(q, key) for key in COLUMNS.values())] for q in result.quadrants]
        lines += _table(["quadrant", "tokens", *COLUMNS], cells)
        lines += ["", *(f"Not run, missing: {m}." for m in result.missing)]
    return "\n".join(lines)
