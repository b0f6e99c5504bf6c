"""The end-to-end bench in small: both sides make the same samples; the comparison itself is slow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stapo_eval.bench import generation
from stapo_eval.plan import make_plan
from stapo_results import store
from stapo_results.schema import Sample


@pytest.mark.slow
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


@pytest.mark.slow
def test_one_queue_takes_half_of_the_usual_loops_time_and_the_harness_a_twentieth_of_it() -> None:
    rows, _ = generation.rows(generation.Size(repeats=1))
    assert rows[1].ratio <= 0.5
    assert rows[1].values["own_share"] <= 0.05
