"""A finished run in lighteval's form: results JSON and details parquet, one folder a decoding setting.

Written from the field names and file names of lighteval 0.13.0 (`EvaluationTracker`), which reads them back; the test
does so with lighteval itself. What lighteval has no field for stands in a problem's `specific`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from stapo_eval.decoding import prompt
from stapo_eval.engines.requests import Key, key_of
from stapo_eval.grading.rules import in_one
from stapo_eval.options import benchmark_files
from stapo_results import store
from stapo_results.benchmarks import Benchmark, Problem, find_data_dir, load
from stapo_results.errors import BadInput
from stapo_results.schema import CellRecord, Run, Sample, Verdict
from stapo_results.statistics import majority_at_k, parse_verdicts, pass_at_k, problem_means

LIGHTEVAL = "0.13.0"
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

    def metrics(self) -> dict[str, float]:
        """avg@N, pass@N and maj@N of this problem under lighteval's names, in fractions.

        NaN where samples are missing (avg: where all are).
        """
        n, answers = len(self.scores), [[v.extracted for v in self.verdicts]]
        return {
            f"avg@n:n={n}": float(problem_means([self.scores])[0]),
            f"pass@k:k={n}&n={n}": pass_at_k([self.scores], n),
            f"maj@n:n={n}": majority_at_k(answers, [self.scores], n),
        }


@dataclass(frozen=True)
class FinishedCell:
    """One benchmark in one setting: the cell's record and its problems."""

    record: CellRecord
    benchmark: Benchmark
    asked: tuple[AskedProblem, ...]

    @property
    def task(self) -> str:
        """The name that lighteval knows the benchmark by: ours begin with `stapo_`, theirs exist already."""
        return f"stapo_{self.record.cell.benchmark}"


def read(folder: Path, data_dir: str = "", files: str = "") -> tuple[Run, list[FinishedCell]]:
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
    samples = _by_key(folder / "samples.jsonl", Sample)
    verdicts = _by_key(folder / "verdicts.jsonl", Verdict)
    known = str(run.config.get("data_dir") or "")
    where_from = find_data_dir(data_dir or (known if Path(known).is_dir() else ""))
    cells = []
    for path in sorted((folder / "cells").glob("*.json")):
        record = store.read_json(path, CellRecord)
        name = record.cell.benchmark
        cells.append(_cell(record, load(paths.get(name, name), where_from, accept_variant=True), samples, verdicts))
    if not cells:
        raise BadInput(f"{folder} holds no cell record", next_step="run its `stapo-eval run` command again")
    return run, cells


def _by_key(path: Path, kind: type[R]) -> dict[Key, R]:
    if not path.exists():
        raise BadInput(
            f"{path}: no such file",
            expected="the run folder with every response, as `stapo-eval run` left it",
            next_step="export where the run was made",
        )
    return {key_of(x): x for x in store.read(path, kind)}


def _cell(
    record: CellRecord, benchmark: Benchmark, samples: Mapping[Key, Sample], verdicts: Mapping[Key, Verdict]
) -> FinishedCell:
    identity, name = benchmark.identity, record.cell.benchmark
    places = {p.id: (i, p) for i, p in enumerate(benchmark.problems)}
    same_copy = (identity.rows, identity.golds_sha256) == (record.benchmark_rows, record.benchmark_sha256)
    if not same_copy or any(p.problem_id not in places for p in record.problems):
        raise BadInput(
            f"{benchmark.source} is not the copy of {name} that the run was made with",
            found=f"{identity.rows} rows, golds {identity.golds_sha256[:16]}",
            expected=f"{record.benchmark_rows} rows, golds {record.benchmark_sha256[:16]}, the same problems",
            next_step="give that copy as --data-dir, or --benchmarks FILE for one that was given by its path",
        )
    asked = []
    for result in record.problems:
        keys = [(record.cell.id, result.problem_id, i) for i in range(record.n)]
        if missing := [k for k in keys if k not in samples or k not in verdicts]:
            raise BadInput(
                f"the run folder lacks samples or verdicts of {record.cell.id}",
                found=f"none for problem {missing[0][1]}, sample {missing[0][2]}",
                next_step="run its `stapo-eval run` command again",
            )
        mine = tuple(samples[k] for k in keys), tuple(verdicts[k] for k in keys)
        asked.append(AskedProblem(*places[result.problem_id], *mine, tuple(parse_verdicts(result.verdicts))))
    return FinishedCell(record, benchmark, tuple(asked))


def gold_text(answer: str | tuple[str, ...]) -> str:
    """A gold answer as lighteval's extraction finds it whole; several are joined by commas."""
    return rf"\boxed{{{in_one(answer)}}}"


