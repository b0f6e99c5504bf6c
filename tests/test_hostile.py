"""Hostile answers: none crashes the grader, outlasts its limit, outgrows its memory, or is taken for correct."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from hostile import fuzzed, written

from stapo_eval.cli import main
from stapo_eval.grading.pool import Item, Limits, Outcome, Pool
from stapo_eval.grading.rules import Options
from stapo_results.answers import answer_line, final_boxes, last_boxed

MEMORY_MIB = 256


def _graders() -> list[psutil.Process]:
    """The grading processes: they are forked by a process that this one started."""
    own = {p.pid for p in psutil.Process().children()}
    return [p for p in psutil.Process().children(recursive=True) if p.pid not in own]


def check(answers: list[str], gold: str, preset: str = "ours") -> list[Outcome]:
    """Grade answers under tight limits; the limits hold, and the pool grades after them."""
    own = Options(preset=preset)
    largest_mib = 0.0

    def watch(done: int, total: int) -> None:
        nonlocal largest_mib
        for p in _graders():
            with suppress(psutil.NoSuchProcess):
                largest_mib = max(largest_mib, p.memory_info().rss / 2**20)

    with Pool(Limits(seconds=1, memory_mib=MEMORY_MIB, workers=2)) as pool:
        items = [*(Item(gold, a, own) for a in answers), Item("x+1", "1+x", Options())]
        *outcomes, last = pool.grade(items, watch)
        assert len(_graders()) <= 2
    assert last.rule is True
    assert 0 < largest_mib < MEMORY_MIB + 400  # a process's imports take 150 to 250 MiB
    assert not _graders()
    return outcomes


@pytest.mark.parametrize(("preset", "gold"), [("ours", "10^{10}+1"), ("justrl", "31415926")])
@pytest.mark.parametrize("share", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_written_answers(preset: str, gold: str, share: int) -> None:
    answers = written()[::share]
    assert len(answers) >= 200 / share
    outcomes = check(answers, gold, preset)
    assert not any(o.rule for o in outcomes)
    reasons = Counter(o.reason for o in outcomes)
    assert set(reasons) <= {"mismatch", "no_answer", "timeout", "memory", "error"}
    assert reasons["no_answer"] == sum(not a.strip() for a in answers) > 0
    assert reasons["mismatch"] > 0.85 * len(answers)


@pytest.mark.slow
def test_written_answers_against_a_gold_that_is_hostile_too() -> None:
    check([a for a in written() if len(a) < 300], "10^{10^{10^{10}}}")


@pytest.mark.parametrize("count", [300, pytest.param(5000, marks=pytest.mark.slow)])
def test_fuzzed_answers(count: int) -> None:
    assert not any(o.rule for o in check(fuzzed(count), "31415926535"))


@pytest.mark.slow
def test_extraction_from_hostile_responses() -> None:
    for answer in [*written(), *fuzzed(1000, seed=1)]:
        for response in (f"so \\boxed{{{answer}}}", answer, f"Answer: {answer}", f"\\boxed{{1}} and \\boxed{{{answer}"):
            began = time.process_time()
            for find in (last_boxed, final_boxes, answer_line):
                find(response)
            assert time.process_time() - began < 3.0


def test_the_command_takes_bytes_that_are_no_text(tmp_path: Path) -> None:
    lines = [
        b'{"id": 0, "answer": "4", "response": "\\\\boxed{4} \xff\xfe\x80"}',
        b'{"id": "\\ud800", "answer": "4", "response": "\\u0000\\\\boxed{\\u00004}"}',
        b'{"id": 4, "answer": ' + b"7" * 10**6 + b', "response": "\\\\boxed{' + b"7" * 10**6 + b'}"}',
        b'{"id": 5, "answer": "4", "response": ""}',
    ]
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    assert main(["grade", "--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out.jsonl")]) == 0
    out = [json.loads(x) for x in (tmp_path / "out.jsonl").read_text("ascii").splitlines()]
    assert [(x["id"], x["rule"]) for x in out] == [(0, True), ("\ud800", False), (4, True), (5, False)]
    assert out[-1]["reason"] == "no_answer"


@pytest.mark.parametrize("victim", ["grader", "server"])
def test_a_process_killed_from_outside_costs_only_its_answer(victim: str) -> None:
    """A grading process while it grades, and the process that forks them; many answers wait meanwhile."""
    killed = []
    endless = r"\sum_{k=1}^{10^{12}} k^{k}"
    items = [Item("1", f"so {i} " * 2000, Options(preset="math-verify")) for i in range(40)]
    with Pool(Limits(seconds=1, workers=1)) as pool:

        def kill() -> None:
            deadline = time.monotonic() + 120
            while not pool.graders or not (item := pool.graders[0].item) or item.answer != endless:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            grader = psutil.Process(pool.graders[0].process.pid)
            killed.append(grader if victim == "grader" else grader.parent())
            killed[0].kill()

        thread = threading.Thread(target=kill, daemon=True)
        thread.start()
        outcomes = pool.grade([*items, Item("10", endless, Options()), *items[:1]])
        thread.join()
    assert killed
    assert [o.rule for o in outcomes] == [i == 1 for i in range(40)] + [False, False]
    assert outcomes[40].reason == "timeout"  # when it was tried once more
