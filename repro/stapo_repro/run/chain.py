"""The stages of a run in their order, each the exact command of a wing; and the run itself.

All experiments are one chain: inputs, trainings, exports, evaluations, tables, figures, and of the miniature the tokens
of STAPO. What differs is the origin of weights, data and benchmarks: carried by this package, or taken from the hub. A
study asks for models of its own, and makes its pages itself.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown

from stapo_repro import labels
from stapo_repro.run import checks
from stapo_repro.run.cost import MACHINES, budget
from stapo_repro.run.request import CellRequest, Model, choices
from stapo_repro.run.stages import Stage, execute, read_states
from stapo_repro.text import grid
from stapo_results.sizes import is_miniature_size
from stapo_results.terminal import duration

BASE_SEED = 0  # one base model for all training seeds
# More than the longest worked solution: what runs on beyond it has derailed, and would hold up its whole batch.
MAX_TOKENS = 64
MINI_LIMIT = ("--limit", "16", "--n", "2")  # of the quick form on a CPU
PAPER_LIMIT = ("--limit", "2", "--n", "2")  # of the quick form of real models
# of a real model on a CPU: tokens and samples of its evaluation; tokens of the quick form's evaluation and training
REAL_TOKENS, REAL_SAMPLES, REAL_QUICK_TOKENS, REAL_QUICK_RESPONSE = 2048, 2, 256, 64
MATH = "DigitalLearningGmbH/MATH-lighteval"


def main(r: CellRequest) -> int:
    """The command `stapo-repro run`; raises as `run`."""
    if (seconds := run(r)) is not None:
        if r.carried and (file := r.out / "tables" / "main_table.json").exists():
            show(_scores(json.loads(file.read_text(encoding="utf-8"))["rows"]))
        show_end(r, seconds, f"stapo-repro collect {r.out} --out results/records/{r.out.name}")
    return 0


def run(r: CellRequest) -> float | None:
    """Run what the request lacks in its folder; a dry run prints it, makes every check, and
    starts and writes nothing.

    Returns:
        The seconds of this call; None for a dry run.

    Raises:
        BadInput: the machine, an environment, the disk or the folder is not sufficient; nothing was started.
        RunFailed: a stage failed; the same command resumes.
    """
    began, stages, costs = time.monotonic(), make_stages(r), checks.stage_costs(r)
    if r.dry_run:
        checks.show_plan(r, stages, costs)
    made = checks.make_checks(r, stages, costs)
    if r.dry_run:
        checks.show_checks(made)
    made.refuse()
    if r.dry_run:
        return None
    # a stage has to end in order: a training step of the largest model and its checkpoint
    grace = 30.0 if r.on_cpu else 1800.0
    expected = {name: 3600 * c.hours for name, c in costs.items() if c.hours is not None}
    jobs, cards, _ = checks.sharing(r)
    execute(r.out, checks.new_record(r), stages, grace, jobs=jobs, cards=cards, expected=expected)
    return time.monotonic() - began


def script(r: CellRequest, folder: str) -> str:
    """The commands of all stages as a shell script that writes below `folder`."""
    words = ([Path(s.command[0]).name, *s.command[1:]] for s in make_stages(r))
    return "\n".join(shlex.join(w).replace(f"{r.out}", folder) for w in words) + "\n"


def make_stages(r: CellRequest) -> list[Stage]:
    """All stages; each needs only earlier ones."""
    inputs, trainings = _inputs(r), [_training(r, m) for m in r.trained]
    evaluated = [m for m in r.models if m.evaluated]
    exports = [_export(r, m) for m in evaluated if not m.is_base]
    evaluations = [_evaluation(r, m, inputs) for m in evaluated]
    made = [*trainings, *exports, *evaluations]
    if r.model_by_model:
        place = {m.name: i for i, m in enumerate(r.models)}
        made.sort(key=lambda s: place[s.name.partition("/")[2]])
    folders = dict.fromkeys(str(r.out / s.kind) for s in (*evaluations, *trainings))
    records = [s.name for s in (*trainings, *evaluations)]
    if r.pages:
        made += [_page(r, what, records, what, "--records", *folders) for what in ("tables", "figures")]
    if r.experiment == "miniature":
        stapo = [m.name for m in r.trained if m.method == "stapo"]
        made += [_page(r, f"tokens/{name}", [f"train/{name}"], "tokens", f"{r.out / 'train' / name}") for name in stapo]
    return [*inputs, *made]


def _page(r: CellRequest, name: str, needs: Sequence[str], *words: str) -> Stage:
    """A page of records: it takes seconds, so it is made at every call."""
    folder = r.out / name
    return Stage(name, (r.programs[2], *words, "--out", f"{folder}"), folder, (folder,), tuple(needs), always=True)


def _of_run(
    r: CellRequest, name: str, command: Sequence[str], folder: Path, needs: Sequence[str], *outputs: str
) -> Stage:
    """A stage whose folder has the run.json of its wing.

    The paper's weights and data are pinned or checked by hash: fetching them is allowed unless the user forbids.
    """
    online = {} if r.carried else {"HF_HUB_OFFLINE": os.environ.get("HF_HUB_OFFLINE", "0")}
    there = tuple(folder / f for f in (*([] if name == "benchmarks" else ["run.json"]), *outputs))
    cards = 0 if r.on_cpu or name.partition("/")[0] in ("benchmarks", "data", "fetch") else MACHINES[r.hardware].gpus
    return Stage(name, tuple(command), folder, there, tuple(needs), online, cards=cards)


def _base(r: CellRequest, world: str) -> Path:
    """The folder of base model, data and benchmarks of a run on a CPU."""
    return r.out / "-".join(filter(None, ["base", world]))


def _fetched(r: CellRequest, size: str) -> Path:
    """The folder of a real model that `stapo-train fetch` brings."""
    return r.out / "fetch" / size


def _inputs(r: CellRequest) -> list[Stage]:
    """Base models, data and benchmarks that this package carries; or the benchmarks, the model where it is fetched, and
    training data."""
    train, evaluate, _ = r.programs
    stages, folder = [], r.data_dir or r.out / "benchmarks"
    for world in dict.fromkeys(m.world for m in r.models) if r.carried else ():
        base = _base(r, world)
        of = ["--world", world] if world else []
        of += ["--rebuild-base"] if r.rebuild_base else []
        command = [train, "base", "--out", f"{base}", "--seed", f"{BASE_SEED}", *of]
        stages.append(_of_run(r, base.name, command, base, (), "model", "data", "benchmarks"))
    if not r.carried and r.data_dir is None:
        command = [evaluate, "benchmarks", "--write", f"{folder}"]
        stages.append(_of_run(r, "benchmarks", command, folder, (), *(f"{b}.jsonl" for b in labels.PAPER_BENCHMARKS)))
    for size in dict.fromkeys(m.size for m in r.models) if r.experiment == "real" else ():
        command = [train, "fetch", size, "--out", f"{_fetched(r, size)}"]
        command += ["--file", f"{r.weights}"] if r.weights else []
        stages.append(_of_run(r, f"fetch/{size}", command, _fetched(r, size), (), "model"))
    if not r.carried and r.trained:
        command = [train, "data", "--benchmarks", f"{folder}", "--out", f"{r.out / 'data'}"]
        command += ["--source", r.source or MATH] if r.source or r.experiment == "real" else []
        if r.experiment == "real":
            command += ["--levels", "1", "2", "3", "--exclude-contaminated", "--validation", "math500:32"]
            within = ["--within-reach", f"{_fetched(r, r.trained[0].size) / 'model'}"]
            command += [] if r.quick else within  # an hour and a half on two cores
        needs, files = [s.name for s in stages], ("train.parquet", "val.parquet", "data.json")
        stages.append(_of_run(r, "data", command, r.out / "data", needs, *files))
    return stages


def _training(r: CellRequest, m: Model) -> Stage:
    folder, mini, every = r.out / "train" / m.name, is_miniature_size(m.size), m.validation_every
    # the overlay of 64 GPUs names a cluster already, the others have no such key
    address = f"{'' if r.on_cpu or MACHINES[r.hardware].gpus > 8 else '+'}ray_kwargs.ray_init.address"
    chosen = {
        "size": labels.MINI if mini else m.size,
        "hardware": r.hardware,
        "task": "mini-add" if mini else None,
        "run.size": m.size if mini and m.size != labels.MINI else None,
        "run.seed": m.seed,
        "run.steps": r.steps,
        "run.base": _base(r, m.world) if r.carried else None,
        "run.data": None if r.carried else r.out / "data",
        "run.out": folder,
        "actor_rollout_ref.model.path": _fetched(r, m.size) / "model" if r.experiment == "real" else None,
        "data.max_response_length": REAL_QUICK_RESPONSE if r.experiment == "real" and r.quick else None,
        "trainer.val_before_train": None if every is None else "true" if every else "false",
        "trainer.test_freq": every if every != 0 else -1,
        "trainer.max_actor_ckpt_to_keep": r.keep_checkpoints or None,
        address: r.ray_address or None,
    }
    words = [f"{key}={value}" for key, value in chosen.items() if value is not None]
    command = (r.programs[0], "run", *(m.choices or choices(m.method)), *words)
    needs = (_base(r, m.world).name if r.carried else "data",)
    return _of_run(r, f"train/{m.name}", command, folder, needs, "metrics.jsonl")


def _export(r: CellRequest, m: Model) -> Stage:
    folder, source = r.out / "models" / m.name, r.out / "train" / m.name
    source = source if r.on_cpu else source / "checkpoints" / f"global_step_{r.steps}"
    dtype = () if r.carried else ("--dtype", "bf16")
    command = (r.programs[0], "export", "--checkpoint", f"{source}", "--out", f"{folder}", *dtype)
    # the folder appears in one step; the evaluation compares its weights with the hash in stapo.json
    return Stage(f"export/{m.name}", command, folder, (folder / "stapo.json",), (f"train/{m.name}",))


def _evaluation(r: CellRequest, m: Model, inputs: list[Stage]) -> Stage:
    """A model at both settings."""
    needs, benchmarks = [] if m.is_base else [f"export/{m.name}"], "all"
    if not m.is_base:
        model = ["--model", f"{r.out / 'models' / m.name}"]
    elif r.carried:
        model = ["--model", f"{_base(r, m.world) / 'model'}"]
    elif r.experiment == "real":
        model = ["--model", f"{_fetched(r, m.size) / 'model'}", "--method", m.method, "--size", m.size]
    else:
        known = budget()["models"][m.size]
        model = ["--model", known["id"], "--revision", known["revision"], "--method", m.method, "--size", m.size,
                 "--train-seed", "0", "--step", "base"]  # fmt: skip
    if r.carried:
        benchmarks = ",".join(m.benchmarks or labels.benchmarks_of(m.size))
        how = ["--engine", "hf", *(["--judge", f"{_base(r, m.world) / 'model'}"] if r.judge == "base" else [])]
        how += ["--max-tokens", f"{MAX_TOKENS}"]
        how += [] if r.hardware == "cpu" else ["--replicas", "2", "--ray-address", "auto"]
        how += MINI_LIMIT if r.quick else ()
        data = _base(r, m.world) / "benchmarks"
        needs.append(data.parent.name)
    else:
        how, data = _on_cpu(r) if r.on_cpu else _engine(r, m.size), r.data_dir or r.out / "benchmarks"
        needs += [s.name for s in inputs if s.name != "data"]
    folder = r.out / "eval" / m.name
    command = [r.programs[1], "run", *model, "--benchmarks", benchmarks, "--settings", "both"]
    command += ["--data-dir", f"{data}", *how, "--out", f"{folder}"]
    return _of_run(r, f"eval/{folder.name}", command, folder, needs, "cells")


def _on_cpu(r: CellRequest) -> list[str]:
    """Our own sampler, with fewer samples and tokens than a GPU bears."""
    judge = [] if r.judge == "none" else ["--judge", r.judge]
    if r.quick:
        return ["--engine", "hf", *judge, *PAPER_LIMIT, "--max-tokens", f"{REAL_QUICK_TOKENS}"]
    return ["--engine", "hf", *judge, "--n", f"{REAL_SAMPLES}", "--max-tokens", f"{REAL_TOKENS}"]


def _engine(r: CellRequest, size: str) -> list[str]:
    """vLLM on all GPUs, as copies of the model, and the judge; one GPU needs no Ray."""
    machine = MACHINES[r.hardware]
    parallel = machine.tensor_parallel(size)
    flags = ["--engine", "vllm", *(["--tensor-parallel", f"{parallel}"] if parallel > 1 else [])]
    if machine.gpus > 1:
        flags += ["--replicas", f"{machine.gpus // parallel}"]
        flags += ["--ray-address", r.ray_address] if r.ray_address else []
    flags += [] if r.judge == "none" else ["--judge", r.judge]
    return [*flags, *(PAPER_LIMIT if r.quick else ())]


def show(page: str) -> None:
    """Print Markdown."""
    Console().print(Markdown(page))


def show_end(r: CellRequest, wall_seconds: float, collecting: str = "") -> None:
    """Print the closing words of a finished run; `wall_seconds` are this call's, `collecting` the command for that."""
    whole = sum(s.seconds for s in read_states(r.out).values())
    print(f"This call {duration(wall_seconds)}, all stages {duration(whole)}. Pages, records and logs: {r.out}")
    if collecting:
        print(f"To commit: {collecting}, then tox -e tables")


def _scores(rows: list[dict[str, Any]]) -> str:
    """The scores of a main_table.json that come from records: a line a method, both settings in a cell."""
    found = defaultdict[str, dict[str, list[str]]](lambda: defaultdict(list))
    for r in (r for r in rows if r["source"] == "ours" and r["status"] != "not run"):
        found[r["method"]][r["benchmark"]].append(r["shown"] or r["status"])
    head = ["Method", *map(labels.benchmark_label, dict.fromkeys(b for columns in found.values() for b in columns))]
    lines = [[labels.method_label(m), *map(" / ".join, columns.values())] for m, columns in found.items()]
    return "\n".join([*grid(head, lines), "", "Accuracy in percent at T=1.0 / T=0.7."])
