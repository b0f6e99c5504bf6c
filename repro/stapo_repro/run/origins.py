"""Where the weights, the training prompts and the benchmarks of a run come from, and what follows for its stages.

`Carried`: this package carries them, for a CPU. `FromHub`: the paper's models and data. `FetchedModels`: real models
that two cores bear, which `stapo-train fetch` brings.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stapo_repro import labels, paper
from stapo_repro.read import APART
from stapo_repro.run import cost
from stapo_repro.run.cells import CellRequest, Model, Origin
from stapo_repro.run.cost import GIB, MACHINES, Cost
from stapo_repro.run.stages import Stage
from stapo_results import throughput
from stapo_results.memory import usable_memory
from stapo_results.provenance import nvidia_smi, usable_cores
from stapo_results.schema import SETTINGS

BASE_SEED = 0  # one base model for all training seeds
# More than the longest worked solution: what runs on beyond it has derailed, and would hold up its whole batch.
MAX_TOKENS = 64
MINI_LIMIT = ("--limit", "16", "--n", "2")  # of the quick form of the miniature
REAL_LIMIT = ("--limit", "2", "--n", "2")  # and of real models
# of a real model on a CPU: tokens and samples of its evaluation; tokens of the quick form's evaluation and training
REAL_TOKENS, REAL_SAMPLES, REAL_QUICK_TOKENS, REAL_QUICK_RESPONSE = 2048, 2, 256, 64
_COMMON = ("seeds", "steps")  # options of every run
MATH = "DigitalLearningGmbH/MATH-lighteval"


def stage_of(
    r: CellRequest, name: str, command: Sequence[str], folder: Path, needs: Iterable[str], *outputs: str
) -> Stage:
    """A stage whose folder has the run.json of its wing.

    The paper's weights and data are pinned or checked by hash: fetching them is allowed unless the user forbids.
    """
    online = {} if isinstance(r.origin, Carried) else {"HF_HUB_OFFLINE": os.environ.get("HF_HUB_OFFLINE", "0")}
    done_by = tuple(folder / f for f in (*([] if name == "benchmarks" else ["run.json"]), *outputs))
    cards = 0 if r.on_cpu or name.partition("/")[0] in ("benchmarks", "data", "fetch") else MACHINES[r.hardware].gpus
    return Stage(name, tuple(command), folder, done_by, tuple(needs), online, cards=cards)


class Carried(Origin):
    """The miniature and the testbed's models: base models, data and benchmarks of this package."""

    hardware = ("cpu", "cpu-2nodes")
    options = (*_COMMON, "rebuild_base")
    quick_steps = 4
    dtype = ()
    training_gib = cost.TRAINING_GIB

    def judge(self) -> str:
        return "base"

    @staticmethod
    def _stage(world: str) -> str:
        return f"base-{world}" if world else "base"

    def _base(self, r: CellRequest, world: str) -> Path:
        """The folder of base model, data and benchmarks."""
        return r.out / self._stage(world)

    def inputs(self, r: CellRequest) -> list[Stage]:
        stages = []
        for world in dict.fromkeys(m.world for m in r.models):
            base = self._base(r, world)
            options = ["--world", world] if world else []
            options += ["--rebuild-base"] if r.rebuild_base else []
            command = [r.programs[0], "base", "--out", f"{base}", "--seed", f"{BASE_SEED}", *options]
            stages.append(stage_of(r, base.name, command, base, (), "model", "data", "benchmarks"))
        return stages

    def training(self, r: CellRequest, m: Model) -> dict[str, Any]:
        return {"run.base": self._base(r, m.world)}

    def evaluation(self, r: CellRequest, m: Model) -> list[str]:
        base, names = self._base(r, m.world), ",".join(m.benchmarks or labels.benchmarks_of(m.size))
        model = ["--model", f"{base / 'model'}"] if m.is_base else []
        judge = ["--judge", f"{base / 'model'}"] if r.judge == "base" else []
        replicas = [] if r.hardware == "cpu" else ["--replicas", "2", "--ray-address", "auto"]
        return [*model, "--benchmarks", names, "--settings", "both", "--data-dir", f"{base / 'benchmarks'}", "--engine",
                "hf", *judge, "--max-tokens", f"{MAX_TOKENS}", *replicas, *(MINI_LIMIT if r.quick else ())]  # fmt: skip

    def costs(self, r: CellRequest) -> dict[str, Cost]:
        known = cost.recorded([paper.checkout() / "results" / "records"], skip=APART)
        found = {f"train/{m.name}": cost.on_cpu(known, "train", m.method, r.steps) for m in r.trained}
        return found | {f"eval/{m.name}": cost.on_cpu(known, "eval", m.method) for m in (() if r.quick else r.models)}

    def at_once(self, r: CellRequest) -> tuple[int, str]:
        free, cores = usable_memory()[1] / GIB, usable_cores()
        most = max(1, min(cores, int(free / self.training_gib), len(r.trained)))
        return most, f"{cores} cores, {free:.0f} GiB free at {self.training_gib:g} a training"

    def needed(self, m: Model, kind: str, inputs: Iterable[Stage]) -> list[str]:
        return [self._stage(m.world)]


