"""The training wing's benches: pages, and the real measurement at sizes that measure nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from stapo_results import benching, provenance, store
from stapo_results.schema import Bench, BenchRow, Run
from stapo_training.bench import tokens, training


def test_a_ratio_is_that_of_the_fastest_and_its_spread_that_within_repeats() -> None:
    row = benching.timed_row("a", [3.0, 2.0], [2.0, 1.0])
    assert (row.seconds, row.ratio, row.ratio_low, row.ratio_high) == (2.0, 2.0, 1.5, 2.0)


def way(name: str, ratio: float, step: float) -> BenchRow:
    values = {"step_ratio": step, "candidate_share": 0.001, "redone_share": 0.0125, "threshold_drift": 0.0301}
    labels = {"checkpointing": "true"}
    return BenchRow(name=name, labels=labels, seconds=2.5, ratio=ratio, ratio_low=1.0, ratio_high=1.25, values=values)


def recorded(folder: Path, part: str, config: dict, labels: dict[str, str], row: BenchRow) -> None:
    run = provenance.new_run("bench", config, seeds={"run": 0}, deterministic=False)
    provenance.close_run(run, folder / "run.json", "done", 1.0)
    bench = Bench(run_id=run.run_id, part=part, baseline="b", labels=labels, rows=[row])
    store.write_json(folder / "bench.json", bench)


def test_the_page_shows_the_record_or_that_there_is_none(tmp_path: Path) -> None:
    assert training.PART.page_block(tmp_path).startswith("Not run")
    config = {"prompts": 4, "responses": 8, "response_tokens": 320, "mini_batches": 4, "repeats": 3}
    labels = {"million_parameters": "23.1", "threads": "2"}
    recorded(tmp_path, "training", config, labels, way("old", 1.04, 1.0))
    text = training.PART.page_block(tmp_path)
    assert "32 sequences of 320 tokens, 4 updates, 3 repeats, a Qwen3 of 23.1 million parameters, 2 threads" in text
    expected = "| old | yes | 1.040 (1.000 to 1.250) | 1.000 | 0.10% | 1.25% | 3.0e-02 |"
    assert text.splitlines()[-1] == expected


MEMORY = """
import torch
from stapo_training.bench import tokens
kept = []
def way():
    torch.ones(10_000_000)
    kept.append(torch.ones(5_000_000))
    return None, None
print(*(tokens.extra_bytes(way, "cpu") for _ in range(3)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the process's peak")
def test_extra_memory_is_that_of_the_call_alone() -> None:
    """In a process of its own, as the bench is: others' imports change what the C library gives back.

    The first call also loads code; what a call before it left behind is not counted.
    """
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert [int(n) for n in done.stdout.split()][1:] == pytest.approx([40e6, 40e6], rel=0.1)


def test_every_way_gives_the_same_numbers_and_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real ways, veRL's among them, at sizes that measure nothing."""
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))  # what other tests of this process have
    tokens.PART.run(tmp_path, 1, quick=True)
    bench = store.read_json(tmp_path / "bench.json", Bench)
    assert store.read_json(tmp_path / "run.json", Run).status == "done"
    rows = {r.name: r for r in bench.rows}
    assert bench.rows[0].name == bench.baseline == tokens.BASELINE
    assert rows[tokens.BASELINE].ratio == 1.0
    alone = {tokens.BASELINE, "product alone in our tiles"}
    for name in rows.keys() - alone:
        assert rows[name].values["logprob_off"] < 1e-4, name
        assert rows[name].values["entropy_off"] < 1e-3, name


@pytest.mark.slow
def test_the_bench_of_the_ways_of_selecting_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stapo_training.cli", "bench", f"--out={tmp_path}", "--quick"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr[-2000:]
    rows = {r.name: r for r in store.read_json(tmp_path / "bench.json", Bench).rows}
    assert store.read_json(tmp_path / "run.json", Run).status == "done"
    assert rows["justrl"].ratio == 1.0
    assert rows["speculative 0.50%"].values["candidate_share"] > rows["speculative 0.01%"].values["candidate_share"]
