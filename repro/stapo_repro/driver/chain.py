"""The stages of a run in their order, each the exact command of a wing.

The miniature, the small model, the testbed and the paper's cells are one chain: inputs, trainings, exports,
evaluations, tables, figures, and of the first two the tokens of STAPO. What differs is where weights, data and
benchmarks come from: the miniature makes them on a CPU, and the testbed for each of its worlds; the small model is one
that `stapo-train fetch` has fetched; the paper's cells take them from the hub and need GPUs.
"""

from __future__ import annotations

import os
from pathlib import Path

from stapo_repro import calibrate, labels
from stapo_repro.driver.request import ON_CPU, Model, Request
from stapo_repro.driver.stages import Stage
from stapo_repro.planner.estimates import MACHINES, load
from stapo_repro.testbed.evidence import BENCHMARK
from stapo_repro.testbed.plan import VALIDATION_EVERY, world_of
from stapo_results import token_log
from stapo_results.sizes import SMALL, is_miniature_size

BASE_SEED = 0  # one base model for all training seeds
# More than the longest worked solution: what runs on beyond it has derailed, and would hold up its whole batch.
MAX_TOKENS = 64
SMALL_THREADS = 2  # of the small model; a number of its own, since the result depends on it
MINI_LIMIT = ("--limit", "16", "--n", "2")  # of the quick form on a CPU
PAPER_LIMIT = ("--limit", "2", "--n", "2")  # of the quick form of the paper's cells


def make_stages(r: Request) -> list[Stage]:
    """All stages; each needs only earlier ones. Raises: BadInput for a command that is not installed."""
    train, evaluate, repro = r.programs()
    inputs = _inputs(r, train, evaluate)
    first = tuple(s.name for s in inputs)
    if r.experiment == "calibration":
        return [*inputs, *_calibration(r, evaluate, repro, first)]
    trainings = [_training(r, train, m) for m in r.trained]
    exports = [_export(r, train, m) for m in r.trained if r.evaluates]
    evaluations = [_evaluation(r, evaluate, m, first) for m in r.models if r.evaluates]
    folders = dict.fromkeys(str(r.out / s.kind) for s in (*evaluations, *trainings))
    needs = tuple(s.name for s in (*evaluations, *trainings))
    of = "testbed" if r.experiment == "testbed" else "main"
    shown = r.part == "main" and not r.standing  # a pilot judges nothing, and stands beside the others when collected
    pages = [
        Stage(what, (repro, what, "--of", of, "--records", *folders, "--out", f"{r.out / what}"), r.out / what,
              (r.out / what,), needs)
        for what in ("tables", "figures") if shown
    ]  # fmt: skip
    tokens = [_tokens(r, repro, m) for m in r.trained if r.experiment in ON_CPU.values() and m.method == "stapo"]
    made = [*trainings, *exports, *evaluations]
    if r.experiment in ("testbed", "small"):  # hours: model by model, so that what is there can be looked at
        place = {m.name: i for i, m in enumerate(r.models)}
        made.sort(key=lambda s: place[s.name.partition("/")[2]])
    return [*inputs, *made, *pages, *tokens]


def _online(r: Request) -> tuple[tuple[str, str], ...]:
    """The paper's weights and data are pinned or checked by hash: fetching them is allowed unless the user forbids."""
    return () if r.on_cpu else (("HF_HUB_OFFLINE", os.environ.get("HF_HUB_OFFLINE", "0")),)


def _base(r: Request, size: str) -> Path:
    """Where base model, data and benchmarks of a run on a CPU stand: one of the testbed a world."""
    return r.out / (f"base-{world_of(size)}" if r.experiment == "testbed" else "base")


def _benchmarks(r: Request, size: str = labels.MINI) -> Path:
    return _base(r, size) / "benchmarks" if r.on_cpu else r.data_dir or r.out / "benchmarks"


