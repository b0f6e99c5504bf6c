"""The engine openai against a real server that serves the tiny model, and against servers that fail on purpose."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import eval_model
import pytest
from endpoint_server import GENERATING, KEY, Server
from forked import forked

from stapo_eval.decoding import Chat, Decoding, prompt
from stapo_eval.engines import EngineOptions, Finished, Request, endpoint, make_engine
from stapo_eval.engines.endpoint import EndpointEngine
from stapo_eval.engines.hf import HfEngine
from stapo_eval.models import endpoint_model, find_model
from stapo_eval.options import RunOptions
from stapo_eval.run import run
from stapo_results import store
from stapo_results.errors import BadInput, RunFailed
from stapo_results.schema import ContextLimit, Run, Sample


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return eval_model.build(tmp_path_factory.mktemp("model"), labels={"method": "grpo", "step": 7})


@pytest.fixture(scope="module")
def model(folder: Path) -> HfEngine:
    return HfEngine(find_model(str(folder)), threads=1, rows=1)


@pytest.fixture
def server(model: HfEngine) -> Iterator[Server]:
    with Server(model) as s:
        yield s


def _engine(*servers: Server | str, **more) -> EndpointEngine:
    urls = tuple(s if isinstance(s, str) else s.url for s in servers)
    options = EngineOptions(**({"url": urls, "concurrency": 4, "patience": 1.0} | more))
    engine = make_engine("openai", endpoint_model("tiny"), options=options)
    assert isinstance(engine, EndpointEngine)
    return engine


def _requests(engine: EndpointEngine | HfEngine, n: int = 12) -> list[Request]:
    d = Decoding(1.0, 0.9, 12)
    return [Request("c", f"p{i % 4}", i // 4, 77 + i, tuple(engine.encode("word " * (i % 4))), d) for i in range(n)]


def _all(engine: EndpointEngine | HfEngine, requests: list[Request], done=()) -> dict[tuple[str, int], Finished]:
    with GENERATING if isinstance(engine, HfEngine) else nullcontext():
        finished = [f for piece in engine.stream(requests, done) for f in piece]
    if isinstance(engine, EndpointEngine):
        engine.close()
    found = {(f.request.problem_id, f.request.sample_index): f for f in finished}
    assert len(found) == len(finished)
    return found


def test_an_endpoint_gives_what_its_model_gives_and_is_sent_all_that_decides_it(
    server: Server, model: HfEngine
) -> None:
    engine = _engine(server)
    got, direct = _all(engine, _requests(engine)), _all(model, _requests(model))
    assert got.keys() == direct.keys()
    for key, f in direct.items():
        g = got[key]
        assert (g.text, g.finish_reason, g.response_tokens) == (f.text, f.finish_reason, f.response_tokens)
        assert g.logprob_sum == pytest.approx(f.logprob_sum, abs=1e-4)
        assert g.prompt_tokens == len(f.request.prompt)
    assert server.asked[0]["seed"].bit_length() == 63  # the question before the run has a seed of full length
    assert {b["seed"] for b in server.asked[1:]} == {77 + i for i in range(12)}
    off = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    for body in server.asked:
        assert {name: body[name] for name in off} == off
    assert (engine.context, engine.refused) == (512, [])


def test_a_system_message_and_arguments_of_the_template_are_sent(server: Server) -> None:
    engine = _engine(server)
    assert "chat_template_kwargs" not in server.asked[-1]
    engine.chat = Chat("Be short.", {"enable_thinking": False})
    _all(engine, _requests(engine, 1))
    assert server.asked[-1]["messages"] == [{"role": "system", "content": "Be short."}, {"role": "user", "content": ""}]
    assert server.asked[-1]["chat_template_kwargs"] == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("message", "usage", "reason", "said"),
    [
        ({"content": "a"}, 5, "length", "limit of its own"),
        ({"content": "a", "reasoning_content": "so"}, 12, "length", "keeps reasoning apart"),
        ({"content": "a", "reasoning": "so"}, 3, "stop", "keeps reasoning apart"),
        ({"content": "a"}, 3, "stop", ""),
    ],
)
def test_what_an_endpoint_does_to_responses_is_said_once(
    server: Server, message: dict, usage: int, reason: str, said: str
) -> None:
    choice = {"message": message, "finish_reason": reason}
    server.fault = lambda number, body: json.dumps(
        {"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": usage}}
    )
    engine = _engine(server)  # its question has such an answer, too
    _all(engine, _requests(engine, 3))
    assert len(engine.notes) == bool(said)
    assert all(said in note for note in engine.notes)


def test_an_answer_without_a_token_is_no_wrong_answer(server: Server) -> None:
    engine = _engine(server)
    empty = {"choices": [{"message": {"content": None}, "finish_reason": "stop"}],
             "usage": {"prompt_tokens": 1, "completion_tokens": 0}}  # fmt: skip
    server.fault = lambda number, body: json.dumps(empty) if body["max_tokens"] > 1 else None
    assert {f.finish_reason for f in _all(engine, _requests(engine, 2)).values()} == {"error"}


def test_several_addresses_share_the_work_and_done_is_left_out(server: Server, model: HfEngine) -> None:
    with Server(model) as other:
        for s in (server, other):
            s.fault = lambda number, body: 0.01  # slow enough that both are needed
        engine = _engine(f"{server.url},{other.url}", concurrency=2)
        requests = _requests(engine, 24)
        assert len(_all(engine, requests, {r.key: 5 for r in requests[:4]})) == 20
        assert min(len(server.asked), len(other.asked)) > 3
        assert len(server.asked) + len(other.asked) == 20 + 2


FAULTS = [500, 503, 429, "reset", "{", '{"choices": []}', '{"choices":[{"message":{}}]}', "\x00", 3.0]


def test_each_kind_of_failure_is_tried_again(server: Server, model: HfEngine) -> None:
    """The last of them is an answer that takes too long."""
    engine = _engine(server, timeout=1.5)
    tries: Counter[int] = Counter()

    def first_try_fails(number: int, body: dict) -> object:
        tries[body["seed"]] += 1
        return FAULTS[body["seed"] % len(FAULTS)] if body["seed"] < 99 and tries[body["seed"]] == 1 else None

    server.fault = first_try_fails
    got = _all(engine, _requests(engine))
    assert {k: f.text for k, f in got.items()} == {k: f.text for k, f in _all(model, _requests(model)).items()}
    assert {n for seed, n in tries.items() if seed < 99} == {2}


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_dead_address_loses_nothing(model: HfEngine) -> None:
    dying = Server(model)
    with forked(dying.serve_forever) as process, Server(model) as other:
        dying.socket.close()  # the child has its own
        other.fault = lambda number, body: 0.02
        engine = _engine(dying, other)
        requests = _requests(engine, 40)
        finished: list[Finished] = []
        for piece in engine.stream(requests, ()):
            finished += piece
            if len(finished) > 5:
                process.kill()
        engine.close()
        assert sorted(f.request.key for f in finished) == sorted(r.key for r in requests)
        assert {f.finish_reason for f in finished} <= {"stop", "length"}


@pytest.mark.parametrize("status", [401, 403, 404])
def test_an_address_that_refuses_for_a_while_loses_nothing(model: HfEngine, status: int) -> None:
    with Server(model) as passing, Server(model) as other:
        engine = _engine(passing, other, patience=60.0)
        began = time.monotonic()
        passing.fault = lambda number, body: status if time.monotonic() - began < 2 else None
        other.fault = lambda number, body: 0.2
        ends = _all(engine, _requests(engine))
        assert {f.finish_reason for f in ends.values()} <= {"stop", "length"}
        assert any(passing.url in note for note in engine.notes)
        engine = _engine(other, patience=60.0)
        other.fault = lambda number, body: status  # and where all do
        with pytest.raises(BadInput, match=other.url):
            _all(engine, _requests(engine))


def test_an_answer_in_another_form_is_not_called_silence(server: Server) -> None:
    server.fault = lambda number, body: json.dumps(
        {"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}
    )
    with pytest.raises(BadInput, match="answers in another form"):
        _engine(server)


def test_a_judges_address_is_asked_before_a_sample_is_made(folder: Path, server: Server, tmp_path: Path) -> None:
    eval_model.benchmarks(tmp_path)
    (asks := tmp_path / "prompt.txt").write_text("{question} {gold_answer} {llm_response}")
    options = RunOptions(model=str(folder), engine="openai", url=(server.url,), data_dir=str(tmp_path), n=1,
                         benchmarks="sums", settings="t1.0", max_tokens=12, out=str(tmp_path / "out"), judge="a-judge",
                         judge_prompt=str(asks), judge_prompt_unpublished=True,
                         judge_url=("http://127.0.0.1:9/v1",))  # fmt: skip
    with pytest.raises(BadInput, match=":9"):
        run(options)
    assert not (tmp_path / "out" / "samples.jsonl").exists()


def test_a_server_that_never_answers_costs_one_time_out_before_the_run() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connections are accepted, and nothing is ever sent
        began = time.monotonic()
        with pytest.raises(BadInput, match=str(silent.getsockname()[1])):
            _engine(f"http://127.0.0.1:{silent.getsockname()[1]}/v1", timeout=1.0)
    assert 1.0 < time.monotonic() - began < 4.0  # five attempts of the SDK take more than five


def test_an_address_that_takes_no_connection_is_found_before_an_answer_is_waited_for(monkeypatch) -> None:
    monkeypatch.setattr(endpoint, "CONNECT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.create_connection(full.getsockname()):
        began = time.monotonic()
        with pytest.raises(BadInput, match=str(full.getsockname()[1])):
            _engine(f"http://127.0.0.1:{full.getsockname()[1]}/v1", timeout=20.0)
    assert time.monotonic() - began < 10.0


def test_a_server_that_stops_answering_costs_one_time_out_of_a_response(server: Server) -> None:
    engine, release = _engine(server, timeout=1.0, patience=0.3), threading.Event()
    server.fault = lambda number, body: None if number < 5 or not release.wait(60) else 500
    began = time.monotonic()
    with pytest.raises(RunFailed, match=server.url):
        _all(engine, _requests(engine, 24))
    spent = time.monotonic() - began
    release.set()
    engine.close()
    assert 2.0 < spent < 8.0  # a response, a question of one token, and the patience; six rounds of two take twelve
    assert server.url in engine.notes[0]


@pytest.mark.parametrize(
    ("fault", "timeout", "error"),
    [(403, 60.0, "told to answer 403"), (500, 60.0, "told to answer 500"), (3.0, 1.0, "no answer within 1 s")],
)
def test_a_request_that_always_fails_is_an_error_of_its_own(
    server: Server, fault: float, timeout: float, error: str
) -> None:
    """Also when it is all that is left: then the address is asked something else before the request is blamed."""
    engine = _engine(server, timeout=timeout, patience=60.0)
    server.fault = lambda number, body: fault if body["seed"] == 80 else None
    ends = _all(engine, _requests(engine))
    bad = [f for f in ends.values() if f.finish_reason == "error"]
    assert ([f.request.seed for f in bad], len(ends), engine.notes) == ([80], 12, [])
    assert error in bad[0].error


def test_a_context_that_is_not_listed_is_said_before_the_run_or_given(server: Server, capsys) -> None:
    server.lists = False
    assert [("--max-model-len" in note, note in capsys.readouterr().err) for note in _engine(server).notes] == [
        (True, True)
    ]
    engine = _engine(server, max_model_len=512)
    assert (engine.context, engine.notes) == (512, [])
    d = Decoding(1.0, 1.0, 600)
    ends = _all(engine, [replace(r, decoding=d) for r in _requests(engine, 2)])
    assert {f.finish_reason for f in ends.values()} <= {"stop", "length"}


def test_options_that_an_address_refuses_are_left_out_and_named(server: Server, model: HfEngine) -> None:
    def refuses(*names: str):
        return lambda number, body: next(((422, f"extra field: {n}") for n in names if n in body), None)

    with Server(model) as other:
        server.fault, other.fault = refuses("min_p"), refuses("top_k", "seed", "logprobs")
        engine = _engine(server, other)
        assert "error" not in {f.finish_reason for f in _all(engine, _requests(engine)).values()}
    assert engine.refused == ["logprobs", "min_p", "seed", "top_k"]
    assert "repetition_penalty" in other.asked[-1]


def test_a_limit_by_another_name_is_sent_by_that_name(server: Server, model: HfEngine) -> None:
    wrong = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    with Server(model) as other:
        server.fault = lambda number, body: (400, wrong) if "max_tokens" in body else None
        engine = _engine(server, other)
        ends = _all(engine, _requests(engine, 24))
        assert {b["max_tokens"] for b in other.asked[1:]} == {12}
    assert {b.get("max_completion_tokens") for b in server.asked[2:]} == {12}
    assert max(f.response_tokens for f in ends.values()) <= 12


def test_a_limit_that_is_refused_is_never_lifted(server: Server) -> None:
    engine = _engine(server)
    server.fault = lambda number, body: (400, "max_tokens is too large") if body.get("max_tokens", 0) > 8 else None
    assert {f.finish_reason for f in _all(engine, _requests(engine, 4)).values()} == {"error"}
    assert {b["max_tokens"] for b in server.asked} == {1, 12}


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_response_may_have_what_the_context_leaves(server: Server, model: HfEngine, status: int) -> None:
    engine = _engine(server)
    server.fault = lambda number, body: (status, "too long") if body["max_tokens"] == 40 else None
    message = "w" * 480
    assert 512 - len(model.encode(message)) == 29
    requests = [replace(r, prompt=tuple(engine.encode(message)), decoding=Decoding(1.0, 1.0, 40))
                for r in _requests(engine, 3)]  # fmt: skip
    assert {f.prompt_tokens for f in _all(engine, requests).values()} == {512 - 29}
    assert {b["max_tokens"] for b in server.asked} == {1, 40, 29}


def test_an_endpoints_bytes_are_no_tokens_a_refused_option_is_an_alarm_and_the_key_is_on_no_record(
    folder: Path, model: HfEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """Longest responses that fit the context by tokens, not by bytes, at an address that refuses top_k."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    boxes = r"\boxed{3}" * 9  # each is one token
    (tmp_path / "boxes.jsonl").write_text(json.dumps({"id": "a", "problem": boxes, "answer": "1"}) + "\n")
    out = tmp_path / "out"
    with Server(model, key=KEY) as server:
        server.fault = lambda number, body: (400, "unknown: top_k") if "top_k" in body else None
        options = RunOptions(model=str(folder), benchmarks=str(tmp_path / "boxes.jsonl"), settings="t1.0", n=2,
                             out=str(out), engine="openai", url=(server.url,), max_tokens=420)  # fmt: skip
        run(options)
        record, (first, _) = store.read_json(out / "run.json", Run), store.read(out / "samples.jsonl", Sample)
        assert first.prompt_tokens + 420 <= 512 < len(prompt(boxes)) + 420
        assert (record.context_limit, record.options_refused) == (None, ["top_k"])
        assert "top_k" in json.loads((out / "summary.json").read_text())["notes"][0]
        with pytest.raises(BadInput, match="-k20") as refused:
            run(replace(options, settings="t0.6-p0.95-k20", out=str(tmp_path / "k20")))
        assert "top_k" in refused.value.what
        # where the context is the limit, the server's own tokens say so, before the samples are on record
        monkeypatch.setattr(store.Journal, "append", lambda journal, records: sys.exit())
        with pytest.raises(SystemExit):
            run(replace(options, max_tokens=600, out=str(tmp_path / "killed")))
        monkeypatch.undo()
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        run(replace(options, max_tokens=600, out=str(tmp_path / "longer")))
    left = 512 - first.prompt_tokens
    limit = ContextLimit(context=512, asked=600, problems=1, least=left, most=left, benchmarks=["boxes"])
    for name in ("killed", "longer"):
        assert store.read_json(tmp_path / name / "run.json", Run).context_limit == limit
    shown = capsys.readouterr()
    assert KEY not in shown.out + shown.err
    assert not [path for path in out.rglob("*") if path.is_file() and KEY in path.read_text(encoding="utf-8")]


