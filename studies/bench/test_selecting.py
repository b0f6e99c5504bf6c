"""The bench of the ways of selecting: ratios by hand, and the real measurement at sizes that measure nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stapo_repro.paper import checkout
from stapo_results import provenance, store
from stapo_results.errors import BadInput
from stapo_results.schema import Run
from studies.bench import benching
from studies.bench.benching import Bench


def test_a_ratio_is_that_of_the_fastest_and_its_spread_that_within_repeats() -> None:
    row = benching.timed_row("a", [3.0, 2.0], [2.0, 1.0])
    assert (row.seconds, row.ratio, row.ratio_low, row.ratio_high) == (2.0, 2.0, 1.5, 2.0)


def test_a_record_of_another_kind_is_not_replaced(tmp_path: Path) -> None:
    run = provenance.new_run("bench", {}, seeds={}, deterministic=False)
    benching.command.write_run(run, tmp_path, 1.0)
    benching.command.check_replaced(tmp_path, "bench")
    with pytest.raises(BadInput, match="another run"):
        benching.command.check_replaced(tmp_path, "theory")


@pytest.mark.slow
def test_one_run_makes_the_table_of_the_ways_of_selecting(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "studies.bench", "training", f"--out={tmp_path}", "--quick"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=checkout())
    assert ended.returncode == 0, ended.stderr[-2000:]
    rows = {r.name: r for r in store.read_json(tmp_path / "training/bench.json", Bench).rows}
    assert store.read_json(tmp_path / "training/run.json", Run).status == "done"
    assert list(rows) == ["justrl", "old", "current"]
    assert all(name in ended.stdout for name in rows)
    assert rows["justrl"].ratio == 1.0
    assert rows["current"].values["candidate_share"] > 0
