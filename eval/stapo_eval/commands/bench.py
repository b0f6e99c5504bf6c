"""`stapo-eval bench`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path


@dataclass(frozen=True)
class BenchCommand:
    """Measure grading in one run, with a record: 8,984 made-up responses by this suite, by math-verify serially and by
    lighteval's metric."""

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
        from stapo_eval.bench import grading
        from stapo_results import benching
        from stapo_results.benchmarks import find_data_dir

        repeats = 1 if self.quick else self.repeats
        size = grading.Size(0.05 if self.quick else 1.0, repeats, self.seed)
        config = {"repeats": repeats, "quick": self.quick, "seed": self.seed}
        measure = partial(grading.rows, find_data_dir(self.data_dir), size)
        bench = benching.record(Path(self.out) / "grading", "grading", config, grading.BASELINE, measure)
        print(benching.text([
            [r.name, f"{r.seconds:.2f}", benching.spread(r), *(f"{k} {v:.4g}" for k, v in r.values.items())]
            for r in bench.rows
        ]))  # fmt: skip
        print("".join(f"{name}: {value}\n" for name, value in bench.labels.items()), end="", flush=True)
        return 0
