"""`stapo-eval bench`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class BenchCommand:
    """Measure a part of the evaluation against the way it is usually done, in one run; writes a record."""

    part: Literal["grading"] = "grading"
    """grading: 8,984 made-up responses by this suite, by math-verify serially and by lighteval's metric."""
    out: str = ""
    """Folder of the record (default: results/records/bench/PART)."""
    data_dir: str = ""
    """Directory with the benchmarks' JSONL files (default: $STAPO_DATA_DIR, else problems of our own)."""
    repeats: int = 3
    """How often everything is measured."""
    lighteval_python: str = ""
    """An interpreter that has lighteval (default: this one, or that of tox's environment lighteval)."""
    quick: bool = False
    """A twentieth of the problems, once."""
    seed: int = 0
    """Decides the responses."""

    def __call__(self) -> int:
        import time
        from dataclasses import asdict

        from stapo_eval.bench import grading
        from stapo_results import provenance, store
        from stapo_results.benchmarks import find_data_dir
        from stapo_results.schema import Bench

        size = grading.Size(0.05 if self.quick else 1.0, 1 if self.quick else self.repeats, self.seed)
        out = Path(self.out or f"results/records/bench/{self.part}")
        began = time.perf_counter()
        config = {"part": self.part, **asdict(size)}
        run = provenance.new_run("bench", config, seeds={"run": self.seed}, deterministic=False)
        rows, labels = grading.rows(find_data_dir(self.data_dir), size, self.lighteval_python)
        done = provenance.close_run(run, out / "run.json", "done", time.perf_counter() - began)
        bench = Bench(run_id=done.run_id, part=self.part, baseline=grading.BASELINE, labels=labels, rows=rows)
        store.write_json(out / "bench.json", bench)
        print(grading.table(rows, labels))
        return 0
