"""The driver on the paper's cells: exact commands, refusals before anything starts, and the chain with stand-ins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from stapo_repro import cells, dry_run, labels, paper_driver, readiness
from stapo_repro.chain import console_script
from stapo_repro.paper_chain import make_stages
from stapo_repro.paper_request import Request, request
from stapo_repro.planner.hours import Part
from stapo_results.errors import BadInput


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands by their names, without the folder of this environment."""
    monkeypatch.setattr("stapo_repro.paper_request.console_script", lambda name, environment=None: name)


def asked(*names: str, out: Path = Path("o"), **changed) -> Request:
    return request(cells.parse(names), out=out, **changed)


def commands(r: Request) -> dict[str, str]:
    return {s.name: " ".join(s.command) for s in make_stages(r)}


# names


def test_cells() -> None:
    assert cells.parse(["stapo/mini", "grpo/mini", "stapo/mini"]) == (("stapo", "mini"), ("grpo", "mini"))
    assert cells.methods(cells.parse(["stapo/mini", "grpo/mini"])) == "grpo,stapo"
    assert cells.parse(["base/qwen3-8b", "stapo-random/qwen3-8b"])[1] == ("stapo-random", "qwen3-8b")
    for wrong in ("stapo", "ppo/mini", "base/mini", "stapo/qwen3-32b", "/mini", ""):
        with pytest.raises(BadInput, match="no such cell"):
            cells.parse([wrong])
    with pytest.raises(BadInput, match="no cell was named"):
        cells.parse([])


def test_the_miniature_and_the_paper_are_two_runs() -> None:
    assert cells.is_miniature(cells.parse(["stapo/mini"]))
    assert not cells.is_miniature(cells.parse(["stapo/qwen3-8b"]))
    with pytest.raises(BadInput, match="two runs") as e:
        cells.is_miniature(cells.parse(["stapo/mini", "stapo/qwen3-8b"]))
    assert "stapo-repro run stapo/mini   and: stapo-repro run stapo/qwen3-8b" in str(e.value)


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
def test_one_node_of_a_cluster_and_a_try() -> None:
    by = commands(asked("grpo/qwen3-8b", ray_address="10.0.0.1:6379", quick=True))
    assert by["train/grpo-qwen3-8b-s0"].endswith(
        "run.steps=2 run.data=o/data run.out=o/train/grpo-qwen3-8b-s0 +ray_kwargs.ray_init.address=10.0.0.1:6379 "
        "trainer.val_before_train=false trainer.test_freq=-1"
    )
    assert "--replicas 8 --ray-address 10.0.0.1:6379" in by["eval/grpo-qwen3-8b-s0"]
    assert "--limit 2 --n 2 --out" in by["eval/grpo-qwen3-8b-s0"]


@pytest.mark.usefixtures("named")
def test_every_stage_needs_only_earlier_ones_and_terabytes_are_not_hashed() -> None:
    chain = make_stages(asked("base/qwen3-8b", "stapo/qwen3-8b", "grpo/qwen3-1.7b", seeds="0,1"))
    names = [s.name for s in chain]
    assert len(set(names)) == len(names)
    for i, stage in enumerate(chain):
        assert set(stage.needs) <= set(names[:i])
        assert not any(p.name in ("checkpoints", "models") or p.suffix == ".safetensors" for p in stage.outputs)


def test_every_training_command_composes() -> None:
    """The wing's own composition takes each of them: methods, sizes, machines, a cluster's address, a try."""
    from stapo_training.configuration import compose

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


# refusals


def test_without_gpus_it_is_refused_before_anything_starts(tmp_path: Path) -> None:
    env = {**os.environ, "PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "stapo_repro.cli", "run", "base/qwen3-8b", "--hardware", "1gpu"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env)
    assert done.returncode == 2
    assert "this machine has too few GPUs for --hardware 1gpu" in done.stderr
    assert "stapo-repro plan base/qwen3-8b --hardware 1gpu" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hardware": "cpu"}, "need GPUs"),
        ({"steps": 0}, "--steps is at least 1"),
        ({"keep_checkpoints": -1}, "--keep-checkpoints is at least 0"),
        ({"seeds": "0,0"}, "each seed once"),
    ],
)
def test_values_that_cannot_be(changed, message) -> None:
    with pytest.raises(BadInput, match=message):
        asked("stapo/qwen3-8b", **changed)


