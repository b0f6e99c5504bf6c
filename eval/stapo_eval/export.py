"""A finished run as files of other programs: inspect's, or plain responses for any grader.

Scores are the run's own (rule and judge). Field and file names are those of inspect_ai 0.3.285 (`EvalLog`,
`precomputed_scores`); tests/test_interop_export.py reads the files back with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from stapo_eval.compare import load_cells
from stapo_eval.decoding import Chat, prompt
from stapo_eval.options import benchmark_files, data_dir_of
from stapo_results import store
from stapo_results.benchmarks import Benchmark, Problem, find_data_dir, load
from stapo_results.errors import BadInput
from stapo_results.runs import check_folder
from stapo_results.schema import CellRecord, Run, Sample, Verdict

Row = dict[str, Any]
# samples by problem and index, without those that the engine failed on: the fields of Sample and Verdict, `problem`
Cells = list[tuple[CellRecord, Benchmark, list[Row]]]


def export(folder: Path, to: str, out: Path, data_dir: str = "", files: str = "") -> list[Path]:
    """Write a finished run into `out` for inspect or any grader (`to`: responses); returns the files.

    Args:
        data_dir: where the benchmarks are; "" is where the run found them, else what `find_data_dir` finds.
        files: benchmarks that were given to the run by path, joined by commas.

    Raises:
        BadInput: the folder holds no finished evaluation, responses are missing, a benchmark is another copy, or `out`
            cannot be written.
    """
    check_folder(out, "--out")
    paths, records, run = benchmark_files(files), load_cells(folder), store.read_json(folder / "run.json", Run)
    samples: dict[Any, Row] = {}
    for name, kind in (("samples.jsonl", Sample), ("verdicts.jsonl", Verdict)):
        for x in store.read(folder / name, kind) if (folder / name).exists() else ():
            samples.setdefault((x.cell, x.problem_id, x.sample_index), {}).update(x.model_dump())
    where, cells = find_data_dir(data_dir_of(run.config, data_dir)), []
    for record in records.values():
        name = record.cell.benchmark
        benchmark = load(paths.get(name, name), where, accept_variant=True)
        cells.append((record, benchmark, _rows(record, benchmark, samples)))
    writers = {"inspect": for_inspect, "responses": for_graders}
    return list(writers[to](run, cells, out))


def _rows(record: CellRecord, benchmark: Benchmark, samples: dict[Any, Row]) -> list[Row]:
    problems, golds = {p.id: p for p in benchmark.problems}, benchmark.golds_sha256
    same_copy = (len(problems), golds) == (record.benchmark_rows, record.benchmark_sha256)
    same_copy &= record.revisions.get(f"data:{benchmark.name}", benchmark.content) == benchmark.content
    if not same_copy or any(p.problem_id not in problems for p in record.problems):
        raise BadInput(
            f"{benchmark.source} is not the copy of {record.cell.benchmark} that the run was made with",
            found=f"{len(problems)} rows, golds {golds[:16]}",
            expected=f"{record.benchmark_rows} rows, golds {record.benchmark_sha256[:16]}, the same texts in one order",
            next_step="give that copy as --data-dir, or --benchmarks FILE for one that was given by its path",
        )
    rows = [
        samples.get((record.cell.id, x.problem_id, i), {}) | {"problem": problems[x.problem_id]}
        for x in record.problems
        for i in range(record.n)
    ]
    if not all({"response", "rule"} <= row.keys() for row in rows):
        raise BadInput(
            f"the run folder lacks responses or verdicts of {record.cell.id}",
            next_step="export where the run was made, or run its `stapo-eval run` command again",
        )
    return [row for row in rows if row["finish_reason"] != "error"]


def for_inspect(run: Run, cells: Cells, out: Path) -> Iterator[Path]:
    """Write for each cell a log without scores, `<time>_<cell>.json`, and its scores, `<time>_<cell>.jsonl`.

    An epoch is a sample's index plus 1. Samples that the engine failed on are in neither file.
    """
    stamp, cell = run.started.replace(":", "-"), cells[0][0].cell
    name = "-".join((cell.method, cell.size, f"s{cell.train_seed}", str(cell.step))).replace("/", "__")
    model = f"mockllm/{name}"  # an interface of inspect's that asks nobody: it opens the log's model even to add scores
    for record, _, rows in cells:
        samples, scores = [], []
        for s in rows:
            problem: Problem = s["problem"]
            key = {"id": problem.id, "epoch": s["sample_index"] + 1}
            verdict = {name: s[name] for name in ("rule", "judge", "reason", "seed")}
            scores.append(key | {"value": int(s["correct"]), "answer": s["extracted"], "metadata": verdict})
            query, answer = prompt(problem.problem), {"role": "assistant", "content": s["response"]}
            stop = "max_tokens" if s["finish_reason"] == "length" else "stop"
            output = {"model": model, "choices": [{"message": answer, "stop_reason": stop}]}
            messages = [*Chat(**record.chat).messages(query), answer]
            samples.append(key | {"input": query, "target": problem.answer, "messages": messages, "output": output})
        spec = {
            "created": run.started,
            "task": f"{record.cell.benchmark}-{record.cell.setting}",
            "dataset": {"name": record.cell.benchmark, "samples": len(record.problems)},
            "model": model,
            "model_generate_config": record.model_dump(
                include={"temperature", "top_p", "top_k", "max_tokens"}, exclude_defaults=True
            ),
            "config": {"epochs": record.n},
            "metadata": record.model_dump(include={"cell", "run_id", "scored_by", "code_commit", "chat"}),
        }
        log = {"version": 2, "status": "success", "eval": spec, "samples": samples}
        path = out / f"{stamp}_{record.cell.slug}.json"  # inspect lists JSON files whose names begin with a time
        yield _write(path, [log])
        yield _write(path.with_suffix(".jsonl"), scores)


def for_graders(run: Run, cells: Cells, out: Path) -> Iterator[Path]:
    """Write `responses.jsonl`, and where a judge counts `judge.jsonl`, the run's verdicts, in the form of a grader's.

    An id is CELL/PROBLEM/SAMPLE; `correct` is the run's verdict. Samples that the engine failed on are left out.
    `stapo-train probe` reads the same lines.
    """
    responses, verdicts = [], []
    for record, benchmark, rows in cells:
        for s in rows:
            p: Problem = s["problem"]
            more = {"unit": p.unit or None, "tolerance": p.tolerance, "unordered": benchmark.spec.unordered or None}
            key = {"id": f"{record.cell.id}/{p.id}/{s['sample_index']}", "answer": p.answer}
            gold = key | {k: v for k, v in more.items() if v is not None}
            group = f"{record.cell.benchmark}/{record.cell.setting}/{p.id}"
            chat = Chat(**record.chat)
            asked = {"prompt_id": group, "sample": s["sample_index"], "messages": chat.messages(prompt(p.problem))}
            asked |= {"chat_template_kwargs": chat.template} if chat.template else {}
            fields = {name: s[name] for name in ("response", "finish_reason", "correct")}
            responses.append(gold | asked | fields)
            verdicts.append({"id": key["id"], "grader": "with the judge", "rule": s["correct"]})
    judged = any(record.scored_by == "rule+judge" for record, _, _ in cells)
    files = {"responses.jsonl": responses} | ({"judge.jsonl": verdicts} if judged else {})
    (out / "judge.jsonl").unlink(missing_ok=True)  # the run may have had a judge before
    yield from (_write(out / name, lines) for name, lines in files.items())


def _write(path: Path, rows: Iterable[Row]) -> Path:
    store.write_atomic(path, "".join(json.dumps(row) + "\n" for row in rows))
    return path
