"""The engines' bench in small: the work that is counted, by hand where it is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stapo_eval.bench import engines, tiny
from stapo_eval.commands.bench import BenchCommand
from stapo_eval.decoding import Decoding
from stapo_eval.engines import Request, make_engine
from stapo_eval.models import find_model
from stapo_results import store
from stapo_results.errors import BadInput, RunFailed
from stapo_results.schema import Bench, Run


def test_by_hand_counts_up_to_the_stop(tmp_path: Path) -> None:
    engine: Any = make_engine("hf", find_model(str(tiny.build(tmp_path))), threads=1)
    ids = [tuple(engine.encode(text)) for text in ("a", "a longer one", "b")]
    requests = [Request("c", f"{i}", 0, 0, x, Decoding(1.0, 1.0, 5)) for i, x in enumerate(ids)]
    engine.stop = []  # nothing ends a response before its limit
    for rows in (1, 2, 3):
        assert engines.by_hand(engine, requests, rows) == (sum(map(len, ids)), 15)
    engine.stop = list(range(engine.model.config.vocab_size))  # whatever comes ends the response
    assert engines.by_hand(engine, requests, 2) == (sum(map(len, ids)), 3)


def test_the_record_has_every_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = BenchCommand(part="engines", quick=True, threads=1, out=str(tmp_path / "out"))
    with pytest.raises(BadInput, match="need a model"):
        command()
    replace(command, model=str(tiny.build(tmp_path / "model")))()
    bench = store.read_json(tmp_path / "out" / "engines" / "bench.json", Bench)
    assert [r.name for r in bench.rows] == [
        "transformers.generate, batches of 4", "transformers.generate, batches of 8", "engine hf"
    ]  # fmt: skip
    assert min(r.ratio for r in bench.rows[:2]) == 1.0
    # seconds are those of 1,000 tokens
    assert all(r.values["tokens_per_second"] == pytest.approx(1000 / r.seconds) for r in bench.rows)
    assert all(0 < r.values["share"] < 1 for r in bench.rows)
    assert bench.labels["responses"] == "8"
    run = store.read_json(tmp_path / "out" / "engines" / "run.json", Run)
    assert (run.config["model"], run.config["engines"], run.config["threads"]) == (str(tmp_path / "model"), "hf", 1)
    assert bench.labels["model"] == find_model(str(tmp_path / "model")).revision
    with pytest.raises(BadInput, match="--model: for the engines alone"):
        replace(command, model="m", threads=0, part="summary")()


def test_the_share_is_arithmetic_over_the_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # one way: 10 prompt tokens and 30 response tokens in two seconds, on a machine of 1e6 operations a second
    monkeypatch.setattr(engines, "matrix_rate", lambda threads: 1e6)
    monkeypatch.setattr(engines, "by_hand", lambda hf, requests, rows: (10, 30))
    clock = iter(range(0, 1000, 2))
    monkeypatch.setattr(engines.time, "perf_counter", lambda: float(next(clock)))
    size = replace(engines.QUICK, batches=(4,), engines=())
    model = str(tiny.build(tmp_path))
    ((row,), labels) = engines.rows(model, 1, size, say=lambda _: None)
    engine: Any = make_engine("hf", find_model(model), threads=1)
    embedding = engine.model.get_input_embeddings().weight.numel()
    rest = int(labels["parameters"]) - embedding
    if not engine.model.config.tie_word_embeddings:
        rest -= embedding  # the output matrix is as large
    assert row.values["share"] == pytest.approx((2 * rest * 40 + 2 * embedding * 30) / 2 / 1e6)
    assert row.values["tokens_per_second"] == 15


def test_the_failed_request_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_engine

    def failing(kind: str, files: Any, **how: Any) -> Any:
        engine: Any = made(kind, files, **how)
        stream = engine.stream

        def broken(requests: Any, done: Any) -> Any:
            for piece in stream(requests, done):
                yield [replace(f, finish_reason="error", error="lost") if n else f for n, f in enumerate(piece)]

        engine.stream = broken
        return engine

    monkeypatch.setattr(engines, "make_engine", failing)
    with pytest.raises(RunFailed) as e:
        engines.rows(str(tiny.build(tmp_path)), 1, engines.QUICK, say=lambda _: None)
    assert e.value.found == "lost"
