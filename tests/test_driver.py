"""The stage engine with small real processes: once each, kill -9, Ctrl-C, orphans, changed outputs, failures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from stapo_repro import display, processes, stages
from stapo_repro.driver import check_parameters, methods_of_cells, plan
from stapo_repro.driver import main as driver_main
from stapo_repro.memory import Peak, pss_bytes
from stapo_repro.plan import console_script, make_stages
from stapo_results.errors import BadInput, RunFailed
from stapo_results.store import read

# Three stages: each appends a line to calls.txt when it starts. The second waits for a file (so that a test decides
# when it ends), starts a grandchild that leaves its process group, and resumes from what it left behind.
SCRIPT = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from stapo_repro.driver import execute
    from stapo_repro.stages import Stage
    from stapo_results.console import run_main

    out = Path(sys.argv[1])
    def shell(name, text, outputs, needs=()):
        folder = out / name
        text = f"mkdir -p {folder} && echo {name} >> {out}/calls.txt && " + text
        return Stage(name, ("/bin/sh", "-c", text), folder, tuple(folder / o for o in outputs), needs)

    stages = [
        shell("one", f"echo 1 > {out}/one/a.txt", ["a.txt"]),
        shell("two", f"(setsid sleep 300 &) ; sleep 300 & while [ ! -e {out}/go ]; do sleep 0.05; done; "
                     f"cat {out}/one/a.txt > {out}/two/b.txt; kill $!; ", ["b.txt"], ("one",)),
        shell("three", f"cat {out}/two/b.txt > {out}/three/c.txt", ["c.txt"], ("two",)),
    ]
    def main():
        outcomes = execute(stages, out, grace=1.0, patience=0.2)
        print("repeated:", ",".join(k for k, o in outcomes.items() if o.repeated))
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


def wait_for(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def nobody_left(out: Path) -> bool:
    return not processes.marked(processes.mark_of(out))


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "run"
    yield folder
    processes.end_all(processes.Family(processes.mark_of(folder)))  # whatever a failed test left


def in_stage_two(out: Path) -> bool:
    return calls(out)[-1:] == ["two"] and len(processes.marked(processes.mark_of(out))) >= 3


def test_kill_9_in_the_middle_then_the_same_command_goes_on(out):
    driver = start(out)
    wait_for(lambda: in_stage_two(out))
    driver.kill()
    driver.wait()
    wait_for(lambda: nobody_left(out))  # the watchdog's work: children, grandchildren, also those of another session
    (out / "go").touch()
    again = start(out)
    text, _ = again.communicate(timeout=30)
    assert again.returncode == 0, text
    assert calls(out) == ["one", "two", "two", "three"]
    assert (out / "three" / "c.txt").read_text() == "1\n"
    assert "repeated: two,three" in text
    assert "two was cut off: it goes on" in text
    assert nobody_left(out)


def test_a_finished_run_repeats_nothing(out):
    out.mkdir()
    (out / "go").touch()
    assert start(out).wait(30) == 0
    before = (out / "stages.jsonl").read_bytes()
    again = start(out)
    text, _ = again.communicate(timeout=30)
    assert again.returncode == 0
    assert "repeated: \n" in text
    assert calls(out) == ["one", "two", "three"]
    assert (out / "stages.jsonl").read_bytes() == before


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


def test_half_written_ledger_line_is_repaired(out):
    out.mkdir()
    (out / "go").touch()
    assert start(out).wait(30) == 0
    ledger = out / "stages.jsonl"
    ledger.write_bytes(ledger.read_bytes()[:-9])  # the last "done" is lost, so stage three runs again
    again = start(out)
    text, _ = again.communicate(timeout=30)
    assert again.returncode == 0
    assert "repaired" in text
    assert calls(out) == ["one", "two", "three", "three"]


def test_changed_output_is_set_aside_and_made_again(out):
    out.mkdir()
    (out / "go").touch()
    assert start(out).wait(30) == 0
    (out / "two" / "b.txt").write_text("damaged\n")
    again = start(out)
    text, _ = again.communicate(timeout=30)
    assert again.returncode == 0
    assert "two is made again: its outputs were changed after it ended" in text
    assert (out / "set-aside" / "two.1" / "b.txt").read_text() == "damaged\n"
    # two gives the same bytes again, so three need not run
    assert calls(out) == ["one", "two", "three", "two"]


def test_second_driver_in_one_folder_is_refused(out):
    first = start(out)
    wait_for(lambda: in_stage_two(out))
    second = start(out)
    text, _ = second.communicate(timeout=30)
    assert second.returncode == 2
    assert "another driver works in" in text
    assert first.poll() is None
    assert not nobody_left(out)  # the refused one has touched nobody
    (out / "go").touch()
    assert first.wait(30) == 0


class Recorder(display.Plain):
    def __init__(self, chain):
        super().__init__(chain)
        self.lines: list[str] = []

    def say(self, text):
        self.lines.append(text)


def python_stage(out: Path, name: str, code: str, outputs=(), needs=()) -> stages.Stage:
    return stages.Stage(name, (sys.executable, "-c", code), out / name, tuple(outputs), tuple(needs))


def run(out: Path, chain) -> tuple[Recorder, dict]:
    out.mkdir(exist_ok=True)
    seen = Recorder(chain)
    return seen, stages.Engine(out, seen, grace=1.0, patience=0.3).run(chain)


def test_failed_stage_shows_its_last_lines_and_the_next_command(out):
    chain = [python_stage(out, "train/a", "print(*range(100), sep='\\n'); raise SystemExit(3)")]
    out.mkdir()
    seen = Recorder(chain)
    with pytest.raises(RunFailed, match="train/a failed") as e:
        stages.Engine(out, seen, patience=0.3).run(chain)
    assert e.value.found == "exit code 3"
    assert "train-a.log" in e.value.next_step
    assert [x.strip() for x in seen.lines[-30:]] == [str(i) for i in range(70, 100)]


def test_stage_without_its_output_has_failed(out):
    with pytest.raises(RunFailed) as e:
        run(out, [python_stage(out, "a", "pass", [out / "a" / "model"])])
    assert "ended with 0" in str(e.value)
    assert str(out / "a" / "model") in str(e.value)


def test_daemon_that_outlives_its_stage_is_ended_and_reported(out):
    code = "import subprocess; subprocess.Popen(['sleep', '301'], start_new_session=True)"
    seen, outcomes = run(out, [python_stage(out, "a", code)])
    assert any("sleep" in note for note in outcomes["a"].notes)
    assert any("outlived the stage" in line for line in seen.lines)
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


def test_children_get_their_environment_and_progress_is_read(out):
    code = (
        "import os, time; from stapo_results.progress import report; report('train', 3, 8, reward=0.5)\n"
        "print(os.environ['HF_HUB_OFFLINE'], os.environ['RAY_USAGE_STATS_ENABLED'],"
        " os.environ['TOKENIZERS_PARALLELISM'])\ntime.sleep(1.2)"
    )
    reports = []

    class Ticks(Recorder):
        def tick(self, stage, report, seconds, peak):
            reports.append((report, peak))

    chain = [python_stage(out, "train/x", code)]
    out.mkdir()
    outcomes = stages.Engine(out, Ticks(chain), patience=0.3).run(chain)
    assert reports[-1][0] == {"stage": "train", "done": 3, "total": 8, "values": {"reward": 0.5}}
    assert (out / "logs" / "train-x.log").read_text() == "1 0 false\n"
    assert outcomes["train/x"].peak_mib >= 15  # at least a Python or two


def test_changed_command_runs_again(out):
    first = python_stage(out, "a", f"import pathlib; pathlib.Path({str(out / 'a.txt')!r}).write_text('1')")
    run(out, [first])
    second = python_stage(out, "a", f"import pathlib; pathlib.Path({str(out / 'a.txt')!r}).write_text('2')")
    seen, outcomes = run(out, [second])
    assert outcomes["a"].repeated
    assert "a is made again: its command changed" in seen.lines
    assert (out / "a.txt").read_text() == "2"


def test_peak_sees_a_block_of_memory():
    code = "x = bytearray(80 << 20); print('there', flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    child.stdout.readline()
    peak = Peak()
    measured = peak.sample([child.pid])
    child.communicate("\n")
    assert 80 << 20 <= measured <= 130 << 20
    assert peak.sample([child.pid]) == measured  # it is gone, the peak stays
    assert pss_bytes(child.pid) is None


def test_shared_pages_count_once(tmp_path):
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
    measured = Peak().sample([parent.pid, *kids])
    parent.communicate()
    assert 60 << 20 <= measured <= 130 << 20
    for kid in kids:
        wait_for(lambda kid=kid: not psutil.pid_exists(kid))


def test_time_left_by_hand():
    chain = [stages.Stage(n, ("x",), Path("x"), ()) for n in ("train/a", "train/b", "eval/a", "eval/b")]
    left = display.TimeLeft(chain)
    # 10 of 40 steps in 30 s: 90 s more; train/b like it: 120 s; no evaluation has run yet
    report = {"stage": "train", "done": 10, "total": 40, "values": {}}
    assert left.text(chain[0], report, 30) == "01:30 left in this stage, at least 03:30 in all"
    left.leave(chain[0], 100)
    left.leave(chain[1], 140)
    # evaluation: 20 s spent on a quarter, 60 left, the other one 80
    report = {"stage": "eval", "done": 1, "total": 4, "values": {}}
    assert left.text(chain[2], report, 20) == "01:00 left in this stage, 02:20 in all"


def test_values_are_shown_with_their_units():
    values = {"reward": 0.71259, "silenced_share": 0.00153, "phase": "update"}
    assert display.values_text(values) == "reward 0.713, silenced 0.15 %, phase update"
    assert display.clock(3725.4) == "1:02:05"
    assert display.clock(59.6) == "01:00"


def miniature(out: Path, **changed):
    given = {"quick": False, "seeds": "0", "methods": None, "steps": None, "data_dir": None, "out": out, **changed}
    return plan(**given)


def test_stages_of_the_miniature(tmp_path, monkeypatch):
    monkeypatch.setattr("stapo_repro.plan.console_script", lambda name: name)
    names = [s.name for s in make_stages(miniature(tmp_path, quick=True, seeds="0,1"))]
    runs = ["justrl-s0", "stapo-s0", "justrl-s1", "stapo-s1"]
    assert names == [
        "base",
        *(f"train/{r}" for r in runs),
        *(f"export/{r}" for r in runs),
        "eval/base",
        *(f"eval/{r}" for r in runs),
        "tables",
        "figures",
    ]


def test_commands_of_the_miniature(tmp_path, monkeypatch):
    monkeypatch.setattr("stapo_repro.plan.console_script", lambda name: name)
    data = Path("data")
    by = {s.name: " ".join(s.command) for s in make_stages(miniature(Path("o"), methods="stapo", data_dir=data))}
    assert by["base"] == "stapo-train base --out o/base --seed 0"
    assert by["train/stapo-s0"] == (
        "stapo-train run method=stapo size=mini hardware=cpu task=mini-add run.seed=0 run.steps=40 run.base=o/base "
        "run.out=o/train/stapo-s0"
    )
    assert by["export/stapo-s0"] == "stapo-train export --checkpoint o/train/stapo-s0 --out o/models/stapo-s0"
    assert by["eval/stapo-s0"] == (
        "stapo-eval run --model o/models/stapo-s0 --benchmarks mini-add,mini-add-hard --settings both "
        "--data-dir o/base/benchmarks --engine hf --judge o/base/model --max-tokens 256 --out o/eval/stapo-s0"
    )
    assert by["eval-real/base"].startswith(
        "stapo-eval run --model o/base/model --benchmarks aime24,aime25,amc23,math500,minerva,olympiadbench "
        "--settings both --data-dir data"
    )
    assert by["tables"] == "stapo-repro tables --records o/eval o/train o/eval-real --out o/tables"


def test_every_stage_needs_only_earlier_ones(tmp_path, monkeypatch):
    monkeypatch.setattr("stapo_repro.plan.console_script", lambda name: name)
    chain = make_stages(miniature(tmp_path, seeds="0,1", data_dir=tmp_path))
    for i, stage in enumerate(chain):
        assert set(stage.needs) <= {s.name for s in chain[:i]}


def ablation(out: Path, **changed):
    given = {"quick": False, "seeds": None, "methods": None, "steps": None, "data_dir": None, "out": out, **changed}
    return plan(**given, kind="ablation")


def test_stages_of_the_ablation(tmp_path, monkeypatch):
    monkeypatch.setattr("stapo_repro.plan.console_script", lambda name: name)
    chain = make_stages(ablation(tmp_path))
    names = [s.name for s in chain]
    methods = ["justrl", "justrl-fullmask", "stapo-high-entropy", "stapo-random", "stapo"]
    runs = [f"{m}-s{s}" for s in (0, 1, 2) for m in methods]
    assert names == [
        "base",  # once: all seeds start from one base model
        *(f"train/{r}" for r in runs),
        *(f"export/{r}" for r in runs),
        "eval/base",
        *(f"eval/{r}" for r in runs),
        "tables",
        "figures",
    ]
    assert len(set(names)) == len(names) == 1 + 3 * 15 + 1 + 2
    for i, stage in enumerate(chain):
        assert set(stage.needs) <= set(names[:i])
    # its table holds accuracies and entropies: it is made again when either changes
    assert set(chain[-2].needs) == {*(f"train/{r}" for r in runs), "eval/base", *(f"eval/{r}" for r in runs)}


def test_commands_of_the_ablation(monkeypatch):
    monkeypatch.setattr("stapo_repro.plan.console_script", lambda name: name)
    by = {s.name: " ".join(s.command) for s in make_stages(ablation(Path("o")))}
    assert by["train/stapo-random-s2"] == (
        "stapo-train run method=stapo-random size=mini hardware=cpu task=mini-add run.seed=2 run.steps=40 "
        "run.base=o/base run.out=o/train/stapo-random-s2"
    )
    assert by["eval/stapo-random-s2"].startswith("stapo-eval run --model o/models/stapo-random-s2 ")
    assert by["tables"] == "stapo-repro tables --of ablation --records o/eval o/train --out o/tables"
    assert by["figures"] == "stapo-repro figures --of ablation --records o/eval o/train --out o/figures"


def test_quick_ablation_has_one_seed_and_two_steps(tmp_path):
    quick = ablation(tmp_path, quick=True, methods="stapo,justrl")
    assert (quick.seeds, quick.steps, quick.methods) == ((0,), 2, ("stapo", "justrl"))
    assert len(ablation(tmp_path, quick=True).methods) == 5


def test_each_kind_knows_its_own_methods(tmp_path):
    with pytest.raises(BadInput, match="cannot be used") as e:
        ablation(tmp_path, methods="grpo")
    assert "stapo-high-entropy" in str(e.value)
    with pytest.raises(BadInput, match="cannot be used"):
        miniature(tmp_path, methods="stapo-random")


def test_an_ablation_does_not_go_on_in_a_miniatures_folder(tmp_path):
    out = tmp_path / "o"
    out.mkdir()
    check_parameters(miniature(out, methods="stapo"))
    with pytest.raises(BadInput) as e:
        check_parameters(ablation(out, methods="stapo", seeds="0"))
    assert "kind miniature" in str(e.value)
    assert "kind ablation" in str(e.value)


def test_folder_of_an_earlier_version_is_a_miniature(tmp_path):
    out = tmp_path / "o"
    out.mkdir()
    check_parameters(miniature(out))
    file = out / "parameters.json"
    values = json.loads(file.read_text())
    del values["kind"]
    file.write_text(json.dumps(values))
    check_parameters(miniature(out))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"methods": "ppo"}, "ppo"),
        ({"methods": "stapo,stapo"}, "at most once"),
        ({"seeds": "one"}, "whole numbers"),
        ({"seeds": "0,0"}, "each seed once"),
        ({"steps": 0}, "needs a step"),
    ],
)
def test_parameters_are_checked(tmp_path, changed, message):
    with pytest.raises(BadInput) as e:
        miniature(tmp_path, **changed)
    assert message in str(e.value)


def test_folder_of_other_parameters_is_refused(tmp_path):
    out = tmp_path / "o"
    out.mkdir()
    check_parameters(miniature(out))
    check_parameters(miniature(out))
    with pytest.raises(BadInput) as e:
        check_parameters(miniature(out, steps=60))
    assert "steps 40" in str(e.value)
    assert "steps 60" in str(e.value)


def test_foreign_folder_is_refused(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(BadInput, match="holds no run"):
        check_parameters(miniature(tmp_path))


def test_cells():
    assert methods_of_cells(["stapo/mini", "grpo/mini", "stapo/mini"]) == "grpo,stapo"
    with pytest.raises(BadInput) as e:
        methods_of_cells(["stapo/qwen3-1.7b"])
    assert "stapo-train data" in str(e.value)
    with pytest.raises(BadInput, match="no such cell"):
        methods_of_cells(["stapo"])


# Stands in for the two other wings: writes small synthetic outputs where the real commands would.
WINGS = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    import synthetic_records as synthetic
    command, arguments = sys.argv[1], sys.argv[2:]
    named = dict(a.split("=") for a in arguments if "=" in a)
    after = lambda name: Path(arguments[arguments.index(name) + 1])
    if command == "base":
        for name in ("model", "data", "benchmarks"):
            (after("--out") / name).mkdir(parents=True)
            (after("--out") / name / "file").write_text(name)
    elif command == "run" and named:
        out = Path(named["run.out"])
        synthetic.training_run(out.parent, named["method"], int(named["run.seed"]), int(named["run.steps"]))
        (out / "checkpoints").mkdir()
    elif command == "export":
        after("--out").mkdir(parents=True)
        (after("--out") / "weights").write_text("w")
    else:
        out = after("--out")
        method, _, seed = out.name.rpartition("-s")
        method, seed = method or out.name, int(seed) if method else 0
        right = {"base": "1000", "justrl": "1100", "stapo": "1110"}[method]
        for name in ("samples.jsonl", "verdicts.jsonl"):
            out.mkdir(parents=True, exist_ok=True)
            (out / name).touch()
        for benchmark in ("mini-add", "mini-add-hard"):
            for setting in ("t1.0", "t0.7"):
                verdicts = [right, right[1:] + "0"] * 8
                synthetic.cell(out.parent, method, benchmark, setting, verdicts, seed=seed, folder=out.name)
    """
)


