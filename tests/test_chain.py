"""What a run is made of: the stages of each experiment with their exact commands, values, folders; whole chains."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from driving import asked, commands

from stapo_repro import cli, labels
from stapo_repro.run import checks
from stapo_repro.run.cells import CellRequest
from stapo_repro.run.chain import make_stages
from stapo_repro.run.request import cpu_run, parse_cells, seeds_of
from stapo_results import runs
from stapo_results.errors import BadInput
from stapo_results.methods import methods

# commands


def test_the_miniature():
    r = asked("miniature", quick=True, seeds="0,1")
    of = ["justrl-s0", "stapo-s0", "justrl-s1", "stapo-s1"]
    models = [*(f"{kind}/{m}" for kind in ("train", "export") for m in of), "eval/base", *(f"eval/{m}" for m in of)]
    assert list(commands(r)) == ["base", *models, "tables", "figures", "tokens/stapo-s0", "tokens/stapo-s1"]
    by = commands(asked("stapo/mini"))
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
    assert by["tables"] == "stapo-repro tables --records o/eval o/train --out o/tables"
    assert commands(asked("miniature", rebuild_base=True))["base"].endswith(" --rebuild-base")


def test_a_real_model_on_two_cores_and_on_a_gpu() -> None:
    quick = commands(asked("base/qwen2.5-coder-0.5b", "stapo/qwen2.5-coder-0.5b", quick=True, weights=Path("w.gguf")))
    model, folder = "o/fetch/qwen2.5-coder-0.5b/model", "stapo-qwen2.5-coder-0.5b-s0"
    assert quick == {
        "benchmarks": "stapo-eval benchmarks --write o/benchmarks",
        "fetch/qwen2.5-coder-0.5b": "stapo-train fetch qwen2.5-coder-0.5b --out o/fetch/qwen2.5-coder-0.5b "
        "--file w.gguf",
        "data": "stapo-train data --benchmarks o/benchmarks --out o/data --source DigitalLearningGmbH/MATH-lighteval "
        "--levels 1 2 3 --exclude-contaminated --validation math500:32",
        f"train/{folder}": "stapo-train run method=stapo size=qwen2.5-coder-0.5b hardware=cpu run.seed=0 run.steps=2 "
        f"run.data=o/data run.out=o/train/{folder} actor_rollout_ref.model.path={model} data.max_response_length=64 "
        "trainer.val_before_train=false trainer.test_freq=-1",
        f"export/{folder}": f"stapo-train export --checkpoint o/train/{folder} --out o/models/{folder} --dtype bf16",
        "eval/base-qwen2.5-coder-0.5b": f"stapo-eval run --model {model} --method base --size qwen2.5-coder-0.5b "
        "--benchmarks all --settings both --data-dir o/benchmarks --engine hf --limit 2 --n 2 --max-tokens 256 "
        "--out o/eval/base-qwen2.5-coder-0.5b",
        f"eval/{folder}": f"stapo-eval run --model o/models/{folder} --benchmarks all --settings both "
        f"--data-dir o/benchmarks --engine hf --limit 2 --n 2 --max-tokens 256 --out o/eval/{folder}",
        "tables": "stapo-repro tables --records o/eval o/train --out o/tables",
        "figures": "stapo-repro figures --records o/eval o/train --out o/figures",
    }
    whole = commands(asked("grpo/qwen2.5-coder-0.5b", hardware="1gpu"))
    assert whole["data"].endswith(f" --within-reach {model}")
    assert "run.steps=30" in whole["train/grpo-qwen2.5-coder-0.5b-s0"]
    assert "--engine vllm" in whole["eval/grpo-qwen2.5-coder-0.5b-s0"]
    assert whole["eval/grpo-qwen2.5-coder-0.5b-s0"].endswith(
        "--engine vllm --max-tokens 2048 --out o/eval/grpo-qwen2.5-coder-0.5b-s0"
    )
    assert "--judge" not in whole["eval/grpo-qwen2.5-coder-0.5b-s0"]
    base = commands(asked("base/qwen2.5-coder-1.5b"))
    assert list(base) == ["benchmarks", "fetch/qwen2.5-coder-1.5b", "eval/base-qwen2.5-coder-1.5b", "tables", "figures"]
    assert "--engine hf --n 2 --max-tokens 2048" in base["eval/base-qwen2.5-coder-1.5b"]


def test_a_cell_of_the_paper_on_one_node() -> None:
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
        "tables": "stapo-repro tables --records o/eval o/train --out o/tables",
        "figures": "stapo-repro figures --records o/eval o/train --out o/figures",
    }


def test_a_cell_on_the_papers_cluster_with_everything_said() -> None:
    r = asked("stapo/qwen3-14b", hardware="64gpu", seeds="0,1", data_dir=Path("b"), source="x.jsonl", judge="none",
              keep_checkpoints=2, steps=10)  # fmt: skip
    by, made = commands(r), [f"{kind}/stapo-qwen3-14b-s{n}" for kind in ("train", "export", "eval") for n in (0, 1)]
    assert list(by) == ["data", *made, "tables", "figures"]
    assert by["data"] == "stapo-train data --benchmarks b --out o/data --source x.jsonl"
    assert by["train/stapo-qwen3-14b-s1"] == (
        "stapo-train run method=stapo size=qwen3-14b hardware=64gpu run.seed=1 run.steps=10 run.data=o/data "
        "run.out=o/train/stapo-qwen3-14b-s1 trainer.max_actor_ckpt_to_keep=2 ray_kwargs.ray_init.address=auto"
    )
    assert by["eval/stapo-qwen3-14b-s1"] == (
        "stapo-eval run --model o/models/stapo-qwen3-14b-s1 --benchmarks all --settings both --data-dir b --engine "
        "vllm --tensor-parallel 2 --replicas 32 --ray-address auto --out o/eval/stapo-qwen3-14b-s1"
    )


def test_a_base_model_is_evaluated_at_its_commit_and_not_trained() -> None:
    by = commands(asked("base/qwen3-8b", hardware="1gpu"))
    assert list(by) == ["benchmarks", "eval/base-qwen3-8b", "tables", "figures"]
    assert by["eval/base-qwen3-8b"] == (
        "stapo-eval run --model Qwen/Qwen3-8B-Base --revision 49e3418fbbbca6ecbdf9608b4d22e5a407081db4 --method base "
        "--size qwen3-8b --train-seed 0 --step base --benchmarks all --settings both --data-dir o/benchmarks --engine "
        "vllm --judge opencompass/CompassVerifier-3B --out o/eval/base-qwen3-8b"
    )


def test_stages_that_fetch_pinned_weights_and_data_may_reach_the_hub_and_those_that_compute_have_cards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    found = {s.name.partition("/")[0]: (s.environment, s.cards)
             for s in make_stages(asked("stapo/qwen3-1.7b", hardware="1gpu"))}  # fmt: skip
    online = {"HF_HUB_OFFLINE": "0"}
    assert {k: found[k] for k in ("benchmarks", "data")} == {"benchmarks": (online, 0), "data": (online, 0)}
    assert {k: found[k] for k in ("train", "eval")} == {"train": (online, 1), "eval": (online, 1)}
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # a user's word
    assert {s.environment["HF_HUB_OFFLINE"] for s in make_stages(asked("base/qwen3-8b")) if s.environment} == {"1"}
    assert all((dict(s.environment), s.cards) == ({}, 0) for s in make_stages(asked("stapo/mini")))


def test_every_stage_needs_only_earlier_ones() -> None:
    chain = make_stages(asked("base/qwen3-8b", "stapo/qwen3-8b", "grpo/qwen3-1.7b", seeds="0,1"))
    names = [s.name for s in chain]
    assert len(set(names)) == len(names)
    assert all(set(stage.needs) <= set(names[:i]) for i, stage in enumerate(chain))


@pytest.mark.slow
def test_every_training_command_composes() -> None:
    """The wing's own composition takes each of them: methods, sizes, machines, a cluster's address, a try."""
    from stapo_training.start.configuration import compose

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


# values


@pytest.mark.parametrize("wrong", [
    lambda: parse_cells(["stapo"]), lambda: parse_cells(["base/mini"]), lambda: parse_cells([]),
    lambda: parse_cells(["stapo-q0.75/qwen3-1.7b"]), lambda: parse_cells(["stapo-q0.50/mini"]),
    lambda: parse_cells(["stapo-q1.5/mini"]), lambda: parse_cells(["stapo-tau7.0/mini"]),
    lambda: parse_cells(["stapo/qwen3-2b"]), lambda: parse_cells(["stapo/qwen3-8b", "stapo/mini"]),
    lambda: seeds_of("one"), lambda: seeds_of("0,0"), lambda: seeds_of("-1"), lambda: seeds_of(""),
    lambda: asked("stapo/mini", steps=0), lambda: asked("stapo/mini", judge="none"),
    lambda: asked("stapo/mini", hardware="8gpu"), lambda: asked("stapo/qwen3-8b", rebuild_base=True),
    lambda: asked("stapo/qwen3-8b", keep_checkpoints=0), lambda: asked("stapo/qwen3-8b", hardware="cpu"),
    lambda: asked("stapo/qwen2.5-coder-1.5b"), lambda: asked("stapo/mini", weights=Path("w.gguf")),
    lambda: asked("stapo/qwen3-8b", weights=Path("w.gguf")), lambda: asked("base/qwen3-8b", seeds="0,1"),
    lambda: asked("stapo/qwen3-8b", "stapo/qwen2.5-coder-0.5b"),
    lambda: asked("stapo/qwen3-8b", train_env=Path("none")), lambda: asked("stapo/mini", all=True),
])  # fmt: skip
def test_wrong_values_are_refused(wrong) -> None:
    with pytest.raises(BadInput):
        wrong()


def test_seeds_and_cells() -> None:
    assert [seeds_of("3"), seeds_of("4,1"), seeds_of(None)] == [(3,), (4, 1), None]
    run, cells = parse_cells(["stapo/qwen3-8b", "base/qwen3-14b", "stapo/qwen3-8b"])
    assert (run, cells) == ("cells", (("stapo", "qwen3-8b"), ("base", "qwen3-14b")))


@pytest.mark.parametrize("size", ["mini", "qwen2.5-coder-0.5b", "qwen3-1.7b", "qwen3-8b", "qwen3-14b"])
def test_every_registered_method_and_other_values_of_a_mask_are_cells(size) -> None:
    others = {
        "stapo-q0.5": "stapo actor_rollout_ref.selector.q=0.5",
        "stapo-random-tau2e-05-q0.25": "stapo-random actor_rollout_ref.selector.tau_p=2e-05 "
        "actor_rollout_ref.selector.q=0.25",
    }
    told = dict(zip(methods(), methods(), strict=True)) | others
    by = commands(asked(*(f"{m}/{size}" for m in told)))
    trained = {name.removeprefix("train/").split(f"-{size}")[0].removesuffix("-s0"): command.split("method=")[1]
               for name, command in by.items() if name.startswith("train/")}  # fmt: skip
    assert {m: command.partition(" size=")[0] for m, command in trained.items()} == told


def test_the_command_line_refuses_with_code_2_and_writes_nothing(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in (["run", "stpo/mini"], ["nosuch"], ["run", "miniature", "--seeds", "x"]):
        with pytest.raises(SystemExit) as e:
            cli.main(arguments)
        assert e.value.code == 2
        assert "error: " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# folders


def begin(r: CellRequest) -> None:
    """Open the folder of a request as the driver does."""
    with runs.opened(r.out, checks.new_record(r)) as folder, folder.working():
        pass


def test_a_folder_takes_no_other_run(tmp_path):
    begin(cpu_run(tmp_path / "m", methods=["stapo"]))
    before = (tmp_path / "m" / "run.json").read_bytes()
    others: list[dict[str, Any]] = [{"steps": 60}, {"seeds": (0, 1)}, {"methods": ["grpo"]}, {"rebuild_base": True}]
    for changed in others:
        with pytest.raises(BadInput):
            begin(cpu_run(tmp_path / "m", **{"methods": ["stapo"], **changed}))
    assert (tmp_path / "m" / "run.json").read_bytes() == before


@pytest.mark.slow
def test_a_cell_of_the_miniature_from_nothing_to_records(tmp_path: Path) -> None:
    """The real wings: run, dry run of what is there, collect, and the same table from the collected records."""

    def call(*words: str) -> str:
        command = [sys.executable, "-m", "stapo_repro.cli", *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "done        eval/stapo-s0 " in call("run", "stapo/mini", "--quick", "--out", "r")
    record = (tmp_path / "r/run.json").read_bytes()
    assert call("run", "stapo/mini", "--quick", "--out", f"{tmp_path / 'r'}").count("finished before") == 5
    assert (tmp_path / "r/run.json").read_bytes() == record
    assert (tmp_path / "r/tokens/stapo-s0/index.html").stat().st_size > 0
    assert "Still to do: 0 of 8 stages" in call("run", "stapo/mini", "--quick", "--out", "r", "--dry-run")
    call("collect", "r", "--out", "shared")
    call("tables", "--records", "shared/eval", "shared/train", "--out", "t")
    assert (tmp_path / "t/main_table.md").read_bytes() == (tmp_path / "r/tables/main_table.md").read_bytes()
