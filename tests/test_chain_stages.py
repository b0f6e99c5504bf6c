"""What is asked of the miniature and the testbed: their stages, commands, values, and the folder they go on in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stapo_repro.driver import readiness
from stapo_repro.driver.chain import make_stages
from stapo_repro.driver.request import Request, cpu_run
from stapo_repro.driver.testbed_request import of_testbed
from stapo_results import runs
from stapo_results.errors import BadInput


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands by their names, without the folder of this environment."""
    monkeypatch.setattr("stapo_repro.driver.request.console_script", lambda name, environment=None: name)


def commands(r: Request) -> dict[str, str]:
    return {s.name: " ".join(s.command).replace(f"{Path.cwd()}/", "") for s in make_stages(r)}


def test_a_relative_folder_and_the_absolute_one_give_the_same_stages():
    assert make_stages(cpu_run(Path("o"))) == make_stages(cpu_run(Path("o").absolute()))


def begin(r: Request) -> None:
    """Open the folder of a request as the driver does."""
    with runs.opened(r.out, readiness.new_record(r)) as folder, folder.working():
        pass


def test_stages_of_the_miniature(tmp_path):
    of = ["justrl-s0", "stapo-s0", "justrl-s1", "stapo-s1"]
    assert list(commands(cpu_run(tmp_path, quick=True, seeds="0,1"))) == [
        "base",
        *(f"train/{r}" for r in of),
        *(f"export/{r}" for r in of),
        "eval/base",
        *(f"eval/{r}" for r in of),
        "tables",
        "figures",
        *(f"tokens/{r}" for r in of if r.startswith("stapo")),
    ]


def test_the_small_model_takes_the_miniatures_stages():
    r = cpu_run(Path("o"), methods="justrl,stapo", size="smollm2-135m")
    by = commands(r)
    assert list(by) == [
        "base", "eval/base-smollm2-135m",
        *(f"{stage}/{m}-smollm2-135m-s0" for m in ("justrl", "stapo") for stage in ("train", "export", "eval")),
        "tables", "figures", "tokens/stapo-smollm2-135m-s0",
    ]  # fmt: skip
    assert by["base"] == "stapo-train base --out o/base --seed 0 --size smollm2-135m"
    assert by["train/stapo-smollm2-135m-s0"] == (
        "stapo-train run method=stapo size=smollm2-135m hardware=cpu run.seed=0 run.steps=50 run.base=o/base "
        "run.out=o/train/stapo-smollm2-135m-s0 cpu.train_threads=2 cpu.rollout_threads=2"
    )
    assert by["eval/base-smollm2-135m"] == (
        "stapo-eval run --model o/base/model --benchmarks small-sums,small-words --settings both "
        "--data-dir o/base/benchmarks --engine hf --max-tokens 64 --threads 2 --out o/eval/base-smollm2-135m"
    )
    # two checkpoints of 1.6 GB a training would be hashed at every call: the list of the last one's files is
    trained = next(s for s in make_stages(r) if s.kind == "train")
    assert trained.folder / "checkpoints" / "global_step_50" / "COMPLETE.json" in trained.outputs
    assert trained.folder / "checkpoints" not in trained.outputs


def test_methods_and_seeds_may_be_added_to_a_small_models_folder():
    first = cpu_run(Path("o"), methods="justrl", size="smollm2-135m")
    assert first.config() == cpu_run(Path("o"), methods="stapo", seeds="1", size="smollm2-135m").config()
    assert first.config() != cpu_run(Path("o"), methods="justrl", steps=2, size="smollm2-135m").config()


@pytest.mark.parametrize("option", [{"rebuild_base": True}, {"hardware": "cpu-2nodes"}])
def test_what_the_small_model_cannot_do_is_said(option: dict[str, Any]):
    with pytest.raises(BadInput, match=r"smollm2-135m|only the miniature"):
        cpu_run(Path("o"), size="smollm2-135m", **option)


def test_commands_of_the_miniature():
    by = commands(cpu_run(Path("o"), methods="stapo"))
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


