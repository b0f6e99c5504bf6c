"""The summary's measurement: it runs the code that ends a run, on records that are what they claim."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stapo_eval.bench.summary import GOAL_SECONDS, ROWS, N, make_plan, measure, summarise_folder, write_samples
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


def test_the_sizes_make_a_hundred_thousand_records() -> None:
    assert 100_000 <= sum(ROWS.values()) * N * 2 < 100_100


@pytest.mark.slow
def test_a_hundred_thousand_records_are_summarised_in_five_seconds() -> None:
    m = measure()
    assert m["records"] >= 100_000
    assert m["resamples"] == 10_000
    assert m["seconds"] <= GOAL_SECONDS
