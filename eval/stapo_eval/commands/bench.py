"""`stapo-eval bench`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from stapo_results.schema import BenchRow

Part = Literal["grading", "generation", "summary"]


class _Part(NamedTuple):
    measure: Callable[[], tuple[list[BenchRow], dict[str, str]]]
    baseline: str
    table: Callable[[list[BenchRow]], list[list[str]]]


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
        from stapo_results import benching

        for part in get_args(Part) if self.part == "all" else (self.part,):
            print(f"== {part}", flush=True)
            measure, baseline, table = getattr(self, f"_{part}")(1 if self.quick else self.repeats)
            config = {"repeats": 1 if self.quick else self.repeats, "quick": self.quick, "seed": self.seed}
            bench = benching.record(Path(self.out) / part, part, config, baseline, measure)
            print(benching.text(table(bench.rows)))
            print("".join(f"{name}: {value}\n" for name, value in bench.labels.items()), end="", flush=True)
        return 0

    def _grading(self, repeats: int) -> _Part:
        from stapo_eval.bench import grading
        from stapo_results.benchmarks import find_data_dir

        size = grading.Size(0.05 if self.quick else 1.0, repeats, self.seed)

        def measure() -> tuple[list[BenchRow], dict[str, str]]:
            rows, labels = grading.rows(find_data_dir(self.data_dir), size, self.lighteval_python)
            return rows, labels | {k: str(v) for k, v in asdict(size).items()}

        return _Part(measure, grading.BASELINE, grading.table)

    def _generation(self, repeats: int) -> _Part:
        from stapo_eval.bench import generation

        size = generation.QUICK if self.quick else generation.Size(repeats=repeats)
        return _Part(lambda: (generation.rows(size), {}), "end to end, usual loop", _table)

    def _summary(self, repeats: int) -> _Part:
        from stapo_eval.bench import summary

        sizes = {"b1": 30, "b2": 30} if self.quick else None
        return _Part(lambda: (summary.rows(repeats=repeats, sizes=sizes), {}), f"{summary.GOAL_SECONDS:g} s", _table)


def _table(rows: list[BenchRow]) -> list[list[str]]:
    from stapo_results.benching import spread

    out = [["way", "", "ratio (spread)", "own share", "goal"]]
    for r in rows:
        labels = ", ".join(f"{k} {v}" for k, v in r.labels.items())
        own = f"{r.values['own_share']:.1%}" if "own_share" in r.values else ""
        met = {1.0: "met", 0.0: "MISSED"}.get(r.values.get("met", -1.0), "")
        out.append([r.name, labels, spread(r), own, met])
    return out
