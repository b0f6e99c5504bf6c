"""The driver's closing words: the table of the miniature or its ablation, what it all cost, where everything is."""

from __future__ import annotations

import json
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stapo_repro import labels
from stapo_repro.driver.request import Request
from stapo_repro.driver.stages import read_ledger
from stapo_repro.driver.times import of_ledger
from stapo_results.schema import SETTINGS
from stapo_results.terminal import duration

_FIRST, _SECOND = SETTINGS


def _cell(by_setting: dict) -> str:
    """62.50 (70.31), with the samples where some are missing; a status where there is no number."""
    found = [by_setting[setting] for setting in SETTINGS]
    if all(v["status"] != "run" for v in found):
        return found[0]["status"]
    counts = [f" {v['fewest_samples']}/{v['samples']} samples" if v["missing"] else "" for v in found]
    first, second = (
        (v["shown"] if v["status"] == "run" else v["status"]) + count for v, count in zip(found, counts, strict=True)
    )
    return f"{first} ({second})"


def _main_table(r: Request) -> Iterator[Table | str]:
    table = json.loads((r.out / "tables" / "main_table.json").read_text())
    for section in table["sections"]:
        if not section["miniature"]:
            continue
        shown = Table(title=section["title"], caption=f"{_FIRST}, in brackets {_SECOND}")
        for name in ("Method", *map(labels.benchmark_label, (*section["benchmarks"], labels.AVERAGE))):
            shown.add_column(name)
        for row in section["rows"]:
            if any(v["status"] == "run" for by in row["values"].values() for v in by.values()):
                shown.add_row(row["label"], *map(_cell, row["values"].values()))
        yield shown
        for d in section["differences"]:
            first = d["against"] == labels.BASE and d["benchmark"] != labels.AVERAGE and d["setting"] == _FIRST
            if first and d["status"] == "run" and d["points"] is not None:
                yield (
                    f"  {labels.method_label(d['method'])} minus base on {labels.benchmark_label(d['benchmark'])}: "
                    f"{d['points']:+.1f} points ({d['low']:.1f} to {d['high']:.1f})"
                )


def _number(number: dict, form: str) -> str:
    if number["mean"] is None:
        return number["status"]
    missing = f" (missing: {'; '.join(number['missing'])})" if number["missing"] else ""
    interval = f", {number['low']:{form}} to {number['high']:{form}}" if number["low"] is not None else ""
    return f"{number['mean']:{form}}{interval}{missing}"


def _ablation(r: Request) -> Iterator[str]:
    data = json.loads((r.out / "tables" / "ablation.json").read_text())
    yield "Ablation in miniature, average accuracy at T=1.0 with its 95 % interval"
    for row in data["rows"]:
        yield f"  {row['label']:<19}{_number(row['accuracy'][labels.AVERAGE][_FIRST], '.2f')}"
    yield "The paper's claims"
    for claim in data["claims"]:
        yield f"  {claim['verdict']:<20}{claim['id']}: {_number(claim['number'], '+.4f')}"


def show(r: Request, wall_seconds: float) -> None:
    """Print the summary of a finished run; `wall_seconds` are this call's."""
    console = Console(highlight=False)
    if r.on_cpu:
        for line in _ablation(r) if r.experiment == "ablation" else _main_table(r):
            console.print(Text(line) if isinstance(line, str) else line)
    times, _ = of_ledger(read_ledger(r.out))
    whole, peak = sum(s.seconds for s in times), max(s.peak_mib for s in times) / 1024
    console.print(f"This call {duration(wall_seconds)}, all stages {duration(whole)}, peak memory {peak:.1f} GiB.")
    name = "ablation" if r.experiment == "ablation" else "main_table"
    for what, where in (
        ("table", r.out / "tables" / f"{name}.md"),
        ("figures", r.out / "figures"),
        ("records", f"{r.out / 'eval'}, {r.out / 'train'}"),
        ("logs", r.out / "logs"),
        ("to share them", f"stapo-repro pack {r.out} --out {r.out.name}.zip"),
        ("to commit them", f"stapo-repro collect {r.out} --out results/records/{r.out.name}, then tox -e tables"),
    ):
        console.print(Text(f"  {what:<15}{where}"))