class FromHub(Origin):
    """The paper's models, from the hub or from files."""

    hardware = ("8gpu", "1gpu", "64gpu")
    options = (*_COMMON, "data_dir", "ray_address", "source", "judge", "keep_checkpoints", "train_env", "eval_env")

    def steps(self) -> int:
        return paper.setting("steps")

    def judge(self) -> str:
        return paper.budget()["judge"]["model"]

    def _benchmarks(self, r: CellRequest) -> Path:
        return r.data_dir or r.out / "benchmarks"

    def inputs(self, r: CellRequest) -> list[Stage]:
        train, evaluate, _ = r.programs
        stages, folder = [], self._benchmarks(r)
        if r.data_dir is None:
            command = [evaluate, "benchmarks", "--write", f"{folder}"]
            files = (f"{b}.jsonl" for b in labels.PAPER_BENCHMARKS)
            stages.append(stage_of(r, "benchmarks", command, folder, (), *files))
        stages += self._weights(r)
        if r.trained:
            command = [train, "data", "--benchmarks", f"{folder}", "--out", f"{r.out / 'data'}", *self._prompts(r)]
            needs, files = [s.name for s in stages], ("train.parquet", "val.parquet", "data.json")
            stages.append(stage_of(r, "data", command, r.out / "data", needs, *files))
        return stages

    def _weights(self, r: CellRequest) -> list[Stage]:
        return []

    def _prompts(self, r: CellRequest) -> list[str]:
        return ["--source", r.source] if r.source else []

    def training(self, r: CellRequest, m: Model) -> dict[str, Any]:
        return {"run.data": r.out / "data"}

    def _base_model(self, r: CellRequest, m: Model) -> list[str]:
        known = paper.budget()["models"][m.size]
        return ["--model", known["id"], "--revision", known["revision"], "--method", m.method, "--size", m.size,
                "--train-seed", "0", "--step", "base"]  # fmt: skip

    def evaluation(self, r: CellRequest, m: Model) -> list[str]:
        model = self._base_model(r, m) if m.is_base else []
        where = ["--benchmarks", "all", "--settings", "both", "--data-dir", f"{self._benchmarks(r)}"]
        return [*model, *where, *(self._on_cpu(r) if r.on_cpu else self._on_gpus(r, m.size))]

    def _on_cpu(self, r: CellRequest) -> list[str]:
        """Our own sampler, with fewer samples and tokens than a GPU bears."""
        judge = [] if r.judge == "none" else ["--judge", r.judge]
        if r.quick:
            return ["--engine", "hf", *judge, *REAL_LIMIT, "--max-tokens", f"{REAL_QUICK_TOKENS}"]
        return ["--engine", "hf", *judge, "--n", f"{REAL_SAMPLES}", "--max-tokens", f"{REAL_TOKENS}"]

    def _on_gpus(self, r: CellRequest, size: str) -> list[str]:
        """vLLM on all GPUs, as copies of the model, and the judge; one GPU needs no Ray."""
        machine = MACHINES[r.hardware]
        parallel = machine.tensor_parallel(size)
        flags = ["--engine", "vllm", *(["--tensor-parallel", f"{parallel}"] if parallel > 1 else [])]
        if machine.gpus > 1:
            flags += ["--replicas", f"{machine.gpus // parallel}"]
            flags += ["--ray-address", r.ray_address] if r.ray_address else []
        flags += [] if r.judge == "none" else ["--judge", r.judge]
        return [*flags, *(REAL_LIMIT if r.quick else ())]

    def costs(self, r: CellRequest) -> dict[str, Cost]:
        """By formula, on the card of this machine where it has a known one."""
        machine = MACHINES[r.hardware]
        if card := throughput.card_named(nvidia_smi("name")):
            machine = replace(machine, card=card)
        found = {}
        for m in r.trained:
            found[f"train/{m.name}"] = cost.training(m.method, m.size, machine, r.steps, r.keep_checkpoints)
        for m in () if r.quick else r.models:
            judged = r.judge != "none"
            found[f"eval/{m.name}"] = cost.evaluation(m.method, m.size, machine, len(SETTINGS), judged=judged)
        return found

    def at_once(self, r: CellRequest) -> tuple[int, str]:
        return 1, "a real model takes the machine"


