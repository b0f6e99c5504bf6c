"""lighteval reads our exports and runs our tasks, with its own code (`tox -e lighteval`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import finished_run
import pytest

pytest.importorskip("lighteval", reason="lighteval is in an environment of its own: tox -e lighteval")

from stapo_eval.cli import main

MODEL, STAMP = "stapo-mini-s0-40", "2026-01-02T03-04-05+00-00"
AVG = "avg@n:n=4"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_run.build(tmp_path_factory.mktemp("world"))


def export(world: Path) -> Path:
    out = world / "exported"
    command = ["export", "--run", str(world / "run"), "--to", "lighteval", "--out", str(out)]
    command += ["--data-dir", str(world / "data")]
    assert main(command) == 0
    return out


def read_details(root: Path, model: str, task: str = "stapo_toy") -> list[dict[str, Any]]:
    """The details of a task by lighteval's reader.

    It compares names without the number of shots: with the names that its own pipeline passes, 0.13.0 skips every file,
    its own included.
    """
    from lighteval.logging.evaluation_tracker import EvaluationTracker

    tracker = EvaluationTracker(output_dir=str(root))
    tracker.general_config_logger.model_name = model
    return list(tracker.load_details_datasets("last", [task])[f"{task}|0"])


def test_lighteval_reads_the_details_and_scores_them_as_we_did(world: Path) -> None:
    from lighteval.metrics import apply_metric
    from lighteval.metrics.metrics import Metrics
    from lighteval.models.model_output import ModelResponse
    from lighteval.tasks.requests import Doc

    rows = read_details(export(world) / "t1.0", MODEL)
    docs = [Doc(**r["doc"]) for r in rows]
    responses = [ModelResponse(**r["model_response"]) for r in rows]
    metric = Metrics.avg_at_n_math(sample_params={"n": 4})
    theirs = apply_metric(responses=responses, docs=docs, metrics=[metric])
    assert [r["metric"][AVG] for r in rows] == [x[AVG] for x in theirs]
    assert {d.specific["problem_id"]: r["metric"][AVG] for d, r in zip(docs, rows, strict=True)} == {
        "toy-a": 0.5, "toy-b": 1.0, "toy-c": 0.0}  # fmt: skip


def test_lighteval_shows_the_results(world: Path) -> None:
    from dataclasses import fields

    from lighteval.logging.evaluation_tracker import EvaluationTracker
    from lighteval.logging.info_loggers import GeneralConfigLogger
    from lighteval.models.abstract_model import ModelConfig
    from lighteval.tasks.lighteval_task import LightevalTaskConfig
    from lighteval.utils.utils import make_results_table

    out = export(world) / "t1.0"
    results = json.loads((out / "results" / MODEL / f"results_{STAMP}.json").read_text())
    tracker = EvaluationTracker(output_dir=str(out))
    tracker.general_config_logger.log_model_info(ModelConfig(model_name=MODEL))
    assert set(tracker.results) == set(results)
    assert {f.name for f in fields(GeneralConfigLogger)} < set(results["config_general"])
    known = {f.name for f in fields(LightevalTaskConfig)} | {"full_name"}
    assert set(results["config_tasks"]["stapo_toy|0"]) <= known
    table = [[c.strip() for c in line.split("|")] for line in make_results_table(results).splitlines()]
    row = next(line for line in table if AVG in line and "0.2887" in line)
    assert "0.5000" in row


def test_lightevals_metric_on_a_file_of_responses(tmp_path: Path) -> None:
    from stapo_eval.interop.lighteval_grade import LightevalGrade

    rows = [
        {"id": "a", "answer": "1/2", "response": r"It is \boxed{\frac{2}{4}}."},
        {"id": "b", "answer": ["1", "2"], "response": r"They are \boxed{1, 2}."},
        {"id": "c", "answer": 7, "response": r"It is \boxed{8}."},
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    LightevalGrade(str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"))()
    lines = [json.loads(x) for x in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(x["id"], x["rule"]) for x in lines] == [("a", True), ("b", True), ("c", False)]
    assert {x["grader"] for x in lines} == {f"lighteval {version('lighteval')}"}
    assert all(x["seconds"] > 0 for x in lines)


def test_lighteval_runs_our_tasks_alone_offline_on_a_tiny_model(world: Path, tmp_path: Path) -> None:
    import eval_model

    from stapo_eval.decoding import prompt

    model, out = eval_model.build(tmp_path / "model"), tmp_path / "out"
    (model / "generation_config.json").write_text(json.dumps({"do_sample": True, "eos_token_id": 2, "pad_token_id": 0}))
    env = os.environ | {"STAPO_DATA_DIR": str(world / "data"), "HF_HUB_OFFLINE": "1", "STAPO_MAX_TOKENS": "24"}
    arguments = (
        f"model_name={model},max_length=512,batch_size=1,dtype=float32,generation_parameters="
        "{temperature:1.0,top_p:1.0,top_k:0}"
    )
    done = subprocess.run(
        [sys.executable, "-m", "stapo_eval.interop.lighteval_main", "accelerate", arguments, "stapo_toy|0",
         "--output-dir", str(out), "--save-details"],
        env=env, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(next((out / "results").rglob("results_*.json")).read_text())
    assert {AVG, "pass@k:k=4&n=4", "maj@n:n=4"} < set(results["results"]["stapo_toy|0"])
    rows = read_details(out, str(model))
    assert [len(set(r["model_response"]["text"])) for r in rows] == [4, 4, 4]
    # the same prompts as the suite's own evaluation
    assert sorted(r["doc"]["query"] for r in rows) == sorted(prompt(p["problem"]) for p in finished_run.PROBLEMS)
