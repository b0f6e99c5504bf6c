"""`stapo-eval bench`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from stapo_results.schema import BenchRow

Part = Literal["grading", "generation", "makespan", "summary"]


@dataclass(frozen=True)
class BenchCommand:
    """Measure parts of the evaluation against the way they are usually done, in one run; a record for each."""

    part: Literal["all"] | Part = "all"
    """grading: 8,984 made-up responses by this suite, by math-verify serially and by lighteval's metric. generation: a
    tiny model on six benchmarks, against an engine a benchmark and a pass a seed. makespan: the queue on 8 and 64
    replicas, by simulation. summary: 100,000 records."""
    out: str = "results/records/bench"
    """Folder of the records; each part has its own below it."""
    data_dir: str = ""
    """grading: directory with the benchmarks' JSONL files; if empty, $STAPO_DATA_DIR, else problems of our own."""
    repeats: int = 3
    """How often everything is measured."""
    lighteval_python: str = ""
    """grading: an interpreter that has lighteval; if empty, this one, or that of tox's environment lighteval."""
    quick: bool = False
    """Small sizes, once: the path alone."""
    seed: int = 0
    """Decides the responses of grading."""

    def __call__(self) -> int:
        for part in get_args(Part) if self.part == "all" else (self.part,):
            print(f"== {part}", flush=True)
            print(self._measure(part), flush=True)
        return 0

    def _measure(self, part: Part) -> str:
        import time

        from stapo_results import provenance, store
        from stapo_results.schema import Bench

        out, began = Path(self.out) / part, time.perf_counter()
        repeats = 1 if self.quick else self.repeats
        config: dict[str, Any] = {"part": part, "repeats": repeats, "quick": self.quick}
        run = provenance.new_run("bench", config, seeds={"run": self.seed}, deterministic=part == "makespan")
        rows, baseline, labels, text = getattr(self, f"_{part}")(repeats)
        done = provenance.close_run(run, out / "run.json", "done", time.perf_counter() - began)
        store.write_json(
            out / "bench.json", Bench(run_id=done.run_id, part=part, baseline=baseline, labels=labels, rows=rows)
        )
        return text

    def _grading(self, repeats: int) -> tuple[list[BenchRow], str, dict[str, str], str]:
        from stapo_eval.bench import grading
        from stapo_results.benchmarks import find_data_dir

        size = grading.Size(0.05 if self.quick else 1.0, repeats, self.seed)
        rows, labels = grading.rows(find_data_dir(self.data_dir), size, self.lighteval_python)
        labels |= {k: str(v) for k, v in asdict(size).items()}
        return rows, grading.BASELINE, labels, grading.table(rows, labels)

    def _generation(self, repeats: int) -> tuple[list[BenchRow], str, dict[str, str], str]:
        from stapo_eval.bench import generation

        rows = generation.rows(generation.QUICK if self.quick else generation.Size(repeats=repeats))
        return rows, rows[0].name, {}, generation.table(rows)

    def _makespan(self, repeats: int) -> tuple[list[BenchRow], str, dict[str, str], str]:
        from stapo_eval.bench import generation, makespan

        shapes = makespan.MACHINES[:1] if self.quick else makespan.MACHINES
        rows = makespan.rows(shapes=shapes)  # a simulation: its repeats are equal
        return rows, "the larger of work / places and the longest request", {}, generation.table(rows)

    def _summary(self, repeats: int) -> tuple[list[BenchRow], str, dict[str, str], str]:
        from stapo_eval.bench import generation, summary

        rows = summary.rows(repeats=repeats, sizes={"b1": 30, "b2": 30} if self.quick else None)
        return rows, f"{summary.GOAL_SECONDS:g} s", {}, generation.table(rows)
