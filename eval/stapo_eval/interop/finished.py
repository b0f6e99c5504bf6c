"""A finished run, read from its folder with the problems that it was asked: what an export starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from stapo_eval.decoding import prompt
from stapo_eval.engines.requests import Key, key_of
from stapo_eval.options import benchmark_files
from stapo_results import store
from stapo_results.benchmarks import Benchmark, Problem, find_data_dir, load
from stapo_results.errors import BadInput
from stapo_results.schema import CellRecord, Run, Sample, Verdict
from stapo_results.statistics import majority_at_k, parse_verdicts, pass_at_k, problem_means

R = TypeVar("R", Sample, Verdict)


@dataclass(frozen=True)
class AskedProblem:
    """One problem of a cell with its N samples in order of their index.

    `place` is the problem's row in its benchmark; `scores` holds 1.0, 0.0, or NaN where the engine failed.
    """

    place: int
    problem: Problem
    samples: tuple[Sample, ...]
    verdicts: tuple[Verdict, ...]
    scores: tuple[float, ...]

    @property
    def prompt(self) -> str:
        return prompt(self.problem.problem)

    @property
    def gold(self) -> str:
        """The gold answer as one text; several are joined by commas."""
        answer = self.problem.answer
        return answer if isinstance(answer, str) else ", ".join(answer)

    def metrics(self) -> dict[str, float]:
        """avg@N, pass@N and maj@N of this problem, in fractions; NaN where samples are missing (avg: where all are)."""
        n, answers = len(self.scores), [[v.extracted for v in self.verdicts]]
        return {
            "avg": float(problem_means([self.scores])[0]),
            "pass": pass_at_k([self.scores], n),
            "maj": majority_at_k(answers, [self.scores], n),
        }


@dataclass(frozen=True)
class FinishedCell:
    """One benchmark in one setting: the cell's record and its problems."""

    record: CellRecord
    benchmark: Benchmark
    asked: tuple[AskedProblem, ...]

    @property
    def task(self) -> str:
        """The name that other harnesses know the benchmark by: ours begin with `stapo_`, theirs exist already."""
        return f"stapo_{self.record.cell.benchmark}"


@dataclass(frozen=True)
class FinishedRun:
    run: Run
    cells: tuple[FinishedCell, ...]

    @property
    def model(self) -> str:
        """The model's labels as one name without a slash."""
        cell = self.cells[0].record.cell
        return "-".join((cell.method, cell.size, f"s{cell.train_seed}", str(cell.step))).replace("/", "__")


def read(folder: Path, data_dir: str = "", files: str = "") -> FinishedRun:
    """Read a finished run.

    Args:
        data_dir: where the benchmarks are; "" is where the run found them, else what `find_data_dir` finds.
        files: those of benchmarks that were given to the run by path, joined by commas.

    Raises:
        BadInput: for a folder without a finished evaluation, records that lack something, or benchmarks that are not
            those of the run.
    """
    paths = benchmark_files(files)
    run = store.read_json(folder / "run.json", Run)
    if run.kind != "eval" or run.status != "done":
        raise BadInput(
            f"{folder} does not hold a finished evaluation",
            found=f"a run of kind {run.kind}, status {run.status}",
            expected="kind eval, status done",
            next_step="finish it with its `stapo-eval run` command",
        )
    records = [store.read_json(p, CellRecord) for p in sorted((folder / "cells").glob("*.json"))]
    if not records:
        raise BadInput(f"{folder} holds no cell record", next_step="run its `stapo-eval run` command again")
    samples = _by_key(folder / "samples.jsonl", Sample)
    verdicts = _by_key(folder / "verdicts.jsonl", Verdict)
    known = str(run.config.get("data_dir") or "")
    where_from = find_data_dir(data_dir or (known if Path(known).is_dir() else ""))
    names = dict.fromkeys(r.cell.benchmark for r in records)
    benchmarks = {n: load(paths.get(n, n), where_from, accept_variant=True) for n in names}
    order = {name: i for i, name in enumerate(run.config.get("benchmarks", []))}
    cells = [_cell(r, benchmarks[r.cell.benchmark], samples, verdicts) for r in records]
    cells.sort(key=lambda c: (order.get(c.record.cell.benchmark, len(order)), c.record.cell.benchmark))
    return FinishedRun(run, tuple(cells))


def _by_key(path: Path, kind: type[R]) -> dict[Key, R]:
    if not path.exists():
        raise BadInput(
            f"{path}: no such file",
            expected="the run folder with every response, as `stapo-eval run` left it",
            next_step="export where the run was made, or unpack its responses first",
        )
    return {key_of(x): x for x in store.read(path, kind)}


def _cell(
    record: CellRecord, benchmark: Benchmark, samples: Mapping[Key, Sample], verdicts: Mapping[Key, Verdict]
) -> FinishedCell:
    identity, name = benchmark.identity, record.cell.benchmark
    if (identity.rows, identity.golds_sha256) != (record.benchmark_rows, record.benchmark_sha256):
        raise BadInput(
            f"{benchmark.source} is not the copy of {name} that the run was made with",
            found=f"{identity.rows} rows, golds {identity.golds_sha256[:16]}",
            expected=f"{record.benchmark_rows} rows, golds {record.benchmark_sha256[:16]}",
            next_step="give that copy as --data-dir, or --benchmarks FILE for one that was given by its path",
        )
    places = {p.id: (i, p) for i, p in enumerate(benchmark.problems)}
    asked = []
    for result in record.problems:
        if result.problem_id not in places:
            raise BadInput(
                f"{benchmark.source} has no problem {result.problem_id}", next_step="give the run's own copy"
            )
        keys = [(record.cell.id, result.problem_id, i) for i in range(record.n)]
        if missing := [k for k in keys if k not in samples or k not in verdicts]:
            raise BadInput(
                f"the run folder lacks samples or verdicts of {record.cell.id}",
                found=f"none for problem {missing[0][1]}, sample {missing[0][2]}",
                next_step="run its `stapo-eval run` command again",
            )
        place, problem = places[result.problem_id]
        scores = tuple(parse_verdicts(result.verdicts))
        mine = tuple(samples[k] for k in keys), tuple(verdicts[k] for k in keys)
        asked.append(AskedProblem(place, problem, *mine, scores))
    return FinishedCell(record, benchmark, tuple(asked))
