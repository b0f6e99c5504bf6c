"""The paper's cells: the exact commands of the other wings that make what a cell lacks.

The same engine as the miniature's runs them. What differs: GPUs, weights and data of the hub, vLLM, the real judge, and
a folder that grows: further cells may be added to it, everything else of its first call stays.
"""

from __future__ import annotations

import os
from pathlib import Path

from stapo_repro import labels
from stapo_repro.driver.chain import Stages
from stapo_repro.driver.request import Request
from stapo_repro.driver.stages import Stage
from stapo_repro.planner.facts import MACHINES, load

# A stage ends in its own time: a training step of the largest model, and its checkpoint (as in tox.ini)
GRACE_SECONDS = 1800.0
QUICK_PROBLEMS, QUICK_SAMPLES = 2, 2


def make_stages(r: Request) -> Stages:
    """All stages in order: benchmarks, data, train each, export each, evaluate each, tables, figures."""
    train, evaluate, repro = r.programs()
    # weights and data are pinned or checked by hash, so fetching them is allowed unless the user says otherwise
    online = (("HF_HUB_OFFLINE", os.environ.get("HF_HUB_OFFLINE", "0")),)
    benchmarks, data = r.data_dir or r.out / "benchmarks", r.out / "data"
    stages: Stages = []
    first: tuple[str, ...] = ()
    if r.data_dir is None:
        command = (evaluate, "benchmarks", "--write", f"{benchmarks}")
        stages.append(Stage("benchmarks", command, benchmarks, (benchmarks,), (), online))
        first = ("benchmarks",)
    if r.trains:
        command = (train, "data", "--benchmarks", f"{benchmarks}", "--out", f"{data}")
        command += ("--source", r.source) if r.source else ()
        outputs = tuple(data / f for f in ("train.parquet", "val.parquet", "data.json"))
        stages.append(Stage("data", command, data, outputs, first, online))
    trained = [(m, s, n) for m, s, n in r.models if m != labels.BASE]
    stages += [_training(r, train, model, online) for model in trained]
    stages += [_export(r, train, model) for model in trained]
    evaluations = [_evaluation(r, evaluate, model, benchmarks, first, online) for model in r.models]
    stages += evaluations
    records = ("--of", "main", "--records", *(f"{r.out / x}" for x in (("eval", "train") if trained else ("eval",))))
    names = [tuple(s.name for s in stages if s.kind == kind) for kind in ("eval", "train")]
    for command, needs in (("tables", names[0]), ("figures", names[0] + names[1])):
        folder = r.out / command
        stages.append(Stage(command, (repro, command, *records, "--out", f"{folder}"), folder, (folder,), needs))
    return stages


def name_of(model: tuple[str, str, int]) -> str:
    """stapo-qwen3-1.7b-s0; base-qwen3-1.7b"""
    method, size, seed = model
    return f"{method}-{size}" + ("" if method == labels.BASE else f"-s{seed}")


def _training(r: Request, program: str, model: tuple[str, str, int], online: tuple[tuple[str, str], ...]) -> Stage:
    method, size, seed = model
    folder = r.out / "train" / name_of(model)
    command = [program, "run", f"method={method}", f"size={size}", f"hardware={r.hardware}", f"run.seed={seed}",
               f"run.steps={r.steps}", f"run.data={r.out / 'data'}", f"run.out={folder}"]  # fmt: skip
    if r.keep_checkpoints:
        command.append(f"trainer.max_actor_ckpt_to_keep={r.keep_checkpoints}")
    if r.ray_address:
        # the overlay of 64 GPUs names a cluster already, the others have no such key
        plus = "" if MACHINES[r.hardware].gpus > 8 else "+"
        command.append(f"{plus}ray_kwargs.ray_init.address={r.ray_address}")
    if r.quick:
        command += ["trainer.val_before_train=false", "trainer.test_freq=-1"]
    # terabytes of checkpoints are not hashed: the last one's list of its files stands for it
    outputs = (folder / "metrics.jsonl", folder / "checkpoints" / f"global_step_{r.steps}" / "COMPLETE.json")
    return Stage(f"train/{name_of(model)}", tuple(command), folder, outputs, ("data",), online)


def _export(r: Request, program: str, model: tuple[str, str, int]) -> Stage:
    folder = r.out / "models" / name_of(model)
    source = r.out / "train" / name_of(model) / "checkpoints" / f"global_step_{r.steps}"
    command = (program, "export", "--checkpoint", f"{source}", "--out", f"{folder}", "--dtype", "bf16")
    # stapo.json holds the hash of the weights, which the evaluation compares
    outputs = (folder / "stapo.json", folder / "config.json")
    return Stage(f"export/{name_of(model)}", command, folder, outputs, (f"train/{name_of(model)}",))


def _evaluation(
    r: Request, program: str, model: tuple[str, str, int], benchmarks: Path, first: tuple[str, ...],
    online: tuple[tuple[str, str], ...],
) -> Stage:  # fmt: skip
    method, size, _ = model
    folder = r.out / "eval" / name_of(model)
    if method == labels.BASE:
        known, needs = load().models[size], first
        which = ["--model", known.id, "--revision", known.revision, "--method", method, "--size", size,
                 "--train-seed", "0", "--step", "base"]  # fmt: skip
    else:
        which, needs = ["--model", f"{r.out / 'models' / name_of(model)}"], (f"export/{name_of(model)}", *first)
    command = [program, "run", *which, "--benchmarks", "all", "--settings", "both", "--data-dir", f"{benchmarks}",
               "--engine", "vllm", *_engines(r, size), *_judge(r)]  # fmt: skip
    if r.quick:
        command += ["--limit", f"{QUICK_PROBLEMS}", "--n", f"{QUICK_SAMPLES}"]
    outputs = (folder / "samples.jsonl", folder / "verdicts.jsonl", folder / "cells")
    return Stage(
        f"eval/{name_of(model)}", (*command, "--out", f"{folder}"), folder, outputs, needs, online
    )  # fmt: skip


def _engines(r: Request, size: str) -> list[str]:
    """Copies of the model over the GPUs; one GPU needs no Ray."""
    machine = MACHINES[r.hardware]
    parallel = machine.tensor_parallel(size)
    flags = ["--tensor-parallel", f"{parallel}"] if parallel > 1 else []
    if machine.gpus > 1:
        flags += ["--replicas", f"{machine.gpus // parallel}"]
        flags += ["--ray-address", r.ray_address] if r.ray_address else []
    return flags


def _judge(r: Request) -> list[str]:
    if r.judge == "none":
        return []
    return ["--judge", r.judge] + (["--judge-revision", r.judge_revision] if r.judge_revision else [])
