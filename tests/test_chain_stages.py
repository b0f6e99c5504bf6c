"""What is asked of the miniature and the ablation: their stages, commands, values, and the folder they go on in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stapo_repro.driver import readiness
from stapo_repro.driver.chain import make_stages
from stapo_repro.driver.request import Request, miniature
from stapo_results import runs
from stapo_results.errors import BadInput


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands by their names, without the folder of this environment."""
    monkeypatch.setattr("stapo_repro.driver.request.console_script", lambda name, environment=None: name)


def commands(r: Request) -> dict[str, str]:
    return {s.name: " ".join(s.command) for s in make_stages(r)}


def begin(r: Request) -> None:
    """Open the folder of a request as the driver does."""
    with runs.opened(r.out, readiness.new_record(r)) as folder, folder.working():
        pass


def test_stages_of_the_miniature(tmp_path):
    of = ["justrl-s0", "stapo-s0", "justrl-s1", "stapo-s1"]
    assert list(commands(miniature(tmp_path, quick=True, seeds="0,1"))) == [
        "base",
        *(f"train/{r}" for r in of),
        *(f"export/{r}" for r in of),
        "eval/base",
        *(f"eval/{r}" for r in of),
        "tables",
        "figures",
        *(f"tokens/{r}" for r in of if r.startswith("stapo")),
    ]


def test_commands_of_the_miniature():
    by = commands(miniature(Path("o"), methods="stapo"))
    assert by["base"] == "stapo-train base --out o/base --seed 0"
    assert by["train/stapo-s0"] == (
        "stapo-train run method=stapo size=mini hardware=cpu task=mini-add run.seed=0 run.steps=30 run.base=o/base "
        "run.out=o/train/stapo-s0"
    )
    assert by["export/stapo-s0"] == "stapo-train export --checkpoint o/train/stapo-s0 --out o/models/stapo-s0"
    assert by["eval/stapo-s0"] == (
        "stapo-eval run --model o/models/stapo-s0 --benchmarks mini-add,mini-add-hard --settings both "
        "--data-dir o/base/benchmarks --engine hf --judge o/base/model --max-tokens 64 --out o/eval/stapo-s0"
    )
    assert by["tables"] == "stapo-repro tables --of main --records o/eval o/train --out o/tables"


def test_stages_of_the_ablation(tmp_path):
    chain = make_stages(miniature(tmp_path, experiment="ablation"))
    names = [s.name for s in chain]
    methods = ["justrl", "justrl-fullmask", "stapo-high-entropy", "stapo-random", "stapo"]
    of = [f"{m}-s{s}" for s in (0, 1, 2) for m in methods]
    trained, evaluated = [f"train/{r}" for r in of], ["eval/base", *(f"eval/{r}" for r in of)]
    # the base once: all seeds start from one base model
    assert names == ["base", *trained, *(f"export/{r}" for r in of), *evaluated, "tables", "figures"]
    # its table holds accuracies and entropies: it is made again when either changes
    assert set(chain[-2].needs) == {*trained, *evaluated}


@pytest.mark.parametrize("changed", [
    {"methods": "ppo"}, {"methods": "stapo,stapo"}, {"methods": "stapo-random"},
    {"methods": "grpo", "experiment": "ablation"}, {"seeds": "one"}, {"seeds": "0,0"}, {"seeds": "-1"}, {"steps": 0},
])  # fmt: skip
def test_values_are_checked(tmp_path, changed):
    with pytest.raises(BadInput):
        miniature(tmp_path, **changed)


@pytest.mark.parametrize("changed", [{"steps": 60}, {"seeds": "0,1"}, {"methods": "grpo"}, {"experiment": "ablation"},
                                     {"quick": True, "steps": 40}])  # fmt: skip
def test_the_folder_of_another_run_is_refused(tmp_path, changed):
    given: dict[str, Any] = {"methods": "stapo", "seeds": "0"}
    begin(miniature(tmp_path / "o", **given))
    begin(miniature(tmp_path / "o", **given))
    before = (tmp_path / "o" / "run.json").read_bytes()
    with pytest.raises(BadInput) as e:
        begin(miniature(tmp_path / "o", **{**given, **changed}))
    assert next(iter(changed)) in str(e.value.found)
    assert (tmp_path / "o" / "run.json").read_bytes() == before


def test_the_drivers_record_is_no_training_and_no_evaluation(tmp_path):
    """Whoever walks its folder for records of runs tells them by their kind."""
    from stapo_repro.planner.estimates import recorded
    from stapo_repro.records.reading import load_training_runs
    from stapo_repro.sharing.collect import collect

    begin(miniature(tmp_path))
    assert json.loads((tmp_path / "run.json").read_text())["kind"] == "repro"
    assert (recorded([tmp_path]), load_training_runs([tmp_path])) == ([], [])
    with pytest.raises(BadInput):
        collect(tmp_path, tmp_path / "out")


@pytest.mark.parametrize(("arguments", "named_in_error"), [
    (["run", "stapo/qwen3-8b", "--hardware", "cpu"], "--hardware cpu"),
    (["run", "stapo/mini", "--judge", "none", "--hardware", "8gpu"], "--hardware, --judge"),
    (["NOSUCH", "--help"], "miniature, ablation, run"),
])  # fmt: skip
def test_command_line_refuses_with_code_2(tmp_path, arguments, named_in_error):
    command = [sys.executable, "-m", "stapo_repro.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert named_in_error in done.stderr
    assert list(tmp_path.iterdir()) == []
