"""A finished run in lighteval's form: results JSON and details parquet, one folder a decoding setting.

Written from the field names and file names of lighteval 0.13.0 (`EvaluationTracker`), which reads them back; the test
does so with lighteval itself. Rows stand in the order in which lighteval asks the problems of a task, since its reader
pairs rows and problems by position. What lighteval has no field for stands in a problem's `specific`.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from stapo_eval.interop.finished import AskedProblem, FinishedCell, FinishedRun
from stapo_results.store import replacing, write_atomic

LIGHTEVAL = "0.13.0"
_SHUFFLE_SEED = 42  # LightevalTask.get_docs


def metric_names(n: int) -> dict[str, str]:
    """Our metrics under the names that lighteval gives its own when their parameters are set."""
    return {"avg": f"avg@n:n={n}", "pass": f"pass@k:k={n}&n={n}", "maj": f"maj@n:n={n}"}


def lighteval_order(rows: int) -> list[int]:
    """The rows of a task in the order in which lighteval asks them."""
    order = list(range(rows))
    random.Random(_SHUFFLE_SEED).shuffle(order)
    return order


def gold_text(gold: str) -> str:
    """A gold answer as lighteval's extraction finds it whole."""
    return rf"\boxed{{{gold}}}"


def write(finished: FinishedRun, out: Path) -> list[Path]:
    """Write `<setting>/results/<model>/results_<time>.json` and `<setting>/details/<model>/<time>/*.parquet`."""
    written, stamp = [], finished.run.started.replace(":", "-")
    for setting in dict.fromkeys(c.record.cell.setting for c in finished.cells):  # lighteval knows one setting a run
        cells = [c for c in finished.cells if c.record.cell.setting == setting]
        root = out / setting
        results = root / "results" / finished.model / f"results_{stamp}.json"
        for cell in cells:
            path = root / "details" / finished.model / stamp / f"details_{cell.task}|0_{stamp}.parquet"
            _write_details(cell, path)
            written.append(path)
        # NaN as lighteval writes it: a metric that samples are missing for
        write_atomic(results, json.dumps(_results(finished, cells), indent=2, ensure_ascii=False) + "\n")
        written.append(results)
    return written


def _ordered(cell: FinishedCell) -> list[AskedProblem]:
    place = {row: i for i, row in enumerate(lighteval_order(len(cell.benchmark.problems)))}
    return sorted(cell.asked, key=lambda a: place[a.place])


def _doc(a: AskedProblem, cell: FinishedCell) -> dict[str, Any]:
    record = cell.record
    return {
        "query": a.prompt,
        "choices": [gold_text(a.gold)],
        "gold_index": 0,
        "instruction": None,
        "images": None,
        "specific": {
            "problem_id": a.problem.id,
            "setting": record.cell.setting,
            "seeds": [s.seed for s in a.samples],
            "finish_reasons": [s.finish_reason for s in a.samples],
            "response_tokens": [s.response_tokens for s in a.samples],
            "extracted": [v.extracted for v in a.verdicts],
            "rule": [v.rule for v in a.verdicts],
            "judge": [v.judge for v in a.verdicts],
            "correct": [None if math.isnan(x) else bool(x) for x in a.scores],
        },
        "unconditioned_query": None,
        "original_query": a.problem.problem,
        "id": str(a.place),
        "task_name": f"{cell.task}|0",
        "fewshot_samples": [],
        "sampling_methods": ["GENERATIVE"],
        "fewshot_sorting_class": None,
        "generation_size": record.max_tokens,
        "stop_sequences": [],
        "use_logits": False,
        "num_samples": record.n,
        "generation_grammar": None,
    }


def _response(a: AskedProblem) -> dict[str, Any]:
    sums = [s.logprob_sum for s in a.samples]
    return {
        "input": a.prompt,
        "input_tokens": [],
        "text": [s.response for s in a.samples],
        "output_tokens": [],
        "text_post_processed": None,
        "reasonings": [],
        "logprobs": [] if None in sums else sums,
        "argmax_logits_eq_gold": [],
        "logits": None,
        "unconditioned_logprobs": None,
        "truncated_tokens_count": 0,
        "padded_tokens_count": 0,
    }


def _write_details(cell: FinishedCell, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = metric_names(cell.record.n)
    rows = [
        {"doc": _doc(a, cell), "metric": {names[k]: x for k, x in a.metrics().items()}, "model_response": _response(a)}
        for a in _ordered(cell)
    ]
    with replacing(path) as file:
        pq.write_table(pa.Table.from_pylist(rows), file)


def _scores(cell: FinishedCell) -> dict[str, float]:
    names, scores = metric_names(cell.record.n), {}
    values = [a.metrics() for a in cell.asked]
    for ours, theirs in names.items():
        xs = [v[ours] for v in values]
        mean = math.fsum(xs) / len(xs)
        scores[theirs] = mean
        if len(xs) > 1:
            scores[f"{theirs}_stderr"] = math.sqrt(math.fsum((x - mean) ** 2 for x in xs) / (len(xs) * (len(xs) - 1)))
    return scores


def _task_config(cell: FinishedCell) -> dict[str, Any]:
    spec, record = cell.benchmark.spec, cell.record
    return {
        "name": cell.task,
        "prompt_function": "prompt",
        "hf_repo": spec.hub,
        "hf_subset": "default",
        "metrics": [{"metric_name": name} for name in metric_names(record.n).values()],
        "hf_revision": spec.revision,
        "hf_avail_splits": [spec.split],
        "evaluation_splits": [spec.split],
        "generation_size": record.max_tokens,
        "stop_sequence": [],
        "num_samples": [record.n],
        "original_num_docs": len(cell.benchmark.problems),
        "effective_num_docs": len(cell.asked),
        "num_fewshots": 0,
        "version": 0,
        "full_name": f"{cell.task}|0",
    }


def _results(finished: FinishedRun, cells: list[FinishedCell]) -> dict[str, Any]:
    run, first = finished.run, cells[0].record
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
            "model_config": {"model_name": finished.model, "generation_parameters": parameters},
            "model_name": finished.model,
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
