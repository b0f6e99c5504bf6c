"""kill -9 at random moments of generation, grading, judging and summary, and a full disk: the same bytes each time."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import eval_model
import pytest
from kill_harness import Forker, Series

from stapo_results.benchmarks import registry_entry, write_registry

KILLS = int(os.environ.get("STAPO_KILLS", "190"))
# per run folder, in order: where it is killed, and how long after the stage began at most, in seconds
PLAN = (
    [("start", 0.5)] * 2
    + [("generate", 0.6)] * 8
    + [("grade", 0.3)] * 3
    + [("judge", 0.2)] * 3
    + [("summary", 0.02)] * 3
)
TOTAL = 2 * 2 * 12 * 4  # settings, benchmarks, problems, samples

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def forker() -> Iterator[Forker]:
    with Forker() as f:
        yield f


def _benchmarks(folder: Path) -> None:
    """Two benchmarks whose golds need algebra, so that grading takes its worker processes."""
    folder.mkdir()
    entries = {}
    for name in ("sums", "longer-sums"):
        rows = [{"id": f"{name}-{i}", "problem": f"What is {i}?", "answer": rf"\sqrt{{{i * i}}}"} for i in range(12)]
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(r) + "\n" for r in rows))
        entries[name] = registry_entry(path, name, samples=4)
    write_registry(folder / "registry.yaml", entries)


@pytest.fixture(scope="module")
def argv(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("world")
    eval_model.build(root / "model", labels={"method": "justrl", "train_seed": 3, "step": 40})
    eval_model.build(root / "judge", seed=1, positions=2048, labels={"step": "base"})
    _benchmarks(root / "data")
    options = {"model": root / "model", "judge": root / "judge", "data-dir": root / "data", "max-tokens": 48}
    options |= {"benchmarks": "sums,longer-sums", "batch-rows": 6, "threads": 1}
    return ["run", *(f"--{k}={v}" for k, v in options.items())]


def _files(out: Path) -> dict[str, object]:
    """What the determinism clause is about; cells without the code's version, which may change under a test."""
    files: dict[str, object] = {n: (out / n).read_bytes() for n in ("samples.jsonl", "verdicts.jsonl", "summary.json")}
    for path in (out / "cells").iterdir():
        cell = json.loads(path.read_text())
        files[path.name] = {k: v for k, v in cell.items() if k not in ("code_commit", "code_dirty")}
    return files


@pytest.fixture(scope="module")
def whole(forker: Forker, argv: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The files of a run that nobody disturbed."""
    out = tmp_path_factory.mktemp("whole") / "out"
    Series(forker, argv, out, TOTAL, random.Random(0)).finish()
    return _files(out)


def test_killed_anywhere_it_ends_in_the_same_bytes(
    forker: Forker, argv: list[str], whole: dict[str, object], tmp_path: Path
) -> None:
    hits: Counter[str] = Counter()
    number = 0
    while sum(hits.values()) < KILLS:
        series = Series(forker, argv, tmp_path / f"out{number}", TOTAL, random.Random(number))
        for stage, most_delay in PLAN[: KILLS - sum(hits.values())]:
            if not series.kill_in(stage, most_delay):
                break  # it was done before it could be killed
        series.finish()
        assert _files(series.out) == whole, f"seed {number}: {dict(series.kills)}"
        hits += series.kills
        number += 1
    print(f"{sum(hits.values())} kills over {number} runs: {dict(hits)}")
    if len(PLAN) <= KILLS:
        assert {"generate", "grade", "judge", "summary"} <= set(hits)


def test_a_disk_that_fills_up_costs_nothing(
    forker: Forker, argv: list[str], whole: dict[str, object], tmp_path: Path
) -> None:
    """A limit on the size of a file, at 12 places: the write that meets it is cut short, as on a full disk."""
    out = tmp_path / "out"
    series = Series(forker, argv, out, TOTAL, random.Random(0))
    size = len(whole["samples.jsonl"])  # type: ignore[arg-type]
    refused = 0
    for part in range(1, 13):
        with forker.start([*argv, "--out", str(out)], series.log, {}, file_limit=part * size // 12) as process:
            pass
        assert process.code == 1
        text = series.log.read_text()
        refused += "the disk is full" in text
        assert "Traceback" not in text
        series._check_kept()
    assert refused == 12
    series.finish()
    assert _files(out) == whole


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"a file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def _leave(disk: Path, room: int) -> None:
    """Fill the disk up to `room` bytes."""
    filler = disk / "filler"
    filler.unlink(missing_ok=True)
    filler.write_bytes(bytes(shutil.disk_usage(disk).free - room))


def test_a_disk_that_fills_up_while_judging(
    forker: Forker, argv: list[str], whole: dict[str, object], disk: Path, tmp_path: Path
) -> None:
    judge = next(x.removeprefix("--judge=") for x in argv if x.startswith("--judge="))
    out, log = disk / "out", tmp_path / "log"
    Series(forker, [x for x in argv if not x.startswith("--judge=")], out, TOTAL, random.Random(0)).finish()
    again = ["judge", "--run", str(out), "--judge", judge]
    replies, kept = out / "judgements.jsonl", []
    for room in (16, 20, 24):
        _leave(disk, room << 10)
        with forker.start(again, log, {}) as process:
            pass
        assert process.code == 1
        assert "the disk is full" in log.read_text()
        assert "Traceback" not in log.read_text()
        kept.append([x for x in replies.read_bytes().splitlines(keepends=True) if x.endswith(b"\n")])
    (disk / "filler").unlink()
    with forker.start(again, log, {}) as process:
        pass
    assert process.code == 0
    lines = replies.read_bytes().splitlines(keepends=True)
    assert 0 < len(kept[0]) < len(kept[2]) < len(lines)
    assert kept == [lines[: len(k)] for k in kept]
    assert _files(out) == whole


def test_a_disk_that_is_full(forker: Forker, argv: list[str], whole: dict[str, object], disk: Path) -> None:
    series = Series(forker, argv, disk / "out", TOTAL, random.Random(0))
    for room in (90, 20, 20):  # enough for the check at the start, not for everything
        _leave(disk, room << 10)
        with series._start() as process:
            pass
        assert process.code == 1
        assert "Traceback" not in series.log.read_text()
    (disk / "filler").unlink()
    series.finish()
    assert _files(series.out) == whole