@pytest.fixture
def stand_ins(tmp_path, monkeypatch):
    """The other wings' commands replaced by ones that write made-up records at once."""
    wings = tmp_path / "wings.py"
    wings.write_text(WINGS)
    script = tmp_path / "wing"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={Path(__file__).parent} exec {sys.executable} {wings} "$@"\n')
    script.chmod(0o755)
    real = console_script
    monkeypatch.setattr("stapo_repro.plan.console_script", lambda n: real(n) if n == "stapo-repro" else str(script))
    monkeypatch.setenv("COLUMNS", "120")


@pytest.mark.usefixtures("stand_ins")
def test_whole_chain_with_stand_ins_ends_with_table_figures_and_summary(tmp_path, capsys):
    out = tmp_path / "run"
    assert driver_main(miniature(out, quick=True)) == 0
    text = capsys.readouterr().out
    # problem means alternate .75 .5 (STAPO) and .25 0 (base): 62.5 against 12.5, every difference .5
    assert "62.50 (62.50)" in text
    assert "STAPO minus base on mini-add: +50.0 points (50.0 to 50.0)" in text
    assert "peak memory" in text
    for name in ("tables/main_table.md", "figures/miniature_training_curves.png", "stages.jsonl"):
        assert (out / name).stat().st_size > 0
    ledger = (out / "stages.jsonl").read_bytes()
    assert driver_main(miniature(out, quick=True)) == 0
    assert (out / "stages.jsonl").read_bytes() == ledger
    assert capsys.readouterr().out.count("finished before") == 2 * 10  # each stage kept, and said so in the summary


