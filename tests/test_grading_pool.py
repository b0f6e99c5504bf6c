"""The grading processes: limits that hold, order, one grading a distinct answer, and the command `grade`."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import hostile_folder
import psutil
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from stapo_eval.cli import main
from stapo_eval.grading import pool as grading_pool
from stapo_eval.grading.pool import Item, Limits, Pool, check_limits, grade
from stapo_eval.grading.rules import Options
from stapo_results.errors import BadInput, RunFailed

O = Options()  # noqa: E741


ENDLESS = r"\sum_{k=1}^{10^{12}} k^{k}"


def _descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def test_integers_start_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grading_pool.Pool, "run", lambda pool, jobs, done: [done(job, None) for job in jobs])
    outcomes = grade([Item("4", "4", O), Item("4", "5", O), Item("4", None, O), Item(("1", "2"), "2,1", O)])
    assert [o.reason for o in outcomes] == ["match", "mismatch", "no_answer", "match"]
    assert [o.rule for o in outcomes] == [True, False, False, True]


def test_nothing_that_met_its_limit_runs_while_the_pool_is_open() -> None:
    with Pool(Limits(seconds=0.1, workers=2)) as pool:
        outcomes = pool.grade([Item("10", f"{ENDLESS}+{i}", O) for i in range(8)])
        graders = [p for p in _descendants() if p.ppid() != os.getpid()]
        assert len(graders) <= 2
        spent = sum(sum(p.cpu_times()[:2]) for p in graders)
        time.sleep(0.3)
        used = sum(sum(p.cpu_times()[:2]) for p in graders if p.is_running()) - spent
        assert pool.grade([Item("x+1", "1+x", O)])[0].reason == "match"
    assert [o.reason for o in outcomes] == ["timeout"] * 8
    assert used < 0.1


def test_a_process_that_waits_for_a_core_does_not_meet_the_time_limit() -> None:
    """Every process of the pool is stopped for three times the limit, as a loaded machine would do for moments."""
    with Pool(Limits(seconds=0.3, workers=1)) as pool:
        pool.grade([Item("x+1", "1+x+y", O)])
        for p in (stopped := _descendants()):
            p.suspend()
        timer = threading.Timer(0.9, lambda: [p.resume() for p in stopped])
        timer.start()
        outcomes = pool.grade([Item("x+1", "1+x", O)])
        timer.join()
    assert [o.reason for o in outcomes] == ["match"]


def test_an_answer_that_waits_without_an_end_meets_the_wall_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    with Pool(Limits(seconds=20, workers=1)) as pool:
        pool.grade([Item("x+1", "1+x+y", O)])
        monkeypatch.setattr(grading_pool, "WALL", 0.15)
        psutil.Process(pool.graders[0].process.pid).suspend()
        outcomes = pool.grade([Item("x+1", "1+x", O), Item("x+1", "x+1+0", O)])
    assert [o.reason for o in outcomes] == ["wall_timeout", "match"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_grading_process_outlives_the_one_that_asked(number: int) -> None:
    script = (
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job starts with it ignored
        "from stapo_eval.grading.pool import Item, Limits, grade\n"
        "from stapo_eval.grading.rules import Options\n"
        f"grade([Item('10', r'{ENDLESS}' + f'+{{i}}', Options()) for i in range(4)], Limits(60, workers=2))\n"
    )
    asker = psutil.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    while sum(p.cpu_times().user > 1.5 for p in asker.children(recursive=True)) < 2:
        assert asker.status() != psutil.STATUS_ZOMBIE
        time.sleep(0.05)
    others = asker.children(recursive=True)
    asker.send_signal(number)
    _, alive = psutil.wait_procs([asker, *others], timeout=5)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.skipif(sys.platform != "linux", reason="the memory limit is the kernel's RLIMIT_AS")
def test_an_answer_pays_for_no_other_answers_memory() -> None:
    """A process that another answer has used up grades no more: it said no to the sum of ten."""
    hungry = r"\sum_{k=1}^{3000} k^{k}"  # math-verify meets the limit in it, says nothing, and leaves no memory over
    ten = Item("10405071317", r"\sum_{k=1}^{10} k^{k}", O)
    with Pool(Limits(seconds=30, memory_mib=8, workers=1)) as pool:
        outcomes = pool.grade([Item("4", "2+2", O), Item("32", hungry, O), ten])
    assert (outcomes[0].reason, outcomes[2].reason) == ("match", "match")
    assert not outcomes[1].rule


def test_a_pool_that_cannot_start_says_how_to_see_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grading_pool, "_serve", os.abort)
    with pytest.raises(RunFailed) as e:
        grade(
            [Item("x+1", f"{i}" + " so" * 3000, Options(preset="math-verify")) for i in range(100)], Limits(workers=2)
        )
    assert "stapo_eval.grading.preloaded" in e.value.next_step


def test_a_folder_of_temporary_files_that_no_socket_can_have_is_said_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", f"{tmp_path}/{'long' * 20}")
    with pytest.raises(BadInput, match="socket"):
        Pool()


@pytest.mark.skipif(sys.platform != "linux", reason="the memory limit is the kernel's RLIMIT_AS")
def test_a_limit_of_the_users_own_changes_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[int, int]]()
    monkeypatch.setattr(grading_pool.resource, "getrlimit", lambda which: (1 << 30, 1 << 30))
    monkeypatch.setattr(grading_pool.resource, "setrlimit", lambda which, limits: asked.append(limits))
    assert grading_pool._verdict("1", "1", O, 30.0, 2 << 30)[0] == "match"
    assert asked == [(1 << 30, 1 << 30)] * 2


@pytest.mark.skipif(sys.platform != "linux", reason="the memory limit is the kernel's RLIMIT_AS")
def test_memory_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grading_pool, "decide", lambda gold, answer, options: (bytearray(200 << 20) == b"", answer))
    found = [grading_pool._verdict("1", "1", O, 30.0, grading_pool._allowed_memory(mib))[0] for mib in (64, 1024)]
    assert found == ["memory", "mismatch"]


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


SCRIPT = """
from stapo_eval.grading.pool import Item, grade
from stapo_eval.grading.rules import Options
if __name__ == "__main__":
    assert grade([Item("x+1", "1+x", Options())])[0].rule