def _inputs(r: Request, train: str, evaluate: str) -> list[Stage]:
    """Base models, data and benchmarks of a run on a CPU; or the paper's benchmarks and training data."""
    if r.on_cpu:
        stages = []
        for size in dict.fromkeys(m.size for m in r.models):
            base = _base(r, size)
            of = ("--size", size) if size == SMALL else ()
            of = ("--world", str(world_of(size))) if r.experiment == "testbed" else of
            anew = ("--rebuild-base",) if r.rebuild_base else ()
            command = (train, "base", "--out", f"{base}", "--seed", f"{BASE_SEED}", *of, *anew)
            stages.append(Stage(base.name, command, base, (base / "model", base / "data", base / "benchmarks")))
        return stages
    benchmarks, data, stages = _benchmarks(r), r.out / "data", []
    if r.data_dir is None:
        command = (evaluate, "benchmarks", "--write", f"{benchmarks}")
        stages.append(Stage("benchmarks", command, benchmarks, (benchmarks,), (), _online(r)))
    if r.trained:
        command = (train, "data", "--benchmarks", f"{benchmarks}", "--out", f"{data}")
        command += ("--source", r.source) if r.source else ()
        outputs = tuple(data / f for f in ("train.parquet", "val.parquet", "data.json"))
        stages.append(Stage("data", command, data, outputs, tuple(s.name for s in stages), _online(r)))
    return stages


def _training(r: Request, program: str, m: Model) -> Stage:
    folder = r.out / "train" / m.name
    mini = is_miniature_size(m.size)
    size = labels.MINI if mini else m.size
    command = [program, "run", *(m.choices or (f"method={m.method}",)), f"size={size}", f"hardware={r.hardware}"]
    command += ["task=mini-add"] if mini else []
    command += [] if m.size == size else [f"run.size={m.size}"]
    command += [f"run.seed={m.seed}", f"run.steps={r.steps}"]
    command += [f"run.base={_base(r, m.size)}"] if r.on_cpu else [f"run.data={r.out / 'data'}"]
    command.append(f"run.out={folder}")
    if r.experiment == "testbed":
        every = VALIDATION_EVERY if r.part == "long" else -1
        command += [f"trainer.val_before_train={str(r.part == 'long').lower()}", f"trainer.test_freq={every}"]
    if m.size == SMALL:
        command += [f"cpu.train_threads={SMALL_THREADS}", f"cpu.rollout_threads={SMALL_THREADS}"]
    if r.quick and not mini:  # validating would take longer than training
        command += ["trainer.val_before_train=false", "trainer.test_freq=-1"]
    if r.on_cpu:
        # a checkpoint of gigabytes is not hashed: the list of its files stands for it
        weights = folder / "checkpoints" / ("" if mini else f"global_step_{r.steps}/COMPLETE.json")
        outputs = (folder / "metrics.jsonl", weights, folder / token_log.FOLDER)
        return Stage(f"train/{m.name}", tuple(command), folder, outputs, (_base(r, m.size).name,))
    if r.keep_checkpoints:
        command.append(f"trainer.max_actor_ckpt_to_keep={r.keep_checkpoints}")
    if r.ray_address:
        # the overlay of 64 GPUs names a cluster already, the others have no such key
        plus = "" if r.gpus > 8 else "+"
        command.append(f"{plus}ray_kwargs.ray_init.address={r.ray_address}")
    outputs = (folder / "metrics.jsonl", folder / "checkpoints" / f"global_step_{r.steps}" / "COMPLETE.json")
    return Stage(f"train/{m.name}", tuple(command), folder, outputs, ("data",), _online(r))


def _export(r: Request, program: str, m: Model) -> Stage:
    folder, source, dtype = r.out / "models" / m.name, r.out / "train" / m.name, ()
    outputs: tuple[Path, ...] = (folder,)
    if not r.on_cpu:
        source, dtype = source / "checkpoints" / f"global_step_{r.steps}", ("--dtype", "bf16")
        # stapo.json holds the hash of the weights, which the evaluation compares
        outputs = (folder / "stapo.json", folder / "config.json")
    command = (program, "export", "--checkpoint", f"{source}", "--out", f"{folder}", *dtype)
    return Stage(f"export/{m.name}", command, folder, outputs, (f"train/{m.name}",))