@pytest.mark.usefixtures("stand_ins")
def test_whole_ablation_with_stand_ins_judges_the_claims(tmp_path, capsys):
    out = tmp_path / "run"
    assert driver_main(ablation(out, methods="justrl,stapo")) == 0
    text = capsys.readouterr().out
    # STAPO 62.5 and JustRL 37.5 for every seed, every problem 25 points apart
    assert "STAPO              62.50" in text
    assert "holds               stapo-beats-justrl-at-training-temperature: +25.0000, +25.0000 to +25.0000" in text
    assert "not run             low-entropy-mask-beats-random-mask: not run" in text
    assert "tables/ablation.md" in text.replace("\n", "")
    for name in ("tables/ablation.md", "tables/ablation.json", "figures/ablation_training_curves.png"):
        assert (out / name).stat().st_size > 0
    assert not (out / "tables" / "main_table.md").exists()
    assert "High-entropy mask seeds 0, 1, 2" in (out / "tables" / "ablation.md").read_text()
    # its trainings are read by the tables stage: another one is another table
    metrics = out / "train" / "stapo-s1" / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"entropy":0.', '"entropy":1.'))
    assert driver_main(ablation(out, methods="justrl,stapo")) == 0
    text = capsys.readouterr().out
    assert "train/stapo-s1 is made again" in text


def test_command_line_refuses_with_code_2(tmp_path):
    command = [sys.executable, "-m", "stapo_repro.cli", "run", "stapo/qwen3-8b"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=dict(os.environ))
    assert done.returncode == 2
    assert "qwen3-8b" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_ledger_lines_hold_what_was_promised(out):
    run(out, [python_stage(out, "a", "pass")])
    start_line, done = (json.loads(x) for x in (out / "stages.jsonl").read_text().splitlines())
    assert (start_line["event"], done["event"]) == ("start", "done")
    assert done["command"][0] == sys.executable
    assert done["code"]
    assert done["seconds"] >= 0
    # sha256 of nothing: the stage has no outputs
    assert done["outputs"] == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
