"""The closing tables of a run, on stdout."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stapo_eval.cost import in_words

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH = 160


def percent(x: float | None, digits: int = 1) -> str:
    """A fraction in percent; an en dash where it is undefined."""
    # plus 0.0: what rounds to zero has no sign
    return "–" if x is None else f"{round(100 * x, digits) + 0.0:.{digits}f}"


def interval(low: float | None, high: float | None, digits: int = 1) -> str:
    """Both ends in percent, or an en dash."""
    return "–" if low is None or high is None else f"[{percent(low, digits)}, {percent(high, digits)}]"


def p_value(p: float | None) -> str:
    """A p-value to three places; an en dash where there is none."""
    return "–" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def make_console() -> Console:
    """A console that never cuts a number off: on a narrow terminal the lines wrap instead."""
    from rich.console import Console

    console = Console()
    console.width = max(console.width, _WIDTH)
    return console


def print_table(
    console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int = 2
) -> None:
    """The first `text_columns` columns to the left, numbers to the right."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i < text_columns else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table, markup=False)


def _scores(summary: Mapping[str, Any]) -> list[list[str]]:
    def ends(c: Mapping[str, Any]) -> list[str]:
        both = interval(c["low"], c["high"]), interval(c["bootstrap_low"], c["bootstrap_high"])
        return [percent(c["accuracy"]), percent(c["standard_error"]), *both]

    rows = []
    for c in summary["cells"]:
        n = str(c["n"])
        counts = f"{c['correct']}/{c['samples'] - c['missing']}"
        votes = percent(c["pass_at"][n]), percent(c["majority_at"][n])
        rows.append([c["benchmark"], c["setting"], n, *ends(c), counts, *votes])
    for a in summary["averages"]:
        if a["benchmarks"] > 1:
            rows.append([f"average of {a['benchmarks']}", a["setting"], "", *ends(a), "", "", ""])
    return rows


def _responses(summary: Mapping[str, Any]) -> list[list[str]]:
    def tokens(c: Mapping[str, Any], quantile: str) -> str:
        found = (c["response_tokens"][k][quantile] for k in ("correct", "incorrect"))
        return " / ".join("–" if x is None else f"{x:,.0f}" for x in found)

    return [
        [
            *(c["benchmark"], c["setting"], percent(c["truncated"]), percent(c["no_answer"])),
            *(tokens(c, "p50"), tokens(c, "p95")),
        ]
        for c in summary["cells"]
    ]


def _judged(summary: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for c in summary["cells"]:
        a, j = c["audit"], c["judge"]
        without = Counter(c.get("judge_unanswered", {}))
        if a["asked"] or without:
            by_rule = a["rule_accuracy"] if a["asked"] else c["accuracy"]
            letters = j["correct"], j["incorrect"], j["invalid"] - without["no_letter"], without["no_letter"]
            rows.append(
                [
                    *(c["benchmark"], c["setting"], percent(by_rule), percent(c["accuracy"])),
                    *(percent(a["difference"]), interval(a["low"], a["high"]), str(a["asked"])),
                    *("/".join(map(str, letters)), f"{without['too_long']}/{without['error']}/{without['stray']}"),
                    *(f"{a['flips_to_correct']}/{a['flips_to_incorrect']}", percent(a["flip_rate"])),
                ]
            )
    return rows


_TABLES = (
    ("accuracy in %", _scores, "benchmark,setting,N,avg@N,SE,95 % t,95 % bootstrap,k/n,pass@N,maj@N"),
    (
        "responses, lengths in tokens (right / wrong)",
        _responses,
        "benchmark,setting,cut off %,no box %,median,95th pct.",
    ),
    (
        "the judge's share, accuracy by rule alone and as scored, in %",
        _judged,
        "benchmark,setting,rule,scored,diff.,95 % t,asked,A/B/C/none,too long/failed/stray,to right/wrong,flips",
    ),
)


def print_summary(summary: Mapping[str, Any], folder: Path) -> None:
    """Scores, responses and, with a judge, its share; then the notes, and the cost as the run folder has it."""
    console = make_console()
    for title, rows_of, columns in _TABLES:
        if rows := rows_of(summary):
            print_table(console, f"{summary['model']}: {title}", columns.split(","), rows)
    for note in summary["notes"]:
        console.print(f"note: {note}", highlight=False, markup=False)
    if (folder / "cost.json").exists():
        cost = json.loads((folder / "cost.json").read_text(encoding="utf-8"))
        console.print(in_words(cost), highlight=False, markup=False)
