"""What the testbed asks the driver for: commands, folders, what is refused; what a run of it shows and leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import synthetic_records as synthetic
from driving import commands
from test_collect import files, make_log

from stapo_repro import labels
from stapo_repro.run import checks, stages
from stapo_repro.run.cells import CellRequest
from stapo_repro.run.chain import make_stages
from stapo_results import runs, store
from stapo_results.errors import BadInput
from stapo_training.pages import compose
from studies.testbed import counts
from studies.testbed.__main__ import carry_out, collect, show
from studies.testbed.plan import ARMS, RATES
from studies.testbed.request import request


def test_the_testbed_seed_by_seed_and_model_by_model():
    by = commands(request(out=Path("o"), worlds="paper,inverted", seeds="0,3"))
    one = [*labels.ARMS, "stapo-q0.25", "stapo-q0.5", "stapo-tau0.0002", "stapo-tau0.02", "stare"]
    one += [f"{m}-mini-inverted" for m in labels.ARMS]
    made = [f"{kind}/{m}-s{s}" for s in (0, 3) for m in one for kind in ("train", "export", "eval")]
    bases = ["base-paper", "base-inverted", "eval/base", "eval/base-mini-inverted"]
    assert list(by) == [*bases, *made]
    assert by["base-inverted"] == "stapo-train base --out o/base-inverted --seed 0 --world inverted"
    end = "trainer.val_before_train=false trainer.test_freq=-1"
    assert by["train/stapo-mini-inverted-s3"] == (
        "stapo-train run method=stapo size=mini hardware=cpu task=mini-add run.size=mini-inverted run.seed=3 "
        f"run.steps=20 run.base=o/base-inverted run.out=o/train/stapo-mini-inverted-s3 {end}"
    )
    assert by["train/stapo-tau0.0002-s3"] == (
        "stapo-train run method=stapo actor_rollout_ref.selector.tau_p=0.0002 size=mini hardware=cpu task=mini-add "
        f"run.seed=3 run.steps=20 run.base=o/base-paper run.out=o/train/stapo-tau0.0002-s3 {end}"
    )
    assert by["eval/stapo-mini-inverted-s3"] == (
        "stapo-eval run --model o/models/stapo-mini-inverted-s3 --benchmarks mini-add --settings both --data-dir "
        "o/base-inverted/benchmarks --engine hf --max-tokens 64 --out o/eval/stapo-mini-inverted-s3"
    )


def test_a_pilot_has_other_seeds_and_a_long_run_is_not_evaluated():
    pilot = request(pilot=True, worlds="mixed", arms="stapo")
    assert (pilot.out, [m.seed for m in pilot.trained]) == (Path("runs/testbed-pilot").resolve(), [100, 101, 102])
    by = commands(request(long=True, seeds="0"))
    trained = ["justrl", "stapo", "stapo-random", "justrl-lr2.5x", "stapo-lr2.5x"]
    assert list(by) == ["base-paper", *(f"train/{arm}-s0" for arm in trained)]
    assert by["train/stapo-s0"].endswith("run.steps=300 run.base=runs/testbed-long/base-paper "
                                         "run.out=runs/testbed-long/train/stapo-s0 trainer.val_before_train=true "
                                         "trainer.test_freq=25")  # fmt: skip


def test_a_users_method_is_named_after_its_file_and_another_one_when_it_changes(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("actor_rollout_ref: {selector: {name: mine.py:f, q: 0.5}}")
    (tmp_path / "mine.py").write_text("1")
    r = request(method=str(file))
    assert (r.out, r.user_method) == (Path("runs/testbed-mine").resolve(), "mine")
    assert {m.seed for m in r.trained} == {10, 11, 12}
    assert f"run method={file} run.method=mine size=mini" in commands(r)["train/mine-mini-mixed-s12"]
    for name in ("dapo", "clip_cov"):
        command = commands(request(method=name))[f"train/{name}-s10"]
        assert f"run method={name} run.method={name} size=mini" in command
    (tmp_path / "mine.py").write_text("2")
    second = request(method=str(file)).config
    file.write_text("actor_rollout_ref: {selector: {name: mine.py:f, q: 0.1}}")
    assert len({c["standing_sha256"] for c in (r.config, second, request(method=str(file)).config)}) == 3


def test_a_users_method_is_shown_beside_the_committed_arms(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "mine.yaml").write_text("run: {method: mine}")
    r = request(out=tmp_path / "run", method=f"{tmp_path / 'mine.yaml'}", worlds="paper", seeds="0", steps=40)
    rates = {"useful_rate": 0.5, "spurious_rate": 0.125}
    synthetic.training_run(r.out / "train", "mine", 0, 40, more=rates)
    synthetic.cell(r.out / "eval", "mine", "mini-add", "t1.0", ["1110"] * 16, folder="mine-s0")
    state = stages.StageState(name="base", attempts=1, code="c")
    store.write_json(r.out / stages.FILE, stages.Stages(stages=[state]))
    show(r, 1.0)
    text = capsys.readouterr().out
    assert "paper: mine beside the committed arms" in text
    for part in ("12.5", "JustRL", "Random mask"):
        assert part in text
    assert "stapo-repro collect" not in text


@pytest.mark.parametrize("wrong", [
    lambda: request(worlds="paper,other"), lambda: request(arms="grpo"), lambda: request(arms=""),
    lambda: request(worlds="mixed", arms="stapo-q0.5"), lambda: request(pilot=True, long=True),
    lambda: request(method="no.yaml"), lambda: request(method="base"),
    lambda: request(method="dapo", arms="stapo"), lambda: request(method="dapo", pilot=True),
    lambda: request(pilot=True, seeds="100,10"),  # one that judges
    lambda: request(costly=True, worlds="paper"), lambda: request(worlds="costly"),
])  # fmt: skip
def test_wrong_values_are_refused(wrong) -> None:
    with pytest.raises(BadInput):
        wrong()


def test_the_costly_world_has_a_control_with_fewer_arms() -> None:
    control = request(costly=True, worlds="costly-inverted", seeds="30")
    assert [m.method for m in control.models] == ["base", "justrl", "stapo-high-entropy", "stapo-random", "stapo"]
    assert {m.size for m in control.models} == {"mini-costly-inverted"}
    for command in (c for name, c in commands(control).items() if name.startswith("train/")):
        assert " run.validation_settings=[t1.0,t0.7] " in command
    assert {m.size for m in request(costly=True).models} == {"mini-costly", "mini-costly-inverted"}


@pytest.mark.parametrize("name", ["stapo.yaml", "2.yaml", "a,b.yaml"])
def test_a_label_that_records_cannot_have_is_refused_first(tmp_path, name):
    (tmp_path / name).write_text("{}")
    with pytest.raises(BadInput):
        request(method=str(tmp_path / name))


def begin(r: CellRequest) -> None:
    """Open the folder of a request as the driver does."""
    with runs.opened(r.out, checks.new_record(r)) as folder, folder.working():
        pass


def test_a_folder_takes_further_models_only_where_they_are_compared(tmp_path):
    begin(request(out=tmp_path / "t", worlds="paper", seeds="0"))
    begin(request(out=tmp_path / "t", worlds="mixed", arms="stapo", seeds="1"))
    others: list[dict[str, Any]] = [{"steps": 60}, {"quick": True, "steps": 20}, {"pilot": True}]
    for changed in others:
        with pytest.raises(BadInput):
            begin(request(out=tmp_path / "t", **changed))


def test_a_users_method_is_asked_for_once_before_anything_starts(tmp_path, monkeypatch) -> None:
    """Its name is known to the training wing alone; the worlds and the seeds are one question."""
    asked_for = []
    monkeypatch.setattr(checks, "_asked", lambda command, *_: asked_for.append(command))
    r = request(out=tmp_path / "out", method="nosuch")
    checks.make_checks(r, make_stages(r), {})
    (command,) = asked_for
    assert {"run", "method=nosuch", "run.method=nosuch", "--config-only"} <= {*command}


@pytest.mark.slow
def test_the_training_wing_refuses_a_method_that_it_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as e:
        carry_out(request(out=tmp_path / "out", method="nosuch", dry_run=True))
    assert "nosuch" in str(e.value)
    assert not (tmp_path / "out").exists()


def test_of_the_testbed_the_first_steps_tokens_are_counted(tmp_path: Path) -> None:
    make_log(tmp_path / "run" / "a")
    collect(tmp_path / "run", tmp_path / "out")
    assert [f for f in files(tmp_path / "out" / "a") if f != "metrics.jsonl"] == ["planted.json", "run.json"]
    counted = counts.of_run(tmp_path / "out" / "a", "r")
    assert (counted and counted.steps) == [1, 2]
    assert '"planted_steps": 1' in (tmp_path / "out" / "a" / "run.json").read_text()


@pytest.mark.parametrize(("rate", "lr"), RATES.items())
def test_the_testbeds_long_arms_have_the_learning_rate_of_their_name(rate: str, lr: str) -> None:
    config = compose([*ARMS[f"justrl{rate}"].choices, "size=mini", "hardware=cpu", "task=mini-add", "run.base=base"])
    assert (config.run.method, config.actor_rollout_ref.actor.optim.lr) == (f"justrl{rate}", float(lr))
