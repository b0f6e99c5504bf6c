"""What the grading bench measures and prints; the real measurement in small is slow."""

from __future__ import annotations

import os
from pathlib import Path

import eval_model
import pytest

from stapo_eval.grading.pool import grade
from stapo_results import store
from stapo_results.schema import Run
from studies.bench import evaluating
from studies.bench.__main__ import bench
from studies.bench.benching import Bench


def test_as_many_responses_as_one_evaluation_has_and_as_repetitive() -> None:
    made = evaluating.responses(None, steps=1)
    assert len(made) == 8984
    items = [x.item for x in made]
    assert 1000 < len(set(items)) < 8984 / 2
    assert 0.3 < sum(x.label for x in made) / len(made) < 0.7
    assert 0.02 < sum(i.answer is None for i in items) / len(items) < 0.06
    assert made == evaluating.responses(None, steps=1)


BENCHMARKS = pytest.mark.skipif("STAPO_DATA_DIR" not in os.environ, reason="STAPO_DATA_DIR is not set")


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=[pytest.mark.data, BENCHMARKS])])
def test_this_suite_finds_the_labels_of_the_made_up_responses(real: bool) -> None:
    made = evaluating.responses(
        Path(os.environ["STAPO_DATA_DIR"]) if real else None, share=1.0 if real else 0.2, steps=1
    )
    verdicts = [outcome.rule for outcome in grade([x.item for x in made])]
    assert [x.item for x, v in zip(made, verdicts, strict=True) if v != x.label] == []


@pytest.mark.slow
def test_the_bench_runs(tmp_path: Path) -> None:
    bench("grading", tmp_path, quick=True)
    record = store.read_json(tmp_path / "grading" / "bench.json", Bench)
    assert store.read_json(tmp_path / "grading" / "run.json", Run).status == "done"
    rows = {r.name: r for r in record.rows}
    assert rows[evaluating.BASELINE].ratio == 1.0
    assert rows[evaluating.OURS].values["agrees_with_label"] > 0.99
    assert rows[evaluating.BASELINE].values["responses"] == rows[evaluating.OURS].values["responses"]


@pytest.mark.slow
def test_the_usual_loop_and_one_queue_make_the_same_responses(tmp_path: Path) -> None:
    eval_model.build(tmp_path / "model")
    bench("evaluation", tmp_path, model=str(tmp_path / "model"), quick=True)
    loop, queue = store.read_json(tmp_path / "evaluation" / "bench.json", Bench).rows
    assert (loop.name, loop.ratio) == (evaluating.LOOP, 1.0)
    assert loop.values["tokens"] == queue.values["tokens"] > 240
