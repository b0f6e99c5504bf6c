"""A finished run in lm-evaluation-harness's form: results JSON and a samples JSONL a task, one folder a setting.

Field names and file names are those of lm_eval 0.4.13 with `--log_samples`. One line is one problem with its N
responses, where lm_eval's own tasks keep the first of repeated responses only.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from stapo_eval.interop.finished import Asked, Finished, FinishedCell, replacing
from stapo_results.store import write_atomic

LM_EVAL = "0.4.13"
FILTER = "last_boxed"


def write(finished: Finished, out: Path) -> list[Path]:
    """Write `<setting>/<model>/results_<time>.json` and `<setting>/<model>/samples_<task>_<time>.jsonl`."""
    written = []
    for setting, cells in finished.settings().items():
        folder, hashes = out / setting / finished.model, {}
        for cell in cells:
            path = folder / f"samples_{cell.task}_{finished.stamp}.jsonl"
            hashes[cell.task] = _write_samples(cell, path)
            written.append(path)
        path = folder / f"results_{finished.stamp}.json"
        results = _results(finished, cells) | {"task_hashes": hashes}
        write_atomic(path, json.dumps(results, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
        written.append(path)
    return written


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _number(x: float) -> float | str:
    """lm_eval's sign for a number that there is none of."""
    return "N/A" if math.isnan(x) else x


def _names(n: int) -> dict[str, str]:
    return {"avg": f"avg@{n}", "pass": f"pass@{n}", "maj": f"maj@{n}"}


def _generation(cell: FinishedCell) -> dict[str, Any]:
    r = cell.record
    return {
        "do_sample": r.temperature > 0,
        "temperature": r.temperature,
        "top_p": r.top_p,
        "max_gen_toks": r.max_tokens,
    }


def _sample(a: Asked, cell: FinishedCell) -> dict[str, Any]:
    doc = {"id": a.problem.id, "problem": a.problem.problem, "answer": a.gold, "unit": a.problem.unit}
    names = _names(cell.record.n)
    return {
        "doc_id": a.place,
        "doc": doc,
        "target": a.gold,
        "arguments": {"gen_args_0": {"arg_0": a.prompt, "arg_1": {"until": [], **_generation(cell)}}},
        "resps": [[s.response for s in a.samples]],
        "filtered_resps": [[v.extracted or "" for v in a.verdicts]],
        "filter": FILTER,
        "metrics": list(names.values()),
        "doc_hash": _hash(json.dumps(doc, indent=2, ensure_ascii=False)),
        "prompt_hash": _hash(a.prompt),
        "target_hash": _hash(a.gold),
        "correct": [[None if math.isnan(x) else int(x) for x in a.scores]],
        "finish_reasons": [[s.finish_reason for s in a.samples]],
        **{names[k]: _number(x) for k, x in a.metrics().items()},
    }


def _write_samples(cell: FinishedCell, path: Path) -> str:
    """Write a task's lines; returns lm_eval's hash of the task."""
    parts = []
    with replacing(path) as tmp, open(tmp, "w", encoding="utf-8") as f:
        for a in cell.asked:
            line = _sample(a, cell)
            parts.append(line["doc_hash"] + line["prompt_hash"] + line["target_hash"])
            f.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
    return _hash("".join(parts))


def _task_scores(cell: FinishedCell) -> dict[str, Any]:
    values = [a.metrics() for a in cell.asked]
    scores: dict[str, Any] = {"alias": cell.task, "name": cell.task, "sample_len": len(cell.asked)}
    for ours, theirs in _names(cell.record.n).items():
        scores[f"{theirs},{FILTER}"] = _number(math.fsum(v[ours] for v in values) / len(values))
        scores[f"{theirs}_stderr,{FILTER}"] = _number(cell.accuracy()[1]) if ours == "avg" else "N/A"
    return scores


def _config(cell: FinishedCell) -> dict[str, Any]:
    spec = cell.benchmark.spec
    return {
        "task": cell.task,
        "dataset_path": spec.hub,
        "dataset_kwargs": {"revision": spec.revision},
        "test_split": spec.split,
        "output_type": "generate_until",
        "repeats": cell.record.n,
        "num_fewshot": 0,
        "generation_kwargs": {"until": [], **_generation(cell)},
        "metadata": {"version": 0, "golds_sha256": cell.record.benchmark_sha256, "variant": cell.record.variant},
    }


def _results(finished: Finished, cells: list[FinishedCell]) -> dict[str, Any]:
    run = finished.run
    better = {c.task: dict.fromkeys(_names(c.record.n).values(), True) for c in cells}
    return {
        "results": {c.task: _task_scores(c) for c in cells},
        "group_subtasks": {c.task: [] for c in cells},
        "configs": {c.task: _config(c) for c in cells},
        "versions": {c.task: 0 for c in cells},
        "n-shot": {c.task: 0 for c in cells},
        "higher_is_better": better,
        "n-samples": {c.task: {"original": len(c.benchmark.problems), "effective": len(c.asked)} for c in cells},
        "config": {
            "model": cells[0].record.engine,
            "model_args": {"pretrained": finished.model, "revisions": run.revisions},
            "limit": run.config.get("limit") or None,
            "gen_kwargs": _generation(cells[0]),
        },
        "git_hash": run.code_commit,
        "model_source": cells[0].record.engine,
        "model_name": finished.model,
        "model_name_sanitized": finished.model,
        "total_evaluation_time_seconds": str(run.wall_seconds),
        "exported_from": {"run_id": run.run_id, "scored_by": cells[0].record.scored_by, "format": f"lm_eval {LM_EVAL}"},
    }