"""


def test_no_module_of_the_current_folder_runs_in_the_grading_processes(tmp_path: Path) -> None:
    folder, (source, target) = (
        hostile_folder.build(tmp_path / "here"),
        (tmp_path / x for x in ("in.jsonl", "out.jsonl")),
    )
    source.write_text(json.dumps({"id": 1, "answer": "x+1", "response": r"\boxed{1+x}"}))
    hostile_folder.run(folder, "stapo-eval", "grade", "--input", source, "--output", target)
    assert json.loads(target.read_text())["rule"]
    (tmp_path / "script.py").write_text(SCRIPT)
    hostile_folder.run(folder, "python", tmp_path / "script.py")


BAD = {
    "no JSON": b'{"id": 7, "answer": "4", "respo',
    "missing": b'{"id": 1, "gold": "2", "completion": "x"}',
    "empty gold": b'{"id": 1, "answer": " ", "response": "x"}',
    "null response": b'{"id": 1, "answer": "2", "response": null}',
    "not a number": b'{"id": 1, "answer": NaN, "response": "x"}',
    "tolerance true": b'{"id": 1, "answer": "2", "response": "x", "tolerance": true}',
    "tolerance": b'{"id": 1, "answer": "2", "response": "x", "tolerance": -1}',
    "unordered": b'{"id": 1, "answer": "2", "response": "x", "unordered": "yes"}',
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_is_named_before_any_work(name: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "in.jsonl").write_bytes(b'{"id": 1, "answer": "2", "response": "x"}\n' + BAD[name] + b"\n")
    (tmp_path / "o").write_text("what was there")
    assert main(["grade", "--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "o")]) == 2
    assert "in.jsonl:2" in capsys.readouterr().err
    assert (tmp_path / "o").read_text() == "what was there"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.jsonl", "o"]


def _write(path: Path, *rows: dict) -> str:
    path.write_text("".join(json.dumps({"id": i, **r}) + "\n" for i, r in enumerate(rows)))
    return str(path)


RIGHT = {"answer": "2", "response": r"\boxed{2}"}


def test_the_input_is_never_the_output(tmp_path: Path) -> None:
    source = _write(tmp_path / "in.jsonl", RIGHT)
    before = Path(source).read_bytes()
    (tmp_path / "link").symlink_to(source)
    (tmp_path / "x").mkdir()
    for target in (source, str(tmp_path / "x" / ".." / "in.jsonl"), str(tmp_path / "link")):
        assert main(["grade", "--input", source, "--output", target]) == 2
        assert Path(source).read_bytes() == before


@pytest.mark.parametrize(
    ("name", "value"),
    [("seconds", 0), ("seconds", math.nan), ("memory_mib", 1), ("workers", -1), ("workers", 10**6)],
)
def test_limits_that_are_none_are_refused(name: str, value: float) -> None:
    with pytest.raises(BadInput) as e:
        check_limits(Limits(**{name: value}))
    assert "--" + name.replace("_", "-") in e.value.what


def test_a_line_may_carry_its_own_options(tmp_path: Path) -> None:
    rows = [
        {"answer": "3.1", "response": r"\boxed{3.15}", "tolerance": "1e-1"},
        {"answer": "3.1", "response": r"\boxed{3.15}", "tolerance": None},
        {"answer": "5", "response": r"\boxed{500 \text{ cm}}", "unit": "m"},
        {"answer": "5", "response": r"\boxed{5 \text{ cm}}", "unit": "m"},
        {"answer": "1, 2", "response": r"\boxed{2, 1}", "unordered": True},
        {"answer": "1, 2", "response": r"\boxed{2, 1}", "unordered": False},
        {"answer": ["1", "2"], "response": r"\boxed{2} and \boxed{1}"},
        {"answer": [1, 2.5], "response": r"\boxed{2.50, 1}"},
    ]
    source, target = _write(tmp_path / "in.jsonl", *rows), tmp_path / "out.jsonl"
    assert main(["grade", "--input", source, "--output", str(target)]) == 0
    verdicts = [json.loads(x)["rule"] for x in target.read_text().splitlines()]
    assert verdicts == [True, False, True, False, True, False, True, True]


def test_the_preset_and_the_answer_line_reach_the_grader(tmp_path: Path) -> None:
    source = _write(tmp_path / "in.jsonl", {"answer": "12", "response": "The final answer is $12$."})
    target = tmp_path / "o"
    for more, found in (([], None), (["--answer-line"], "$12$"), (["--preset", "math-verify"], "12")):
        assert main(["grade", "--input", source, "--output", str(target), *more]) == 0
        row = json.loads(target.read_text())
        assert (row["extracted"], row["rule"]) == (found, found is not None)


def test_only_the_first_tokens_are_graded(tmp_path: Path) -> None:
    words = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.enable_truncation(3)
    words.enable_padding(length=99)
    words.save(str(tmp_path / "tokenizer.json"))
    words.no_truncation()
    words.no_padding()
    row = {"answer": "2", "response": r"\boxed{3} is not it: \boxed{2}"}
    source, target = _write(tmp_path / "in.jsonl", row), tmp_path / "o"
    all_of_it = len(words.encode(row["response"]).tokens)
    for limit, found in ((all_of_it, "2"), (all_of_it - 1, None), (6, "3"), (100, "2"), (1, None)):
        flags = ["--max-tokens", str(limit), "--tokenizer", str(tmp_path)]
        assert main(["grade", "--input", source, "--output", str(target), *flags]) == 0
        assert json.loads(target.read_text())["extracted"] == found
    (tmp_path / "tokenizer.json").write_text('{"a":')
    for wrong in (["--max-tokens", "5"], ["--tokenizer", str(tmp_path)], flags):
        assert main(["grade", "--input", source, "--output", str(target), *wrong]) == 2
