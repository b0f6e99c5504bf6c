"""The stage engine with small real processes: once each, kill -9, Ctrl-C, a broken ledger, changed outputs."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from driving import nobody_left, wait_for

from stapo_repro.driver import processes, readiness, stages
from stapo_repro.driver.run import execute
from stapo_results.errors import RunFailed
from stapo_results.provenance import new_run
from stapo_results.schema import Run
from stapo_results.store import read, read_json

# Three stages: each appends a line to calls.txt when it starts. The second waits for a file (so that a test decides
# when it ends), starts a grandchild that leaves its process group, and resumes from what it left behind.
SCRIPT = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from stapo_repro.driver.run import execute
    from stapo_repro.driver.stages import Stage
    from stapo_results.terminal import run_main
    from stapo_results.provenance import new_run

    out = Path(sys.argv[1])
    def shell(name, text, outputs, needs=()):
        folder = out / name
        text = f"mkdir -p {folder} && echo {name} >> {out}/calls.txt && " + text
        return Stage(name, ("/bin/sh", "-c", text), folder, tuple(folder / o for o in outputs), needs)

    stages = [
        shell("one", f"echo 1 > {out}/one/a.txt", ["a.txt"]),
        shell("two", f"(setsid sleep 300 &) ; sleep 300 & while [ ! -e {out.parent}/go ]; do sleep 0.05; done; "
                     f"cat {out}/one/a.txt > {out}/two/b.txt; kill $!; ", ["b.txt"], ("one",)),
        shell("three", f"cat {out}/two/b.txt > {out}/three/c.txt", ["c.txt"], ("two",)),
    ]
    def main():
        record = new_run("repro", {"experiment": "a test", "quick": False}, seeds={}, deterministic=True)
        repeated = execute(out, record, stages, grace=1.0, patience=0.2)
        print("repeated:", ",".join(s.name for s in stages if s.name in repeated))
    sys.exit(run_main(main))
    """
)