def test_an_environment_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="stapo-eval is not installed in"):
        make_stages(asked("base/qwen3-8b", eval_env=tmp_path))


def test_options_of_the_other_kind_are_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stapo_repro.cli", "run", "stapo/mini", "--judge", "none", "--hardware", "8gpu"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert "--hardware, --judge" in done.stderr


def _smi(folder: Path, cards: int) -> str:
    """A PATH whose nvidia-smi lists so many cards."""
    folder.mkdir()
    (folder / "nvidia-smi").write_text("#!/bin/sh\n" + "".join(f"echo {i}\n" for i in range(cards)))
    (folder / "nvidia-smi").chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def test_gpus_are_counted_as_far_as_they_are_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", _smi(tmp_path / "bin", 8))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert readiness.check_gpus(asked("base/qwen3-8b")) == "8 in this machine, 8 needed"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    with pytest.raises(BadInput) as e:
        readiness.check_gpus(asked("base/qwen3-8b"))
    assert "found:    3 GPUs" in str(e.value)


def _environment(folder: Path, packages: dict[str, str], ray: str = "") -> Path:
    """A venv's folder with our commands and the metadata of packages: what is asked of it, and no more."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    for name, version in packages.items():
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    scripts = {"stapo-train": "", "stapo-eval": "", "ray": ray}
    for name, text in scripts.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / "bin" / name).chmod(0o755)
    return folder


def test_an_environment_is_asked_for_what_its_wing_needs(tmp_path: Path) -> None:
    lacking = _environment(tmp_path / "a", {"torch": "2.13.0", "verl": "0.9.1"})
    with pytest.raises(BadInput) as e:
        readiness.check_environment("stapo-train", lacking / "bin" / "stapo-train")
    assert "no vllm in" in str(e.value)
    assert "--train-env DIR" in str(e.value)
    whole = _environment(tmp_path / "b", {"torch": "2.13.0", "vllm": "0.32.0", "math-verify": "0.9.0"})
    said = readiness.check_environment("stapo-eval", whole / "bin" / "stapo-eval")
    assert said == "vllm 0.32.0, math_verify 0.9.0, torch 2.13.0"


STATUS = """
======== Autoscaler status: 2026-01-01 00:00:00 ========
Total Usage:
 0.0/64.0 CPU
 0.0/{gpus} GPU
 0B/100.00GiB memory
