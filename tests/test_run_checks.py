"""What is refused before anything starts, all at once, and what a dry run prints."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from driving import asked, environment, nvidia_smi

from stapo_repro import cli
from stapo_repro.run import checks, origins, stages
from stapo_repro.run.chain import main, make_stages
from stapo_repro.run.cost import Cost
from stapo_repro.run.request import console_script
from stapo_repro.run.stages import Stage
from stapo_results import terminal
from stapo_results.errors import BadInput


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", nvidia_smi(tmp_path / "smi", "exit 1"))
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda _: SimpleNamespace(total=2**40, used=2**40, free=2**30))
    empty = environment(tmp_path / "a", {"torch": "2"})
    r = asked("stapo/qwen3-14b", out=tmp_path / "o", train_env=empty, eval_env=empty)
    with pytest.raises(BadInput) as e:
        main(r)
    for part in ("4 things", "for verl", "for vllm", "too little disk", "--keep-checkpoints 1", "too few GPUs",
                 "--train-env DIR"):  # fmt: skip
        assert part in str(e.value)
    assert not (tmp_path / "o").exists()


def test_what_is_named_and_not_there_is_refused_while_a_stage_will_read_it(tmp_path: Path) -> None:
    gone = {name: tmp_path / name for name in ("weights", "data_dir")} | {"source": "mine.jsonl", "judge": "./judge"}
    r = asked("stapo/qwen2.5-coder-0.5b", out=tmp_path / "o", **gone)
    named = [("--weights", f"{tmp_path}/weights"), ("--source", "mine.jsonl"), ("--data-dir", f"{tmp_path}/data_dir"),
             ("--judge", "./judge")]  # fmt: skip
    found = [(c.name, c.problem.found) for c in checks.make_checks(r, make_stages(r), {}).made if c.problem]
    assert [x for x in found if x[0] not in ("disk", "memory", "judge's prompt")] == named
    assert checks._places(r, {"eval"}) == named[2:]  # the others have been read
    typed = asked("stapo/qwen2.5-coder-0.5b", out=tmp_path / "o", judge="models/judges/typo")
    assert checks._places(typed, {"eval"}) == [("--judge", "models/judges/typo")]
    hub = asked("stapo/qwen2.5-coder-0.5b", out=tmp_path / "o", source="OWNER/DATA", judge="OWNER/JUDGE")
    assert checks._places(hub, {"data", "eval"}) == []
    with pytest.raises(BadInput, match="without a model"):
        checks._check_place("--judge", str(tmp_path))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight cards, and the folder of an environment with all that the wings need."""
    monkeypatch.setenv("PATH", nvidia_smi(tmp_path / "smi", "seq 0 7"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return environment(tmp_path / "env", {"torch": "2", "verl": "0.9.1", "vllm": "0.32.0", "math-verify": "0.9.0"})


def test_a_dry_run_writes_nothing_and_says_all(tmp_path, machine, monkeypatch, capsys) -> None:
    monkeypatch.setattr(checks, "check_disk", lambda *given: "enough")  # 600 GiB of disk are not there
    monkeypatch.setattr(checks, "check_prompt", lambda evaluate: "asked below")
    r = asked("stapo/qwen3-8b", out=tmp_path / "o", train_env=machine, eval_env=machine, judge="my-judge", dry_run=True)
    assert main(r) == 0
    text = capsys.readouterr().out
    for part in (
        "  3. train/stapo-qwen3-8b-s0: to do\n     stapo-train run method=stapo size=qwen3-8b hardware=8gpu ",
        "about 17 d 19 h, 3,418 GPU h, disk 582.7 GiB (formula for H100, 513 s a step: generation ",
        "Still to do: 5 of 7 stages, about ",
        "ok      GPUs: 8 in this machine, 8 needed\n",
        "ok      evaluation's environment: vllm 0.32.0, math_verify 0.9.0, torch 2\n",
    ):
        assert part in text
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("cells", "jobs", "gib", "refused"),
    [(["stapo/qwen2.5-coder-0.5b"], 0, 16, ["memory"]), (["stapo/qwen2.5-coder-0.5b"], 2, 17, []),
     (["stapo/qwen2.5-coder-0.5b", "grpo/qwen2.5-coder-0.5b"], 0, 17, []),
     (["stapo/qwen2.5-coder-0.5b", "grpo/qwen2.5-coder-0.5b"], 2, 32, ["memory"]),
     (["stapo/qwen2.5-coder-0.5b", "grpo/qwen2.5-coder-0.5b"], 2, 33, []),
     (["stapo/mini"], 0, 2, ["memory"]), (["base/qwen2.5-coder-0.5b"], 0, 2, [])],
)  # fmt: skip
def test_memory_that_no_training_fits_in_is_refused_at_once(tmp_path, monkeypatch, cells, jobs, gib, refused) -> None:
    monkeypatch.setattr(checks, "usable_memory", lambda: (0, gib * 2**30))
    monkeypatch.setattr(checks, "check_disk", lambda *given: "enough")
    r = asked(*cells, out=tmp_path / "o", jobs=jobs)
    assert [c.name for c in checks.make_checks(r, make_stages(r), {}).made if c.problem] == refused


def test_the_time_side_by_side_by_hand() -> None:
    needs = {"base": (), "A": ("base",), "B": ("base",), "C": ("base",), "eval A": ("A",), "eval B": ("B",)}
    made = [Stage(name, (), Path(name), (), of) for name, of in needs.items()]
    hours = {"A": 3.0, "B": 2.0, "C": 2.0, "eval A": 1.0, "eval B": 1.0}
    # with two: C takes B's place from 2 to 4, A's evaluation A's from 3 to 4, B's begins last
    assert [stages.side_by_side(made, hours, jobs) for jobs in (1, 2, 9)] == [9.0, 5.0, 4.0]


def test_the_time_left_follows_what_ended_what_is_late_and_what_runs_say() -> None:
    of = {"train/A": (), "eval/B": ("train/A",), "tables": ("eval/B",)}
    a, b, tables = (Stage(name, (), Path(name), (), needs) for name, needs in of.items())
    expected = {a.name: 10.0, b.name: 20.0}
    for left, to_do, took, spent, told in (
        (26.0, (a, b, tables), {}, {a.name: 4.0}, {}),
        (40.0, (a, b, tables), {}, {a.name: 20.0}, {}),  # it is late: pace 2
        (25.0, (b, tables), {a.name: 15.0}, {b.name: 5.0}, {}),  # pace 1.5
        (5.0, (b, tables), {a.name: 1.0}, {b.name: 5.0}, {}),  # pace a tenth, of which the least counts: a half
        (86.0, (a, b, tables), {a.name: 30.0}, {a.name: 4.0}, {a.name: 26.0}),  # by its own progress: pace 3
        (0.5, (b, tables), {a.name: 30.0}, {b.name: 9.5}, {b.name: 0.5}),  # what it says is nearer than the pace
        (22.0, (a, b, tables), {}, {a.name: 1.0}, {a.name: 2.0}),  # it was resumed: no pace
        (0.0, (tables,), {a.name: 30.0, b.name: 9.0}, {}, {}),
    ):
        assert stages.time_left(to_do, expected, took, spent, told, 1) == left
    assert stages.time_left((a, b), {a.name: 10.0}, {}, {a.name: 4.0}, {}, 1) is None  # how long B takes is not known
    assert stages.time_left((a,), {}, {}, {a.name: 4.0}, {a.name: 3.0}, 1) == 3.0


def test_a_stage_says_what_is_left_by_its_own_progress(tmp_path, monkeypatch) -> None:
    progress = stages.Progress(tmp_path / "progress.json")
    monkeypatch.setenv(terminal.PROGRESS, str(progress.report))
    said = [progress.left(0)]
    for seconds, part, done in ((20, "train", 1), (29, "train", 2), (50, "train", 4), (90, "train", 20), (91, "x", 9)):
        terminal.report_progress(part, done, 20)
        said.append(progress.left(seconds))
    # one step is less than a tenth; three took 30 s, and 16 are left; all are done; another part
    assert said == [None, None, None, 160.0, 0.0, None]


def test_the_judges_prompt_is_asked_of_the_evaluation(tmp_path, monkeypatch) -> None:
    (other := tmp_path / "prompt.txt").write_text("{question} {gold_answer} {llm_response}")
    monkeypatch.setenv("STAPO_JUDGE_PROMPT", str(other))
    with pytest.raises(BadInput) as e:
        checks.check_prompt(console_script("stapo-eval"))
    assert f"{other} holds no published prompt" in str(e.value.found)


def test_the_miniatures_dry_run_knows_its_hours_from_records(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as e:
        cli.main(["run", "stapo/mini", "--seeds", "0,1", "--dry-run"])
    assert e.value.code == 0
    text = capsys.readouterr().out
    after = "{0}/base run.out={0}/train/stapo-s1\n     about ".format(tmp_path / "runs/miniature")
    assert "(measured: median of 5 recorded runs)" in text.partition(after)[2].splitlines()[0]
    assert "Still to do: 8 of 12 stages, about " in text
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_of_all_lists_every_cell_of_the_paper_and_refuses_with_code_2(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checks, "_asked", lambda *given: "")
    with pytest.raises(SystemExit) as e:
        cli.main(["run", "--all", "--dry-run"])
    assert e.value.code == 2
    text = capsys.readouterr().out
    assert (text.count(". train/"), text.count(". eval/")) == (12, 15)


def test_gpus_are_counted_as_far_as_they_are_visible(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.check_gpus("8gpu") == "8 in this machine, 8 needed"
    for visible, count in (("0,1,2", 3), ("-1", 0), ("0,0,0,0,0,0,0,0", 0), ("1,9,2", 1)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        with pytest.raises(BadInput) as e:
            checks.check_gpus("8gpu")
        assert e.value.found == f"{count} GPUs"


def test_what_a_begun_stage_has_written_is_not_asked_for_again(tmp_path, monkeypatch) -> None:
    """Of 7 GiB 2 are there."""
    needed = []
    monkeypatch.setattr(checks, "check_disk", lambda out, need, cure: needed.append(need))
    stages = [s for s in make_stages(asked("justrl/mini", out=tmp_path / "out")) if s.kind == "train"]
    stages[0].folder.mkdir(parents=True)
    with (stages[0].folder / "weights").open("wb") as file:
        file.truncate(2 << 30)  # without blocks on the disk
    checks.make_checks(asked("justrl/mini", out=tmp_path / "out"), stages, {stages[0].name: Cost(1, 0, 7.0, "")})
    assert needed == [5.0]


def test_an_unknown_time_does_not_hide_the_disk() -> None:
    known, unknown = Cost(1.0, 8, 2.0, ""), Cost(None, 0, 0.5, "")
    assert [checks.cost_text(known).split(", ")[-1], checks.cost_text(known, unknown).split(", ")[-1]] == [
        "disk 2.0 GiB", "disk 2.5 GiB"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("cells", "hardware", "asked_jobs", "jobs", "cards"),
    [
        (("stapo/qwen3-1.7b", "grpo/qwen3-1.7b"), "1gpu", 0, 8, 8),
        (("stapo/qwen3-1.7b",), "1gpu", 3, 3, 8),
        (("stapo/qwen3-1.7b",), "8gpu", 0, 1, 0),
        (("stapo/qwen3-1.7b",), "8gpu", 4, 1, 0),
        (("stapo/mini",), "cpu-2nodes", 2, 1, 0),
        (("stapo/mini", "justrl/mini"), "cpu", 5, 5, 0),
    ],
)
def test_stages_at_a_time_have_cards_each_and_a_cluster_has_one_stage(
    machine: Path, cells: tuple[str, ...], hardware: str, asked_jobs: int, jobs: int, cards: int
) -> None:
    found = checks.sharing(asked(*cells, hardware=hardware, jobs=asked_jobs))
    assert found[:2] == (jobs, [str(i) for i in range(cards)])


def test_stages_at_a_time_are_as_many_as_cores_and_memory_bear(monkeypatch: pytest.MonkeyPatch) -> None:
    r = asked(*(f"{m}/mini" for m in ("grpo", "entropy20", "justrl", "stapo")))
    for cores, gib, jobs in ((2, 20, 2), (8, 7, 2), (8, 2, 1), (1, 20, 1), (16, 100, 4)):
        monkeypatch.setattr(origins, "usable_cores", lambda n=cores: n)
        monkeypatch.setattr(origins, "usable_memory", lambda n=gib: (0, n * 2**30))
        assert checks.sharing(r)[0] == jobs
