"""`stapo-eval export`: our records in other programs' formats, checked with literal numbers.

tests/test_lighteval.py reads the same files back with lighteval and inspect themselves.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import eval_model
import finished_run
import pyarrow.parquet as pq
import pytest

from stapo_eval.cli import main
from stapo_eval.decoding import INSTRUCTION
from stapo_results import store
from stapo_results.schema import Run

MODEL, STAMP = "stapo-mini-s0-40", "2026-01-02T03-04-05+00-00"
# avg: (1/2 + 1 + 0) / 3; its standard error: sqrt((0 + 1/4 + 1/4) / (3 * 2)); of pass and maj: sqrt((2/3) / (3 * 2))
AVG, SE, PASS, PASS_SE = 0.5, math.sqrt(1 / 12), 2 / 3, 1 / 3


@pytest.fixture
def world(tmp_path: Path) -> Path:
    return finished_run.build(tmp_path)


def export(world: Path, to: str = "lighteval") -> Path:
    command = ["export", "--run", str(world / "run"), "--to", to, "--out", str(world / to)]
    assert main([*command, "--data-dir", str(world / "data")]) == 0
    return world / to


def details(out: Path, setting: str) -> list[dict[str, Any]]:
    path = out / setting / "details" / MODEL / STAMP / f"details_stapo_toy|0_{STAMP}.parquet"
    return pq.read_table(path).to_pylist()


def test_lighteval_results(world: Path) -> None:
    results = json.loads((export(world) / "t1.0" / "results" / MODEL / f"results_{STAMP}.json").read_text())
    assert results["results"]["stapo_toy|0"] == pytest.approx(
        {
            "avg@n:n=4": AVG,
            "avg@n:n=4_stderr": SE,
            "pass@k:k=4&n=4": PASS,
            "pass@k:k=4&n=4_stderr": PASS_SE,
            "maj@n:n=4": PASS,
            "maj@n:n=4_stderr": PASS_SE,
        }
    )
    general = results["config_general"]
    assert general["model_config"]["generation_parameters"] == {"temperature": 1.0, "top_p": 1.0, "max_new_tokens": 32}
    assert general["exported_from"]["code_commit"] == "c" * 40


def test_lighteval_details_keep_every_sample(world: Path) -> None:
    rows = details(export(world), "t0.7")
    first, second, _ = rows
    assert [r["doc"]["id"] for r in rows] == ["toy-a", "toy-b", "toy-c"]
    assert first["doc"]["query"] == f"One plus one? {INSTRUCTION}"
    assert first["model_response"]["text"] == ["So it is\n\\boxed{2}."] * 2 + [""] + ["So it is\n\\boxed{2}."]
    assert first["doc"]["specific"]["correct"] == [True, True, None, True]
    assert first["doc"]["specific"]["seed"] == [100, 101, 102, 103]
    assert first["doc"]["specific"]["finish_reason"] == ["stop", "stop", "error", "stop"]
    assert first["metric"]["avg@n:n=4"] == 1.0
    assert math.isnan(first["metric"]["pass@k:k=4&n=4"])
    assert second["doc"]["choices"] == [r"\boxed{2, -2}"]
    assert second["model_response"]["logprobs"] == [-1.5] * 4
    assert first["model_response"]["logprobs"] == []


def test_inspect_gets_a_log_and_a_score_by_sample_and_epoch(world: Path) -> None:
    out = export(world, to="inspect")
    name = f"{STAMP}_stapo_mini_s0_step40_toy_t0.7_e0"
    scores = [json.loads(x) for x in (out / f"{name}.jsonl").read_text().splitlines()]
    assert [(x["epoch"], x["value"]) for x in scores if x["id"] == "toy-a"] == [(1, 1), (2, 1), (4, 1)]
    assert [(x["answer"], x["value"]) for x in scores if x["id"] == "toy-c"] == [
        ("3", 0), (r"\frac{3}{2}", 1), ("1", 0), ("3", 0)]  # fmt: skip
    assert scores[0]["metadata"] == {"rule": True, "judge": "not_asked", "reason": "match", "seed": 100}
    log = json.loads((out / f"{name}.json").read_text())
    assert [(x["id"], x["epoch"]) for x in log["samples"]] == [(x["id"], x["epoch"]) for x in scores]
    assert (log["eval"]["task"], log["eval"]["config"]) == ("toy-t0.7", {"epochs": 4})
    assert log["eval"]["model_generate_config"] == {"temperature": 0.7, "top_p": 0.9, "max_tokens": 32}
    second = next(x for x in log["samples"] if x["id"] == "toy-b")
    assert second["target"] == ["2", "-2"]
    assert [m["content"] for m in second["messages"]] == [second["input"], "So it is\n\\boxed{2,-2}."]
    assert second["output"]["choices"][0] == {"message": second["messages"][1], "stop_reason": "stop"}


@pytest.mark.parametrize("to", ["lighteval", "inspect"])
def test_the_same_command_gives_the_same_bytes(world: Path, to: str) -> None:
    first = {p: p.read_bytes() for p in export(world, to).rglob("*") if p.is_file()}
    assert first
    assert {p: p.read_bytes() for p in export(world, to).rglob("*") if p.is_file()} == first


def test_responses_for_any_grader(world: Path) -> None:
    lines = [json.loads(x) for x in (export(world, "responses") / "responses.jsonl").read_text().splitlines()]
    assert len(lines) == 23  # 3 problems x 4 samples at two settings; the engine failed on one
    (line,) = [x for x in lines if "/t1.0/" in x["id"] and x["id"].endswith("/toy-b/1")]
    given = {"answer": ["2", "-2"], "unit": "m", "unordered": True, "response": "So it is\n\\boxed{2,-2}."}
    assert {k: v for k, v in line.items() if k != "id"} == given


def test_a_run_without_its_responses_is_refused(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (world / "run" / "samples.jsonl").unlink()
    command = ["export", "--run", str(world / "run"), "--to", "inspect", "--out", str(world / "o")]
    assert main([*command, "--data-dir", str(world / "data")]) == 2
    assert "toy-a" in capsys.readouterr().err


def test_an_unfinished_run_is_refused(world: Path) -> None:
    path = world / "run" / "run.json"
    store.write_json(path, store.read_json(path, Run).model_copy(update={"status": "interrupted"}))
    assert main(["export", "--run", str(world / "run"), "--to", "lighteval", "--out", str(world / "o")]) == 2
    assert not (world / "o").exists()


def test_another_copy_of_the_benchmark_is_refused(world: Path, tmp_path: Path, capsys: Any) -> None:
    other = tmp_path / "other"
    other.mkdir()
    rows = [p | {"answer": "1"} for p in finished_run.PROBLEMS]
    (other / "toy.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    command = ["export", "--run", str(world / "run"), "--to", "lighteval", "--out", str(world / "o")]
    assert main([*command, "--benchmarks", str(other / "toy.jsonl")]) == 2
    assert "toy.jsonl" in capsys.readouterr().err


def test_a_real_run_is_exported_with_its_own_summary(tmp_path: Path) -> None:
    model = eval_model.build(tmp_path / "model")
    data = eval_model.benchmarks(tmp_path / "data", problems=3, samples=2)
    command = ["run", "--model", str(model), "--benchmarks", "sums,longer-sums", "--data-dir", str(data)]
    assert main([*command, "--max-tokens", "24", "--threads", "1", "--out", str(tmp_path / "run")]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    expected = {(c["benchmark"], c["setting"]): c["accuracy"] for c in summary["cells"]}
    out = tmp_path / "exported"  # without --data-dir: the run knows where its benchmarks were
    assert main(["export", "--run", str(tmp_path / "run"), "--to", "lighteval", "--out", str(out)]) == 0
    found = {}
    for path in out.rglob("results_*.json"):
        for task, scores in json.loads(path.read_text())["results"].items():
            if task != "all":
                found[task.removeprefix("stapo_").removesuffix("|0"), path.parts[-4]] = scores["avg@n:n=2"]
    assert found == pytest.approx(expected)
    assert sum(pq.read_metadata(p).num_rows for p in out.rglob("*.parquet")) == 12
