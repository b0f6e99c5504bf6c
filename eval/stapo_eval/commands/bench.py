"""`stapo-eval bench`."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from stapo_results.errors import BadInput


@dataclass(frozen=True)
class BenchCommand:
    """Measure parts of the evaluation against the way they are usually done, in one run; a record for each."""

    part: Literal["all", "grading", "generation", "summary", "engines"] = "all"
    """grading: 8,984 made-up responses by this suite, by math-verify serially and by lighteval's metric. generation: a
    tiny model on six benchmarks, against an engine a benchmark and a pass a seed. summary: 100,000 records. engines:
    sampling from --model, against transformers.generate; not among all."""
    model: str = ""
    """engines: folder or hub id of the model."""
    engines: str = "hf"
    """engines: names joined by commas; vllm where it is installed."""
    threads: int = 0
    """engines: of the CPU; if 0, all cores."""
    out: str = "results/records/bench"
    """Folder of the records; each part has its own below it."""
    data_dir: str = ""
    """grading: directory with the benchmarks' JSONL files; if empty, $STAPO_DATA_DIR, else problems of our own."""
    repeats: int = 3
    """How often everything is measured."""
    quick: bool = False
    """Small sizes, once: the path alone."""
    seed: int = 0
    """Decides the responses of grading."""

    def __call__(self) -> int:
        from stapo_eval.bench import engines, generation, grading, summary
        from stapo_results import benching
        from stapo_results.benchmarks import find_data_dir

        repeats = 1 if self.quick else self.repeats
        size = grading.Size(0.05 if self.quick else 1.0, repeats, self.seed)
        sizes = generation.QUICK if self.quick else generation.Size(repeats=repeats)
        parts = {
            "grading": (partial(grading.rows, find_data_dir(self.data_dir), size), grading.BASELINE),
            "generation": (partial(generation.rows, sizes), generation.BASELINE),
            "summary": (
                partial(summary.rows, repeats=repeats, sizes={"b1": 30, "b2": 30} if self.quick else None),
                f"{summary.GOAL_SECONDS:g} s",
            ),
        }
        config = {"repeats": repeats, "quick": self.quick, "seed": self.seed}
        if self.part == "engines":
            if not self.model:
                raise BadInput("the engines need a model", found="no --model",
                               next_step="stapo-eval bench --part engines --model DIR")  # fmt: skip
            threads = self.threads or os.cpu_count() or 1
            of_engines = replace(engines.QUICK if self.quick else engines.Size(repeats=repeats),
                                 engines=tuple(self.engines.split(",")))  # fmt: skip
            config |= {"model": self.model, "engines": self.engines, "threads": threads}
            parts["engines"] = (partial(engines.rows, self.model, threads, of_engines), engines.BASELINE)
        elif asked := [
            f"--{k}" for k in ("model", "engines", "threads") if getattr(self, k) != getattr(BenchCommand, k)
        ]:
            raise BadInput(f"{', '.join(asked)}: for the engines alone", found=f"--part {self.part}",
                           expected="--part engines",
                           next_step="stapo-eval bench --part engines --model DIR, or leave it out")  # fmt: skip
        for part, (measure, baseline) in parts.items():
            if self.part in ("all", part):
                print(f"== {part}", flush=True)
                bench = benching.record(Path(self.out) / part, part, config, baseline, measure)
                rows = [
                    [r.name, f"{r.seconds:.2f}", benching.spread(r), *(f"{k} {v:.4g}" for k, v in r.values.items())]
                    for r in bench.rows
                ]
                widest = max(map(len, rows))
                print(benching.text([row + [""] * (widest - len(row)) for row in rows]))
                print("".join(f"{name}: {value}\n" for name, value in bench.labels.items()), end="", flush=True)
        return 0
