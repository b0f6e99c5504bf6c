"""lighteval runs our tasks and grades our responses, with its own code (`tox -e lighteval`)."""

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

AVG = "avg@n:n=4"
CLONE = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_run.build(tmp_path_factory.mktemp("world"))


def read_details(root: Path, model: str, task: str = "stapo_toy") -> list[dict[str, Any]]:
    """The details of a task by lighteval's reader.

    It compares names without the number of shots: with the names that its own pipeline passes, 0.13.0 skips every file,
    its own included.
    """
    from lighteval.logging.evaluation_tracker import EvaluationTracker

    tracker = EvaluationTracker(output_dir=str(root))
    tracker.general_config_logger.model_name = model
    return list(tracker.load_details_datasets("last", [task])[f"{task}|0"])


def test_lightevals_metric_on_a_file_of_responses(world: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "responses.jsonl", tmp_path / "out.jsonl"
    assert main(["export", "--run", str(world / "run"), "--to", "responses", "--out", str(tmp_path)]) == 0
    command = [sys.executable, "-m", "studies.harness", "grade", f"--input={source}", f"--output={target}"]
    subprocess.run(command, cwd=CLONE, check=True)
    lines = [json.loads(x) for x in target.read_text().splitlines()]
    assert {x["grader"] for x in lines} == {f"lighteval {version('lighteval')}"}
    assert sum(x["rule"] for x in lines if "/t1.0/" in x["id"]) == 6
    assert sum(x["rule"] for x in lines if "/t0.7/" in x["id"]) == 8


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
        [sys.executable, "-m", "studies.harness", "accelerate", arguments, "stapo_toy|0",
         "--output-dir", str(out), "--save-details"],
        cwd=CLONE, env=env, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(next((out / "results").rglob("results_*.json")).read_text())
    assert {AVG, "pass@k:k=4&n=4", "maj@n:n=4"} < set(results["results"]["stapo_toy|0"])
    rows = read_details(out, str(model))
    assert [len(set(r["model_response"]["text"])) for r in rows] == [4, 4, 4]
    # the same prompts as the suite's own evaluation
    assert sorted(r["doc"]["query"] for r in rows) == sorted(prompt(p["problem"]) for p in finished_run.PROBLEMS)
