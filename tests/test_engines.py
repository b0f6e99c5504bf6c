"""The engine hf on a random model: prompts that fail; the order of requests; refused models."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import eval_model
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from stapo_eval.decoding import Decoding, encode_chat
from stapo_eval.engines import Engine, Finished, Request, hf, make_engine
from stapo_eval.engines.base import EngineSpec, Queue
from stapo_eval.engines.hf import HfEngine
from stapo_eval.engines.ray import Replica
from stapo_eval.models import find_model
from stapo_results.errors import BadInput, RunFailed
from stapo_results.provenance import installed
from stapo_results.stop_tokens import stop_token_ids

D = Decoding(1.0, 1.0, 12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return eval_model.build(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def engine(folder: Path) -> HfEngine:
    return HfEngine(find_model(str(folder)), threads=1, rows=4)


def _requests(engine: HfEngine, n: int = 10) -> list[Request]:
    return [
        Request(cell, f"p{i}", i % 2, 1000 + i, tuple(engine.encode("word " * (i % 4))), replace(D, top_p=top_p))
        for cell, top_p in (("t1.0", 1.0), ("t0.7", 0.9))
        for i in range(n)
    ]


def _all(engine: HfEngine, requests: list[Request], done=()) -> list[Finished]:
    return [f for piece in engine.stream(requests, dict.fromkeys(done, 5)) for f in piece]


def test_a_long_response_does_not_keep_the_engine_silent(engine: HfEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [r for r in _requests(engine) if r.cell == "t1.0"]
    at_once = _all(engine, requests)
    monkeypatch.setattr(hf, "_POLL_SECONDS", 0.0)
    said = []
    for piece in engine.stream(requests, {}):
        said.append((len(piece), engine.under_way > 0))
        at_once = [f for f in at_once if f not in piece]
    assert not at_once
    assert (0, True) in said  # nothing has ended, and it says what is under way
    for request in requests[:3]:
        engine.submit(request)
    assert (engine.poll(), engine.under_way) == ([], 1)  # a limit holds between the prompts that it reads, too
    while len(engine.sampler):
        engine.poll()


def test_the_chat_template_is_applied_and_both_end_tokens_stop(engine: HfEngine) -> None:
    ids = encode_chat(engine.tokenizer, "a")
    assert engine.tokenizer.decode(ids) == "<|im_start|>a<|im_end|><|im_start|>"
    assert engine.stop == [0, 2]
    assert stop_token_ids(engine.tokenizer, [7]) == [0, 2, 7]


def test_prompts_that_fail_cost_only_themselves(engine: HfEngine) -> None:
    requests = _requests(engine, 4)[:4]
    broken = [replace(r, problem_id=f"bad{i}", prompt=(*r.prompt, 10_000_000)) for i, r in enumerate(requests[:2])]
    ends = {f.request.problem_id: f.error[:10] for f in _all(engine, [requests[0], *broken, *requests[1:]])}
    assert ends == {"bad0": "IndexError", "bad1": "IndexError"} | {f"p{i}": "" for i in range(4)}


def test_the_commit_of_a_hub_model_is_the_one_asked_for(folder: Path, tmp_path: Path, monkeypatch) -> None:
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    asked, newest = "a" * 40, "b" * 40
    for commit in (asked, newest):
        shutil.copytree(folder, tmp_path / "models--some--model" / "snapshots" / commit)
    (refs := tmp_path / "models--some--model" / "refs").mkdir()
    (refs / "main").write_text(newest)
    assert [find_model("some/model", r).commit for r in (asked, "")] == [asked, newest]


def test_a_model_of_which_a_part_is_missing_is_refused(folder: Path, tmp_path: Path) -> None:
    """As a download that was interrupted leaves it: its hash would be of half the weights."""
    shutil.copytree(folder, part := tmp_path / "model")
    (part / "model.safetensors").rename(part / "one.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (part / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BadInput) as e:
        find_model(str(part))
    assert "two.safetensors" in str(e.value.found)
    for other in ("{", "[]", '{"weight_map": []}', "{}"):
        (part / "model.safetensors.index.json").write_text(other)
        with pytest.raises(BadInput, match=r"readable model\.safetensors\.index\.json"):
            find_model(str(part))


def test_labels_of_other_weights_are_refused(tmp_path: Path) -> None:
    other = eval_model.build(tmp_path, labels={"method": "grpo", "step": 7, "weights_sha256": "0" * 64})
    with pytest.raises(BadInput, match=r"stapo\.json") as e:
        find_model(str(other))
    assert e.value.expected == "0" * 64


def test_a_model_that_always_fails_ends_the_run(folder: Path) -> None:
    broken = HfEngine(find_model(str(folder)), threads=1, rows=4)
    embedding = broken.model.get_input_embeddings()
    embedding.weight.data = embedding.weight.data[:1]  # no token but the first
    with pytest.raises(RunFailed, match="one sum"):
        _all(broken, _requests(broken, 2))


def test_a_replicas_error_names_the_first_cause_of_its_log(tmp_path: Path) -> None:
    """As vLLM's: a worker's reason, then a traceback that follows from it; the log is the actor's stderr."""
    code = "from stapo_eval.engines.ray import _explained; print(_explained(RuntimeError('see above')).found)"
    with open(tmp_path / "log", "w+") as log:
        follows = [f"  line {i}" for i in range(30)]
        print("ERROR RuntimeError: 64 exceeds 48", *follows, sep="\n", file=log, flush=True)
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=log, text=True, check=True)
    assert done.stdout.splitlines() == ["ERROR RuntimeError: 64 exceeds 48", *follows[15:], "RuntimeError: see above"]


