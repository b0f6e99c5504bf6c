"""The grading processes: limits that hold, order, one grading a distinct answer, and the command `grade`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from stapo_eval import grading_pool
from stapo_eval.cli import main
from stapo_eval.grading_pool import Item, Limits, grade
from stapo_eval.rules import Options

O = Options()  # noqa: E741
HOSTILE = (Path(__file__).parent / "data" / "grader_cases_hostile.jsonl").read_text("utf-8").splitlines()


def _hostile() -> list[str]:
    answers = []
    for case in map(json.loads, HOSTILE):
        if "open" in case:
            answers.append(case["open"] * case["times"] + "1" + case["close"] * case["times"])
        else:
            answers.append(case.get("answer") or case["repeat"] * case["times"] + case["then"])
    return answers


def _workers() -> list[psutil.Process]:
    return [p for p in psutil.Process().children() if "stapo_eval.grading_worker" in " ".join(p.cmdline())]


def test_integers_start_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grading_pool, "_Worker", None)
    outcomes = grade([Item("4", "4", O), Item("4", "5", O), Item("4", None, O), Item(("1", "2"), "2,1", O)])
    assert [(o.rule, o.reason) for o in outcomes] == [
        (True, "match"),
        (False, "mismatch"),
        (False, "no_answer"),
        (True, "match"),
    ]


def test_order_and_one_grading_for_equal_items(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    send = grading_pool._Worker.send
    monkeypatch.setattr(grading_pool._Worker, "send", lambda w, item: (sent.append(item), send(w, item))[1])
    items = [Item("x+1", "1+x", O), Item("x+1", "x", O), Item("4", "4", O), Item("x+1", "1+x", O)]
    assert [o.rule for o in grade(items, Limits(workers=2))] == [True, False, True, True]
    assert len(sent) == 2
    assert not _workers()


def test_hostile_answers_end_within_their_limit_and_the_pool_goes_on() -> None:
    limits = Limits(seconds=0.5, memory_mib=256, workers=2)
    items = [Item("10^{10}", a, O) for a in _hostile()]
    began = time.monotonic()
    outcomes = grade([*items, Item("x+1", "1+x", O)], limits)
    # at most the limit and a restart for each, by two workers, with room for a loaded machine
    assert time.monotonic() - began < 60 + len(items) * 2.0
    assert not any(o.rule for o in outcomes[:-1])
    assert {o.reason for o in outcomes[:-1]} >= {"timeout", "mismatch"}
    assert outcomes[-1].reason == "match"
    assert not _workers()


def test_a_worker_that_dies_costs_only_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    send = grading_pool._Worker.send

    def kill(w: grading_pool._Worker, item: Item) -> None:
        send(w, item)
        if item.answer == "victim":
            w.process.kill()

    monkeypatch.setattr(grading_pool._Worker, "send", kill)
    outcomes = grade([Item("x+1", "victim", O), Item("x+1", "1+x", O)], Limits(workers=1))
    assert outcomes[0].reason in ("error", "mismatch")  # it may have answered before the signal came
    assert outcomes[1].reason == "match"


@pytest.mark.skipif(sys.platform != "linux", reason="the memory limit is the kernel's RLIMIT_AS")
def test_memory_is_limited() -> None:
    script = (
        "import sys; sys.argv=['w','64']\n"
        "from stapo_eval import grading_worker as g\n"
        "import resource\n"
        "g._limit_memory(64)\n"
        "try:\n    x = bytearray(200 << 20)\n"
        "except MemoryError:\n    print('refused')\n"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "refused\n"


def test_workers_import_no_torch() -> None:
    script = "import sys, stapo_eval.grading_worker, stapo_eval.rules, math_verify; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "False\n"


def test_the_command_grades_any_jsonl(tmp_path: Path) -> None:
    rows = [
        {"id": 1, "problem": "p", "answer": "12", "response": r"it is \boxed{12}"},
        {"id": "b", "problem": "p", "answer": ["1", "2"], "response": r"\boxed{3} no, \boxed{2, 1}"},
        {"id": "c", "problem": "p", "answer": r"\frac{x}{2}", "response": r"\boxed{0.5x}"},
        {"id": "d", "problem": "p", "answer": "12", "response": "twelve"},
        {"id": "e", "problem": "p", "answer": 12, "response": r"\boxed{13}"},
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    assert main(["grade", "--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out.jsonl")]) == 0
    out = [json.loads(x) for x in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [set(x) for x in out] == [{"id", "extracted", "rule", "reason", "seconds"}] * 5
    assert [(x["id"], x["extracted"], x["rule"], x["reason"]) for x in out] == [
        (1, "12", True, "match"),
        ("b", "2, 1", True, "match"),
        ("c", "0.5x", True, "match"),
        ("d", None, False, "no_answer"),
        ("e", "13", False, "mismatch"),
    ]


def test_the_command_names_a_bad_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "in.jsonl").write_text('{"id": 1, "answer": "2", "response": "x"}\n{"id": 2, "answer": "2"}\n')
    assert main(["grade", "--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "o")]) == 2
    assert "in.jsonl:2" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()
