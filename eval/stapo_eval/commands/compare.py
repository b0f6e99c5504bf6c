"""`stapo-eval compare`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from stapo_results import runs, store
from stapo_results.errors import meant


@dataclass(frozen=True)
class CompareCommand:
    """Compare two runs, problem by problem: first minus second."""

    first: Annotated[str, tyro.conf.Positional]
    """Run folder."""
    second: Annotated[str, tyro.conf.Positional]
    """Run folder."""
    settings: str = ""
    """Settings joined by commas; if empty, all that both have."""
    benchmarks: str = ""
    """Benchmarks joined by commas; if empty, all; both sides must have the same."""
    out: str = ""
    """JSON file with every number of the table; if empty, the table is printed only."""

    def __call__(self) -> int:
        from stapo_eval.compare import compare, load_cells, pair_runs

        if self.out:
            runs.check_file(self.out, "--out")
        settings, benchmarks = (
            [x.strip() for x in text.split(",") if x.strip()] for text in (self.settings, self.benchmarks)
        )
        first, second = load_cells(Path(self.first)), load_cells(Path(self.second))
        known = sorted({name for name, _ in (*first, *second)})
        benchmarks = [meant("benchmark", b, known, "choose of these, or leave out --benchmarks") for b in benchmarks]
        known = sorted({name for _, name in (*first, *second)})
        settings = [meant("setting", s, known, "choose of these, or leave out --settings") for s in settings]
        pairs = pair_runs(first, second, settings, benchmarks)
        tables = {title: compare(p) for title, p in pairs.items()}
        print(f"first: {self.first}\nsecond: {self.second}")
        for title, table in tables.items():
            _print(title, table)
        if self.out:
            store.write_json(self.out, {"schema_version": 1, "tables": tables})
            print(f"written: {self.out}")
        return 0


def _print(title: str, table: dict[str, Any]) -> None:
    from stapo_eval.show import interval, make_console, p_value, percent, print_table

    def row(name: str, c: dict[str, Any], sides: list[str], adjusted: str) -> list[str]:
        ends = interval(c["low"], c["high"]), interval(c["bootstrap_low"], c["bootstrap_high"])
        difference = percent(c["difference"]), percent(c["standard_error"])
        return [name, str(c["problems"]), *sides, *difference, *ends, p_value(c["p"]), adjusted]

    rows, models = [], []
    for c in table["columns"]:
        sides = [
            x for s in (c["first"], c["second"]) for x in (percent(s["accuracy"]), f"{s['correct']}/{s['samples']}")
        ]
        rows.append(row(c["benchmark"], c, sides, p_value(c["p_holm"])))
        # a cell's id without benchmark, setting and evaluation seed
        models.append(" minus ".join(dict.fromkeys(c[s]["cell"].rsplit("/", 3)[0] for s in ("first", "second"))))
    if len(rows) > 1:
        a = table["average"]
        rows.append(row("average", a, [percent(a["first"]), "", percent(a["second"]), ""], ""))
    console = make_console()
    columns = ("benchmark", "problems", "first", "k/n", "second", "k/n", "diff.", "SE", "95 % t", "95 % bootstrap")
    subject = ", ".join(dict.fromkeys(models))
    print_table(console, f"{title}: {subject}, accuracy in %", (*columns, "p", "p (Holm)"), rows, text_columns=1)
    for text in table["warnings"]:
        console.print(f"WARNING: {text}", highlight=False, markup=False)
