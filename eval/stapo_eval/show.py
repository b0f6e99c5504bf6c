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
        return [percent(c["accuracy"]), percent(c["standard_error"]), interval(c["low"], c["high"]),
                interval(c["bootstrap_low"], c["bootstrap_high"])]  # fmt: skip

    rows = []
    for c in summary["cells"]:
        n = str(c["n"])
        rows.append([
            c["benchmark"], c["setting"], n, *ends(c), f"{c['correct']}/{c['samples'] - c['missing']}",
            percent(c["pass_at"][n]), percent(c["majority_at"][n]),
        ])  # fmt: skip
    for a in summary["averages"]:
        if a["benchmarks"] > 1:
            rows.append([f"average of {a['benchmarks']}", a["setting"], "", *ends(a), "", "", ""])
    return rows


def _responses(summary: Mapping[str, Any]) -> list[list[str]]:
    def tokens(x: float | None) -> str:
        return "–" if x is None else f"{x:,.0f}"

    rows = []
    for c in summary["cells"]:
        right, wrong = (c["response_tokens"][k] for k in ("correct", "incorrect"))
        cut = c["finish_reasons"]
        rows.append([
            c["benchmark"], c["setting"], percent(c["truncated"]),
            f"{cut['correct']['length']}/{cut['incorrect']['length']}", percent(c["no_answer"]),
            f"{tokens(right['p50'])} / {tokens(wrong['p50'])}", f"{tokens(right['p95'])} / {tokens(wrong['p95'])}",
            *("–" if c[k] is None else f"{c[k]:.3f}" for k in ("variance_within", "variance_between")),
        ])  # fmt: skip
    return rows


def _judged(summary: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for c in summary["cells"]:
        a, j = c["audit"], c["judge"]
        without = Counter(c.get("judge_unanswered", {}))
        if a["asked"] or without:
            n = c["samples"] - c["missing"]
            by_rule = sum(a["confusion"]["rule_correct"].values()) if a["asked"] else c["correct"]
            invalid = j["invalid"] - without["no_letter"]
            rows.append([
                c["benchmark"], c["setting"], percent(a["rule_accuracy"] if a["asked"] else c["accuracy"]),
                f"{by_rule}/{n}", percent(c["accuracy"]), f"{c['correct']}/{n}",
                percent(a["difference"]), interval(a["low"], a["high"]), str(a["asked"]),
                f"{j['correct']}/{j['incorrect']}/{invalid}/{without['no_letter']}",
                f"{without['too_long']}/{without['error']}",
                f"{a['flips_to_correct']}/{a['flips_to_incorrect']}", percent(a["flip_rate"]),
            ])  # fmt: skip
    return rows


def print_summary(summary: Mapping[str, Any], folder: Path) -> None:
    """Scores, responses and, with a judge, its share; then the notes, and the cost as the run folder has it."""
    console = make_console()
    print_table(
        console,
        f"{summary['model']}: accuracy in %",
        ("benchmark", "setting", "N", "avg@N", "SE", "95 % t", "95 % bootstrap", "k/n", "pass@N", "maj@N"),
        _scores(summary),
    )
    print_table(
        console,
        "Responses: lengths in tokens (right / wrong), variance of a sample's score",
        (
            "benchmark",
            "setting",
            "cut off %",
            "cut off: right/wrong",
            "no box %",
            "median",
            "95th pct.",
            "within",
            "between",
        ),
        _responses(summary),
    )  # fmt: skip
    if judged := _judged(summary):
        print_table(
            console,
            "The judge's share: accuracy by rule alone and as scored, in %; counts of samples",
            ("benchmark", "setting", "rule", "k/n", "scored", "k/n", "diff.", "95 % t", "asked",
             "A/B/C/other", "too long/failed", "to right/wrong", "flips"),
            judged,
        )  # fmt: skip
    for note in summary["notes"]:
        console.print(f"note: {note}", highlight=False, markup=False)
    if (folder / "cost.json").exists():
        cost = json.loads((folder / "cost.json").read_text(encoding="utf-8"))
        console.print(in_words(cost), highlight=False, markup=False)
