"""lighteval reads our exports and runs our tasks, with its own code (`tox -e lighteval`)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import finished_run
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("lighteval", reason="lighteval is in an environment of its own: tox -e lighteval")

from stapo_eval.cli import main
from stapo_eval.interop.lighteval_import import LightevalImport
from stapo_results import store
from stapo_results.errors import BadInput
from stapo_results.schema import CellRecord, Run, Sample

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


@pytest.fixture(scope="module")
def theirs(world: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(model, --output-dir) of lighteval's own run of our tasks, offline."""
    import eval_model

    folder = tmp_path_factory.mktemp("theirs")
    model = eval_model.build(folder / "model")
    (model / "generation_config.json").write_text(json.dumps({"do_sample": True, "eos_token_id": 2, "pad_token_id": 0}))
    env = os.environ | {"STAPO_DATA_DIR": str(world / "data"), "HF_HUB_OFFLINE": "1", "STAPO_MAX_TOKENS": "24"}
    arguments = (
        f"model_name={model},max_length=512,batch_size=1,dtype=float32,generation_parameters="
        "{temperature:1.0,top_p:1.0,top_k:0}"
    )
    done = subprocess.run(
        [sys.executable, "-m", "stapo_eval.interop.lighteval_main", "accelerate", arguments, "stapo_toy|0",
         "--output-dir", str(folder / "out"), "--save-details"],
        env=env, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return model, folder / "out"


def test_lighteval_runs_our_tasks_alone_offline_on_a_tiny_model(theirs: tuple[Path, Path]) -> None:
    from stapo_eval.decoding import prompt

    model, out = theirs
    results = json.loads(next((out / "results").rglob("results_*.json")).read_text())
    assert {AVG, "pass@k:k=4&n=4", "maj@n:n=4"} < set(results["results"]["stapo_toy|0"])
    rows = read_details(out, str(model))
    assert [len(set(r["model_response"]["text"])) for r in rows] == [4, 4, 4]
    # the same prompts as the suite's own evaluation
    assert sorted(r["doc"]["query"] for r in rows) == sorted(prompt(p["problem"]) for p in finished_run.PROBLEMS)


Rows = dict[str, dict[str, Any]]
RESPONSES = {  # what each problem's four samples are taken to be: text, ids (2 ends a turn, 0 pads)
    "toy-a": [(r"\boxed{2}", [5, 6, 2, 0]), (r"\boxed{3}", [5, 2, 0, 0]), ("none", [7] * 24), ("2", [5, 6, 7, 2])],
    "toy-b": [("none", [2])] * 4,
    "toy-c": [(r"$\frac{3}{2}$", [9, 2])] * 4,
}
KEPT = {"toy-a": 0.5, "toy-b": 0.0, "toy-c": 1.0}


def edited(theirs: tuple[Path, Path], folder: Path, change: Callable[[Rows, dict[str, Any]], object]) -> Path:
    """lighteval's run with RESPONSES and its scores of them, then changed."""
    shutil.copytree(theirs[1], folder / "out")
    details = next((folder / "out/details").rglob("*.parquet"))
    results = next((folder / "out/results").rglob("*.json"))
    rows = {r["doc"]["specific"]["problem_id"]: r for r in pq.read_table(details).to_pylist()}
    for name, row in rows.items():
        texts, ids = zip(*RESPONSES[name], strict=True)
        row["model_response"] |= {"text": texts, "output_tokens": ids}
        row["metric"][AVG] = KEPT[name]
    told = json.loads(results.read_text())
    change(rows, told["config_general"]["model_config"])
    results.write_text(json.dumps(told))
    pq.write_table(pa.Table.from_pylist(list(rows.values())), details)
    return folder / "out"


def test_lightevals_run_becomes_one_of_ours(theirs: tuple[Path, Path], world: Path, tmp_path: Path) -> None:
    out = edited(theirs, tmp_path, lambda rows, told: None)
    imported = LightevalImport(str(out), str(theirs[0]), str(world / "data"), str(tmp_path / "run"))
    assert imported() == 0
    run = store.read_json(tmp_path / "run/run.json", Run)
    assert (run.status, run.config["engine"]) == ("done", f"lighteval {version('lighteval')}")
    (cell,) = (store.read_json(f, CellRecord) for f in (tmp_path / "run/cells").iterdir())
    assert (cell.n, cell.max_tokens, cell.cell.setting, cell.cell.eval_seed) == (4, 24, "t1.0", -1)
    assert {p.problem_id: p.verdicts for p in cell.problems} == {"toy-a": "1001", "toy-b": "0000", "toy-c": "1111"}
    assert (cell.finish_reasons, cell.no_answer) == ({"length": 1, "stop": 11}, 5)
    samples = list(store.read(tmp_path / "run/samples.jsonl", Sample))
    assert [s.response_tokens for s in samples] == [3, 2, 24, 4, 1, 1, 1, 1, 2, 2, 2, 2]
    with pytest.raises(BadInput, match="--out exists"):
        imported()


def _cut_prompt(rows: Rows, told: dict[str, Any]) -> None:
    rows["toy-c"]["model_response"]["input_tokens"] = rows["toy-c"]["model_response"]["input_tokens"][-20:]


def _cut_response(rows: Rows, told: dict[str, Any]) -> None:
    rows["toy-a"]["model_response"]["output_tokens"] = [[7] * 20] * 4


REFUSED: dict[str, Callable[[Rows, dict[str, Any]], object]] = {
    "tokens of the prompt of toy-c": _cut_prompt,
    "tokens of toy-a, sample 0, which did not end": _cut_response,
    "right answers of toy-a": lambda rows, told: rows["toy-a"]["metric"].update({AVG: 0.75}),
    "toy-b was asked": lambda rows, told: rows.pop("toy-b"),
    "top_k": lambda rows, told: told["generation_parameters"].pop("top_k"),
    "max_new_tokens": lambda rows, told: told["generation_parameters"].update(max_new_tokens=24),
    "temperature, top_p and dtype": lambda rows, told: told["generation_parameters"].pop("top_p"),
    "continuous_batching": lambda rows, told: told.update(continuous_batching=True),
    "the model": lambda rows, told: told.update(model_name="another"),
    "room for the longest": lambda rows, told: told.update(max_length=40),
}


@pytest.mark.parametrize("what", REFUSED)
def test_another_measurement_than_ours_is_refused(
    what: str, theirs: tuple[Path, Path], world: Path, tmp_path: Path
) -> None:
    out = edited(theirs, tmp_path, REFUSED[what])
    with pytest.raises(BadInput, match=what):
        LightevalImport(str(out), str(theirs[0]), str(world / "data"), str(tmp_path / "run"))()
    assert not (tmp_path / "run").exists()