CHILD = """
import multiprocessing, os, sys, time
from stapo_eval import children

def child(plugin):
    if plugin:
        children.vllm_plugin()
    print(os.getpid(), flush=True)
    time.sleep(60)

if __name__ == "__main__":
    how = sys.argv[1]
    children.vllm_plugin()  # vLLM calls it in the command, too, which may outlive its shell
    if how == "fork":
        os.register_at_fork(after_in_child=children.end_with_parent)
    multiprocessing.get_context(how).Process(target=child, args=(how == "spawn",)).start()
    time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the signal is Linux's")
@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_a_process_of_vllms_ends_with_a_command_that_is_killed(tmp_path: Path, how: str) -> None:
    (tmp_path / "main.py").write_text(CHILD)
    command = [sys.executable, str(tmp_path / "main.py"), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        child = psutil.Process(int(process.stdout.readline()))
        process.kill()
    assert [p for p in psutil.wait_procs([child], timeout=5)[1] if p.status() != psutil.STATUS_ZOMBIE] == []


def test_a_replica_with_other_code_than_the_command_is_refused(folder: Path) -> None:
    with pytest.raises(BadInput, match="other code") as e:
        Replica().load(HfEngine, find_model(str(folder)), {}, installed() | {"vllm": "0.1"})
    assert e.value.expected == {"vllm": "0.1"}


def test_models_and_engines_that_cannot_be_loaded_are_refused(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickled")
    with pytest.raises(BadInput, match="safetensors"):
        find_model(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    with pytest.raises(BadInput, match="tokenizer"):
        make_engine("hf", find_model(str(tmp_path)))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BadInput, match=tmp_path.name):
        make_engine("hf", find_model(str(tmp_path)))
    shutil.copytree(folder, other := tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"hidden_size": 64}))  # transformers: a RuntimeError
    with pytest.raises(BadInput, match="other"):
        make_engine("hf", find_model(str(other)))
    with pytest.raises(BadInput, match="no revision"):
        find_model(str(folder), "main")
    with pytest.raises(BadInput, match="nobody/nothing"):  # the tests are offline
        find_model("nobody/nothing")
    with pytest.raises(BadInput, match="sglang"):
        make_engine("sglang", find_model(str(folder)))


def _memory_of_weights(folder: Path) -> int:
    """Bytes in float32, with the head beside the table."""
    made = AutoModelForCausalLM.from_pretrained(folder)
    tied = made.lm_head.weight is made.get_input_embeddings().weight
    return 4 * (sum(p.numel() for p in made.parameters()) + made.lm_head.weight.numel() * tied)


KEYS_AND_VALUES = 2 * 1 * 1 * 16 * 4 * 512
"""Bytes of a response of 100 tokens: 1 layer, 1 head, 16 wide, float32; the sampler has memory for multiples of 512."""


def test_responses_at_a_time_keep_within_half_of_what_the_weights_leave(folder: Path, monkeypatch) -> None:
    model, weights = find_model(str(folder)), _memory_of_weights(folder)
    for room, places in ((7, 8), (23, 16), (999, hf.MOST_ROWS["cpu"])):  # the sampler has memory for multiples of 8
        free = weights + 2 * (room * KEYS_AND_VALUES + KEYS_AND_VALUES - 1)
        monkeypatch.setattr(hf, "usable_memory", lambda n=free: (2 * n, n))
        small = HfEngine(model, threads=1, max_model_len=100)
        assert (small.spec.places, small.context) == (places, 100)


def test_a_shortage_of_memory_in_a_step_names_fewer_rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = HfEngine(find_model(str(folder)), threads=1, rows=24)
    engine.submit(Request("t1.0", "p", 0, 0, tuple(engine.encode("1")), D))
    short = "DefaultCPUAllocator: can't allocate memory"
    for rows, said, cure in ((24, short, "--batch-rows 12"), (8, short, "end what"), (24, "broken", "folder")):
        engine.spec = replace(engine.spec, places=rows)
        monkeypatch.setattr(engine.sampler, "step", Mock(side_effect=RuntimeError(said)))
        with pytest.raises(RunFailed) as e:
            engine.poll()
        assert cure in str(e.value.next_step)


def _samples(problems: int, samples: int, cells: tuple[str, ...] = ("t1.0", "t0.7")) -> list[Request]:
    return [Request(c, f"p{p}", i, 0, (p,), D) for c in cells for p in range(problems) for i in range(samples)]


def _names(queue: Queue, n: int) -> list[str]:
    return [f"{r.cell} {r.problem_id} {r.sample_index}" for r in (queue.take() for _ in range(n))]


def test_one_sample_of_each_problem_goes_first_then_the_longest_expected() -> None:
    requests = _samples(3, 3, ("c",))
    queue = Queue(requests, {})
    assert _names(queue, 3) == ["c p0 0", "c p1 0", "c p2 0"]
    for r, tokens in zip(requests[::3], (10, 90, 40), strict=True):
        queue.finished(r, tokens)
    assert _names(queue, 6) == ["c p1 1", "c p1 2", "c p2 1", "c p2 2", "c p0 1", "c p0 2"]
    # nothing is known: the order given
    requests = _samples(2, 2)
    assert _names(Queue(requests, {}), 5) == ["t1.0 p0 0", "t1.0 p1 0", "t0.7 p0 0", "t0.7 p1 0", "t1.0 p0 1"]
    # a problem is known by its other setting, and by what was recorded before
    done = {r.key: 500 if r.problem_id == "p1" else 100 for r in requests if r.cell == "t1.0"}
    assert _names(Queue(requests, done), 4) == ["t0.7 p0 0", "t0.7 p1 0", "t0.7 p1 1", "t0.7 p0 1"]


class Working(Engine):
    """An engine that works on nothing: what it holds is finished in an order that is drawn."""

    def __init__(self, spec: EngineSpec, draw: random.Random):
        self.loaded(spec)
        self.draw, self.held = draw, []

    def submit(self, request: Request) -> None:
        self.held.append(request)
        assert len(self.held) <= self.spec.places

    def poll(self) -> list[Finished]:
        request = self.held.pop(self.draw.randrange(len(self.held)))
        return [Finished(request, "", "stop", 1, self.draw.randrange(500), 0.0)]

    def close(self) -> None:
        pass


@settings(max_examples=60, deadline=None)
@given(
    problems=st.integers(1, 8),
    samples=st.integers(1, 5),
    places=st.integers(1, 9),
    recorded=st.sets(st.integers(0, 79)),
    seed=st.integers(0, 99),
)
def test_every_request_that_is_not_done_is_answered_once(problems, samples, places, recorded, seed) -> None:
    requests = _samples(problems, samples)
    done = {r.key: 7 for i, r in enumerate(requests) if i in recorded}
    engine = Working(EngineSpec("working", False, 512, places), random.Random(seed))
    answered = [f.request.key for piece in engine.stream(requests, done) for f in piece]
    assert sorted(answered) == sorted(r.key for r in requests if r.key not in done)


def test_a_model_that_memory_has_no_room_for_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What must fit: the weights, and keys and values of the sampler's least rows, or of those that are given."""
    model, weights = find_model(str(folder)), _memory_of_weights(folder)
    for dtype, part, rows, held in (("float32", 1, 0, 8), ("bfloat16", 2, 0, 8), ("float32", 1, 9, 16)):
        least = weights + held * KEYS_AND_VALUES
        monkeypatch.setattr(hf, "usable_memory", lambda n=least // part: (2 * n, n))
        HfEngine(model, threads=1, dtype=dtype, rows=rows, max_model_len=100)
        monkeypatch.setattr(hf, "usable_memory", lambda n=least // part: (2 * n, n - 1))
        with pytest.raises(BadInput, match="too little memory") as e:
            HfEngine(model, threads=1, dtype=dtype, rows=rows, max_model_len=100)
        assert ("--dtype bfloat16" in e.value.next_step) == (part == 1)
        assert ("--batch-rows" in e.value.next_step) == (rows > 8)
        assert "--max-tokens" not in e.value.next_step  # 512 positions are the least
    monkeypatch.setattr(hf, "usable_memory", lambda: (3 * weights, weights + 8 * KEYS_AND_VALUES))
    with pytest.raises(BadInput, match="too little memory") as e:
        hf._beside_weights(model, AutoConfig.from_pretrained(folder), torch.float32, 8, KEYS_AND_VALUES // 512, 513)
    assert "--max-tokens" in e.value.next_step
    monkeypatch.setattr(hf, "usable_memory", lambda: (2 * weights, weights - 1))
    with pytest.raises(BadInput, match="too little memory") as e:
        HfEngine(model, threads=1, max_model_len=100)
    assert "--max-tokens" not in e.value.next_step  # the weights alone are too many
