"""`stapo-eval export`: our records in other programs' formats, checked with literal numbers and by inspect itself."""

from __future__ import annotations

import json
from pathlib import Path

import finished_run
import pytest

from stapo_eval.cli import main
from stapo_results import store
from stapo_results.answers import INSTRUCTION
from stapo_results.benchmarks import load
from stapo_results.schema import CellRecord, Run, Verdict

STAMP = "2026-01-02T03-04-05+00-00"


@pytest.fixture
def world(tmp_path: Path) -> Path:
    return finished_run.build(tmp_path)


def export(world: Path, to: str, *more: str) -> int:
    return main(["export", "--run", str(world / "run"), "--to", to, "--out", str(world / to), *more])


def lines(path: Path) -> list[dict]:
    return [json.loads(x) for x in path.read_text().splitlines()]


def test_inspect_gets_a_log_and_a_score_by_sample_and_epoch(world: Path) -> None:
    assert export(world, "inspect") == 0
    path = world / "inspect" / f"{STAMP}_stapo_mini_s0_step40_toy_t0.7_e0.json"
    scores, (log,) = lines(path.with_suffix(".jsonl")), lines(path)
    assert [(x["epoch"], x["value"]) for x in scores if x["id"] == "toy-a"] == [(1, 1), (2, 1), (4, 1)]
    assert [x["value"] for x in scores if x["id"] == "toy-c"] == [0, 1, 0, 0]
    assert scores[0]["answer"] == "2"
    assert scores[0]["metadata"] == {"rule": True, "judge": "not_asked", "reason": "match", "seed": 100}
    assert [(x["id"], x["epoch"]) for x in log["samples"]] == [(x["id"], x["epoch"]) for x in scores]
    assert (log["eval"]["task"], log["eval"]["config"]) == ("toy-t0.7", {"epochs": 4})
    second = next(x for x in log["samples"] if x["id"] == "toy-b")
    assert second["target"] == ["2", "-2"]
    assert [m["content"] for m in second["messages"]] == [second["input"], "So it is\n\\boxed{2,-2}."]
    assert second["output"]["choices"] == [{"message": second["messages"][1], "stop_reason": "stop"}]


def test_inspect_adds_our_scores_to_our_log(world: Path) -> None:
    pytest.importorskip("inspect_ai", reason="inspect is in an environment of its own: tox -e lighteval")
    from inspect_ai import score
    from inspect_ai.log import list_eval_logs, read_eval_log
    from inspect_ai.scorer import precomputed_scores

    assert export(world, "inspect") == 0
    found = {}
    for info in list_eval_logs(str(world / "inspect")):
        log = read_eval_log(info)
        scores = str(Path(info.name.removeprefix("file://")).with_suffix(".jsonl"))
        scored = score(log, precomputed_scores(scores, on_missing="error"), action="overwrite", display="none")
        assert scored.results is not None
        (result,) = scored.results.scores
        found[log.eval.task] = {name: metric.value for name, metric in result.metrics.items()}
        assert len(scored.samples or []) == 12 - (log.eval.task == "toy-t0.7")
    assert found["toy-t1.0"] == pytest.approx({"accuracy": 0.5, "stderr": (1 / 12) ** 0.5})
    assert found["toy-t0.7"] == pytest.approx({"accuracy": 0.75, "stderr": 0.25})


def test_responses_for_any_grader(world: Path) -> None:
    assert export(world, "responses") == 0
    found = {x.pop("id"): x for x in lines(world / "responses" / "responses.jsonl")}
    assert len(found) == 23  # 3 problems x 4 samples at two settings; the engine failed on one
    assert found["stapo/mini/s0/step40/toy/t1.0/e0/toy-b/1"] == {
        "answer": ["2", "-2"], "unit": "m", "unordered": True, "prompt_id": "toy/t1.0/toy-b", "sample": 1,
        "messages": [{"role": "user", "content": f"Roots of $x^2 = 4$? {INSTRUCTION}"}],
        "response": "So it is\n\\boxed{2,-2}.", "finish_reason": "stop", "correct": True}  # fmt: skip


def test_where_a_judge_counts_its_verdicts_are_a_graders_file(world: Path) -> None:
    """Of the response that the rule has right and the judge wrong, the judge's word is exported."""
    for path in sorted((world / "run" / "cells").iterdir()):
        record = store.read_json(path, CellRecord)
        problems = [p.model_copy(update={"verdicts": "0" + p.verdicts[1:]}) if p.problem_id == "toy-b" else p
                    for p in record.problems]  # fmt: skip
        store.write_json(path, record.model_copy(update={"scored_by": "rule+judge", "problems": problems}))
    verdicts = list(store.read(world / "run" / "verdicts.jsonl", Verdict))
    (world / "run" / "verdicts.jsonl").unlink()
    other = [v.model_copy(update={"correct": False}) if (v.problem_id, v.sample_index) == ("toy-b", 0) else v
             for v in verdicts]  # fmt: skip
    store.append(world / "run" / "verdicts.jsonl", other)
    assert export(world, "responses") == 0
    found = lines(world / "responses" / "judge.jsonl")
    assert [x["id"] for x in found] == [x["id"] for x in lines(world / "responses" / "responses.jsonl")]
    by_id = {x["id"]: (x["grader"], x["rule"]) for x in found}
    assert [by_id[f"stapo/mini/s0/step40/toy/t1.0/e0/toy-b/{i}"] for i in (0, 1)] == [
        ("with the judge", False), ("with the judge", True)]  # fmt: skip


def test_another_text_of_a_problem_is_refused(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = world / "run"
    content = load("toy", world / "data").content
    for file in (run / "cells").glob("*.json"):
        record = store.read_json(file, CellRecord)
        store.write_json(file, record.model_copy(update={"revisions": {"data:toy": content}}))
    assert export(world, "responses") == 0
    other = world / "toy.jsonl"
    texts = [p | {"problem": p["problem"] + " "} for p in finished_run.PROBLEMS]
    other.write_text("".join(json.dumps(p) + "\n" for p in texts))
    assert export(world, "responses", "--benchmarks", str(other)) == 2
    assert "the same texts" in capsys.readouterr().err


def test_what_is_unfinished_or_lacks_responses_or_has_other_golds_is_refused(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other, run = world / "toy.jsonl", world / "run"
    other.write_text("".join(json.dumps(p | {"answer": "1"}) + "\n" for p in finished_run.PROBLEMS))
    assert export(world, "inspect", "--benchmarks", str(other)) == 2
    assert str(other) in capsys.readouterr().err
    (run / "samples.jsonl").unlink()
    assert export(world, "inspect") == 2
    assert "stapo/mini/s0/step40/toy" in capsys.readouterr().err
    store.write_json(run / "run.json", store.read_json(run / "run.json", Run).model_copy(update={"status": "failed"}))
    assert export(world, "inspect") == 2
    assert "failed" in capsys.readouterr().err