"""


@pytest.mark.parametrize(("gpus", "enough"), [("64.0", True), ("8.0", False)])
def test_a_clusters_gpus_are_counted(tmp_path: Path, gpus: str, enough: bool) -> None:
    folder = _environment(tmp_path / "a", {}, f"cat <<'X'{STATUS.format(gpus=gpus)}X")
    r = asked("stapo/qwen3-8b", hardware="64gpu", train_env=folder, eval_env=folder)
    if enough:
        assert readiness.check_gpus(r) == "64 in the Ray cluster at auto, 64 needed"
    else:
        with pytest.raises(BadInput, match="the Ray cluster at auto has too few GPUs"):
            readiness.check_gpus(r)


@pytest.mark.parametrize(
    ("says", "message"),
    [
        ("ConnectionError: Could not find any running Ray instance.", "no Ray cluster answers"),
        ("ray.exceptions.AuthenticationError: RPC error: InvalidAuthToken", "asks for a token"),
    ],
)
def test_a_cluster_that_does_not_answer_or_refuses(tmp_path: Path, says: str, message: str) -> None:
    folder = _environment(tmp_path / "a", {}, f"echo '{says}' >&2; exit 1")
    with pytest.raises(BadInput, match=message):
        readiness.check_gpus(asked("stapo/qwen3-8b", hardware="64gpu", train_env=folder, eval_env=folder))


@pytest.mark.parametrize(
    ("need", "message"),
    [((1e9, 1e9), "next:     another place"), ((1e9, 0.0), "next:     --keep-checkpoints 1, or"), ((0.0, 0.0), None)],
)
def test_disk_is_looked_at(tmp_path: Path, need: tuple[float, float], message: str | None) -> None:
    r = asked("stapo/qwen3-8b", out=tmp_path / "new" / "o")
    part = Part(None, 0, *need, "not known", ())
    if message is None:
        assert "GiB free" in readiness.check_disk(r, part)
    else:
        with pytest.raises(BadInput, match="too little disk") as e:
            readiness.check_disk(r, part)
        assert message in str(e.value)


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    empty = _environment(tmp_path / "a", {})
    r = asked("stapo/qwen3-8b", out=tmp_path / "o", train_env=empty, eval_env=empty, data_dir=tmp_path)
    with pytest.raises(BadInput) as e:
        paper_driver.main(r)
    for said in ("5 things stand in the way; nothing was started", "aime24.jsonl", "no verl, no vllm, no torch",
                 "no vllm, no math_verify", "too little disk", "too few GPUs"):  # fmt: skip
        assert said in str(e.value)
    assert not (tmp_path / "o").exists()


# the chain with stand-ins for the other wings, on a machine that says it has 8 GPUs

WING = textwrap.dedent(
    """
    import json, os, sys
    from pathlib import Path
    import synthetic_records as synthetic
    from stapo_results.benchmarks import registry
    from stapo_repro.planner.facts import whole_evaluation
    words = sys.argv[1:]
    if "--config-only" in words:
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
        for benchmark, setting in whole_evaluation():
            spec = registry()[benchmark]
            verdicts = ["10" * (spec.samples // 2)] * spec.rows
            synthetic.cell(out.parent, method, benchmark, setting, verdicts, size=size, folder=out.name)
    """
)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment with stand-ins of the two wings, and eight cards; returns its folder."""
    everything = {"torch": "2", "verl": "0.9.1", "vllm": "0.32.0", "math-verify": "0.9.0"}
    folder = _environment(tmp_path / "env", everything)
    (tmp_path / "wing.py").write_text(WING)
    for name in ("stapo-train", "stapo-eval"):
        path = [str(Path(__file__).parent), *sys.path]
        call = f'PYTHONPATH={":".join(p for p in path if p)} exec {sys.executable} {tmp_path / "wing.py"} "$@"'
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{call}\n")
    monkeypatch.setenv("PATH", _smi(tmp_path / "smi", 8))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setattr(paper_driver, "stage_costs", lambda r: {})  # 600 GiB of disk are not there
    return folder


def calls(tmp_path: Path) -> list[str]:
    return (tmp_path / "calls").read_text().splitlines()


def test_a_cell_and_then_one_more(tmp_path: Path, machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "cells"
    first = asked("stapo/qwen3-1.7b", out=out, train_env=machine, eval_env=machine)
    assert paper_driver.main(first) == 0
    # data and weights of the hub may be fetched, which the miniature's stages may not
    assert calls(tmp_path) == ["benchmarks --write 0", "data --benchmarks 0", "run method=stapo 0",
                               "export --checkpoint 1", "run --model 0"]  # fmt: skip
    table = (out / "tables" / "main_table.json").read_text()
    assert "50.00" in table
    capsys.readouterr()
    # the same command again repeats nothing, and a dry run says so
    assert paper_driver.main(first) == 0
    assert len(calls(tmp_path)) == 5
    before = (out / "stages.jsonl").read_bytes()
    assert paper_driver.main(first, dry=True) == 0
    assert "Still to do: 0 of 7 stages" in capsys.readouterr().out
    assert (out / "stages.jsonl").read_bytes() == before
    # one more cell: only what it lacks, and the table is made anew of both
    more = asked("base/qwen3-8b", out=out, train_env=machine, eval_env=machine)
    assert paper_driver.main(more) == 0
    assert calls(tmp_path)[5:] == ["run --model 0"]
    assert (out / "tables" / "main_table.json").read_text() != table
    with pytest.raises(BadInput, match="run of other parameters"):
        paper_driver.main(asked("stapo/qwen3-8b", out=out, train_env=machine, eval_env=machine, judge="none"))


def test_a_folder_of_the_miniature_is_refused(tmp_path: Path, machine: Path) -> None:
    out = tmp_path / "o"
    out.mkdir()
    (out / "parameters.json").write_text(json.dumps({"quick": True}))
    with pytest.raises(BadInput, match="run of another kind"):
        paper_driver.main(asked("base/qwen3-8b", out=out, train_env=machine, eval_env=machine))


def test_a_dry_run_writes_nothing_and_says_all(
    tmp_path: Path, machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    r = asked("stapo/qwen3-1.7b", out=tmp_path / "o", train_env=machine, eval_env=machine)
    assert paper_driver.main(r, dry=True) == 0
    text = capsys.readouterr().out
    for said in (
        "  3. train/stapo-qwen3-1.7b-s0: to do\n     stapo-train run method=stapo size=qwen3-1.7b hardware=8gpu ",
        "Still to do: 7 of 7 stages",
        "  ok      GPUs: 8 in this machine, 8 needed",
        "  ok      configuration of train/stapo-qwen3-1.7b-s0: composes",
        "All checks passed; nothing was started (--dry-run).",
    ):
        assert said in text
    assert not (tmp_path / "o").exists()
    assert not (tmp_path / "calls").exists()


def test_what_a_stage_costs() -> None:
    costs = paper_driver.stage_costs(asked("stapo/qwen3-8b", "base/qwen3-8b"))
    assert list(costs) == ["train/stapo-qwen3-8b-s0", "eval/stapo-qwen3-8b-s0", "eval/base-qwen3-8b"]
    assert dry_run.cost(costs["train/stapo-qwen3-8b-s0"]) == (
        "about 256.6 h, 2,053 GPU h (formula); disk 2,778 GiB (two checkpoints at a time: 215)"
    )
    assert costs["eval/base-qwen3-8b"].disk > costs["eval/stapo-qwen3-8b-s0"].disk  # its weights are fetched


def test_the_miniatures_dry_run(tmp_path: Path) -> None:
    command = [console_script("python"), "-m", "stapo_repro.cli", "run", "stapo/mini", "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for said in (
        "miniature: stapo on mini, seeds 0, 40 steps, without a GPU, into runs/miniature",
        "stapo-train run method=stapo size=mini hardware=cpu task=mini-add run.seed=0 run.steps=40 "
        "run.base=runs/miniature/base run.out=runs/miniature/train/stapo-s0\n     about 4 min (measured)",
        "Still to do: 7 of 7 stages",
    ):
        assert said in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_cell_of_the_miniature_from_nothing_to_a_bundle(tmp_path: Path) -> None:
    """The real wings: run, dry run of what is there, collect, pack, unpack."""

    def call(*words: str) -> str:
        command = [sys.executable, "-m", "stapo_repro.cli", *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    call("run", "stapo/mini", "--quick", "--out", "r")
    assert "Still to do: 0 of 7 stages" in call("run", "stapo/mini", "--quick", "--out", "r", "--dry-run")
    call("pack", "r", "--out", "a.zip")
    assert "0 were there already" in call("unpack", "a.zip", "--into", "shared")
    for name in ("samples.jsonl", "verdicts.jsonl"):
        same = f"r/eval/stapo-s0/{name}"
        assert (tmp_path / "shared" / same).read_bytes() == (tmp_path / same).read_bytes()
    call("tables", "--records", "shared/r/eval", "shared/r/train", "--out", "t")
    assert (tmp_path / "t/main_table.md").read_bytes() == (tmp_path / "r/tables/main_table.md").read_bytes()
