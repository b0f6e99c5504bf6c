"""The bench of token statistics: what it measures, prints and records."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from stapo_results import provenance, store
from stapo_results.schema import Bench, BenchRow, Run
from stapo_training.bench import tokens as bench

CPU = {"device": "cpu", "quick": "false", "threads": "2", "torch": "2.13.0"}


def row(name: str, ratio: float, extra: float) -> BenchRow:
    values = {"extra_bytes": extra, "logprob_off": 3e-7, "entropy_off": 2e-6}
    return BenchRow(name=name, seconds=2.5, ratio=ratio, ratio_low=0.75, ratio_high=1.25, values=values)


def test_goals_that_are_missed_are_said() -> None:
    assert bench.goal(row(bench.OURS, 1.149, 0.19e9), CPU) == ""
    assert bench.goal(row(bench.OURS, 1.151, 0.19e9), CPU) == "over its goal (ratio 1.15)"
    assert bench.goal(row(bench.OURS, 1.151, 0.21e9), CPU) == "over its goal (ratio 1.15, 200 MB)"
    assert bench.goal(row(bench.OURS, 1.29, 1e9), CPU | {"device": "cuda"}) == ""
    assert bench.goal(row(bench.OURS, 9.0, 1e9), CPU | {"quick": "true"}) == ""
    assert bench.goal(row("veRL: fused torch path", 9.0, 1e9), CPU) == ""


def test_the_page_shows_the_record_or_that_there_is_none(tmp_path: Path) -> None:
    assert bench.page_block(tmp_path).startswith("Not run")
    plan = {"tokens": 1024, "hidden": 1024, "vocabulary": 151_936, "chunk": 128, "repeats": 5}
    run = provenance.new_run("bench", plan, seeds={"run": 0}, deterministic=False)
    provenance.close_run(run, tmp_path / "run.json", "done", 1.0)
    rows = [row(bench.OURS, 0.8, 27e6)]
    store.write_json(
        tmp_path / "bench.json", Bench(run_id=run.run_id, part="tokens", baseline="b", labels=CPU, rows=rows)
    )
    text = bench.page_block(tmp_path)
    assert "1,024 tokens, hidden size 1,024, vocabulary 151,936, 2 threads of" in text
    expected = "| ours: score_tokens | 2.500 | 0.800 (0.750 to 1.250) | 27 | 3e-07 | 2e-06 |  |"
    assert text.splitlines()[-1] == expected


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the process's peak")
def test_extra_memory_is_that_of_the_call_alone() -> None:
    kept = []

    def way() -> bench.Outcome:
        torch.ones(10_000_000)
        kept.append(torch.ones(5_000_000))
        return None, None

    for _ in range(2):  # what a call before it left behind is not counted
        assert bench.extra_bytes(way, "cpu") == pytest.approx(40e6, rel=0.1)


def test_distances_are_those_from_float64() -> None:
    inputs = bench.make_inputs(bench.QUICK, "cpu")
    logprobs = (inputs[0] @ inputs[1].T).double().log_softmax(-1)
    chosen, entropies = logprobs.gather(1, inputs[2][:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)
    right = bench.distance((chosen, entropies), *inputs)
    assert right["logprob_off"] == pytest.approx(0.0, abs=1e-5)  # a product of other rows is rounded otherwise
    wrong = bench.distance((chosen, entropies + 0.25), *inputs)
    assert wrong["entropy_off"] == pytest.approx(0.25, abs=1e-5)
    assert bench.distance((None, None), *inputs) == {}


def test_every_way_gives_the_same_numbers_and_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real ways, veRL's among them, at sizes that measure nothing."""
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))  # what other tests of this process have
    said: list[str] = []
    bench.run(tmp_path, quick=True, say=said.append)
    record = store.read_json(tmp_path / "bench.json", Bench)
    assert store.read_json(tmp_path / "run.json", Run).status == "done"
    rows = {r.name: r for r in record.rows}
    assert record.rows[0].name == record.baseline == bench.BASELINE
    assert rows[bench.BASELINE].ratio == 1.0
    alone = {bench.BASELINE, "product alone in our tiles"}
    for name in rows.keys() - alone:
        assert rows[name].values["logprob_off"] < 1e-4, name
        assert rows[name].values["entropy_off"] < 1e-3, name
    assert {name for name in rows if "logprob_off" not in rows[name].values} == alone
    assert said[-1] == bench.table(record)