class FetchedModels(FromHub):
    """Real models that two cores bear: fetched, trained on MATH's problems within their reach."""

    hardware = ("cpu", *MACHINES)
    options = (*FromHub.options, "weights")
    training_gib = cost.REAL_TRAINING_GIB

    steps, judge = Origin.steps, Origin.judge

    def _folder(self, r: CellRequest, size: str) -> Path:
        return r.out / "fetch" / size

    def _weights(self, r: CellRequest) -> list[Stage]:
        stages = []
        for size in dict.fromkeys(m.size for m in r.models):
            folder, file = self._folder(r, size), ["--file", f"{r.weights}"] if r.weights else []
            command = [r.programs[0], "fetch", size, "--out", f"{folder}", *file]
            stages.append(stage_of(r, f"fetch/{size}", command, folder, (), "model"))
        return stages

    def _prompts(self, r: CellRequest) -> list[str]:
        chosen = ["--levels", "1", "2", "3", "--exclude-contaminated", "--validation", "math500:32"]
        within = ["--within-reach", f"{self._folder(r, r.trained[0].size) / 'model'}"]  # 90 minutes on two cores
        return ["--source", r.source or MATH, *chosen, *([] if r.quick else within)]

    def training(self, r: CellRequest, m: Model) -> dict[str, Any]:
        return super().training(r, m) | {
            "actor_rollout_ref.model.path": self._folder(r, m.size) / "model",
            "data.max_response_length": REAL_QUICK_RESPONSE if r.quick else None,
        }

    def _on_gpus(self, r: CellRequest, size: str) -> list[str]:
        return [*super()._on_gpus(r, size), "--max-tokens", f"{REAL_QUICK_TOKENS if r.quick else REAL_TOKENS}"]

    def _base_model(self, r: CellRequest, m: Model) -> list[str]:
        return ["--model", f"{self._folder(r, m.size) / 'model'}", "--method", m.method, "--size", m.size]

    def costs(self, r: CellRequest) -> dict[str, Cost]:
        """Its time is not known here: `stapo-train run --dry-run` plans it."""
        return {f"train/{m.name}": cost.real_training(r.keep_checkpoints) for m in r.trained}


ORIGINS: dict[str, Origin] = {"miniature": Carried(), "real": FetchedModels(), "cells": FromHub()}
"""By experiment; a study's models are carried."""
