"""What every engine promises, asked of each one that is here: hf, an endpoint over hf, and with STAPO_TEST_ENGINE=vllm
(`tox -e vllm`) vLLM."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import eval_model
import pytest
from endpoint_server import Server

from stapo_eval.decoding import Decoding
from stapo_eval.engines import Engine, EngineOptions, Finished, Request, make_engine
from stapo_eval.models import find_model
from stapo_eval.options import RunOptions
from stapo_eval.run import run
from stapo_results import store
from stapo_results.errors import BadInput
from stapo_results.schema import Run, Sample

KINDS = ["hf", "openai", *(["vllm"] if os.environ.get("STAPO_TEST_ENGINE") == "vllm" else [])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # vLLM's CPU kernels want heads of 32 and more
    return eval_model.build(tmp_path_factory.mktemp("model"), head_dim=32, labels={"step": 1})


@pytest.fixture(scope="module", params=KINDS)
def setting(request: pytest.FixtureRequest, folder: Path) -> Iterator[tuple[str, EngineOptions]]:
    """(kind of engine, its options)."""
    if request.param == "openai":
        with Server(folder) as server:
            yield "openai", EngineOptions(url=(server.url,), concurrency=8)
    else:
        yield request.param, EngineOptions()


@pytest.fixture(scope="module")
def engine(setting: tuple[str, EngineOptions], folder: Path) -> Iterator[Engine]:
    kind, options = setting
    made = make_engine(kind, find_model(str(folder)), threads=1, options=options)
    yield made
    made.close()


def _requests(engine: Engine, problems: int = 4, n: int = 2) -> list[Request]:
    """Each with a seed of its own, large as real ones are."""
    return [
        Request(cell, f"p{p}", i, (1 << 62) + 10_000 * number + 100 * p + i, tuple(engine.encode("word " * p)), d)
        for number, (cell, d) in enumerate([("t1.0", Decoding(1.0, 1.0, 24)), ("t0.7", Decoding(0.7, 0.9, 24))])
        for p in range(problems)
        for i in range(n)
    ]


def _all(engine: Engine, requests: list[Request], done=()) -> dict[tuple, Finished]:
    finished = [f for piece in engine.stream(requests, done) for f in piece]
    found = {f.request.key: f for f in finished}
    assert len(found) == len(finished)
    return found


def test_all_samples_of_a_problem_each_once_from_seeds_of_their_own(engine: Engine) -> None:
    n = 8 if engine.name.startswith("openai") else 32  # where each is a request to a small server
    requests = _requests(engine, n=n)
    got = _all(engine, requests)
    assert got.keys() == {r.key for r in requests}
    assert Counter(key[:2] for key in got) == {(c, f"p{p}"): n for c in ("t1.0", "t0.7") for p in range(4)}
    for cell, problem in {key[:2] for key in got}:
        texts = {f.text for key, f in got.items() if key[:2] == (cell, problem)}
        assert len(texts) > n // 2
    for f in got.values():
        assert f.response_tokens == 24 if f.finish_reason == "length" else 1 <= f.response_tokens <= 24
        assert f.logprob_sum is not None
        assert f.logprob_sum <= 0
        assert "<|" not in f.text
    assert {f.finish_reason for f in got.values()} == {"stop", "length"}


@pytest.mark.parametrize("cut", [{"top_k": 1}, {"min_p": 1.0}])
def test_top_k_and_min_p_leave_what_greedy_takes(engine: Engine, cut: dict[str, float]) -> None:
    requests = _requests(engine, 2, 1)
    greedy = _all(engine, [replace(r, decoding=Decoding(0.0, 1.0, 24)) for r in requests])
    drawn = _all(engine, [replace(r, decoding=Decoding(1.0, 1.0, 24, **cut)) for r in requests])
    assert {k: f.text for k, f in drawn.items()} == {k: f.text for k, f in greedy.items()}
    for f in drawn.values():
        assert f.logprob_sum == pytest.approx(0.0, abs=1e-4)  # nothing else is left to draw


def test_the_same_seeds_repeat_in_one_configuration_and_what_is_done_is_left_out(engine: Engine) -> None:
    requests = _requests(engine, problems=2, n=4)
    first, again = _all(engine, requests), _all(engine, requests)
    assert {k: f.text for k, f in first.items()} == {k: f.text for k, f in again.items()}
    other = _all(engine, [replace(r, seed=r.seed + 5000) for r in requests])
    assert sum(other[k].text != f.text for k, f in first.items()) > len(first) // 2
    done = {r.key: 9 for r in requests[::3]}
    assert _all(engine, requests, done).keys() == {r.key for r in requests} - done.keys()
    assert _all(engine, requests, {r.key: 1 for r in requests}) == {}


def test_the_context_limits_the_response_and_a_problem_that_does_not_fit_is_its_own_error(engine: Engine) -> None:
    requests = _requests(engine, 2, 2)
    long = replace(requests[0], problem_id="long", prompt=tuple(engine.encode("x" * 600)))
    tight = replace(long, problem_id="tight", prompt=tuple(engine.encode("x" * 480)),
                    decoding=Decoding(1.0, 1.0, 20_480))  # fmt: skip
    filled = {f"{n} tokens": replace(long, problem_id=f"{n} tokens", prompt=(2 * long.prompt)[:n])
              for n in (511, 512) if engine.counts_tokens}  # fmt: skip
    ends = {key[1]: f for key, f in _all(engine, [long, tight, *filled.values(), *requests]).items()}
    assert "512" in ends["long"].error
    failed = {"long", *list(filled)[1:]}
    assert {problem for problem, f in ends.items() if f.finish_reason == "error"} == failed
    assert 1 <= ends["tight"].response_tokens < 32


def test_a_run_that_was_cut_keeps_what_is_recorded(
    setting: tuple[str, EngineOptions], folder: Path, tmp_path: Path
) -> None:
    kind, options = setting
    data = eval_model.benchmarks(tmp_path / "data", samples=2)
    # a problem that does not fit must not end the run
    with open(data / "sums.jsonl", "a") as file:
        file.write(json.dumps({"id": "long", "problem": "2 " * 400, "answer": "2"}) + "\n")
    out = tmp_path / "out"
    asked = RunOptions(
        model=str(folder), data_dir=str(data), benchmarks="sums,longer-sums", out=str(out), engine=kind,
        url=options.urls, max_tokens=24, accept_variant=True, threads=1,
    )  # fmt: skip
    summary = run(asked)
    lines = (out / "samples.jsonl").read_bytes().splitlines(keepends=True)
    samples = list(store.read(out / "samples.jsonl", Sample))
    # (7 + 6 problems) x 2 samples x 2 settings, of which the long problem's 4 are errors
    assert len(samples) == len({(s.cell, s.problem_id, s.sample_index) for s in samples}) == 52
    assert [s.problem_id for s in samples if s.finish_reason == "error"] == ["long"] * 4
    assert len({s.seed for s in samples}) == 52
    assert sum(c["missing"] for c in summary["cells"]) == 4
    (out / "samples.jsonl").write_bytes(b"".join(lines[:20]) + lines[20][:20])
    record = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps(record | {"status": "running"}))
    run(asked)
    again = (out / "samples.jsonl").read_bytes().splitlines(keepends=True)
    assert again[:20] == lines[:20]
    samples = list(store.read(out / "samples.jsonl", Sample))
    assert len(samples) == len({(s.cell, s.problem_id, s.sample_index) for s in samples}) == 52
    said = store.read_json(out / "run.json", Run)
    assert any("may differ" in n for n in said.notes) == (kind != "hf")
    if kind == "hf":
        assert again == lines


@pytest.mark.skipif("vllm" not in KINDS, reason="needs vLLM: tox -e vllm")
def test_an_argument_that_vllm_does_not_have_is_refused_before_the_model_is_read(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    nothing = replace(find_model(str(folder)), folder=tmp_path)
    with pytest.raises(BadInput, match="max_num_seqs is near"):
        make_engine("vllm", nothing, options=EngineOptions(vllm=("max_num_seq=4",)))
