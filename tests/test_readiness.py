"""What the paper's cells refuse before anything starts: GPUs, environments, clusters, disk, values."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
from driving import asked, environment, with_cards

from stapo_repro.driver import readiness
from stapo_repro.driver.chain import make_stages
from stapo_repro.driver.readiness import State
from stapo_repro.driver.request import cpu_run
from stapo_repro.driver.run import main
from stapo_results.errors import BadInput


def test_without_gpus_it_is_refused_before_anything_starts(tmp_path: Path) -> None:
    env = {**os.environ, "PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "stapo_repro.cli", "run", "base/qwen3-8b", "--hardware", "1gpu"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env)
    assert done.returncode == 2
    assert "this machine has too few GPUs for --hardware 1gpu" in done.stderr
    assert "stapo-repro plan base/qwen3-8b --hardware 1gpu" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_gpus_are_counted_as_far_as_they_are_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", with_cards(tmp_path / "bin", 8))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert readiness.check_gpus(asked("base/qwen3-8b")) == "8 in this machine, 8 needed"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    with pytest.raises(BadInput) as e:
        readiness.check_gpus(asked("base/qwen3-8b"))
    assert e.value.found == "3 GPUs"


def test_another_system_than_linux_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = cpu_run(tmp_path / "o")
    monkeypatch.setattr(readiness.sys, "platform", "darwin")
    problems = readiness.make_checks(request, {}, {}).problems
    assert ("darwin", "linux") in [(p.found, p.expected) for p in problems]


def test_an_environment_is_asked_for_what_its_wing_needs(tmp_path: Path) -> None:
    lacking = environment(tmp_path / "a", {"torch": "2.13.0", "verl": "0.9.1"})
    with pytest.raises(BadInput) as e:
        readiness.check_environment("stapo-train", lacking / "bin" / "stapo-train")
    assert str(e.value.found).startswith("no vllm in")
    assert "--train-env DIR" in e.value.next_step
    whole = environment(tmp_path / "b", {"torch": "2.13.0", "vllm": "0.32.0", "math-verify": "0.9.0"})
    said = readiness.check_environment("stapo-eval", whole / "bin" / "stapo-eval")
    assert said == "vllm 0.32.0, math_verify 0.9.0, torch 2.13.0"


@pytest.mark.parametrize(("need", "least", "cure"), [(1e9, 1e9, "another place"), (1e9, 0.0, "--keep-checkpoints 1")])
def test_too_little_disk_is_refused_with_its_cure(tmp_path: Path, need: float, least: float, cure: str) -> None:
    readiness.check_disk(tmp_path / "new" / "o", 0.0, 0.0)
    with pytest.raises(BadInput) as e:
        readiness.check_disk(tmp_path / "new" / "o", need, least)
    assert cure in e.value.next_step
    assert ("--keep" in e.value.next_step) == (least < need)


def test_the_evaluation_wing_is_asked_for_the_prompt_of_this_judge(tmp_path: Path) -> None:
    program = environment(tmp_path / "a", {}) / "bin" / "stapo-eval"
    program.write_text('#!/bin/sh\necho "$@"\n')
    checks = readiness.make_checks(asked("stapo/qwen3-8b", eval_env=tmp_path / "a", judge="my-judge"), {}, {})
    (said,) = [c.found for c in checks.made if c.name == "judge's prompt"]
    assert said == "prompt --judge my-judge"


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    empty = environment(tmp_path / "a", {})
    r = asked("stapo/qwen3-8b", out=tmp_path / "o", train_env=empty, eval_env=empty, data_dir=tmp_path)
    with pytest.raises(BadInput) as e:
        main(r)
    for part in ("5 things", "aime24.jsonl", "no verl, no vllm, no torch", "no vllm, no math_verify", "too little disk",
                 "too few GPUs"):  # fmt: skip
        assert part in str(e.value)
    assert not (tmp_path / "o").exists()


def test_a_finished_run_on_a_cpu_asks_for_nothing(tmp_path: Path) -> None:
    asked_for = [c.name for c in readiness.make_checks(cpu_run(tmp_path / "out"), {}, {}).made]
    assert asked_for == ["system", "output folder"]


@pytest.mark.parametrize(("kind", "needed"), [("begun", 5.0), ("again", 7.0)])
def test_what_a_begun_stage_has_written_is_not_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Literal["begun", "again"], needed: float
) -> None:
    """3 GiB, and 4 a training: of 7 GiB 2 are there. What will be set aside stays on the disk."""
    asked_for = []
    monkeypatch.setattr(readiness, "check_disk", lambda out, need, least: asked_for.append(need))
    r = cpu_run(tmp_path / "out", methods="justrl", size="smollm2-135m")
    (training,) = (s for s in make_stages(r) if s.kind == "train")
    training.folder.mkdir(parents=True)
    with (training.folder / "weights").open("wb") as file:
        file.truncate(2 << 30)  # without blocks on the disk
    readiness.make_checks(r, {training: State(kind, "")}, {})
    assert asked_for == [needed]


def test_the_small_model_is_fetched_before_hours_depend_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    r = cpu_run(tmp_path / "out", methods="justrl", size="smollm2-135m")
    stages = make_stages(r)
    states = dict.fromkeys(stages, State("to do", ""))
    checks = readiness.make_checks(r, states, {})
    (fetched,) = (c for c in checks.made if c.name == "fetched model")
    assert fetched.problem is not None
    assert fetched.problem.next_step.startswith("stapo-train fetch smollm2-135m")
    (tmp_path / "stapo" / "smollm2-135m" / "model").mkdir(parents=True)
    assert all(c.problem is None for c in readiness.make_checks(r, states, {}).made if c.name == "fetched model")
    # what has its base model needs no other
    states[stages[0]] = State("there", "")
    assert "fetched model" not in {c.name for c in readiness.make_checks(r, states, {}).made}