def start(out: Path) -> subprocess.Popen:
    script = out.parent / "driver_script.py"
    script.write_text(SCRIPT)
    return subprocess.Popen(
        [sys.executable, str(script), str(out)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def calls(out: Path) -> list[str]:
    file = out / "calls.txt"
    return file.read_text().split() if file.exists() else []


def let_go(out: Path) -> None:
    """The second stage may end."""
    (out.parent / "go").touch()


def ended(out: Path) -> str:
    """Run the driver to its end, which must be a good one; what it says."""
    driver = start(out)
    text, _ = driver.communicate(timeout=30)
    assert driver.returncode == 0, text
    assert nobody_left(out)
    return text


def in_stage_two(out: Path) -> bool:
    return calls(out)[-1:] == ["two"] and len(processes.marked(processes.mark_of(out))) >= 3


def test_kill_9_in_the_middle_then_the_same_command_goes_on(out):
    driver = start(out)
    wait_for(lambda: in_stage_two(out))
    driver.kill()
    driver.wait()
    wait_for(lambda: nobody_left(out))  # the watchdog's work: children, grandchildren, also those of another session
    assert read_json(out / "run.json", Run).status == "running"
    let_go(out)
    text = ended(out)
    assert calls(out) == ["one", "two", "two", "three"]
    assert (out / "three" / "c.txt").read_text() == "1\n"
    assert "repeated: two,three" in text
    record = read_json(out / "run.json", Run)
    assert (record.kind, record.status, len(record.resumptions)) == ("repro", "done", 1)


def test_a_finished_run_repeats_nothing(out):
    let_go(out)
    ended(out)
    before = (out / "stages.jsonl").read_bytes()
    assert "repeated: \n" in ended(out)
    assert calls(out) == ["one", "two", "three"]
    assert (out / "stages.jsonl").read_bytes() == before


@pytest.mark.parametrize("name", ["train/stapo-s0", "tables"])
@pytest.mark.parametrize("reads", [False, True])
def test_an_unfinished_stage_that_changed_is_made_anew(out: Path, name: str, reads: bool) -> None:
    """Another command, or the same one on other inputs: what the failed attempt left is set aside."""
    folder, data = out / name, out / "data"

    def chain(changed: bool) -> list[stages.Stage]:
        word = "new" if changed else "old"
        made = f"mkdir -p {data}; echo {word if reads else 'same'} > {data}/a"
        text = f"mkdir -p {folder}; echo x >> {folder}/a; test -e {out}/go" + ("" if reads else f" # {word}")
        return [stages.Stage("data", ("/bin/sh", "-c", made), data, (data / "a",)),
                stages.Stage(name, ("/bin/sh", "-c", text), folder, (folder / "a",), ("data",))]  # fmt: skip

    record = new_run("repro", {"experiment": "a test"}, seeds={}, deterministic=True)
    with pytest.raises(RunFailed):
        execute(out, record, chain(False))
    (out / "go").touch()
    states = readiness.states(out, chain(True), stages.read_ledger(out))
    assert [s.kind for s in states.values()] == ["again" if reads else "there", "again"]
    execute(out, record, chain(True))
    assert (folder / "a").read_text() == "x\n"
    assert (out / "set-aside" / f"{name}.1" / "a").read_text() == "x\n"


def test_an_unfinished_stage_goes_on_in_another_environment(out: Path) -> None:
    folder, text = out / "one", f"mkdir -p {out}/one; echo x >> {out}/one/a; test -e {out}/go"
    record = new_run("repro", {"experiment": "a test"}, seeds={}, deterministic=True)
    here, there = ([stages.Stage("one", (program, "-c", text), folder, (folder / "a",))]
                   for program in ("/bin/sh", f"{out.parent}/sh"))  # fmt: skip
    (out.parent / "sh").symlink_to("/bin/sh")
    with pytest.raises(RunFailed):
        execute(out, record, here)
    (out / "go").touch()
    execute(out, record, there)
    assert (folder / "a").read_text() == "x\nx\n"
    assert not (out / "set-aside").exists()


def test_a_recorded_command_says_nothing_of_where_its_folder_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spelled = [("runs/m", Path("runs/m")), (str(tmp_path / "runs/m"), Path("runs/m")), ("/moved/m", Path("/moved/m"))]
    found = {
        tuple(stages.portable(("/env/bin/x", f"run.out={a}/train", "--model", f"{a}/base"), o)) for a, o in spelled
    }
    assert found == {("x", "run.out=train", "--model", "base")}
    assert stages.portable(("x", "train"), tmp_path / "m") == ["x", "train"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_ends_every_process_and_exits_130(out, number):
    driver = start(out)
    wait_for(lambda: in_stage_two(out))
    driver.send_signal(number)
    text, _ = driver.communicate(timeout=30)
    assert driver.returncode == 130, text
    assert nobody_left(out)
    events = [(e.stage, e.event) for e in read(out / "stages.jsonl", stages.StageEvent)]
    assert events == [("one", "start"), ("one", "done"), ("two", "start"), ("two", "interrupted")]
    assert read_json(out / "run.json", Run).status == "interrupted"


def test_half_written_ledger_line_is_repaired(out):
    let_go(out)
    ended(out)
    ledger = out / "stages.jsonl"
    ledger.write_bytes(ledger.read_bytes()[:-9])  # the last "done" is lost, so stage three runs again
    assert "repaired" in ended(out)
    assert calls(out) == ["one", "two", "three", "three"]


@pytest.mark.slow
def test_changed_output_is_set_aside_and_made_again(out):
    let_go(out)
    ended(out)
    (out / "two" / "b.txt").write_text("damaged\n")
    ended(out)
    assert (out / "set-aside" / "two.1" / "b.txt").read_text() == "damaged\n"
    # two gives the same bytes again, so three need not run
    assert calls(out) == ["one", "two", "three", "two"]


@pytest.mark.slow
def test_second_driver_in_one_folder_is_refused(out):
    first = start(out)
    wait_for(lambda: in_stage_two(out))
    second = start(out)
    text, _ = second.communicate(timeout=30)
    assert second.returncode == 2, text
    assert first.poll() is None
    assert not nobody_left(out)  # the refused one has touched nobody
    let_go(out)
    assert first.wait(30) == 0
