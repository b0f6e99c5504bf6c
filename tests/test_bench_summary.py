"""The summary's measurement: it runs the code that ends a run, on records that are what they claim."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stapo_eval.bench.summary import GOAL_SECONDS, N, make_plan, rows, summarise_folder, write_samples
from stapo_results import store
from stapo_results.schema import Verdict


def test_the_made_up_run_is_read_and_summarised(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, {"a": 3, "b": 5}, n=4)
    assert write_samples(plan, characters=50) == (3 + 5) * 4 * 2
    summary = summarise_folder(plan)
    verdicts = list(store.read(plan.out / "verdicts.jsonl", Verdict))
    for c in summary["cells"]:
        mine = [v.correct for v in verdicts if v.cell == c["cell"]]
        assert (c["correct"], c["samples"]) == (sum(mine), len(mine))
        assert c["bootstrap_low"] <= c["accuracy"] <= c["bootstrap_high"]
    assert json.loads((plan.out / "summary.json").read_text()) == summary
    assert json.loads((plan.out / "cost.json").read_text())["timed"] == 64


def test_the_row_says_what_was_measured() -> None:
    said: list[str] = []
    (row,), _ = rows(characters=50, repeats=2, sizes={"a": 4}, say=said.append)
    assert len(said) == 2
    assert 0 < row.ratio_low == row.ratio <= row.ratio_high
    assert row.ratio == row.seconds / GOAL_SECONDS
    assert (row.values["records"], row.values["resamples"]) == (4 * N * 2, 10_000)


@pytest.mark.slow
def test_a_hundred_thousand_records_are_summarised_in_five_seconds() -> None:
    (row,), _ = rows()
    assert row.values["records"] >= 100_000
    assert row.values["resamples"] == 10_000
    # its own work: wall time would test what else the machine does
    assert row.values["cpu_seconds"] <= GOAL_SECONDS