def _evaluation(r: Request, program: str, m: Model, first: tuple[str, ...]) -> Stage:
    folder, benchmarks = r.out / "eval" / m.name, "all"
    if not m.is_base:
        model = ["--model", f"{r.out / 'models' / m.name}"]
    elif r.on_cpu:
        model = ["--model", f"{_base(r, m.size) / 'model'}"]
    else:
        known = load().models[m.size]
        model = ["--model", known.id, "--revision", known.revision, "--method", m.method, "--size", m.size,
                 "--train-seed", "0", "--step", "base"]  # fmt: skip
    limit = () if not r.quick else MINI_LIMIT if r.on_cpu else PAPER_LIMIT
    if r.on_cpu:
        testbed = r.experiment == "testbed"
        benchmarks = BENCHMARK if testbed else ",".join(labels.benchmarks_of(m.size))
        judged = r.experiment == "miniature"  # by its base model, which shows that the path works
        how = ["--engine", "hf", *(["--judge", f"{_base(r, m.size) / 'model'}"] if judged else [])]
        how += ["--max-tokens", f"{MAX_TOKENS}", *(["--threads", f"{SMALL_THREADS}"] if m.size == SMALL else [])]
        how += [] if r.hardware == "cpu" else ["--replicas", "2", "--ray-address", "auto"]
    else:
        how = _engine(r, m.size)
    command = (program, "run", *model, "--benchmarks", benchmarks, "--settings", "both", "--data-dir",
               f"{_benchmarks(r, m.size)}", *how, *limit, "--out", f"{folder}")  # fmt: skip
    inputs = [_base(r, m.size).name] if r.on_cpu else [n for n in first if n != "data"]
    return _evaluated(r, folder, command, (*(() if m.is_base else (f"export/{m.name}",)), *inputs))


def _evaluated(r: Request, folder: Path, command: tuple[str, ...], needs: tuple[str, ...]) -> Stage:
    outputs = (folder / "samples.jsonl", folder / "verdicts.jsonl", folder / "cells")
    return Stage(f"eval/{folder.name}", command, folder, outputs, needs, _online(r))


def _calibration(r: Request, evaluate: str, repro: str, first: tuple[str, ...]) -> list[Stage]:
    """A public checkpoint at each setting at which it was published, then our scores beside the published ones.

    The grader is ours, and N each benchmark's own: what is calibrated is the harness as it judges other models.
    """
    (m,) = r.models
    checkpoint, stages = calibrate.load().checkpoints[m.size].id, []
    for point in calibrate.points_of(checkpoint):
        folder = r.out / "eval" / f"{m.name}-{point.source}"
        command = (evaluate, "run", "--model", checkpoint, "--benchmarks", "all", "--settings", point.setting,
                   "--max-tokens", f"{point.max_tokens}", "--data-dir", f"{_benchmarks(r)}", *_engine(r, m.size),
                   *(PAPER_LIMIT if r.quick else ()), "--out", f"{folder}")  # fmt: skip
        stages.append(_evaluated(r, folder, command, first))
    page, made = r.out / "calibration", [f"{s.folder}" for s in stages]
    command = (repro, "calibrate", checkpoint, "--from", *made, "--out", f"{page}")
    return [*stages, Stage("calibration", command, page, (page,), tuple(s.name for s in stages))]


def _engine(r: Request, size: str) -> list[str]:
    """vLLM on all GPUs, and the judge."""
    return ["--engine", "vllm", *_replicas(r, size), *(() if r.judge == "none" else ("--judge", r.judge))]


def _replicas(r: Request, size: str) -> list[str]:
    """Copies of the model over the GPUs; one GPU needs no Ray."""
    machine = MACHINES[r.hardware]
    parallel = machine.tensor_parallel(size)
    flags = ["--tensor-parallel", f"{parallel}"] if parallel > 1 else []
    if machine.gpus > 1:
        flags += ["--replicas", f"{machine.gpus // parallel}"]
        flags += ["--ray-address", r.ray_address] if r.ray_address else []
    return flags


def _tokens(r: Request, program: str, m: Model) -> Stage:
    folder = r.out / "tokens" / m.name
    command = (program, "tokens", f"{r.out / 'train' / m.name}", "--out", f"{folder}")
    return Stage(f"tokens/{m.name}", command, folder, (folder,), (f"train/{m.name}",))
