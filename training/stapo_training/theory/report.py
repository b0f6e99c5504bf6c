"""The statements that are checked (statements.yaml), and their record as text. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import yaml

from stapo_results import store
from stapo_results.schema import Run
from stapo_training.theory.record import Theory, TheoryQuadrant, TheoryRow


@dataclass(frozen=True)
class Statement:
    """A claim in the project's words; statements.yaml says what each field is."""

    key: str
    place: str
    reading: str
    claim: str
    measure: str
    tolerance: float = 1e-9
    needs: str = ""


def _load() -> dict[str, Statement]:
    text = resources.files("stapo_training.theory").joinpath("statements.yaml").read_text(encoding="utf-8")
    return {key: Statement(key, **entry) for key, entry in yaml.safe_load(text).items()}


STATEMENTS = _load()

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
    """The record as text for a terminal: a line a statement, where the failing ones fail, the run's quadrants."""
    head = f"{'statement':26} {'reading':23} {'place':29} {'cases':>7} {'fail':>6} {'largest':>8}  verdict"
    lines = ["", head, "-" * len(head)]
    for r in _checked(result):
        counts = f"{r.cases:7,} {r.failures:6,} {r.largest:8.1e}  {r.verdict}"
        lines.append(f"{r.statement:26} {r.reading:23} {r.place:29} {counts}")
    for r in _failing(result):
        lines += ["", f"{r.statement} fails ({r.reading}): {r.claim}", f"  worst:  {r.where} ({_numbers(r.numbers)})"]
        lines += [f"  {r.measure}: {r.largest:.2g}", f"  needs:  {r.needs}"]
    return "\n".join([*lines, *_run_tokens(result)])


def page_block(folder: Path) -> str:
    """The committed record as docs/theory.md shows it; "Not run" where there is none."""
    if not (folder / "theory.json").exists():
        return "Not run: `stapo-train theory --out results/records/theory` checks them."
    result = store.read_json(folder / "theory.json", Theory)
    rows = [
        [f"`{r.statement}`", r.claim, r.reading, f"{r.cases:,}", f"{r.failures:,}", f"{r.largest:.1e}", r.verdict]
        for r in _checked(result)
    ]
    sizes = ", ".join(f"{v:,}" for v in result.vocabularies)
    lines = [
        f"Seed {result.seed}, vocabularies {sizes}. Record: `results/records/theory`.",
        "",
        *_table(["statement", "claim", "reading", "cases", "failing", "largest violation", "verdict"], rows),
    ]
    if others := [f"`{r.statement}`" for r in result.rows if r.statement not in STATEMENTS]:
        lines += ["", f"The record also has statements that an earlier version checked: {', '.join(others)}."]
    for r in _failing(result):
        worst = f"Worst: {r.where} ({_numbers(r.numbers)})"
        lines += ["", f"`{r.statement}` fails ({r.reading}). {worst}. It needs: {r.needs}."]
    return "\n".join([*lines, *_run_tokens(result, _not_committed(result, folder.parent))])


def _checked(result: Theory) -> list[TheoryRow]:
    """The rows of what is checked today: an older record may have more."""
    return [r for r in result.rows if r.statement in STATEMENTS]


def _failing(result: Theory) -> list[TheoryRow]:
    return [r for r in _checked(result) if r.verdict == "fails"]


def _not_committed(result: Theory, records: Path) -> str:
    """Where a training's record is not committed, but another of its method, size and seed: which one that is."""
    own = result.source_about
    for path in sorted(records.glob("*/train/*/run.json")) if own.get("kind") == "train" else ():
        run = store.read_json(path, Run)
        of = run.config["run"]
        if run.run_id == result.source_run:
            return ""
        if all(str(of.get(k)) == own.get(k) for k in ("method", "size", "seed")):
            return (f" This run is of an earlier miniature and is not among the records; theirs is run {run.run_id} "
                    f"(steps {of['steps']}), of which these numbers say nothing.")  # fmt: skip
    return ""


def _run_tokens(result: Theory, older: str = "") -> list[str]:
    """A run's numbers and its quadrants, bounds as multiples of the squared norm; nothing without a run."""
    if not result.source_run:
        return []
    about = ", ".join(f"{k} {v}" for k, v in result.source_about.items())
    lines = ["", f"Tokens with A > 0 of run {result.source_run} ({about}): {_numbers(result.source)}.{older}", ""]
    cells = [[q.quadrant, f"{q.tokens:,}", *(_cell(q, key) for key in COLUMNS.values())] for q in result.quadrants]
    if cells:
        lines += [*_table(["quadrant", "tokens", *COLUMNS], cells), ""]
    return lines + [f"Not run, missing: {m}." for m in result.missing]


def _cell(q: TheoryQuadrant, key: str) -> str:
    """A number of a quadrant; in words why there is none."""
    return f"{q.values[key]:.3g}" if key in q.values else "not resolved" if q.tokens else "no token"


def _numbers(values: dict[str, float]) -> str:
    return ", ".join(f"{k} {v:.4g}" for k, v in values.items())


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(r) + " |" for r in [head, ["---"] * len(head), *rows]]
