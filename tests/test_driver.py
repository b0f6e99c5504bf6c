"""Stages with small real processes: once each, kill -9, Ctrl-C, orphans, changed commands, times."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from driving import nobody_left, wait_for

from stapo_repro.run import processes, stages
from stapo_repro.run.stages import Stage, StageRunner, execute
from stapo_results import store
from stapo_results.errors import BadInput, RecordError, RunFailed
from stapo_results.provenance import new_run
from stapo_results.schema import Run
from stapo_results.store import read_json
from stapo_results.terminal import Display


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    """A run folder of the driver, not there yet; what a failed test left running in it is ended."""
    folder = tmp_path / "run"
    yield folder
    processes.Family(processes.mark_of(folder)).end()


# Four stages: each appends a line to calls.txt when it starts. The second waits for a file (so that a test decides
# when it ends), starts a grandchild that leaves its process group, and resumes from what it left behind. The fourth
# needs none of the others, and waits for the file too.
SCRIPT = textwrap.dedent(
    """
    import signal
    import sys
    from pathlib import Path
    from stapo_repro.run.stages import Stage, execute
    from stapo_results.terminal import run_main
    from stapo_results.provenance import new_run

    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    out = Path(sys.argv[1])
    def shell(name, text, outputs, needs=()):
        folder = out / name
        text = f"mkdir -p {folder} && echo {name} >> {out}/calls.txt && " + text
        return Stage(name, ("/bin/sh", "-c", text), folder, tuple(folder / o for o in outputs), needs)

    stages = [
        shell("one", f"echo 1 > {out}/one/a.txt", ["a.txt"]),
        shell("two", "trap '' TERM; (setsid sleep 300 &) ; sleep 300 & "
                     f"while [ ! -e {out.parent}/go ]; do sleep 0.05; done; "
                     f"cat {out}/one/a.txt > {out}/two/b.txt; kill $!; ", ["b.txt"], ("one",)),
        shell("three", f"cat {out}/two/b.txt > {out}/three/c.txt", ["c.txt"], ("two",)),
        shell("four", f"while [ ! -e {out.parent}/go ]; do sleep 0.05; done; touch {out}/four/d.txt", ["d.txt"]),
    ]
    def main():
        record = new_run("repro", {"experiment": "a test", "quick": False}, seeds={}, deterministic=True)
        repeated = execute(out, record, stages, grace=1.0, patience=0.2, jobs=int(sys.argv[2]))
        print("repeated:", ",".join(s.name for s in stages if s.name in repeated))
    sys.exit(run_main(main))
    """
)


def start(out: Path, jobs: int = 1) -> subprocess.Popen:
    script = out.parent / "driver_script.py"
    script.write_text(SCRIPT)
    return subprocess.Popen(
        [sys.executable, str(script), str(out), str(jobs)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def calls(out: Path) -> list[str]:
    file = out / "calls.txt"
    return file.read_text().split() if file.exists() else []


def let_go(out: Path) -> None:
    """The second stage may end."""
    (out.parent / "go").touch()


def ended(out: Path, jobs: int = 1) -> str:
    """Run the driver to its end, which must be a good one; what it says."""
    driver = start(out, jobs)
    text, _ = driver.communicate(timeout=30)
    assert driver.returncode == 0, text
    assert nobody_left(out)
    return text


def in_stage_two(out: Path) -> bool:
    return calls(out)[-1:] == ["two"] and len(processes.marked(processes.mark_of(out))) >= 3


def test_kill_9_in_the_middle_then_it_resumes_and_repeats_nothing(out):
    driver = start(out)
    wait_for(lambda: in_stage_two(out))
    driver.kill()
    driver.wait()
    wait_for(lambda: nobody_left(out))  # the watchdog's work: children, grandchildren, also those of another session
    assert read_json(out / "run.json", Run).status == "running"
    let_go(out)
    text = ended(out)
    assert calls(out) == ["one", "two", "two", "three", "four"]
    assert (out / "three" / "c.txt").read_text() == "1\n"
    assert "repeated: two,three,four" in text
    record = read_json(out / "run.json", Run)
    assert (record.kind, record.status, len(record.resumptions)) == ("repro", "done", 1)
    assert {s.name: s.attempts for s in stages.read_states(out).values()} == {"one": 1, "two": 2, "three": 1, "four": 1}
    before = (out / "stages.json").read_bytes()
    assert "repeated: \n" in ended(out)
    assert ((out / "stages.json").read_bytes(), read_json(out / "run.json", Run)) == (before, record)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupt_ends_every_process_and_exits_130(out, number):
    """And a second one changes nothing."""
    driver = start(out)
    wait_for(lambda: in_stage_two(out))
    driver.send_signal(number)
    while "ending:" not in (line := driver.stdout.readline()):
        assert line
    driver.send_signal(number)
    text, _ = driver.communicate(timeout=30)
    assert driver.returncode == 130, text
    assert nobody_left(out)
    assert {s.name: s.status for s in stages.read_states(out).values()} == {"one": "done", "two": "interrupted"}
    assert read_json(out / "run.json", Run).status == "interrupted"


def two_and_four_work(out: Path) -> bool:
    return set(calls(out)) == {"one", "two", "four"} and len(processes.marked(processes.mark_of(out))) >= 4


def test_kill_9_while_two_stages_work_costs_these_two_alone(out):
    driver = start(out, jobs=2)
    wait_for(lambda: two_and_four_work(out))
    driver.kill()
    driver.wait()
    wait_for(lambda: nobody_left(out))
    let_go(out)
    assert "repeated: two,three,four" in ended(out, jobs=2)
    assert Counter(calls(out)) == {"one": 1, "two": 2, "three": 1, "four": 2}


def test_an_interrupt_ends_both_stages_that_work(out):
    driver = start(out, jobs=2)
    wait_for(lambda: two_and_four_work(out))
    driver.send_signal(signal.SIGINT)
    driver.communicate(timeout=30)
    assert driver.returncode == 130
    assert nobody_left(out)
    states = {s.name: s.status for s in stages.read_states(out).values()}
    assert states == {"one": "done", "two": "interrupted", "four": "interrupted"}


# stages of this process


def run(out: Path, *chain: Stage, shown: io.StringIO | None = None, **how: Any) -> set[str]:
    """The stages that had to run."""
    out.mkdir(exist_ok=True)
    return StageRunner(out, Display(shown or io.StringIO(), every=0.0), grace=1.0, patience=0.3, **how).run(chain)


def shell(out: Path, name: str, text: str, *needs: str, always: bool = False) -> Stage:
    """A stage that appends a line to a file of its folder."""
    folder = out / name
    text = f"mkdir -p '{folder}'; echo x >> '{folder}/a'; {text}"
    return Stage(name, ("/bin/sh", "-c", text), folder, (folder / "a",), needs, always=always)


def test_a_run_under_nohup_outlives_its_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stages.interrupt_once():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_changed_stage_names_all_that_was_made_of_it(tmp_path: Path) -> None:
    out = tmp_path / "a run"
    rest = [shell(out, "b", "true", "a"), shell(out, "c", "true"), shell(out, "d", "true", "b")]
    run(out, shell(out, "a", "true"), *rest)
    with pytest.raises(BadInput) as e:
        run(out, shell(out, "a", ": new"), *rest)
    assert e.value.next_step.startswith(f"rm -r '{out}/a' '{out}/b' '{out}/d' ")


@pytest.mark.parametrize("finished", [False, True])
def test_what_another_command_made_is_refused_and_made_anew_once_removed(out: Path, finished: bool) -> None:
    old, new = shell(out, "train/a", f": old; test -e {out}/go"), shell(out, "train/a", "true")
    out.mkdir()
    if finished:
        (out / "go").touch()
        run(out, old)
    else:
        with pytest.raises(RunFailed):
            run(out, old)
    with pytest.raises(BadInput) as e:
        run(out, new)
    assert (": old;" in str(e.value.found), ": old;" in str(e.value.expected)) == (True, False)
    assert e.value.next_step.startswith(f"rm -r {out / 'train' / 'a'} ")
    assert (out / "train" / "a" / "a").read_text() == "x\n"
    (out / "train" / "a" / "a").unlink()
    (out / "train" / "a").rmdir()
    assert run(out, new) == {"train/a"}
    assert stages.read_states(out)["train/a"].attempts == 1


def with_words(stage: Stage, *words: str) -> Stage:
    return replace(stage, command=(*stage.command, *words))


def test_the_wing_is_asked_whether_it_takes_another_judge(out: Path) -> None:
    evaluation = shell(out, "eval/a", "true")
    calls = [(), ("--judge", "a"), ("--judge", "b"), ("--judge", "b"), ()]
    assert [len(run(out, with_words(evaluation, *words))) for words in calls] == [1, 1, 1, 0, 1]


def test_another_address_of_the_cluster_makes_nothing_anew(out: Path) -> None:
    training, address = shell(out, "train/a", "true"), "+ray_kwargs.ray_init.address="
    run(out, with_words(training, f"{address}a:1", "--ray-address", "a:1"))
    assert run(out, with_words(training, f"{address}b:2", "--ray-address", "b:2")) == set()


def test_a_stage_that_goes_on_with_fewer_checkpoints_keeps_what_it_took(out: Path) -> None:
    training = shell(out, "train/a", f"test -e {out}/go")
    with pytest.raises(RunFailed):
        run(out, training)
    (out / "go").touch()
    run(out, with_words(training, "trainer.max_actor_ckpt_to_keep=1"))
    assert stages.read_states(out)["train/a"].attempts == 2


def test_fewer_checkpoints_make_nothing_anew_nor_a_judge_that_was_not_asked_yet(out: Path) -> None:
    def training(*keep: str) -> Stage:
        return with_words(shell(out, "train/a", "true"), *keep)

    def asked(**values: object) -> Run:
        return new_run("repro", {"experiment": "a test", "quick": False, **values}, seeds={}, deterministic=True)

    first = asked(judge="none", programs=["/a/stapo-eval"], methods=["stapo"], seeds=[0])
    second = asked(judge="verifier", programs=["/b/stapo-eval"], methods=["justrl", "stapo"], seeds=[0, 1])
    assert execute(out, first, [training()]) == {"train/a"}
    assert execute(out, second, [training("trainer.max_actor_ckpt_to_keep=1")]) == set()
    with pytest.raises(BadInput, match="experiment"):
        execute(out, second.model_copy(update={"config": second.config | {"experiment": "another"}}), [training()])


def test_a_stage_is_asked_again_when_an_input_ended_later_and_a_page_always(out: Path) -> None:
    chain = [shell(out, "a", ""), shell(out, "b", "", "a"), shell(out, "page", "", always=True)]
    assert run(out, *chain) == {"a", "b", "page"}
    assert run(out, *chain) == {"page"}
    (out / "a" / "a").unlink()
    with pytest.raises(RunFailed):  # a is made again, and the driver dies before it comes to b
        run(out, chain[0], shell(out, "other", "false"))
    assert run(out, *chain) == {"b", "page"}


def test_a_run_folder_says_itself_whether_it_is_done(out: Path) -> None:
    folder = out / "train"
    folder.mkdir(parents=True)
    record = new_run("train", {}, seeds={}, deterministic=True)
    store.write_json(folder / "run.json", record.model_copy(update={"status": "done"}))
    stage = Stage("train", ("/bin/true",), folder, (folder / "run.json",))
    assert [run(out, stage), run(out, stage)] == [{"train"}, set()]
    store.write_json(folder / "run.json", record)
    with pytest.raises(RunFailed, match="train failed"):
        run(out, stage)


def test_a_recorded_command_says_nothing_of_where_its_folder_lies(tmp_path, monkeypatch) -> None:
    (scratch := tmp_path / "scratch").mkdir()
    out = tmp_path / "runs/m"
    out.mkdir(parents=True)
    (out / "train").symlink_to(scratch)  # moved to another disk
    (tmp_path / "linked").symlink_to(out)
    monkeypatch.chdir(out)  # where "run" would be a path below it
    found = {
        stages.portable(("/env/bin/x", "run", f"run.out={a}/train", "--model", f"{a}/base"), a)
        for a in (out, tmp_path / "linked", Path("/moved/m"))
    }
    assert found == {("x", "run", "run.out=train", "--model", "base")}


def test_a_broken_record_of_stages_says_what_helps(out: Path) -> None:
    run(out, shell(out, "a", "true"))
    (out / stages.FILE).write_text("{")
    with pytest.raises(RecordError) as e:
        stages.read_states(out)
    assert str(e.value.next_step).startswith(f"rm {out}/stages.json ")


def test_failed_stage_shows_its_last_lines_and_the_next_command(out):
    shown = io.StringIO()
    with pytest.raises(RunFailed) as e:
        run(out, shell(out, "train/a", "seq 0 99; exit 3"), shown=shown)
    assert e.value.found == "exit code 3"
    assert "train-a.log" in e.value.next_step
    assert [x.strip() for x in shown.getvalue().splitlines()[-30:]] == [str(i) for i in range(70, 100)]
    assert stages.read_states(out)["train/a"].status == "failed"


# processes


def test_daemon_that_outlives_its_stage_is_ended_and_reported(out):
    shown = io.StringIO()
    run(out, shell(out, "a", "(setsid sleep 301 &)"), shown=shown)
    assert "outlived it and were ended: " in shown.getvalue()
    assert nobody_left(out)


def test_descendant_that_wiped_its_environment_is_ended_even_when_its_parent_is_gone(out):
    out.mkdir()
    mark = processes.new_mark(out)
    family = processes.Family(mark)
    child = processes.start(["/bin/sh", "-c", "setsid env -i sleep 303 & sleep 303"], out / "log", mark, {})
    wait_for(lambda: [p.name() for p in family.members() if not p.environ()] == ["sleep"])
    wiped = [p for p in family.members() if not p.environ()]
    child.kill()  # the wiped one is now nobody's child and carries no mark
    child.wait()
    assert wiped[0].pid not in [p.pid for p in processes.marked(mark)]
    family.end(child)
    assert not psutil.pid_exists(wiped[0].pid) or wiped[0].status() == psutil.STATUS_ZOMBIE


@pytest.mark.slow
def test_child_that_ignores_term_is_killed(out):
    out.mkdir()
    mark = processes.new_mark(out)
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(300)"
    child = processes.start([sys.executable, "-c", code], out / "log", mark, {})
    wait_for(lambda: "deaf" in (out / "log").read_text())
    processes.Family(mark).end(child, grace=0.3)
    assert nobody_left(out)
    assert child.returncode == -signal.SIGKILL


def test_an_ending_that_was_interrupted_is_ended_by_the_watchdog(out):
    out.mkdir()
    mark = processes.new_mark(out)
    watched = processes.watched(mark)
    watched.__enter__()
    child = processes.start(["sleep", "303"], out / "log", mark, {})
    watched.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert child.wait(1) == -signal.SIGTERM


def test_a_dead_drivers_watchdog_leaves_its_successor_alone(out):
    out.mkdir()
    old, new = processes.new_mark(out), processes.new_mark(out)
    child = processes.start(["sleep", "302"], out / "log", new, {})
    processes.Family(old).end()
    assert child.poll() is None
    processes.Family(new).end(child)
    assert child.poll() is not None


def test_what_a_killed_run_left_behind_is_ended_before_the_first_stage(out: Path) -> None:
    out.mkdir()
    child = processes.start(["sleep", "303"], out / "log", processes.new_mark(out), {})
    run(out, shell(out, "a", "true"))
    assert child.poll() is not None


def test_children_get_their_environment_and_progress_is_shown(out):
    code = (
        "import os, time; from stapo_results.terminal import report_progress as said\nsaid('train', 3, 8, reward=0.5)\n"
        "print(os.environ['HF_HUB_OFFLINE'], os.environ['RAY_USAGE_STATS_ENABLED'],"
        " os.environ['TOKENIZERS_PARALLELISM'])\ntime.sleep(1.2)"
    )
    shown = io.StringIO()
    run(out, Stage("train/x", (sys.executable, "-c", code), out / "x", ()), shown=shown)
    run(out, Stage("y", (sys.executable, "-c", code), out / "y", (), environment={"HF_HUB_OFFLINE": "0"}))
    assert "train 3/8" in shown.getvalue()
    assert [(out / "logs" / f"{name}.log").read_text() for name in ("train-x", "y")] == ["1 0 false\n", "0 0 false\n"]
    assert stages.read_states(out)["train/x"].peak_mib >= 5  # at least a Python


# side by side


def beside(out: Path, name: str, other: str, *needs: str, cards: int = 0) -> Stage:
    """A stage that ends well only while the other one has begun within five seconds."""
    text = f"for i in $(seq 100); do test -e '{out}/{other}/a' && exit 0; sleep 0.05; done; exit 1"
    return replace(shell(out, name, text, *needs), cards=cards)


def test_two_stages_run_side_by_side_and_a_third_after_what_it_needs(out: Path) -> None:
    chain = [beside(out, "a", "b"), beside(out, "b", "a"), shell(out, "c", f"test -e '{out}/b/a'", "a", "b")]
    assert run(out, *chain, jobs=2) == {"a", "b", "c"}
    assert list(stages.read_states(out))[-1] == "c"
    assert {s.attempts for s in stages.read_states(out).values()} == {1}
    assert run(out, *chain, jobs=2) == set()


def test_a_failure_lets_the_stage_beside_it_end_and_starts_nothing(out: Path) -> None:
    chain = [shell(out, "a", "exit 3"), shell(out, "b", "sleep 0.5"), shell(out, "c", "")]
    with pytest.raises(RunFailed, match="the stage a failed"):
        run(out, *chain, jobs=2)
    assert {n: s.status for n, s in stages.read_states(out).items()} == {"a": "failed", "b": "done"}
    assert nobody_left(out)


def test_no_card_is_given_twice_and_a_free_one_waits_for_no_stage(out: Path) -> None:
    """Three stages of one card, on two cards: the third gets the card of the first that ends."""
    log, go = out / "log", out.parent / "go"
    note = f"echo $CUDA_VISIBLE_DEVICES >> '{log}'"
    waits = f"{note}; for i in $(seq 400); do test -e '{go}' && exit 0; sleep 0.05; done; exit 1"
    chain = [shell(out, "a", waits), shell(out, "b", note), shell(out, "c", f"{note}; touch '{go}'")]
    run(out, *(replace(s, cards=1) for s in chain), jobs=3, cards=("3", "GPU-7"))
    assert sorted(log.read_text().split()) == ["3", "GPU-7", "GPU-7"]
