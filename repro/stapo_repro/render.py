"""The written forms of the table: Markdown, CSV, JSON. All from one `Table`, LF, no time stamp."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict

from stapo_repro import labels
from stapo_repro.tables import Difference, Row, Section, Table, Value, shown
from stapo_results.schema import SETTINGS

TRAINING_ALIGNED, JUSTRL_SETTING = SETTINGS  # order of the paper's cells: T=1.0, then T=0.7 in brackets


def to_json(table: Table) -> str:
    """The full data: every value with its interval and the record files that it came from."""
    return json.dumps(asdict(table), ensure_ascii=False, indent=1, allow_nan=False) + "\n"


_COLUMNS = (
    *("section", "size", "method", "source", "benchmark", "setting", "status", "percent", "se", "low", "high"),
    *("problems", "rows", "samples", "fewest_samples", "missing", "best", "records"),
)


def to_csv(table: Table) -> str:
    """Long form, one line a value."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for section in table.sections:
        for row in section.rows:
            for benchmark, by_setting in row.values.items():
                for setting, v in by_setting.items():
                    key = (section.id, section.size, row.method, row.source, benchmark, setting, v.status)
                    numbers = ("" if x is None else x for x in (v.mean, v.se, v.low, v.high))
                    counts = (v.problems, v.rows, v.samples, v.fewest_samples, v.missing) if v.records else ("",) * 5
                    writer.writerow((*key, *numbers, *counts, int(v.best), ";".join(v.records)))
    return out.getvalue()


def _number(v: Value) -> str:
    text = v.shown if v.status in ("run", "paper") else v.status
    if v.status == "incomplete" and v.shown not in ("", "n/a"):
        text = v.shown
    if v.status == "run" and v.missing:
        text += f" (**{v.fewest_samples}/{v.samples} samples**)"
    if v.status == "run" and v.problems < v.rows:
        text += f" (**{v.problems}/{v.rows} problems**)"
    return f"**{text}**" if v.best else text


def _interval(v: Value) -> str:
    return f"{shown(v.low, 1)} to {shown(v.high, 1)}"


def _cell(by_setting: dict[str, Value]) -> str:
    first, second = by_setting[TRAINING_ALIGNED], by_setting[JUSTRL_SETTING]
    if first.status == second.status and first.status in ("not run", "not in the paper"):
        return first.status
    text = f"{_number(first)} ({_number(second)})"
    if first.status == "run" or second.status == "run":
        text += f"<br><sub>{_interval(first)} ({_interval(second)})</sub>"
    return text


def grid(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """A Markdown table as lines; all columns but the first `left` ones are centred."""
    align = [*["---"] * left, *[":---:"] * (len(header) - left)]
    return ["| " + " | ".join(line) + " |" for line in (header, align, *rows)]


def _row(row: Row) -> list[str]:
    name = f"*{row.label}*" if row.source == "paper" else row.label
    return [name, *(_cell(by_setting) for by_setting in row.values.values())]


def _difference(d: Difference) -> str:
    if d.status != "run":
        return d.status
    if d.points is None:
        return "samples missing"
    sign = "+" if d.points >= 0 else ""
    p = "n/a" if d.p_sign_flip is None else "p < 0.001" if d.p_sign_flip < 0.001 else f"p = {d.p_sign_flip:.3f}"
    return f"{sign}{shown(d.points)}<br><sub>{_interval_of(d)}; {p}</sub>"


def _interval_of(d: Difference) -> str:
    return f"{shown(d.low, 1)} to {shown(d.high, 1)}"


def _differences(section: Section) -> list[str]:
    """The comparison with the base model; nothing where no pair was run."""
    if not any(d.status != "not run" for d in section.differences):
        return []
    found = {(d.method, d.benchmark, d.setting): d for d in section.differences}
    methods = list(dict.fromkeys(d.method for d in section.differences))
    columns = [(b, s) for b in section.benchmarks for s in SETTINGS]
    header = ["Difference to the base model", *(f"{labels.benchmark_label(b)}, T={SETTINGS[s][0]}" for b, s in columns)]
    rows = [[labels.method_label(m), *(_difference(found[m, b, s]) for b, s in columns)] for m in methods]
    note = (
        "In percentage points, paired by problem; below it the 95 % t interval and the two-sided p-value of a "
        "sign-flip permutation test (not adjusted for the number of comparisons)."
    )
    return ["", *grid(header, rows), "", f"<sub>{note}</sub>"]


def section_markdown(section: Section, level: int = 2) -> str:
    """One section with its comparison and footnotes."""
    header = ["Method", *(labels.benchmark_label(b) for b in section.benchmarks), f"Avg of {len(section.benchmarks)}"]
    lines = [f"{'#' * level} {section.title}", "", *grid(header, [_row(r) for r in section.rows])]
    lines += _differences(section)
    if section.footnotes:
        lines += ["", *(f"- {note}" for note in section.footnotes)]
    return "\n".join(lines) + "\n"


def _stamp(table: Table) -> str:
    return f"Generated by `stapo-repro tables` from {len(table.records)} records, inputs {table.inputs_sha256[:16]}."


def to_markdown(table: Table) -> str:
    """All sections."""
    head = (
        "# Main table\n\n"
        f"{_stamp(table)} Italic rows are the paper's printed values ({table.paper}); the others are this suite's own "
        'runs. "not run" means that no record exists. Bold marks the best complete value of a column.\n'
    )
    return "\n".join([head, *(section_markdown(s) for s in table.sections)])


def state_of_paper_cells(table: Table) -> str:
    """One sentence: how many of the paper's models were run."""
    rows = [r for s in table.sections if s.size in labels.PAPER_SIZES for r in s.rows]
    ours = [r for r in rows if r.source == "ours" and r.method in labels.METHODS]
    run = sum(r.values[labels.AVERAGE][TRAINING_ALIGNED].status == "run" for r in ours)
    return f"Of the paper's {len(ours)} models (three sizes, four methods), {run} have been run with this suite."


def readme_block(table: Table) -> str:
    """What stands between the README's table markers."""
    first = section_markdown(table.sections[0], level=3)
    more = f"{state_of_paper_cells(table)} All sections: [results/tables/main_table.md](results/tables/main_table.md)."
    return f"{first}\n{more} {_stamp(table)}\n"
