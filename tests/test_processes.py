"""A chain of stages: failures, orphans, environment, memory, and what is shown meanwhile."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from driving import nobody_left, wait_for

from stapo_repro.driver import processes, stages
from stapo_repro.driver.display import StageDisplay
from stapo_results.errors import RunFailed
from stapo_results.terminal import Display


def python_stage(out: Path, name: str, code: str, outputs=(), needs=()) -> stages.Stage:
    return stages.Stage(name, (sys.executable, "-c", code), out / name, tuple(outputs), tuple(needs))


def run(out: Path, *chain: stages.Stage, shown: io.StringIO | None = None) -> set[str]:
    """The stages that had to run; every look at a running stage is shown."""
    out.mkdir(exist_ok=True)
    display = StageDisplay([s.name for s in chain], Display(shown or io.StringIO(), every=0.0))
    return stages.Engine(out, display, grace=1.0, patience=0.3).run(chain)


def last(out: Path) -> stages.StageEvent:
    return stages.read_ledger(out)[-1]


def test_failed_stage_shows_its_last_lines_and_the_next_command(out):
    shown = io.StringIO()
    stage = python_stage(out, "train/a", "print(*range(100), sep='\\n'); raise SystemExit(3)")
    with pytest.raises(RunFailed) as e:
        run(out, stage, shown=shown)
    assert e.value.found == "exit code 3"
    assert "train-a.log" in e.value.next_step
    assert [x.strip() for x in shown.getvalue().splitlines()[-30:]] == [str(i) for i in range(70, 100)]
    assert (last(out).event, last(out).exit_code) == ("failed", 3)


def test_daemon_that_outlives_its_stage_is_ended_and_reported(out):
    code = "import subprocess; subprocess.Popen(['sleep', '301'], start_new_session=True)"
    shown = io.StringIO()
    run(out, python_stage(out, "a", code), shown=shown)
    (note,) = last(out).notes
    assert "sleep" in note
    assert note in shown.getvalue()
    assert nobody_left(out)


def test_descendant_that_wiped_its_environment_is_ended_even_when_its_parent_is_gone(out):
    out.mkdir()
    mark = processes.new_mark(out)
    family = processes.Family(mark)
    child = processes.start(["/bin/sh", "-c", "setsid env -i sleep 303 & sleep 303"], out / "log", mark, {}, out)
    wait_for(lambda: len(processes.marked(mark)) == 3)
    wiped = [p for p in family.members() if not p.environ()]
    assert [p.name() for p in wiped] == ["sleep"]
    child.kill()  # the wiped one is now nobody's child and carries no mark
    child.wait()
    assert wiped[0].pid not in [p.pid for p in processes.marked(mark)]
    assert processes.end_all(family, child) == []
    assert not psutil.pid_exists(wiped[0].pid) or wiped[0].status() == psutil.STATUS_ZOMBIE


@pytest.mark.slow
def test_child_that_ignores_term_is_killed(out):
    out.mkdir()
    mark = processes.new_mark(out)
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(300)"
    child = processes.start([sys.executable, "-c", code], out / "log", mark, {}, out)
    wait_for(lambda: "deaf" in (out / "log").read_text())
    assert processes.end_all(processes.Family(mark), child, grace=0.3) == []
    assert child.returncode == -signal.SIGKILL


def test_a_dead_drivers_watchdog_leaves_its_successor_alone(out):
    out.mkdir()
    old, new = processes.new_mark(out), processes.new_mark(out)
    child = processes.start(["sleep", "302"], out / "log", new, {}, out)
    processes.end_all(processes.Family(old))
    assert child.poll() is None
    processes.end_all(processes.Family(new), child)
    assert child.poll() is not None


def test_children_get_their_environment_and_progress_is_shown(out):
    code = (
        "import os, time; from stapo_results.terminal import report_progress as said\nsaid('train', 3, 8, reward=0.5)\n"
        "print(os.environ['HF_HUB_OFFLINE'], os.environ['RAY_USAGE_STATS_ENABLED'],"
        " os.environ['TOKENIZERS_PARALLELISM'])\ntime.sleep(1.2)"
    )
    shown = io.StringIO()
    run(out, python_stage(out, "train/x", code), shown=shown)
    assert "train 3/8, reward 0.500" in shown.getvalue()
    assert (out / "logs" / "train-x.log").read_text() == "1 0 false\n"
    assert (last(out).peak_mib or 0) >= 15  # at least a Python or two


def test_shared_pages_count_once():
    """Four forks of a process with 60 MiB do not make 300 MiB."""
    code = (
        "import os, sys; x = bytearray(60 << 20)\n"
        "kids = []\n"
        "for _ in range(4):\n"
        "    pid = os.fork()\n"
        "    if not pid: sys.stdin.read(); os._exit(0)\n"
        "    kids.append(pid)\n"
        "print(*kids, flush=True); sys.stdin.read()"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    kids = [int(x) for x in parent.stdout.readline().split()]
    measured = processes.Peak().sample(map(psutil.Process, [parent.pid, *kids]))
    parent.communicate()
    assert 60 << 20 <= measured <= 130 << 20
    for kid in kids:
        wait_for(lambda kid=kid: not psutil.pid_exists(kid))


def test_time_left_by_hand():
    shown = StageDisplay(["train/a", "train/b", "eval/a", "eval/b"], Display(io.StringIO()))
    # the first report comes after a start of 20 s; then 9 steps in 27 s: 30 steps are 90 s more, and the whole stage
    # takes 137; train/b like it; no evaluation has run yet
    shown.tick("train/a", report := {"stage": "train", "done": 1, "total": 40, "values": {}}, 20, 0)
    assert shown.time_left("train/a", report, 20) == "time left: ?"
    shown.tick("train/a", report := report | {"done": 10}, 47, 0)
    assert shown.time_left("train/a", report, 47) == "at least 3 min 47 s left"
    shown.end("train/a", "done", 100, 0, [])
    shown.keep("train/b", 140)
    # evaluation: two quarters in 40 s after a start of 20: 20 left, the other one takes 80
    shown.tick("eval/a", report := {"stage": "eval", "done": 1, "total": 4, "values": {}}, 20, 0)
    assert shown.time_left("eval/a", report | {"done": 3}, 60) == "1 min 40 s left"


def test_time_left_from_the_committed_run_at_this_machines_pace():
    committed = {"base": 10.0, "train": 60.0, "eval": 20.0}
    shown = StageDisplay(["base", "train/a", "eval/a", "eval/b"], Display(io.StringIO()), committed)
    assert shown.time_left("base", None, 4) == "1 min 46 s left"
    shown.end("base", "done", 20, 0, [])  # too short to say anything of the machine
    assert shown.time_left("train/a", None, 0) == "1 min 40 s left"
    shown.end("train/a", "done", 120, 0, [])  # half as fast: 40 each
    assert shown.time_left("eval/a", None, 0) == "1 min 20 s left"
    assert shown.time_left("eval/a", None, 50) == "40 s left"
