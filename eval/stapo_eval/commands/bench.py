"""`stapo-eval bench`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from stapo_results.schema import BenchRow

Part = Literal["grading", "generation", "summary"]


class _Measured(NamedTuple):
    rows: list[BenchRow]
    baseline: str
    labels: dict[str, str]
    text: str


@dataclass(frozen=True)
class BenchCommand:
    """Measure parts of the evaluation against the way they are usually done, in one run; a record for each."""

    part: Literal["all"] | Part = "all"
    """grading: 8,984 made-up responses by this suite, by math-verify serially and by lighteval's metric. generation: a
    tiny model on six benchmarks, against an engine a benchmark and a pass a seed. summary: 100,000 records."""
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
        import time

        from stapo_results import provenance, store
        from stapo_results.schema import Bench

        repeats = 1 if self.quick else self.repeats
        for part in get_args(Part) if self.part == "all" else (self.part,):
            print(f"== {part}", flush=True)
            out, began = Path(self.out) / part, time.perf_counter()
            config = {"part": part, "repeats": repeats, "quick": self.quick}
            run = provenance.new_run("bench", config, seeds={"run": self.seed}, deterministic=False)
            m: _Measured = getattr(self, f"_{part}")(repeats)
            provenance.close_run(run, out / "run.json", "done", time.perf_counter() - began)
            bench = Bench(run_id=run.run_id, part=part, baseline=m.baseline, labels=m.labels, rows=m.rows)
            store.write_json(out / "bench.json", bench)
            print(m.text, flush=True)
        return 0

    def _grading(self, repeats: int) -> _Measured:
        from stapo_eval.bench import grading
        from stapo_results.benchmarks import find_data_dir

        size = grading.Size(0.05 if self.quick else 1.0, repeats, self.seed)
        rows, labels = grading.rows(find_data_dir(self.data_dir), size, self.lighteval_python)
        labels |= {k: str(v) for k, v in asdict(size).items()}
        return _Measured(rows, grading.BASELINE, labels, grading.table(rows, labels))

    def _generation(self, repeats: int) -> _Measured:
        from stapo_eval.bench import generation

        rows = generation.rows(generation.QUICK if self.quick else generation.Size(repeats=repeats))
        return _Measured(rows, rows[0].name, {}, _table(rows))

    def _summary(self, repeats: int) -> _Measured:
        from stapo_eval.bench import summary

        rows = summary.rows(repeats=repeats, sizes={"b1": 30, "b2": 30} if self.quick else None)
        return _Measured(rows, f"{summary.GOAL_SECONDS:g} s", {}, _table(rows))


def _table(rows: list[BenchRow]) -> str:
    """Rows as text, with what was aimed at."""
    lines = [f"{'way':28} {'':34} {'ratio (spread)':24} {'own share':>9}"]
    for r in rows:
        labels = ", ".join(f"{k} {v}" for k, v in r.labels.items())
        own = f"{r.values['own_share']:9.1%}" if "own_share" in r.values else " " * 9
        goal = {1.0: "goal met", 0.0: "goal MISSED"}.get(r.values.get("met", -1.0), "")
        spread = f"{r.ratio:.3f} ({r.ratio_low:.3f} to {r.ratio_high:.3f})"
        lines.append(f"{r.name:28} {labels:34} {spread:24} {own}  {goal}".rstrip())
    return "\n".join(lines)
