"""What the parts of `stapo-train bench` share: a measurement, its record, its table on a terminal and on a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stapo_results import benching, store
from stapo_results.schema import Bench, BenchRow, Run

Measured = tuple[list[BenchRow], dict[str, str]]
"""The rows, and labels that hold for all of them."""


@dataclass(frozen=True)
class Part:
    """One measurement.

    Attributes:
        baseline: what the ratios are to.
        columns: of the table, by their heads.
        sizes: (repeats, quick) -> a dataclass of what is measured with; quick: small sizes, once.
        about: what was measured, in a sentence.
    """

    name: str
    baseline: str
    columns: Mapping[str, Callable[[BenchRow], str]]
    sizes: Callable[[int, bool], Any]
    measure: Callable[[Any], Measured]
    about: Callable[[Bench, Run], str]

    def run(self, out: Path, repeats: int, *, quick: bool = False) -> Bench:
        """Measure, print the table, write the record to `out`."""
        sizes = self.sizes(repeats, quick)
        bench = benching.record(out, self.name, asdict(sizes), self.baseline, lambda: self.measure(sizes))
        print(benching.text(self.table(bench)))
        return bench

    def table(self, bench: Bench) -> benching.Table:
        """The record's rows as text, under their heads."""
        return [list(self.columns), *([shown(r) for shown in self.columns.values()] for r in bench.rows)]

    def page_block(self, folder: Path) -> str:
        """The record in `folder` as the documentation shows it; "not run" where there is none."""
        if not (folder / "bench.json").exists():
            return "Not run: `tox -e bench` measures it."
        bench, run = store.read_json(folder / "bench.json", Bench), store.read_json(folder / "run.json", Run)
        head, *rows = self.table(bench)
        source = f"Record: `results/records/bench/{bench.part}`, commit {run.code_commit[:7]}, {run.started[:10]}."
        lines = [" | ".join(row) for row in [head, ["---"] * len(head), *rows]]
        return f"{self.about(bench, run)} {source}\n\n" + "\n".join(f"| {line} |" for line in lines)
