"""Which stages and commands a cell, the miniature and the ablation consist of, and which parameters are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from driving import ablation, miniature

from stapo_repro.driver.chain import make_stages
from stapo_repro.driver.run import check_parameters
from stapo_results.errors import BadInput


def remember(p) -> None:
    check_parameters(p.out, p.parameters())


def test_stages_of_the_miniature(tmp_path, monkeypatch):
    monkeypatch.setattr("stapo_repro.driver.chain.console_script", lambda name: name)
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
        *(f"tokens/{r}" for r in runs if r.startswith("stapo")),
    ]


def test_commands_of_the_miniature(tmp_path, monkeypatch):
    monkeypatch.setattr("stapo_repro.driver.chain.console_script", lambda name: name)
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
    monkeypatch.setattr("stapo_repro.driver.chain.console_script", lambda name: name)
    chain = make_stages(miniature(tmp_path, seeds="0,1", data_dir=tmp_path))
    for i, stage in enumerate(chain):
        assert set(stage.needs) <= {s.name for s in chain[:i]}


def test_stages_of_the_ablation(tmp_path, monkeypatch):
    monkeypatch.setattr("stapo_repro.driver.chain.console_script", lambda name: name)
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
    monkeypatch.setattr("stapo_repro.driver.chain.console_script", lambda name: name)
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
    remember(miniature(out, methods="stapo"))
    with pytest.raises(BadInput) as e:
        remember(ablation(out, methods="stapo", seeds="0"))
    assert "kind miniature" in str(e.value)
    assert "kind ablation" in str(e.value)


def test_folder_of_an_earlier_version_is_a_miniature(tmp_path):
    out = tmp_path / "o"
    out.mkdir()
    remember(miniature(out))
    file = out / "parameters.json"
    values = json.loads(file.read_text())
    del values["kind"]
    file.write_text(json.dumps(values))
    remember(miniature(out))


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
    remember(miniature(out))
    remember(miniature(out))
    with pytest.raises(BadInput) as e:
        remember(miniature(out, steps=60))
    assert "steps 40" in str(e.value)
    assert "steps 60" in str(e.value)


def test_foreign_folder_is_refused(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(BadInput, match="holds no run"):
        remember(miniature(tmp_path))


def test_command_line_refuses_with_code_2(tmp_path):
    command = [sys.executable, "-m", "stapo_repro.cli", "run", "stapo/qwen3-8b", "--hardware", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=dict(os.environ))
    assert done.returncode == 2
    assert "need GPUs" in done.stderr
    assert list(tmp_path.iterdir()) == []
