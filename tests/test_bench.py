"""What the bench prints and records; the real measurement in small is slow."""

from pathlib import Path

import pytest

from stapo_results import provenance, store
from stapo_results.schema import Bench, BenchRow, Run
from stapo_training.bench import training as bench


def row(name: str, ratio: float, step: float) -> BenchRow:
    values = {"step_ratio": step, "candidate_share": 0.001, "redone_share": 0.0125, "threshold_drift": 0.0301}
    return BenchRow(
        name=name,
        labels={"checkpointing": "true"},
        seconds=2.5,
        ratio=ratio,
        ratio_low=1.0,
        ratio_high=1.25,
        values=values,
    )


def test_goals_that_are_missed_are_said() -> None:
    assert bench._goal(row("speculative 0.10%", 1.079, 1.029)) == ""
    assert bench._goal(row("speculative 0.10%", 1.081, 1.031)) == "over its goal (update 1.08, step 1.03)"
    assert bench._goal(row("old", 1.03, 1.5)) == "over its goal (update 1.02)"
    assert bench._goal(row("two_pass", 1.4, 1.2)) == ""


def test_the_page_shows_the_record_or_that_there_is_none(tmp_path: Path) -> None:
    assert bench.page_block(tmp_path).startswith("Not run")
    plan = {"prompts": 4, "responses": 8, "response_tokens": 320, "mini_batches": 4, "repeats": 3}
    run = provenance.new_run("bench", plan, seeds={"run": 0}, deterministic=False)
    provenance.close_run(run, tmp_path / "run.json", "done", 1.0)
    labels = {"million_parameters": "23.1", "threads": "2"}
    record = Bench(run_id=run.run_id, part="training", baseline="justrl", labels=labels, rows=[row("old", 1.04, 1.0)])
    store.write_json(tmp_path / "bench.json", record)
    text = bench.page_block(tmp_path)
    assert "32 sequences of 320 tokens, 4 updates, 3 repeats, a Qwen3 of 23.1 million parameters, 2 threads" in text
    expected = "| old | yes | 1.040 (1.000 to 1.250) | 1.000 | 0.10% | 1.25% | 3.0e-02 | over its goal (update 1.02) |"
    assert text.splitlines()[-1] == expected


def test_ways_share_everything_but_what_is_compared() -> None:
    plan = bench.Plan(shares=(1e-4, 1e-3, 5e-3))
    made = bench.ways(plan, {1e-4: 0.1, 1e-3: 0.2, 5e-3: 0.3})
    assert made["two_pass"][1] | {"form": "speculative"} == made["speculative 0.10%"][1] | {"form": "speculative"}
    assert [made[f"speculative {s:.2%}"][1]["tau_p"] for s in plan.shares] == [0.1, 0.2, 0.3]


@pytest.mark.slow
def test_the_bench_runs(tmp_path: Path) -> None:
    import subprocess
    import sys

    command = [sys.executable, "-m", "stapo_training.cli", "bench", "--out", str(tmp_path), "--quick"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr[-2000:]
    record = store.read_json(tmp_path / "bench.json", Bench)
    assert store.read_json(tmp_path / "run.json", Run).status == "done"
    rows = {r.name: r for r in record.rows}
    assert rows["justrl"].ratio == 1.0
    assert rows["speculative 0.50%"].values["candidate_share"] > rows["speculative 0.01%"].values["candidate_share"] > 0
