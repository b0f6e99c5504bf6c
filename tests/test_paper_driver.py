"""The driver on the paper's cells with stand-ins for the other wings, dry runs, and a real cell of the miniature."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from driving import asked, environment, with_cards

from stapo_repro.driver import readiness
from stapo_repro.driver.run import main
from stapo_results.errors import BadInput

# on a machine that says it has 8 GPUs

WING = textwrap.dedent(
    """
    import json, os, sys
    from pathlib import Path
    import synthetic_records as synthetic
    from stapo_results.benchmarks import registry
    from stapo_repro.planner.estimates import places
    words = sys.argv[1:]
    if "--config-only" in words or words[0] == "prompt":
        sys.exit(0)
    with open(os.environ["CALLS"], "a") as f:
        f.write(" ".join(words[:2]) + " " + os.environ["HF_HUB_OFFLINE"] + "\\n")
    named = dict(w.split("=") for w in words if "=" in w)
    out = Path(named["run.out"] if named else words[words.index("--out") + 1] if "--out" in words else words[2])
    if words[0] == "benchmarks":
        out.mkdir(parents=True)
        for name in ("aime24", "aime25", "amc23", "math500", "minerva", "olympiadbench"):
            (out / f"{name}.jsonl").write_text("{}")
    elif words[0] == "data":
        out.mkdir(parents=True)
        for name in ("train.parquet", "val.parquet", "data.json"):
            (out / name).write_text(name)
    elif named:
        made = synthetic.training_run(out.parent, named["method"], int(named["run.seed"]), 40, named["size"])
        made.rename(out)
        last = out / "checkpoints" / f"global_step_{named['run.steps']}"
        last.mkdir(parents=True)
        (last / "COMPLETE.json").write_text("{}")
    elif words[0] == "export":
        out.mkdir(parents=True)
        (out / "stapo.json").write_text("{}")
        (out / "config.json").write_text("{}")
    else:
        out.mkdir(parents=True)
        (out / "samples.jsonl").touch()
        (out / "verdicts.jsonl").touch()
        method, size = out.name.split("-")[0], "-".join(out.name.split("-")[1:3])
        for benchmark, setting in places(size):
            spec = registry()[benchmark]
            verdicts = ["10" * (spec.samples // 2)] * spec.rows
            synthetic.cell(out.parent, method, benchmark, setting, verdicts, size=size, folder=out.name)
    """
)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment with stand-ins of the two wings, and eight cards; returns its folder."""
    everything = {"torch": "2", "verl": "0.9.1", "vllm": "0.32.0", "math-verify": "0.9.0"}
    folder = environment(tmp_path / "env", everything)
    (tmp_path / "wing.py").write_text(WING)
    for name in ("stapo-train", "stapo-eval"):
        path = [str(Path(__file__).parent), *sys.path]
        call = f'PYTHONPATH={":".join(p for p in path if p)} exec {sys.executable} {tmp_path / "wing.py"} "$@"'
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{call}\n")
    monkeypatch.setenv("PATH", with_cards(tmp_path / "smi", 8))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setattr("stapo_repro.driver.readiness.stage_costs", lambda r: {})  # 600 GiB of disk are not there
    return folder


def calls(tmp_path: Path) -> list[str]:
    return (tmp_path / "calls").read_text().splitlines()


@pytest.mark.slow
def test_a_cell_and_then_one_more(tmp_path: Path, machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "cells"
    first = asked("stapo/qwen3-1.7b", out=out, train_env=machine, eval_env=machine)
    assert main(first) == 0
    # data and weights of the hub may be fetched, which the miniature's stages may not
    assert calls(tmp_path) == ["benchmarks --write 0", "data --benchmarks 0", "run method=stapo 0",
                               "export --checkpoint 1", "run --model 0"]  # fmt: skip
    table = (out / "tables" / "main_table.json").read_text()
    assert "50.00" in table
    capsys.readouterr()
    # the same command again repeats nothing, and a dry run says so
    assert main(first) == 0
    assert len(calls(tmp_path)) == 5
    before = (out / "stages.jsonl").read_bytes()
    assert main(first, dry=True) == 0
    assert "Still to do: 0 of 7 stages" in capsys.readouterr().out
    assert (out / "stages.jsonl").read_bytes() == before
    # one more cell: only what it lacks, and the table is made anew of both
    more = asked("base/qwen3-8b", out=out, train_env=machine, eval_env=machine)
    assert main(more) == 0
    assert calls(tmp_path)[5:] == ["run --model 0"]
    assert (out / "tables" / "main_table.json").read_text() != table
    with pytest.raises(BadInput, match="judge"):
        main(asked("stapo/qwen3-8b", out=out, train_env=machine, eval_env=machine, judge="none"))


def test_a_dry_run_writes_nothing_and_says_all(
    tmp_path: Path, machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    r = asked("stapo/qwen3-1.7b", out=tmp_path / "o", train_env=machine, eval_env=machine)
    assert main(r, dry=True) == 0
    text = capsys.readouterr().out
    for part in (
        "  3. train/stapo-qwen3-1.7b-s0: to do\n     stapo-train run method=stapo size=qwen3-1.7b hardware=8gpu ",
        "Still to do: 7 of 7 stages",
        "  ok      GPUs: 8 in this machine, 8 needed",
        readiness.FILLING,
        "  ok      configuration of train/stapo-qwen3-1.7b-s0: ",
    ):
        assert part in text
    assert not (tmp_path / "o").exists()
    assert not (tmp_path / "calls").exists()


def test_what_a_stage_costs() -> None:
    costs = readiness.stage_costs(asked("stapo/qwen3-8b", "base/qwen3-8b"))
    assert list(costs) == ["train/stapo-qwen3-8b-s0", "eval/stapo-qwen3-8b-s0", "eval/base-qwen3-8b"]
    assert readiness.cost_text(costs["train/stapo-qwen3-8b-s0"]) == (
        "about 17 d 6 h, 3,313 GPU h (formula); disk 400 GiB (two checkpoints at a time: 217)"
    )
    assert costs["eval/base-qwen3-8b"].disk > costs["eval/stapo-qwen3-8b-s0"].disk  # its weights are fetched


def test_the_miniatures_dry_run(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stapo_repro.cli", "run", "stapo/mini", "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    stage = "{0}/base run.out={0}/train/stapo-s0\n     about ".format(tmp_path / "runs/miniature")
    assert done.stdout.partition(stage)[2].splitlines()[0].endswith(" (measured)")  # of the committed record
    for part in ("Still to do: 8 of 8 stages", readiness.FILLING):
        assert part in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_cell_of_the_miniature_from_nothing_to_collected_records(tmp_path: Path) -> None:
    """The real wings: run, dry run of what is there, collect, the table of what was collected."""

    def call(*words: str) -> str:
        command = [sys.executable, "-m", "stapo_repro.cli", *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    call("run", "stapo/mini", "--quick", "--out", "r")
    assert "Still to do: 0 of 8 stages" in call("run", "stapo/mini", "--quick", "--out", "r", "--dry-run")
    call("collect", "r", "--out", "shared")
    call("tables", "--records", "shared/eval", "shared/train", "--out", "t")
    assert (tmp_path / "t/main_table.md").read_bytes() == (tmp_path / "r/tables/main_table.md").read_bytes()
