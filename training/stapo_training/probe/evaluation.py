"""The responses of an evaluation: samples.jsonl and verdicts.jsonl of `stapo-eval run`, with the problems' texts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stapo_results import store
from stapo_results.benchmarks import find_data_dir, load
from stapo_results.errors import BadInput
from stapo_results.schema import Run, Sample, Verdict
from stapo_training.data.rows import INSTRUCTION
from stapo_training.probe.responses import Response, Responses

EVAL_SEPARATOR = " "
"""Between problem and instruction, as `stapo-eval` asks."""
_ASK = EVAL_SEPARATOR + INSTRUCTION
_AGAIN = "finish the evaluation with its own command"


def read(samples: Path, data_dir: Path | None) -> Responses:
    """The samples in the order of the file; those that the engine failed on are left out.

    A group is a problem's samples in one decoding setting. The run record beside the file, where there is one, says
    where the benchmarks were and what was in them.

    Raises:
        BadInput: naming file and line: a sample has no verdict, or its problem is not in the benchmark.
    """
    file = samples.with_name("verdicts.jsonl")
    if not file.is_file():
        raise BadInput(
            f"{samples} has no verdicts beside it",
            found=f"no {file}",
            expected="samples.jsonl and verdicts.jsonl as `stapo-eval run` leaves them",
            next_step=_AGAIN,
        )
    verdicts = {(v.cell, v.problem_id, v.sample_index): v.correct for v in store.read(file, Verdict)}
    run = _run_beside(samples)
    problems = _Problems(run, data_dir)
    rows, failed = [], 0
    for number, s in enumerate(store.read(samples, Sample), 1):
        where = f"{samples}:{number}"
        if s.finish_reason == "error":
            failed += 1
            continue
        right = verdicts.get((s.cell, s.problem_id, s.sample_index))
        if right is None:
            raise BadInput(
                f"{where}: the sample has no verdict",
                found=f"none for problem {s.problem_id}, sample {s.sample_index} of {s.cell} in {file.name}",
                expected="a verdict a sample",
                next_step=_AGAIN,
            )
        benchmark, setting = _benchmark_and_setting(s.cell, where)
        rows.append(
            Response(
                where,
                f"{benchmark}/{setting}/{s.problem_id}",
                s.sample_index,
                [{"role": "user", "content": problems.text(benchmark, s.problem_id, where) + _ASK}],
                s.response,
                ("correct", 1.0 if right else -1.0),
                s.finish_reason == "stop",
                counted=(s.prompt_tokens, s.response_tokens),
            )
        )
    if not rows:
        raise BadInput(f"{samples} holds no response", found=f"{failed} samples that the engine failed on")
    notes = (f"{failed} samples that the engine failed on are left out",) if failed else ()
    revisions = {"verdicts": f"sha256:{store.sha256_file(file)}"} | problems.revisions
    return Responses("evaluation", rows, revisions, run.run_id if run else "", notes)


def _benchmark_and_setting(cell: str, where: str) -> tuple[str, str]:
    """Of a cell's id (`schema.Cell.id`); a model's name in front of them may hold slashes."""
    parts = cell.split("/")
    if len(parts) < 7:
        raise BadInput(
            f"{where}: not the id of a cell",
            found=cell,
            expected="METHOD/SIZE/sSEED/STEP/BENCHMARK/SETTING/eSEED",
            next_step="take the file as `stapo-eval run` wrote it",
        )
    return parts[-3], parts[-2]


def _run_beside(samples: Path) -> Run | None:
    file = samples.with_name("run.json")
    run = store.read_json(file, Run) if file.is_file() else None
    return run if run and run.kind == "eval" else None


class _Problems:
    """The texts of the benchmarks, each loaded when it is first asked for."""

    def __init__(self, run: Run | None, data_dir: Path | None):
        recorded = str(run.config.get("data_dir") or "") if run else ""
        self.folder = find_data_dir(data_dir or (recorded if recorded and Path(recorded).is_dir() else None))
        self.run, self.revisions = run, {}
        self._texts: dict[str, Mapping[str, str]] = {}

    def text(self, benchmark: str, problem: str, where: str) -> str:
        if benchmark not in self._texts:
            self._texts[benchmark] = self._load(benchmark)
        texts = self._texts[benchmark]
        if problem not in texts:
            raise BadInput(
                f"{where}: the benchmark {benchmark} has no problem {problem}",
                found=f"{len(texts)} other problems in {self.folder or 'the copy of the hub'}",
                expected="the copy that the evaluation was made with",
                next_step="give its folder as --data-dir",
            )
        return texts[problem]

    def _load(self, name: str) -> Mapping[str, str]:
        copy = load(name, self.folder, accept_variant=True)
        recorded = self.run.revisions.get(f"data:{name}", copy.content) if self.run else copy.content
        if recorded != copy.content:
            raise BadInput(
                f"{copy.source} is not the copy of {name} that the evaluation was made with",
                found=copy.content,
                expected=recorded,
                next_step="give the folder of that copy as --data-dir",
            )
        self.revisions[f"data:{name}"] = copy.content
        return {p.id: p.problem for p in copy.problems}
