"""A finished run as inspect_ai's evaluation logs in JSON: a log a benchmark and decoding setting, an epoch a sample.

Field names are those of inspect_ai's log version 2, which `inspect_ai.log.read_eval_log` and `inspect view` read.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from stapo_eval.interop.finished import AskedProblem, FinishedCell, FinishedRun
from stapo_results.store import write_atomic

SCORER = "stapo"
_STOP = {"stop": "stop", "length": "max_tokens", "error": "unknown"}


def write(finished: FinishedRun, out: Path) -> list[Path]:
    """Write `<time>_<task>-<setting>_<run id>.json` for every cell."""
    written = []
    for cell in finished.cells:
        name = f"{finished.stamp}_{cell.task}-{cell.record.cell.setting}_{finished.run.run_id}.json".replace("+", "-")
        write_atomic(out / name, json.dumps(_log(finished, cell), ensure_ascii=False, indent=1, allow_nan=False))
        written.append(out / name)
    return written


def _sample(a: AskedProblem, index: int, model: str) -> dict[str, Any]:
    s, v, score = a.samples[index], a.verdicts[index], a.scores[index]
    answered: dict[str, Any] = {
        "id": a.problem.id,
        "epoch": index + 1,
        "input": a.prompt,
        "target": a.gold,
        "messages": [{"role": "user", "content": a.prompt}],
        "metadata": {"seed": s.seed, "finish_reason": s.finish_reason, "unit": a.problem.unit},
    }
    if math.isnan(score):
        return answered | {"error": {"message": s.error, "traceback": s.error, "traceback_ansi": s.error}}
    message = {"role": "assistant", "content": s.response, "source": "generate", "model": model}
    usage = {
        "input_tokens": s.prompt_tokens,
        "output_tokens": s.response_tokens,
        "total_tokens": s.prompt_tokens + s.response_tokens,
    }
    answered["messages"].append(message)
    graded = {"rule": v.rule, "reason": v.reason, "judge": v.judge, "preset": v.preset, "grader": v.grader_version}
    return answered | {
        "output": {
            "model": model,
            "choices": [{"message": message, "stop_reason": _STOP[s.finish_reason]}],
            "completion": s.response,
            "usage": usage,
        },
        "model_usage": {model: usage},
        "scores": {SCORER: {"value": score, "answer": v.extracted, "explanation": v.reason, "metadata": graded}},
    }


def _metric(name: str, value: float) -> dict[str, dict[str, Any]]:
    """The metric, or nothing where it is undefined: NaN is no JSON."""
    return {} if math.isnan(value) else {name: {"name": name, "value": value}}


def _log(finished: FinishedRun, cell: FinishedCell) -> dict[str, Any]:
    run, r = finished.run, cell.record
    generation = {"temperature": r.temperature, "top_p": r.top_p, "max_tokens": r.max_tokens}
    samples = [_sample(a, i, finished.model) for i in range(r.n) for a in cell.asked]
    scored = sum("error" not in s for s in samples)
    mean, se = cell.accuracy()
    score = {
        "name": SCORER,
        "scorer": SCORER,
        "reducer": "mean",
        "scored_samples": scored,
        "unscored_samples": len(samples) - scored,
        "metrics": _metric("accuracy", mean) | _metric("stderr", se),
        "metadata": {"scored_by": r.scored_by, "stderr": "clustered by problem"},
    }
    return {
        "version": 2,
        "status": "success",
        "eval": {
            "eval_id": r.cell.slug,
            "run_id": run.run_id,
            "created": run.started,
            "task": f"{cell.task}-{r.cell.setting}",
            "task_id": r.cell.slug,
            "dataset": {
                "name": r.cell.benchmark,
                "location": cell.benchmark.spec.hub,
                "samples": len(cell.asked),
                "sample_ids": [a.problem.id for a in cell.asked],
                "shuffled": False,
            },
            "model": finished.model,
            "model_generate_config": generation,
            "config": {"epochs": r.n, "epochs_reducer": ["mean"]},
            "revision": {
                "type": "git",
                "origin": "",
                "commit": run.code_commit,
                "dirty": bool(run.code_dirty),
            },
            "packages": run.packages,
            "metadata": {"cell": r.cell.id, "revisions": run.revisions, "variant": r.variant, "engine": r.engine},
        },
        "plan": {"name": "plan", "config": generation},
        "results": {"total_samples": len(samples), "completed_samples": scored, "scores": [score]},
        "stats": {"started_at": run.started},
        "samples": samples,
    }