def write(run: Run, cells: list[FinishedCell], out: Path) -> list[Path]:
    """Write `<setting>/results/<model>/results_<time>.json` and `<setting>/details/<model>/<time>/*.parquet`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    written, stamp = [], run.started.replace(":", "-")
    first = cells[0].record.cell
    model = "-".join((first.method, first.size, f"s{first.train_seed}", str(first.step))).replace("/", "__")
    for setting in dict.fromkeys(c.record.cell.setting for c in cells):  # lighteval knows one setting a run
        mine = [c for c in cells if c.record.cell.setting == setting]
        for cell in mine:
            path = out / setting / "details" / model / stamp / f"details_{cell.task}|0_{stamp}.parquet"
            rows = [{"doc": _doc(a, cell), "metric": a.metrics(), "model_response": _response(a)} for a in cell.asked]
            with store.replacing(path) as file:
                pq.write_table(pa.Table.from_pylist(rows), file)
            written.append(path)
        results = out / setting / "results" / model / f"results_{stamp}.json"
        # NaN as lighteval writes it: a metric that samples are missing for
        store.write_atomic(results, json.dumps(_results(run, model, mine), indent=2, ensure_ascii=False) + "\n")
        written.append(results)
    return written


def _doc(a: AskedProblem, cell: FinishedCell) -> dict[str, Any]:
    return {
        "query": prompt(a.problem.problem),
        "choices": [gold_text(a.problem.answer)],
        "gold_index": 0,
        "specific": {
            "problem_id": a.problem.id,
            "setting": cell.record.cell.setting,
            "seeds": [s.seed for s in a.samples],
            "finish_reasons": [s.finish_reason for s in a.samples],
            "response_tokens": [s.response_tokens for s in a.samples],
            "extracted": [v.extracted for v in a.verdicts],
            "rule": [v.rule for v in a.verdicts],
            "judge": [v.judge for v in a.verdicts],
            "correct": [None if math.isnan(x) else bool(x) for x in a.scores],
        },
        "original_query": a.problem.problem,
        "id": str(a.place),
        "task_name": f"{cell.task}|0",
        "sampling_methods": ["GENERATIVE"],
        "generation_size": cell.record.max_tokens,
        "num_samples": cell.record.n,
    }


def _response(a: AskedProblem) -> dict[str, Any]:
    sums = [s.logprob_sum for s in a.samples]
    texts = [s.response for s in a.samples]
    return {"input": prompt(a.problem.problem), "text": texts, "logprobs": [] if None in sums else sums}


def _scores(cell: FinishedCell) -> dict[str, float]:
    scores: dict[str, float] = {}
    values = [a.metrics() for a in cell.asked]
    for name in values[0]:
        xs = [v[name] for v in values]
        scores[name] = mean = math.fsum(xs) / len(xs)
        if len(xs) > 1:
            scores[f"{name}_stderr"] = math.sqrt(math.fsum((x - mean) ** 2 for x in xs) / (len(xs) * (len(xs) - 1)))
    return scores


def _task_config(cell: FinishedCell) -> dict[str, Any]:
    spec, record = cell.benchmark.spec, cell.record
    return {
        "name": cell.task,
        "hf_repo": spec.hub,
        "hf_revision": spec.revision,
        "evaluation_splits": [spec.split],
        "generation_size": record.max_tokens,
        "num_samples": [record.n],
        "original_num_docs": len(cell.benchmark.problems),
        "effective_num_docs": len(cell.asked),
        "version": 0,
        "full_name": f"{cell.task}|0",
    }


def _results(run: Run, model: str, cells: list[FinishedCell]) -> dict[str, Any]:
    first = cells[0].record
    tasks = {f"{c.task}|0": c for c in cells}
    scores = {name: _scores(c) for name, c in tasks.items()}
    metrics = list(dict.fromkeys(m for s in scores.values() for m in s))
    held = {m: [s[m] for s in scores.values() if m in s] for m in metrics}
    parameters = {"temperature": first.temperature, "top_p": first.top_p, "max_new_tokens": first.max_tokens}
    return {
        "config_general": {
            "lighteval_sha": "?",
            "num_fewshot_seeds": 1,
            "max_samples": run.config.get("limit") or None,
            "job_id": "0",
            "start_time": 0.0,
            "end_time": run.wall_seconds,
            "total_evaluation_time_secondes": str(run.wall_seconds),
            "model_config": {"model_name": model, "generation_parameters": parameters},
            "model_name": model,
            "exported_from": {
                "run_id": run.run_id,
                "code_commit": run.code_commit,
                "code_dirty": run.code_dirty,
                "revisions": run.revisions,
                "scored_by": first.scored_by,
                "format": f"lighteval {LIGHTEVAL}",
            },
        },
        "results": {**scores, "all": {m: math.fsum(x) / len(x) for m, x in held.items()}},
        "versions": dict.fromkeys(tasks, 0),
        "config_tasks": {name: _task_config(c) for name, c in tasks.items()},
        "summary_tasks": {},  # counts of truncated prompts, of which there are none
        "summary_general": {},
    }
