"""The paper's cells: their names, and the exact commands of the other wings."""

from __future__ import annotations

from pathlib import Path

import pytest
from driving import asked

from stapo_repro import labels
from stapo_repro.cli import main
from stapo_repro.driver.chain import make_stages
from stapo_repro.driver.readiness import stage_costs
from stapo_repro.driver.request import Request, calibration, parse_cells, size_on_cpu
from stapo_results.errors import BadInput


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands by their names, without the folder of this environment."""
    monkeypatch.setattr("stapo_repro.driver.request.console_script", lambda name, environment=None: name)


def commands(r: Request) -> dict[str, str]:
    return {s.name: " ".join(s.command).replace(f"{Path.cwd()}/", "") for s in make_stages(r)}


# names


@pytest.mark.parametrize("wrong", [["stapo"], ["ppo/mini"], ["base/mini"], ["stapo/qwen3-32b"], ["/mini"], [""], []])
def test_names_that_are_no_cells(wrong: list[str]) -> None:
    with pytest.raises(BadInput):
        parse_cells(wrong)


def test_the_miniature_the_small_model_and_the_paper_are_three_runs() -> None:
    assert size_on_cpu(parse_cells(["stapo/mini"])) == "mini"
    assert size_on_cpu(parse_cells(["stapo/smollm2-135m", "grpo/smollm2-135m"])) == "smollm2-135m"
    assert size_on_cpu(parse_cells(["stapo/qwen3-8b", "base/qwen3-14b"])) == ""
    with pytest.raises(BadInput) as e:
        size_on_cpu(parse_cells(["stapo/mini", "stapo/qwen3-8b", "grpo/smollm2-135m", "base/qwen3-14b"]))
    commands = ["stapo/mini", "stapo/qwen3-8b base/qwen3-14b", "grpo/smollm2-135m"]
    assert e.value.next_step == "   and: ".join(f"stapo-repro run {names}" for names in commands)


# commands


@pytest.mark.usefixtures("named")
def test_commands_of_a_cell_on_one_node() -> None:
    assert commands(asked("stapo/qwen3-1.7b")) == {
        "benchmarks": "stapo-eval benchmarks --write o/benchmarks",
        "data": "stapo-train data --benchmarks o/benchmarks --out o/data",
        "train/stapo-qwen3-1.7b-s0": "stapo-train run method=stapo size=qwen3-1.7b hardware=8gpu run.seed=0 "
        "run.steps=3000 run.data=o/data run.out=o/train/stapo-qwen3-1.7b-s0",
        "export/stapo-qwen3-1.7b-s0": "stapo-train export --checkpoint "
        "o/train/stapo-qwen3-1.7b-s0/checkpoints/global_step_3000 --out o/models/stapo-qwen3-1.7b-s0 --dtype bf16",
        "eval/stapo-qwen3-1.7b-s0": "stapo-eval run --model o/models/stapo-qwen3-1.7b-s0 --benchmarks all --settings "
        "both --data-dir o/benchmarks --engine vllm --replicas 8 --judge opencompass/CompassVerifier-3B --out "
        "o/eval/stapo-qwen3-1.7b-s0",
        "tables": "stapo-repro tables --of main --records o/eval o/train --out o/tables",
        "figures": "stapo-repro figures --of main --records o/eval o/train --out o/figures",
    }


@pytest.mark.usefixtures("named")
def test_commands_on_the_papers_cluster_with_everything_said() -> None:
    r = asked("stapo/qwen3-14b", hardware="64gpu", seeds="0,1", data_dir=Path("b"), source="x.jsonl", judge="none",
              keep_checkpoints=2, steps=10)  # fmt: skip
    by = commands(r)
    assert "benchmarks" not in by
    assert by["data"] == "stapo-train data --benchmarks b --out o/data --source x.jsonl"
    assert by["train/stapo-qwen3-14b-s1"] == (
        "stapo-train run method=stapo size=qwen3-14b hardware=64gpu run.seed=1 run.steps=10 run.data=o/data "
        "run.out=o/train/stapo-qwen3-14b-s1 trainer.max_actor_ckpt_to_keep=2 ray_kwargs.ray_init.address=auto"
    )
    assert by["eval/stapo-qwen3-14b-s1"] == (
        "stapo-eval run --model o/models/stapo-qwen3-14b-s1 --benchmarks all --settings both --data-dir b --engine "
        "vllm --tensor-parallel 2 --replicas 32 --ray-address auto --out o/eval/stapo-qwen3-14b-s1"
    )
    assert list(by) == [
        "data",
        *(f"{kind}/stapo-qwen3-14b-s{n}" for kind in ("train", "export", "eval") for n in (0, 1)),
        "tables",
        "figures",
    ]


@pytest.mark.usefixtures("named")
def test_a_base_model_is_evaluated_at_its_commit_and_not_trained() -> None:
    by = commands(asked("base/qwen3-8b", hardware="1gpu", seeds="0,1"))
    assert list(by) == ["benchmarks", "eval/base-qwen3-8b", "tables", "figures"]
    assert by["eval/base-qwen3-8b"] == (
        "stapo-eval run --model Qwen/Qwen3-8B-Base --revision 49e3418fbbbca6ecbdf9608b4d22e5a407081db4 --method base "
        "--size qwen3-8b --train-seed 0 --step base --benchmarks all --settings both --data-dir o/benchmarks --engine "
        "vllm --judge opencompass/CompassVerifier-3B --out o/eval/base-qwen3-8b"
    )
    assert by["tables"] == "stapo-repro tables --of main --records o/eval --out o/tables"


@pytest.mark.usefixtures("named")
def test_a_public_checkpoint_is_evaluated_as_it_was_published() -> None:
    r = calibration(["calibration/justrl-deepseek-1.5b"], Path("o"), hardware="1gpu", judge="none")
    by, name = commands(r), "calibration-justrl-deepseek-1.5b"
    assert list(by) == ["benchmarks", f"eval/{name}-justrl", f"eval/{name}-sober", "calibration"]
    how = "--data-dir o/benchmarks --engine vllm --out o/eval"
    assert by[f"eval/{name}-sober"] == (
        "stapo-eval run --model hbx/JustRL-DeepSeek-1.5B --benchmarks all --settings t0.8-p0.9 --max-tokens 32768 "
        f"{how}/{name}-sober"
    )
    assert "--settings t0.7 --max-tokens 31744" in by[f"eval/{name}-justrl"]
    assert by["calibration"].startswith("stapo-repro calibrate hbx/JustRL-DeepSeek-1.5B --from o/eval/")
    costs = stage_costs(r)
    # 8,984 samples of 31744 / 8 = 3,968 tokens, 5 bytes each, and 2 bytes for each of 1,777,088,000 parameters
    assert costs[f"eval/{name}-justrl"].disk == pytest.approx((8984 * 3968 * 5 + 2 * 1_777_088_000) / 2**30)
    hours = [costs[f"eval/{name}-{x}"].hours or 0 for x in ("justrl", "sober")]
    assert 0 < hours[0] < hours[1]


@pytest.mark.parametrize("wrong", [["calibration/x"], ["calibration/justrl-deepseek-1.5b", "stapo/qwen3-8b"]])
def test_checkpoints_that_are_none(wrong: list[str]) -> None:
    with pytest.raises(BadInput, match="checkpoint"):
        calibration(wrong, Path("o"))


@pytest.mark.parametrize("flags", [["--steps", "10"], ["--seeds", "0"], ["--seed-count", "0"], ["--seeds", ""]])
def test_options_of_a_training_are_refused_for_a_checkpoint(flags, capsys) -> None:
    with pytest.raises(SystemExit) as e:
        main(["run", "calibration/justrl-deepseek-1.5b", "--dry-run", *flags])
    assert e.value.code == 2
    assert flags[0] in capsys.readouterr().err


@pytest.mark.usefixtures("named")
def test_every_stage_needs_only_earlier_ones_and_terabytes_are_not_hashed() -> None:
    chain = make_stages(asked("base/qwen3-8b", "stapo/qwen3-8b", "grpo/qwen3-1.7b", seeds="0,1"))
    names = [s.name for s in chain]
    assert len(set(names)) == len(names)
    for i, stage in enumerate(chain):
        assert set(stage.needs) <= set(names[:i])
        assert not any(p.name in ("checkpoints", "models") or p.suffix == ".safetensors" for p in stage.outputs)


@pytest.mark.slow
def test_every_training_command_composes() -> None:
    """The wing's own composition takes each of them: methods, sizes, machines, a cluster's address, a try."""
    from stapo_training.run.configuration import compose

    for hardware, address in (("1gpu", ""), ("8gpu", ""), ("8gpu", "auto"), ("64gpu", "h:1")):
        for quick in (False, True):
            r = asked(*(f"{m}/{s}" for m in labels.METHODS for s in labels.PAPER_SIZES), hardware=hardware,
                      ray_address=address, quick=quick, keep_checkpoints=2)  # fmt: skip
            trainings = [s for s in make_stages(r) if s.kind == "train"]
            assert len(trainings) == 12
            for s in trainings[:: 1 if hardware == "8gpu" and not quick else 5]:
                config = compose(list(s.command[2:]))
                assert config.ray_kwargs.ray_init.get("address") == (address or None)
                assert config.trainer.max_actor_ckpt_to_keep == 2


@pytest.mark.parametrize("words", [
    ["run", "stapo/mini", "--seeds", ""], ["run", "stapo/qwen3-8b", "--seeds", ""], ["plan", "--seeds", ""],
    ["plan", "--steps", "0"],
    ["run", "stapo/qwen3-8b", "--keep-checkpoints", "0"],
])  # fmt: skip
def test_values_of_the_command_line_are_checked(words, capsys) -> None:
    with pytest.raises(SystemExit) as e:
        main(words)
    assert e.value.code == 2


def test_the_miniature_has_a_dry_run(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as e:
        main(["miniature", "--dry-run", "--out", str(tmp_path / "o")])
    assert e.value.code == 0
    assert not (tmp_path / "o").exists()


def test_a_near_name_of_a_cell_is_suggested() -> None:
    with pytest.raises(BadInput) as e:
        parse_cells(["STAPO/mini"])
    assert "stapo is near" in e.value.next_step
