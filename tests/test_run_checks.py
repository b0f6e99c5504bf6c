"""What is refused before anything starts, all at once, and what a dry run prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from driving import asked, environment, with_cards

from stapo_repro import cli
from stapo_repro.run import checks
from stapo_repro.run.chain import main, make_stages
from stapo_repro.run.request import cpu_run, of_testbed
from stapo_results.errors import BadInput


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    empty = environment(tmp_path / "a", {})
    r = asked("stapo/qwen3-8b", out=tmp_path / "o", train_env=empty, eval_env=empty, data_dir=tmp_path)
    with pytest.raises(BadInput) as e:
        main(r)
    for part in ("5 things", "aime24.jsonl", "no verl, no vllm, no torch", "no vllm, no math_verify", "too little disk",
                 "--keep-checkpoints 1", "too few GPUs", "--train-env DIR"):  # fmt: skip
        assert part in str(e.value)
    assert not (tmp_path / "o").exists()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight cards, and the folder of an environment with all that the wings need."""
    monkeypatch.setenv("PATH", with_cards(tmp_path / "smi", 8))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return environment(tmp_path / "env", {"torch": "2", "verl": "0.9.1", "vllm": "0.32.0", "math-verify": "0.9.0"})


def test_a_dry_run_writes_nothing_and_says_all(tmp_path, machine, monkeypatch, capsys) -> None:
    monkeypatch.setattr(checks, "check_disk", lambda *given: "enough")  # 600 GiB of disk are not there
    monkeypatch.setattr(checks, "_ASK", "print([0])")  # that environment has no veRL to ask
    (machine / "bin" / "stapo-eval").write_text('#!/bin/sh\necho "$@"\n')
    r = asked("stapo/qwen3-8b", out=tmp_path / "o", train_env=machine, eval_env=machine, judge="my-judge")
    assert main(r, dry=True) == 0
    text = capsys.readouterr().out
    for part in (
        "  3. train/stapo-qwen3-8b-s0: to do\n     stapo-train run method=stapo size=qwen3-8b hardware=8gpu ",
        "about 17 d 6 h, 3,313 GPU h, disk 400 GiB (formula, 497 s a step: generation ",
        "Still to do: 5 of 7 stages, about ",
        "10.1 days a training on 64 H20 by this formula; the paper states 5 to 7",
        "  ok      GPUs: 8 in this machine, 8 needed",
        "  ok      evaluation's environment: vllm 0.32.0, math_verify 0.9.0, torch 2\n",
        "  ok      judge's prompt: prompt --judge my-judge\n",
        "  ok      configurations: 1 pass\n",
    ):
        assert part in text
    assert not (tmp_path / "o").exists()


def test_the_miniatures_dry_run_knows_its_hours_from_records(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as e:
        cli.main(["run", "stapo/mini", "--seed-count", "2", "--dry-run"])
    assert e.value.code == 0
    text = capsys.readouterr().out
    after = "{0}/base run.out={0}/train/stapo-s1\n     about ".format(tmp_path / "runs/miniature")
    assert "(measured: median of 5 recorded runs on " in text.partition(after)[2].splitlines()[0]
    assert "Still to do: 8 of 12 stages, about " in text
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_of_all_lists_every_cell_of_the_paper_without_torch(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checks, "_asked", lambda *given: str([0] * 12))
    with pytest.raises(SystemExit):
        cli.main(["run", "--all", "--dry-run"])
    text = capsys.readouterr().out
    assert (text.count(". train/"), text.count(". eval/")) == (12, 15)


def test_gpus_are_counted_as_far_as_they_are_visible(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.check_gpus("8gpu") == "8 in this machine, 8 needed"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    with pytest.raises(BadInput) as e:
        checks.check_gpus("8gpu")
    assert e.value.found == "3 GPUs"


def test_another_system_than_linux_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.sys, "platform", "darwin")
    with pytest.raises(BadInput):
        checks.check_system()


def names(r, stages) -> list[str]:
    return [c.name for c in checks.make_checks(r, stages, {}).made]


def test_a_finished_run_on_a_cpu_asks_for_nothing(tmp_path: Path) -> None:
    assert names(cpu_run(tmp_path / "out"), []) == ["system", "output folder", checks.STAGES]


def test_what_a_begun_stage_has_written_is_not_asked_for_again(tmp_path, monkeypatch) -> None:
    """3 GiB, and 4 a training: of 7 GiB 2 are there."""
    needed = []
    monkeypatch.setattr(checks, "check_disk", lambda out, need: needed.append(need))
    r = cpu_run(tmp_path / "out", methods=["justrl"], size="smollm2-135m")
    stages = [s for s in make_stages(r) if s.kind == "train"]
    stages[0].folder.mkdir(parents=True)
    with (stages[0].folder / "weights").open("wb") as file:
        file.truncate(2 << 30)  # without blocks on the disk
    checks.make_checks(r, stages, {})
    assert needed == [5.0]


def test_the_small_model_is_fetched_before_hours_depend_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    r = cpu_run(tmp_path / "out", methods=["justrl"], size="smollm2-135m")
    (fetched,) = (c for c in checks.make_checks(r, make_stages(r), {}).made if c.name == "fetched model")
    assert fetched.problem is not None
    assert fetched.problem.next_step.startswith("stapo-train fetch smollm2-135m")
    assert "fetched model" not in names(r, make_stages(r)[1:])  # what has its base model needs no other


@pytest.mark.parametrize("answer", ["no such method", ""])
def test_a_users_method_is_asked_for_before_anything_starts(tmp_path, monkeypatch, answer: str) -> None:
    """Its name is known to the training wing alone; the worlds and the seeds are one question."""
    asked_for = []
    monkeypatch.setattr(checks, "_asked", lambda command, *_: asked_for.append(command[-1]) or json.dumps([answer]))
    r = of_testbed(tmp_path / "out", method="nosuch")
    (found,) = (c for c in checks.make_checks(r, make_stages(r), {}).made if c.name == "configurations")
    assert (found.problem is not None) == bool(answer)
    (command,) = json.loads(asked_for[0])
    assert {"run", "method=nosuch", "run.method=nosuch", "--config-only"} <= {*command}


@pytest.mark.slow
def test_the_training_wing_refuses_a_method_that_it_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nosuch"):
        main(of_testbed(tmp_path / "out", method="nosuch"), dry=True)
    assert not (tmp_path / "out").exists()