ARMS = ["justrl", "justrl-fullmask", "stapo-high-entropy", "stapo-random", "stapo"]
SWEEP = ["stapo-q0.25", "stapo-q0.5", "stapo-tau0.0002", "stapo-tau0.02"]


def test_stages_of_the_testbed_seed_by_seed_and_model_by_model():
    chain = make_stages(of_testbed(Path("o"), worlds="paper,mixed", seeds="0,1"))
    names = [s.name for s in chain]
    one = [*ARMS, *SWEEP, *(f"{m}-mini-mixed" for m in ARMS)]
    models = [f"{m}-s{s}" for s in (0, 1) for m in one]
    made = [f"{kind}/{m}" for m in models for kind in ("train", "export", "eval")]
    assert names == ["base-paper", "base-mixed", "eval/base", "eval/base-mini-mixed", *made, "tables", "figures"]
    # its page holds what is trained and what is evaluated: it is made again when either changes
    assert set(chain[-2].needs) == {n for n in names if n.startswith(("train/", "eval/"))}


def test_commands_of_the_testbed():
    by = commands(of_testbed(Path("o"), worlds="paper,inverted", seeds="0,3"))
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


def test_a_pilot_has_other_seeds_and_no_page_and_a_long_run_is_not_evaluated():
    pilot = of_testbed(part="pilot", worlds="mixed", arms="stapo")
    assert (pilot.out, [m.seed for m in pilot.trained]) == (Path("runs/testbed-pilot").resolve(), [100, 101, 102])
    assert not {"tables", "figures"} & set(commands(pilot))
    by = commands(of_testbed(part="long", seeds="0"))
    trained = ["justrl", "stapo", "justrl-lr2.5x", "stapo-lr2.5x"]
    assert list(by) == ["base-paper", *(f"train/{arm}-s0" for arm in trained)]
    assert by["train/stapo-s0"].endswith("run.steps=300 run.base=runs/testbed-long/base-paper "
                                         "run.out=runs/testbed-long/train/stapo-s0 trainer.val_before_train=true "
                                         "trainer.test_freq=25")  # fmt: skip
    larger = commands(of_testbed(part="long", arms="stapo-lr5x", seeds="20"))["train/stapo-lr5x-s20"]
    assert "run method=stapo run.method=stapo-lr5x actor_rollout_ref.actor.optim.lr=1.0e-3 size=mini" in larger
    assert "run.seed=20 run.steps=300" in larger


