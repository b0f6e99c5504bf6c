"""The quick miniature, whole: killed in every stage it ends in the same bytes; Ctrl-C leaves no process. Slow."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(sys.executable).with_name("stapo-repro")
STAGES = ["base", "train/justrl-s0", "train/stapo-s0", "export/stapo-s0", "eval/justrl-s0", "eval/stapo-s0"]
# what a run decides; run records, timings and logs hold times, and tokens' page and numbers the hash of such a record
SAME = ["base/model/model.safetensors", "base/data/train.parquet", "base/benchmarks/mini-add.jsonl",
        "train/*/metrics.jsonl", "train/*/token_log/*.parquet", "train/*/token_log/histogram/*.parquet",
        "models/*/model.safetensors", "models/*/stapo.json", "eval/*/samples.jsonl", "eval/*/verdicts.jsonl",
        "eval/*/summary.json", "eval/*/cells/*.json", "tables/*", "figures/*", "tokens/*/*.svg"]  # fmt: skip


def start(out: Path, log: Path, jobs: int) -> subprocess.Popen:
    command = [str(SCRIPT), "run", "miniature", "--quick", "--out", str(out), "--jobs", f"{jobs}"]
    with open(log, "a") as f:
        return subprocess.Popen(command, stdout=f, stderr=subprocess.STDOUT, start_new_session=True)


def family(marker: str) -> list[psutil.Process]:
    """Every process of this run: by its command line, its environment, or as a descendant of one of these."""
    found = set()
    for p in psutil.process_iter():
        try:
            text = " ".join(p.cmdline()) + " ".join(f"{k}={v}" for k, v in p.environ().items())
            if marker in text and p.pid != os.getpid():
                found |= {p, *p.children(recursive=True)}
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return sorted(found, key=lambda p: p.pid)


def contents(out: Path) -> dict[str, bytes]:
    return {str(p.relative_to(out)): p.read_bytes() for pattern in SAME for p in sorted(out.glob(pattern))}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole")
    process = start(root / "out", root / "log", jobs=2)
    assert process.wait(timeout=1200) == 0, (root / "log").read_text()[-3000:]
    return root / "out"


def test_killed_in_every_stage_it_goes_on_and_ends_in_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    """One stage at a time, where `whole` had two."""
    out, log = tmp_path / "out", tmp_path / "log"
    for stage in STAGES:
        process = start(out, log, jobs=1)
        deadline = time.monotonic() + 600
        while not re.search(rf"^(start|resume) +{re.escape(stage)} ", log.read_text(), re.M):
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, stage
            time.sleep(0.05)
        time.sleep(25 if stage.startswith("train") else 1.5)  # into the stage's work
        for p in [psutil.Process(process.pid), *family(str(out))]:
            try:
                p.kill()
            except psutil.NoSuchProcess:
                continue
        process.wait()
    process = start(out, log, jobs=1)
    assert process.wait(timeout=1200) == 0, log.read_text()[-3000:]
    text = log.read_text()
    for stage in STAGES[:-1]:
        assert re.search(rf"^kept +{re.escape(stage)} ", text, re.M), f"{stage} was made again"
    expected, found = contents(whole), contents(out)
    assert expected.keys() == found.keys()
    assert len(expected) > 30
    assert [name for name in expected if expected[name] != found[name]] == []
    assert family(str(out)) == []


def test_ctrl_c_in_training_leaves_no_process_and_says_how_to_go_on(tmp_path: Path, whole: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    out.mkdir()
    process = start(out, log, jobs=2)
    while not re.search(r"^start +train/justrl-s0 ", log.read_text(), re.M):
        assert process.poll() is None, log.read_text()[-3000:]
        time.sleep(0.1)
    time.sleep(30)
    assert len(family(str(out))) > 5  # Ray and its workers are there
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert "repeat the command" in log.read_text()
    assert family(str(out)) == []


def test_memory_stays_below_8_gib(whole: Path) -> None:
    peaks = [stage["peak_mib"] for stage in json.loads((whole / "stages.json").read_text())["stages"]]
    assert len(peaks) >= 8
    assert max(peaks) < 8 * 1024
