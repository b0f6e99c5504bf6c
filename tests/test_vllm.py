"""Engine vllm and kill -9: `tox -e vllm`."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import eval_model
import psutil
import pytest

from stapo_results import store
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


def test_a_run_that_is_killed_loses_doubles_and_repeats_nothing(tmp_path: Path) -> None:
    command, out = _command(tmp_path)
    draw, kept = random.Random(0), []
    for number in range(KILLS):
        until = len(kept) + draw.randrange(1, TOTAL // KILLS)
        process = _started(command, tmp_path / f"log{number}", until, out)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
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
    engines = [p for p in psutil.Process(process.pid).children(recursive=True) if "EngineCore" in p.name()]
    assert engines, [p.name() for p in psutil.Process(process.pid).children(recursive=True)]
    for p in engines:
        p.kill()
    assert process.wait(timeout=300) == 1
    assert f"--out {out}   resumes: " in log.read_text()
    assert store.read_json(out / "run.json", Run).status == "failed"
    kept = eval_model.whole_lines(out)
    assert 50 <= len(kept) < TOTAL
    assert subprocess.run(command, capture_output=True, timeout=600).returncode == 0
    assert eval_model.whole_lines(out)[: len(kept)] == kept