def test_a_method_of_ones_own_is_named_after_its_file(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("run: {method: another}")
    r = of_testbed(method=str(file))
    out = Path("runs/testbed-mine").resolve()
    assert (r.out, r.standing, {m.seed for m in r.trained}) == (out, "mine", {10, 11, 12})
    assert f"run method={file} run.method=mine size=mini" in commands(r)["train/mine-mini-mixed-s12"]
    assert "run method=dapo run.method=dapo size=mini" in commands(of_testbed(method="dapo"))["train/dapo-s10"]


@pytest.mark.parametrize("changed", [
    {"worlds": "paper,other"}, {"arms": "grpo"}, {"arms": "stapo,stapo"}, {"seeds": "x"}, {"steps": 0},
    {"worlds": "mixed", "arms": "stapo-q0.5"}, {"method": "no.yaml"}, {"method": "dapo", "arms": "stapo"},
    {"arms": "stapo-lr5x"}, {"method": "dapo", "part": "pilot"}, {"part": "long", "worlds": "mixed"},
])  # fmt: skip
def test_values_of_the_testbed_are_checked(changed):
    with pytest.raises(BadInput):
        of_testbed(**changed)


def test_worlds_arms_and_seeds_may_be_added_to_a_testbed_but_no_other_steps(tmp_path):
    begin(of_testbed(tmp_path / "o", worlds="paper", seeds="0"))
    begin(of_testbed(tmp_path / "o", worlds="mixed", arms="stapo", seeds="1"))
    for changed in ({"steps": 60}, {"quick": True, "steps": 20}, {"part": "pilot"}):
        with pytest.raises(BadInput):
            begin(of_testbed(tmp_path / "o", **changed))


@pytest.mark.parametrize("changed", [
    {"methods": "ppo"}, {"methods": "stapo,stapo"}, {"methods": "stapo-random"},
    {"seeds": "one"}, {"seeds": "0,0"}, {"seeds": "-1"}, {"steps": 0},
])  # fmt: skip
def test_values_are_checked(tmp_path, changed):
    with pytest.raises(BadInput):
        cpu_run(tmp_path, **changed)


@pytest.mark.parametrize("changed", [{"steps": 60}, {"seeds": "0,1"}, {"methods": "grpo"},
                                     {"quick": True, "steps": 40}])  # fmt: skip
def test_the_folder_of_another_run_is_refused(tmp_path, changed):
    given: dict[str, Any] = {"methods": "stapo", "seeds": "0"}
    begin(cpu_run(tmp_path / "o", **given))
    begin(cpu_run(tmp_path / "o", **given))
    before = (tmp_path / "o" / "run.json").read_bytes()
    with pytest.raises(BadInput) as e:
        begin(cpu_run(tmp_path / "o", **{**given, **changed}))
    assert next(iter(changed)) in str(e.value.found)
    assert (tmp_path / "o" / "run.json").read_bytes() == before


def test_the_drivers_record_is_no_training_and_no_evaluation(tmp_path):
    """Whoever walks its folder for records of runs tells them by their kind."""
    from stapo_repro.collect import collect
    from stapo_repro.planner.estimates import recorded
    from stapo_repro.read import load_training_runs

    begin(cpu_run(tmp_path))
    assert json.loads((tmp_path / "run.json").read_text())["kind"] == "repro"
    assert (recorded([tmp_path]), load_training_runs([tmp_path])) == ([], [])
    with pytest.raises(BadInput):
        collect(tmp_path, tmp_path / "out")


@pytest.mark.parametrize(("arguments", "named_in_error"), [
    (["run", "stapo/qwen3-8b", "--hardware", "cpu"], "--hardware cpu"),
    (["run", "stapo/mini", "--judge", "none", "--hardware", "8gpu"], "--hardware, --judge"),
    (["NOSUCH", "--help"], "miniature, testbed, run"),
])  # fmt: skip
def test_command_line_refuses_with_code_2(tmp_path, arguments, named_in_error):
    command = [sys.executable, "-m", "stapo_repro.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert named_in_error in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_base_is_carried_or_trained_anew():
    assert commands(cpu_run(Path("o"), rebuild_base=True))["base"] == (
        "stapo-train base --out o/base --seed 0 --rebuild-base"
    )
    assert cpu_run(Path("o")).config() != cpu_run(Path("o"), rebuild_base=True).config()


def test_a_changed_method_of_ones_own_is_another_run(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("actor_rollout_ref: {selector: {name: mine.py:f, q: 0.5}}")
    (tmp_path / "mine.py").write_text("1")
    first = of_testbed(method=str(file)).config()
    assert of_testbed(method=str(file)).config() == first
    (tmp_path / "mine.py").write_text("2")
    second = of_testbed(method=str(file)).config()
    file.write_text("actor_rollout_ref: {selector: {name: mine.py:f, q: 0.1}}")
    assert len({c["standing_sha256"] for c in (first, second, of_testbed(method=str(file)).config())}) == 3


@pytest.mark.parametrize("name", ["stapo.yaml", "2.yaml", "a,b.yaml", "my method.yaml", "base"])
def test_a_label_that_records_cannot_have_is_refused_first(tmp_path, name):
    (tmp_path / name).write_text("{}")
    with pytest.raises(BadInput):
        of_testbed(method=str(tmp_path / name) if "." in name else name)


def test_the_seeds_of_the_pilot_judge_nothing():
    with pytest.raises(BadInput):
        of_testbed(part="pilot", seeds="10,11")
