"""Engine vllm and kill -9: `tox -e vllm`."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import eval_model
import pytest

from stapo_results import store
from stapo_results.schema import Run, Sample

pytestmark = [
    pytest.mark.skipif(os.environ.get("STAPO_TEST_ENGINE") != "vllm", reason="engine vllm: tox -e vllm"),
]

KILLS = 3
TOTAL = 2 * 2 * 12 * 32  # settings, benchmarks, problems, samples


def _whole_lines(path: Path) -> list[bytes]:
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [x for x in lines if x.endswith(b"\n")]


def _command(folder: Path) -> tuple[list[str], Path]:
    """(a run of a model and benchmarks that are made here, its run folder)."""
    eval_model.build(folder / "model", head_dim=32, labels={"step": 1})
    eval_model.benchmarks(folder / "data", problems=12, samples=32)
    command = [sys.executable, "-m", "stapo_eval.cli", "run", "--engine", "vllm", "--max-tokens", "200"]
    command += ["--benchmarks", "sums,longer-sums", "--model", str(folder / "model")]
    return [*command, "--data-dir", str(folder / "data"), "--out", str(folder / "out")], folder / "out"


def test_killed_again_and_again_nothing_is_missing_doubled_or_made_again(tmp_path: Path) -> None:
    command, out = _command(tmp_path)
    samples = out / "samples.jsonl"
    draw, kept, in_generation = random.Random(0), [], 0
    for number in range(KILLS):
        log = open(tmp_path / f"log{number}", "wb")  # noqa: SIM115  the process keeps it
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        # every third at any moment of loading, the others after some samples more
        deadline = time.monotonic() + (draw.uniform(1, 20) if number % 3 == 0 else 300)
        until = len(kept) + draw.randrange(1, TOTAL // KILLS)
        while process.poll() is None and time.monotonic() < deadline and len(_whole_lines(samples)) < until:
            time.sleep(0.002)
        assert process.poll() is None, (tmp_path / f"log{number}").read_text()[-3000:]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        lines = _whole_lines(samples)
        assert lines[: len(kept)] == kept
        in_generation += len(lines) > len(kept)
        kept = lines
    assert in_generation >= KILLS - 1
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = _whole_lines(samples)
    assert lines[: len(kept)] == kept
    found = list(store.read(samples, Sample))
    assert len(found) == len({(s.cell, s.problem_id, s.sample_index) for s in found}) == TOTAL
    assert len({s.seed for s in found}) == TOTAL
    record = store.read_json(out / "run.json", Run)
    assert record.status == "done"
    assert len(record.resumptions) >= in_generation
    summary = json.loads((out / "summary.json").read_text())
    assert sum(c["missing"] for c in summary["cells"]) == 0


def test_a_dead_engine_ends_the_run_with_the_command_that_goes_on(tmp_path: Path) -> None:
    import psutil

    command, out = _command(tmp_path)
    log = tmp_path / "log"
    with open(log, "wb") as f:
        process = subprocess.Popen(command, stdout=f, stderr=f, start_new_session=True)
        while process.poll() is None and len(_whole_lines(out / "samples.jsonl")) < 50:
            time.sleep(0.002)
        engines = [p for p in psutil.Process(process.pid).children(recursive=True) if "EngineCore" in p.name()]
        assert engines, [p.name() for p in psutil.Process(process.pid).children(recursive=True)]
        for p in engines:
            p.kill()
        assert process.wait(timeout=300) == 1
    said = log.read_text()
    assert "the vLLM engine died" in said
    assert f"--out {out}   goes on: " in said
    assert store.read_json(out / "run.json", Run).status == "failed"
    kept = _whole_lines(out / "samples.jsonl")
    assert 50 <= len(kept) < TOTAL
    assert subprocess.run(command, capture_output=True, timeout=600).returncode == 0
    assert _whole_lines(out / "samples.jsonl")[: len(kept)] == kept
