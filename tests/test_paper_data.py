"""The paper as data: hyperparameters against the configurations' reasons."""

from __future__ import annotations

from pathlib import Path

import yaml

from stapo_repro import paper

ROOT = Path(__file__).resolve().parents[1]


def test_hyperparameters_are_the_values_that_the_configurations_decided():
    rows = yaml.safe_load((ROOT / "training/stapo_training/decided.yaml").read_text())
    decided = {r["key"]: r for r in rows if "key" in r and "given" not in r}
    shared = [v for v in paper.load_hyperparameters().values() if v.get("key")]
    assert len(shared) > 20
    for v in shared:
        assert (v["value"], v["basis"]) == (decided[v["key"]]["value"], decided[v["key"]]["basis"]), v["id"]


def test_hyperparameters_of_the_appendix():
    values = paper.load_hyperparameters()
    printed = {
        n: values[n]["printed"] for n in ("tau-p", "q", "train-batch", "mini-batch", "rollouts", "learning-rate")
    }
    assert printed == {"tau-p": "0.002", "q": "75", "train-batch": "256", "mini-batch": "64", "rollouts": "8",
                       "learning-rate": "1e-6"}  # fmt: skip
    assert tuple(values[n]["value"] for n in ("gpus", "days-low", "days-high")) == (64, 5, 7)
    assert values["steps"]["basis"] == "inferred"


def test_samples_are_those_of_the_table():
    values = {name: v["value"] for name, v in paper.load_hyperparameters().items()}
    table = paper.load().samples_per_problem
    assert {table[b] for b in ("aime24", "aime25", "amc23")} == {values["samples-aime-amc"]}
    assert {table[b] for b in ("math500", "minerva", "olympiadbench")} == {values["samples-others"]}
