"""The run folder's protocol: one writer, refusals that name what differs, attempts on record, resuming after a kill."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from stapo_results import provenance, runs, store
from stapo_results.errors import BadInput
from stapo_results.schema import Run


def record(**changes: Any) -> Run:
    """A new run's record; `config` is merged into {"lr": 0.1, "model": {"size": "mini"}}."""
    config = {"lr": 0.1, "model": {"size": "mini"}} | changes.pop("config", {})
    new = provenance.new_run("train", config, seeds={"run": 0}, deterministic=True, revisions={"data": "a" * 64})
    return new.model_copy(update=changes)


def on_disk(folder: Path) -> Run:
    return store.read_json(folder / runs.RECORD, Run)


def finish(folder: Path, **changes: Any) -> None:
    with runs.opened(folder, record(**changes)) as run, run.working():
        pass


def refusal(folder: Path, new: Run, **more: Any) -> BadInput:
    with pytest.raises(BadInput) as e, runs.opened(folder, new, **more):
        raise AssertionError("the folder was opened")
    return e.value


@pytest.mark.parametrize(
    ("error", "status"),
    [(None, "done"), (RuntimeError, "failed"), (KeyboardInterrupt, "interrupted"), (SystemExit, "failed")],
)
def test_whatever_ends_an_attempt_is_on_record(tmp_path: Path, error: type | None, status: str) -> None:
    out, ends = tmp_path / "a/b", pytest.raises(error) if error else nullcontext()
    with runs.opened(out, record()) as run:
        assert (run.finished, run.previous, (out / runs.RECORD).exists()) == (False, None, False)
        with ends, run.working():
            assert on_disk(out).status == "running"
            run.save(notes=["half"])
            if error:
                raise error
    assert (on_disk(out).status, on_disk(out).notes, on_disk(out).resumptions) == (status, ["half"], [])


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with runs.opened(tmp_path, record()):
        assert "--there" in refusal(tmp_path, record(), flag="--there").next_step
    finish(tmp_path)  # the lock was given back


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"config": {"lr": 0.2}}, "lr: 0.1 there, 0.2 now"),
        ({"config": {"model": {"size": "1.7b"}}}, "model.size: 'mini' there, '1.7b' now"),
        ({"seeds": {"run": 1}}, "seed run: 0 there, 1 now"),
        ({"revisions": {"data": "b" * 64}}, f"revision data: '{'a' * 12}' there, '{'b' * 12}' now"),
        ({"kind": "eval"}, "kind: train there, eval now"),
    ],
)
def test_another_run_is_refused_by_the_key_that_differs(tmp_path: Path, changes: dict, found: str) -> None:
    finish(tmp_path)
    before = (tmp_path / runs.RECORD).read_bytes()
    assert refusal(tmp_path, record(**changes)).found == found
    assert (tmp_path / runs.RECORD).read_bytes() == before


def test_what_an_older_record_hides_or_leaves_empty_refuses_nothing(tmp_path: Path) -> None:
    """Records said "(redacted)" of every text under a name with "key" or "token" in it."""
    store.write_json(tmp_path / runs.RECORD, record(config={"prompt_key": "(redacted)", "a": {"b": {}}}))
    with runs.opened(tmp_path, record(config={"prompt_key": "text", "c": {}, "d": None})) as run:
        assert run.previous is not None


def test_keys_that_decide_no_number_may_differ_and_older_records_have_defaults(tmp_path: Path) -> None:
    finish(tmp_path)
    new = record(config={"lr": 0.2, "later": "off"})
    assert refusal(tmp_path, new, may_differ={"lr"}.__contains__).found == "later: None there, 'off' now"
    with runs.opened(tmp_path, new, may_differ={"lr"}.__contains__, older=lambda c: {"later": "off"} | c) as run:
        assert run.finished


def test_foreign_files_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    assert refusal(tmp_path, record()).found == "thesis.tex"
    assert [p.name for p in tmp_path.iterdir() if p.name != ".lock"] == ["thesis.tex"]
    with runs.opened(tmp_path, record(), foreign=["m.jsonl"]) as run:
        assert not run.finished


@pytest.mark.parametrize(
    ("made", "status", "binds"),
    [({}, "failed", False), ({"m.jsonl": ""}, "interrupted", False), ({"a.log": "text"}, "running", False),
     ({"m.jsonl": "{}"}, "failed", True), ({"m.jsonl/x": ""}, "running", True), ({}, "done", True)],
)  # fmt: skip
def test_an_unfinished_run_that_made_nothing_binds_nobody(tmp_path: Path, made: dict, status: str, binds: bool) -> None:
    store.write_json(tmp_path / runs.RECORD, record(status=status))
    for name, text in made.items():
        store.write_atomic(tmp_path / name, text)
    corrected = record(config={"lr": 0.2})
    if binds:
        assert refusal(tmp_path, corrected, foreign=["m.jsonl"]).found == "lr: 0.1 there, 0.2 now"
    else:
        assert runs.previous_of(tmp_path, corrected, "--out", foreign=["m.jsonl"]) is None
        assert runs.previous_of(tmp_path, record(), "--out", foreign=["m.jsonl"]) is not None


