"""kill -9 at random moments of generation, grading, judging and summary, and a full disk: the same bytes each time."""

from __future__ import annotations

import os
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import eval_model
import pytest
from eval_model import pure_files, whole_lines
from forked import forked

from stapo_eval.cli import main
from stapo_results import terminal

KILLS = int(os.environ.get("STAPO_KILLS", "190"))
STAGES = ("start", "generate", "grade", "judge", "summary")
# per run folder, in order: where it is killed, and how long after the stage began at most, in seconds
PLAN = [("start", 0.5)] * 2 + [("generate", 0.6)] * 8 + [("grade", 0.3)] * 3 + [("judge", 0.2)] * 3
PLAN += [("summary", 0.02)] * 3
TOTAL = 2 * 2 * 12 * 4  # settings, benchmarks, problems, samples

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")]


@pytest.fixture(scope="module")
def argv(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("world")
    eval_model.build(root / "model", labels={"method": "justrl", "train_seed": 3, "step": 40})
    eval_model.build(root / "judge", seed=1, positions=2048, labels={"step": "base"})
    # golds that need algebra, so that grading takes its worker processes
    eval_model.benchmarks(root / "data", problems=12, answer=lambda i: rf"\sqrt{{{i * i}}}")
    options = {"model": root / "model", "judge": root / "judge", "data-dir": root / "data", "max-tokens": 48}
    options |= {"benchmarks": "sums,longer-sums", "batch-rows": 6, "threads": 1}
    return ["run", *(f"--{k}={v}" for k, v in options.items())]


def _command(argv: list[str], out: Path, file_limit: int = 0) -> Callable[[], None]:
    """The command as a child runs it, with what it says in a log beside its folder."""

    def work() -> None:
        sys.stdout = sys.stderr = open(out.with_suffix(".log"), "a", buffering=1)  # noqa: SIM115  ends with the child
        os.environ[terminal.PROGRESS] = str(out.with_suffix(".progress"))
        if file_limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit,) * 2)
        if code := main([*argv, "--out", str(out)]):
            os._exit(code)

    return work


def _stage(out: Path) -> str:
    """Where a run stands, read from outside: from its files and from what it tells a driver."""
    samples = out / "samples.jsonl"
    if not samples.exists():
        return "start"
    if samples.read_bytes().count(b"\n") < TOTAL:
        return "generate"
    if (out / "verdicts.jsonl").exists() and not (out / "summary.json").exists():
        return "summary"
    said = terminal.read_progress(out.with_suffix(".progress"))
    return said["stage"] if said and said["stage"] in STAGES else "start"


def _after(out: Path, stage: str, delay: float) -> Callable[[], bool]:
    """Whether the delay is over since the stage was first seen."""
    times: list[float] = []

    def due() -> bool:
        if not times and STAGES.index(_stage(out)) >= STAGES.index(stage):
            times.append(time.monotonic() + delay)
        return bool(times) and time.monotonic() >= times[0]

    return due


@pytest.fixture(scope="module")
def whole(argv: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The files of a run that nobody disturbed."""
    out = tmp_path_factory.mktemp("whole") / "out"
    _finish(argv, out)  # in a child too: a grading server started here would be a stranger to the next ones
    return pure_files(out)


def _finish(argv: list[str], out: Path) -> None:
    with forked(_command(argv, out)) as process:
        while process.alive():
            time.sleep(0.01)
    assert process.code == 0, out.with_suffix(".log").read_text()


def test_killed_anywhere_it_ends_in_the_same_bytes(argv: list[str], whole: dict[str, object], tmp_path: Path) -> None:
    hits: Counter[str] = Counter()
    number = 0
    while sum(hits.values()) < KILLS:
        out, draw, seen = tmp_path / f"out{number}", random.Random(number), set()
        for stage, most_delay in PLAN[: KILLS - sum(hits.values())]:
            out.with_suffix(".progress").unlink(missing_ok=True)
            with forked(_command(argv, out)) as process:
                if not process.kill_when(_after(out, stage, draw.uniform(0, most_delay)), seconds=300):
                    assert process.code == 0, out.with_suffix(".log").read_text()
                    break  # it was done before it could be killed
            hits[_stage(out)] += 1
            lines = whole_lines(out)
            assert len(set(lines)) == len(lines), "duplicate sample"
            assert seen <= set(lines), "a recorded sample was lost or made anew"
            seen = set(lines)
        _finish(argv, out)
        assert pure_files(out) == whole, f"seed {number}"
        number += 1
    print(f"{sum(hits.values())} kills over {number} runs: {dict(hits)}")
    if len(PLAN) <= KILLS:
        assert {"generate", "grade", "judge", "summary"} <= set(hits)


def test_a_disk_that_fills_up_costs_nothing(argv: list[str], whole: dict[str, object], tmp_path: Path) -> None:
    """A limit on the size of a file, at 12 places: the write that meets it is cut short, as on a full disk."""
    out, seen = tmp_path / "out", set()
    size = len(whole["samples.jsonl"])  # type: ignore[arg-type]
    for part in range(1, 13):
        out.with_suffix(".log").unlink(missing_ok=True)
        with forked(_command(argv, out, part * size // 12)) as process:
            while process.alive():
                time.sleep(0.01)
        text = out.with_suffix(".log").read_text()
        assert (process.code, "the disk is full" in text, "Traceback" in text) == (1, True, False)
        lines = set(whole_lines(out))
        assert seen <= lines
        seen = lines
    _finish(argv, out)
    assert pure_files(out) == whole
