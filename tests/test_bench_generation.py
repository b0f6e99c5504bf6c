"""The end-to-end bench in small: both sides make the same samples; the goals themselves are slow."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from stapo_eval.bench import generation
from stapo_eval.plan import make_plan
from stapo_eval.run import busy_seconds, run
from stapo_results import store
from stapo_results.schema import Run, Sample


def test_both_sides_do_the_same_work(tmp_path: Path) -> None:
    options = replace(generation._world(tmp_path, generation.QUICK), out=str(tmp_path / "out"))
    plan = make_plan(options)
    wall, tokens = generation.usual_loop(plan)
    own_wall, busy, own_tokens = generation.one_queue(options)
    # equal but for rounding between batches of other sizes, which may end a response elsewhere
    assert own_tokens == pytest.approx(tokens, rel=0.05)
    assert 0 < busy < own_wall
    assert wall > 0
    samples = list(store.read(tmp_path / "out" / "samples.jsonl", Sample))
    assert len(samples) == 2 * sum(r * n for r, n in generation.QUICK.shapes) == len(plan.keys())


def test_busy_seconds_add_up_over_attempts(tmp_path: Path) -> None:
    options = replace(generation._world(tmp_path, generation.QUICK), out=str(tmp_path / "out"))
    run(options)
    path = tmp_path / "out" / "run.json"
    first = busy_seconds(store.read_json(path, Run))
    assert 0 < first < 60
    lines = (tmp_path / "out" / "samples.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "out" / "samples.jsonl").write_bytes(b"".join(lines[:50]))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"status": "running"}))
    run(options)
    assert busy_seconds(store.read_json(path, Run)) > first


@pytest.mark.slow
def test_the_goals_are_met() -> None:
    rows = generation.rows(generation.Size(repeats=1))
    assert rows[1].ratio <= generation.MOST_RATIO
    assert rows[1].values["own_share"] <= generation.MOST_OWN_SHARE
    assert "goal met" in generation.table(rows)