def test_other_finish_reasons_are_missing_data_and_a_text_that_is_none_is_made_one(server: Server) -> None:
    def answer(content: str, reason: str) -> str:
        usage = {"prompt_tokens": 3, "completion_tokens": 1}
        return json.dumps({"choices": [{"message": {"content": content}, "finish_reason": reason}], "usage": usage})

    engine = _engine(server)
    server.fault = lambda number, body: answer("a\ud800b", "content_filter" if body["seed"] == 78 else "stop")
    ends = _all(engine, _requests(engine, 2))
    assert ends["p0", 0].text == "a?b"
    assert "content_filter" in ends["p1", 0].error


def test_a_wrong_address_model_or_key_is_refused_before_the_run(
    server: Server, model: HfEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=":9"):
        _engine("http://127.0.0.1:9/v1")
    with pytest.raises(BadInput, match=r"other[\s\S]*tiny"):
        _engine(server, served_model="other")
    with Server(model, name="second") as second, pytest.raises(BadInput, match="second"):
        _engine(server, second)
    with Server(model, key=KEY) as closed:
        monkeypatch.setenv("MY_KEY", "sk-wrong-0123456789")
        with pytest.raises(BadInput) as e:
            _engine(closed, key_variable="MY_KEY")
        assert "(key)" in str(e.value)
        assert "sk-wrong" not in str(e.value)
        monkeypatch.setenv("MY_KEY", KEY)
        engine = _engine(closed, key_variable="MY_KEY")
        assert len(list(engine.stream(_requests(engine, 3), ()))) > 0
        closed.key = "sk-another"  # while a run is under way
        with pytest.raises(BadInput, match=closed.url):
            _all(engine, _requests(engine))
        engine.close()
    eval_model.benchmarks(tmp_path)
    for bad in ("127.0.0.1:8000", "ftp://x/v1", "http://user:secret@host/v1", "http://host/v1?key=secret"):
        with pytest.raises(BadInput) as e:
            run(RunOptions(model="tiny", engine="openai", url=(bad,), data_dir=str(tmp_path), benchmarks="sums"))
        assert "secret" not in str(e.value)
