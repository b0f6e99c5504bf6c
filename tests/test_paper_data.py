"""The paper as data: hyperparameters against the configurations' reasons, claims, and what the models refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from stapo_repro import paper
from stapo_repro.audit.run import load_claims, load_table
from stapo_results.errors import BadInput, RecordError

ROOT = Path(__file__).resolve().parents[1]


def test_hyperparameters_are_the_values_that_the_configurations_decided():
    rows = yaml.safe_load((ROOT / "training/stapo_training/decided.yaml").read_text())
    decided = {r["key"]: r for r in rows if "key" in r and "given" not in r}
    shared = [v for v in paper.load_hyperparameters().values if v.key]
    assert len(shared) > 20
    for v in shared:
        assert v.key is not None
        assert (v.value, v.basis) == (decided[v.key]["value"], decided[v.key]["basis"]), v.id


def test_hyperparameters_of_the_appendix():
    values = {v.id: v for v in paper.load_hyperparameters().values}
    printed = {n: values[n].printed for n in ("tau-p", "q", "train-batch", "mini-batch", "rollouts", "learning-rate")}
    assert printed == {"tau-p": "0.002", "q": "75", "train-batch": "256", "mini-batch": "64", "rollouts": "8",
                       "learning-rate": "1e-6"}  # fmt: skip
    assert (values["gpus"].value, values["days-low"].value, values["days-high"].value) == (64, 5, 7)
    assert values["steps"].basis == "inferred"


def changed(tmp_path: Path, name: str, change) -> Path:
    data = json.loads((paper.folder() / name).read_text())
    change(data)
    path = tmp_path / name
    path.write_text(json.dumps(data))
    return path


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda d: d["values"][0].update(more=1), "more"),
        (lambda d: d["values"][0].update(printed=None), "a stated value is printed somewhere"),
        (lambda d: d["values"][0].update(basis="inferred"), "needs a note"),
        (lambda d: d["values"].append(d["values"][0]), "one id"),
    ],
)
def test_broken_hyperparameters_are_refused(tmp_path, change, found):
    path = changed(tmp_path, "hyperparameters.json", change)
    with pytest.raises(RecordError) as e:
        paper.load_hyperparameters(path)
    assert found in str(e.value)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda d: d["claims"][0].update(more=1), "claims.0.more"),
        (lambda d: d["claims"][0].pop("value"), "a gain needs its printed value"),
        (lambda d: d["claims"][0]["quantity"].update(over="weakest"), "over"),
        (lambda d: d["claims"].append(d["claims"][0]), "stands twice"),
    ],
)
def test_broken_claims_are_refused(tmp_path, change, found):
    path = changed(tmp_path, "claims.json", change)
    with pytest.raises(BadInput) as e:
        load_claims(path, load_table(None))
    assert found in str(e.value)
    assert "claims.json" in str(e.value)