def test_seconds_are_summed_over_attempts_and_each_resumption_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(runs.time, "perf_counter", lambda: clock[0])
    first = record()

    def fail_after(seconds: float) -> None:
        clock[0] += seconds
        raise RuntimeError

    for attempt, (seconds, start) in enumerate([(10.0, ""), (2.5, "step 20"), (1.25, "step 40")]):
        new = first if not attempt else record(code_commit=f"commit{attempt}", started="later")
        with runs.opened(tmp_path, new) as run, pytest.raises(RuntimeError), run.working(start):
            fail_after(seconds)
    found = on_disk(tmp_path)
    assert (found.wall_seconds, found.run_id, found.started) == (13.75, first.run_id, first.started)
    assert [(r.start, r.code_commit) for r in found.resumptions] == [("step 20", "commit1"), ("step 40", "commit2")]


def test_a_resumption_elsewhere_says_what_was_other_there(tmp_path: Path) -> None:
    first, there = record(packages={"torch": "2.11.0", "vllm": "0.24.0"}), {"cpu": "other", "cores": 2}
    for new in (first, first, record(packages={"torch": "2.13.0+cpu", "ray": "2.60.0"}, hardware=there)):
        with runs.opened(tmp_path, new) as run, run.working():
            pass
    found = on_disk(tmp_path)
    assert (found.packages, found.hardware) == (first.packages, first.hardware)
    assert [(r.packages, r.hardware) for r in found.resumptions] == [
        ({}, {}), ({"torch": "2.13.0+cpu", "vllm": "", "ray": "2.60.0"}, there)
    ]  # fmt: skip


def test_a_killed_run_is_left_running_and_the_next_call_goes_on(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; sys.path.insert(0, 'tests'); import test_runs; from stapo_results import runs, store\n"
        f"with runs.opened({str(tmp_path)!r}, test_runs.record()) as run, run.working():\n"
        f"    open(os.path.join({str(tmp_path)!r}, '.part.json.1.tmp'), 'w').write('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, env=os.environ, check=False)
    assert done.returncode == -9
    assert on_disk(tmp_path).status == "running"
    with runs.opened(tmp_path, record()) as run:
        assert not run.finished
        with run.working("the start"):
            assert not (tmp_path / ".part.json.1.tmp").exists(), "what the kill left half-written is gone"
    found = on_disk(tmp_path)
    assert (found.status, [r.start for r in found.resumptions]) == ("done", ["the start"])


def test_what_cannot_be_written_is_refused_by_its_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folders, files = (tmp_path / "file", tmp_path / "file/below", "/proc/none"), (tmp_path, tmp_path / "file/below")
    for call, path in [*((runs.check_folder, p) for p in folders), *((runs.check_file, p) for p in files)]:
        with pytest.raises(BadInput) as e:
            call(path, "--place")
        assert e.value.what.startswith("--place ")
    runs.check_folder(tmp_path / "new/folder", "--place")
    runs.check_file(tmp_path / "new/file.json", "--place")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_command_that_makes_anew_takes_an_unfinished_run_of_another_and_no_finished_one(tmp_path: Path) -> None:
    other = record(config={"lr": 0.2})
    with runs.opened(tmp_path, record()) as run, pytest.raises(RuntimeError), run.working():
        raise RuntimeError
    assert refusal(tmp_path, record(kind="eval"), resumes=False).found == "kind: train there, eval now"
    assert runs.previous_of(tmp_path, other, "--out", resumes=False) is None
    with runs.opened(tmp_path, other, resumes=False) as run, run.working("the start"):
        assert run.previous is None
    assert (on_disk(tmp_path).run_id, on_disk(tmp_path).resumptions) == (other.run_id, [])
    assert refusal(tmp_path, record(), resumes=False).found == "lr: 0.2 there, 0.1 now"


def test_a_call_with_nothing_to_do_puts_the_record_back(tmp_path: Path) -> None:
    finish(tmp_path)
    before = (tmp_path / runs.RECORD).read_bytes()
    with runs.opened(tmp_path, record()) as run:
        with run.working("step 20"):
            assert on_disk(tmp_path).status == "running"
        run.restore()
    assert (tmp_path / runs.RECORD).read_bytes() == before


def test_variables_that_choose_instructions_are_on_record(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in provenance.ARITHMETIC:
        monkeypatch.delenv(name, raising=False)
    assert "arithmetic" not in provenance.hardware()
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert provenance.hardware()["arithmetic"] == {"MKL_CBWR": "COMPATIBLE"}


def test_a_containers_quota_is_whole_cores() -> None:
    assert [provenance.cores_of(f"{quota} 100000\n") for quota in (200_000, 150_000, 50_000)] == [2, 2, 1]
    assert provenance.cores_of("max 100000\n") > 10_000
