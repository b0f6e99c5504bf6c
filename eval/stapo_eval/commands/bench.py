"""`stapo-eval bench`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class BenchCommand:
    """Measure grading in one run, with a record: 8,984 made-up responses by this suite and by math-verify serially."""

    out: str = "results/records/bench"
    """The record is in grading/ below it."""
    data_dir: str = ""
    """Directory with the benchmarks' JSONL files; if empty, $STAPO_DATA_DIR, else problems of our own."""
    repeats: int = 3
    """How often everything is measured."""
    quick: bool = False
    """Small sizes, once: the path alone."""
    seed: int = 0
    """Decides the responses."""

    def __call__(self) -> int:
        from stapo_eval.bench import bench
        from stapo_results import benching
        from stapo_results.benchmarks import find_data_dir

        repeats, share = (1, 0.05) if self.quick else (self.repeats, 1.0)
        found = bench(Path(self.out) / "grading", find_data_dir(self.data_dir), repeats, share, self.seed)
        rows = [
            [r.name, f"{r.seconds:.2f}", benching.spread(r), *map("{:.4g}".format, r.values.values())]
            for r in found.rows
        ]
        print(benching.text([["way", "seconds", "ratio", *found.rows[0].values], *rows]))
        print(*(f"{name}: {value}" for name, value in found.labels.items()), sep="\n")
        return 0
