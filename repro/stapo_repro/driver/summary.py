"""The driver's closing words: the table, where everything is, what each stage cost."""

from __future__ import annotations

import json
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from stapo_repro import labels
from stapo_repro.driver.chain import Plan
from stapo_repro.driver.display import clock
from stapo_repro.driver.stages import Outcome
from stapo_results.schema import SETTINGS

_FIRST, _SECOND = SETTINGS


def _cell(by_setting: dict) -> Text:
    first, second = by_setting[_FIRST], by_setting[_SECOND]
    if first["status"] != "run" and second["status"] != "run":
        return Text(first["status"], style="dim")
    text = Text()
    for v, template in ((first, "{}"), (second, " ({})")):
        number = v["shown"] if v["status"] == "run" else v["status"]
        if v["missing"]:
            number += f" {v['fewest_samples']}/{v['samples']} samples"
        text.append(template.format(number), style="bold" if v["best"] else "")
    if first["status"] == "run" and first["low"] is not None:
        text.append(f"\n{first['low']:.1f} to {first['high']:.1f}", style="dim")
    return text


def _section(section: dict) -> RichTable:
    view = RichTable(caption="T=1.0, in brackets T=0.7; below: 95 % interval at T=1.0")
    view.add_column("Method")
    for b in (*section["benchmarks"], labels.AVERAGE):
        view.add_column(labels.benchmark_label(b))
    for row in section["rows"]:
        if any(v["status"] == "run" for by in row["values"].values() for v in by.values()):
            view.add_row(row["label"], *(_cell(by) for by in row["values"].values()))
    return view


def _main_table(console: Console, p: Plan) -> None:
    table = json.loads((p.out / "tables" / "main_table.json").read_text())
    for section in table["sections"]:
        if section["miniature"]:
            console.print(Text(section["title"], style="bold"))
            console.print(_section(section))
            for d in section["differences"]:
                shown = d["against"] == labels.BASE and d["benchmark"] != labels.AVERAGE and d["setting"] == _FIRST
                if shown and d["status"] == "run" and d["points"] is not None:
                    console.print(
                        f"  {labels.method_label(d['method'])} minus base on {labels.benchmark_label(d['benchmark'])}: "
                        f"{d['points']:+.1f} points ({d['low']:.1f} to {d['high']:.1f})"
                    )


def _number(number: dict, form: str) -> str:
    if number["mean"] is None:
        return number["status"]
    missing = f" (missing: {'; '.join(number['missing'])})" if number["missing"] else ""
    interval = f", {number['low']:{form}} to {number['high']:{form}}" if number["low"] is not None else ""
    return f"{number['mean']:{form}}{interval}{missing}"


def _ablation(console: Console, p: Plan) -> None:
    data = json.loads((p.out / "tables" / "ablation.json").read_text())
    console.print(Text("Ablation in miniature, average accuracy at T=1.0 with its 95 % interval", style="bold"))
    for row in data["rows"]:
        text = f"  {row['label']:<19}{_number(row['accuracy'][labels.AVERAGE][_FIRST], '.2f')}"
        if row["training"]:
            text += f"; late entropy {_number(row['training']['entropy'], '.4f')}"
        console.print(Text(text))
    console.print(Text("The paper's claims", style="bold"))
    for claim in data["claims"]:
        console.print(Text(f"  {claim['verdict']:<20}{claim['id']}: {_number(claim['number'], '+.4f')}"))


def costs(console: Console, outcomes: Mapping[str, Outcome], wall_seconds: float) -> None:
    """Time and memory of every stage, earlier attempts included, and what the engine noted."""
    table = RichTable(title="Stages")
    for column in ("stage", "time", "peak memory", ""):
        table.add_column(column, justify="left" if column in ("stage", "") else "right")
    for name, o in outcomes.items():
        table.add_row(name, clock(o.seconds), f"{o.peak_mib / 1024:.1f} GiB", "" if o.repeated else "finished before")
    console.print(table)
    for name, o in outcomes.items():
        for note in o.notes:
            console.print(Text(f"  {name}: {note}"))
    peak = max((o.peak_mib for o in outcomes.values()), default=0) / 1024
    total = sum(o.seconds for o in outcomes.values())
    console.print(f"This call {clock(wall_seconds)}, all stages {clock(total)}, peak memory {peak:.1f} GiB.")


def show(p: Plan, outcomes: Mapping[str, Outcome], wall_seconds: float) -> None:
    """Print the summary of a finished run; reads the table that its `tables` stage wrote."""
    console = Console(highlight=False)
    (_ablation if p.kind == "ablation" else _main_table)(console, p)
    costs(console, outcomes, wall_seconds)
    for what, where in (
        ("table", p.out / "tables" / ("ablation.md" if p.kind == "ablation" else "main_table.md")),
        ("figures", p.out / "figures"),
        ("records", p.out / "eval"),
        ("curves' data", p.out / "train"),
        ("logs", p.out / "logs"),
    ):
        console.print(Text(f"  {what:<13}{where}"))
