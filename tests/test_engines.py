"""The hf engine on a random model: fixed batches, resuming, errors per problem; models that must be refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import eval_model
import pytest

from stapo_eval.decoding import Decoding, encode_chat
from stapo_eval.engines import Finished, Request, fixed_batches, hf, make_engine
from stapo_eval.engines.hf import HfEngine
from stapo_eval.models import find_model
from stapo_results.errors import BadInput, RunFailed
from stapo_results.stop_tokens import stop_token_ids


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return eval_model.build(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def engine(folder: Path) -> HfEngine:
    return HfEngine(find_model(str(folder)), threads=1, rows=4)


def _requests(engine: HfEngine, n: int = 10) -> list[Request]:
    cells = [("t1.0", Decoding(1.0, 1.0, 12)), ("t0.7", Decoding(0.7, 0.9, 12))]
    return [
        Request(cell, f"p{i}", i % 2, 1000 + i, tuple(engine.encode("word " * (i % 4))), decoding)
        for cell, decoding in cells
        for i in range(n)
    ]


def _bare(pieces: list[Finished]) -> list[Finished]:
    return [replace(f, seconds=0.0) for f in pieces]


def _all(engine: HfEngine, requests: list[Request], done=()) -> list[Finished]:
    return _bare([f for piece in engine.stream(requests, done) for f in piece])


def test_the_chat_template_is_applied_and_both_end_tokens_stop(engine: HfEngine) -> None:
    ids = encode_chat(engine.tokenizer, "a")
    assert engine.tokenizer.decode(ids) == "<|im_start|>a<|im_end|><|im_start|>"
    assert engine.stop == [0, 2]
    assert stop_token_ids(engine.tokenizer, [7]) == [0, 2, 7]


def test_batches_are_longest_first_and_never_cross_cells() -> None:
    greedy = Decoding(0, 1, 8)
    lengths = [("a", 2), ("b", 9), ("a", 5), ("a", 2), ("b", 1), ("a", 7)]
    requests = [Request(c, str(i), 0, 0, (1,) * n, greedy) for i, (c, n) in enumerate(lengths)]
    batches = [
        [r.problem_id for r in b] for b in fixed_batches(requests, lambda prompt, response: 1 if prompt > 6 else 2)
    ]
    assert batches == [["5"], ["2", "0"], ["3"], ["1"], ["4"]]


def test_missing_samples_come_out_as_in_a_whole_run(engine: HfEngine) -> None:
    requests = _requests(engine)
    whole = _all(engine, requests)
    done = {f.request.key for f in whole[:3]} | {f.request.key for f in whole[9:14]}
    assert _all(engine, requests, done) == [f for f in whole if f.request.key not in done]
    assert _all(engine, requests, {r.key for r in requests}) == []


def test_a_row_that_fails_costs_only_itself(engine: HfEngine) -> None:
    requests = _requests(engine, 4)[:4]
    broken = replace(requests[1], prompt=(*requests[1].prompt, 10_000_000))  # no such token
    finished = {f.request.problem_id: f.finish_reason for f in _all(engine, [requests[0], broken, *requests[2:]])}
    assert finished.pop("p1") == "error"
    assert "error" not in finished.values()


@pytest.mark.parametrize("rows", [1, 2])
def test_a_whole_batch_that_fails_costs_only_its_rows(engine: HfEngine, rows: int) -> None:
    """The longest prompts are the first batch of 4, the broken ones the last: also where a resumed run has no other."""
    requests = sorted(_requests(engine, 4)[:4], key=lambda r: -len(r.prompt))
    bad = [replace(r, problem_id=f"bad{i}", prompt=(10_000_000,)) for i, r in enumerate(requests[:rows])]
    for done in ((), {r.key for r in requests}):
        ends = {f.request.problem_id: f.error[:10] for f in _all(engine, [*requests, *bad], done)}
        assert [ends.pop(b.problem_id) for b in bad] == ["IndexError"] * rows
        assert list(ends.values()) == [""] * (0 if done else 4)


def test_a_model_that_always_fails_ends_the_run(folder: Path) -> None:
    broken = HfEngine(find_model(str(folder)), threads=1, rows=4)
    embedding = broken.model.get_input_embeddings()
    embedding.weight.data = embedding.weight.data[:1]  # no token but the first
    with pytest.raises(RunFailed, match="whole batch"):
        _all(broken, _requests(broken, 2))


def test_models_that_cannot_be_loaded_are_refused(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickled")
    with pytest.raises(BadInput, match="safetensors"):
        find_model(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    with pytest.raises(BadInput, match=r"tokenizer\.json"):
        make_engine("hf", find_model(str(tmp_path)))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BadInput, match=tmp_path.name):
        make_engine("hf", find_model(str(tmp_path)))


def test_unknown_models_and_engines_are_named(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", _offline)
    with pytest.raises(BadInput, match="nobody/nothing"):
        find_model("nobody/nothing")
    with pytest.raises(BadInput, match="sglang"):
        make_engine("sglang", find_model(str(folder)))


def _offline(*args: object, **kwargs: object) -> None:
    raise OSError("offline")


def test_the_default_batch_keeps_within_memory(folder: Path) -> None:
    e = HfEngine(find_model(str(folder)), threads=1)
    limit = e.spec.rows
    assert limit is not None
    assert limit.kv_bytes == 2 * 1 * 1 * 16 * 4  # keys and values, 1 layer, 1 head, 16 wide, float32
    assert limit(50, 100) == hf.MOST_ROWS["cpu"]
    assert replace(limit, kv_bytes=1 << 20)(28, 100) == 8  # 1 GiB / (1 MiB x 128 tokens)
    assert replace(limit, kv_bytes=1 << 20)(400, 1 << 20) == 2  # the context of 512 positions bounds the response
    e.close()
