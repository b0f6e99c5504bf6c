"""What the miniature and its ablation consist of: their parameters, and the exact commands in their order.

Both are one chain: base model, trainings, exports, evaluations, tables, figures. They differ in methods, seeds and in
what is made of the records.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stapo_repro import labels
from stapo_repro.driver.stages import Stage
from stapo_results import token_log
from stapo_results.errors import BadInput
from stapo_results.schema import Record

Stages = list[Stage]

KindName = Literal["miniature", "ablation"]


@dataclass(frozen=True)
class Kind:
    """The methods that can be named, and what is run when nothing is said (in the quick form: `quick_*`)."""

    methods: Mapping[str, str]
    seeds: str
    quick_methods: tuple[str, ...]
    quick_steps: int


KINDS: dict[KindName, Kind] = {
    "miniature": Kind(labels.METHODS, "0", ("justrl", "stapo"), 4),
    "ablation": Kind(labels.ABLATION, "0,1,2", tuple(labels.ABLATION), 2),
}
STEPS = 40
BASE_SEED = 0  # one base model for all training seeds
# A tiny model fails on the real benchmarks; these two numbers keep the failing short.
REAL_PROBLEMS, REAL_SAMPLES = 2, 4
# Three times the longest worked solution: what runs on beyond it has derailed, and would hold up its whole batch.
MAX_TOKENS = 256


class Parameters(Record):
    """What an output folder is a run of. Written once; another run in the same folder must agree."""

    kind: KindName = "miniature"
    quick: bool
    methods: list[str]
    seeds: list[int]
    steps: int
    data_dir: str


@dataclass(frozen=True)
class Plan:
    """A run of the miniature or its ablation."""

    kind: KindName
    quick: bool
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    steps: int
    data_dir: Path | None
    out: Path

    @property
    def real_benchmarks(self) -> tuple[str, ...]:
        return tuple(labels.PAPER_BENCHMARKS)

    def parameters(self) -> Parameters:
        return Parameters(
            kind=self.kind,
            quick=self.quick,
            methods=list(self.methods),
            seeds=list(self.seeds),
            steps=self.steps,
            data_dir=str(self.data_dir.resolve()) if self.data_dir else "",
        )


def plan(
    quick: bool, seeds: str | None, methods: str | None, steps: int | None, data_dir: Path | None, out: Path,
    kind: KindName = "miniature",
) -> Plan:  # fmt: skip
    """Parameters from the command line, checked; None takes the default of the kind.

    Raises:
        BadInput: an unknown method, a seed that is no number, fewer than one step.
    """
    known = KINDS[kind]
    if methods is not None:
        names = tuple(m.strip() for m in methods.split(","))
    else:
        names = known.quick_methods if quick else tuple(known.methods)
    unknown = [m for m in names if m not in known.methods]
    if unknown or not names or len(set(names)) != len(names):
        raise BadInput(
            "the methods cannot be used",
            found=", ".join(names) or "none",
            expected=f"each at most once, out of {', '.join(known.methods)}",
            next_step="--methods justrl,stapo",
        )
    numbers = parse_seeds(seeds if seeds is not None else "0" if quick else known.seeds)
    count = steps if steps is not None else known.quick_steps if quick else STEPS
    if count < 1:
        raise BadInput("training needs a step", found=count, expected=">= 1", next_step=f"--steps {STEPS}")
    return Plan(kind, quick, names, numbers, count, data_dir, out)


def parse_seeds(text: str) -> tuple[int, ...]:
    """ "0,1" as (0, 1).

    Raises:
        BadInput: no whole numbers from 0 on, or one twice.
    """
    try:
        numbers = tuple(int(s) for s in text.split(","))
    except ValueError:
        raise BadInput("seeds are whole numbers", found=text, expected="such as 0,1", next_step="--seeds 0") from None
    if len(set(numbers)) != len(numbers) or min(numbers) < 0:
        raise BadInput("each seed once, none below 0", found=text, expected="such as 0,1", next_step="--seeds 0,1")
    return numbers


def console_script(name: str, environment: Path | None = None) -> str:
    """The path of a console command of this very environment, or of another one (the folder of a venv).

    Raises:
        BadInput: it is not installed.
    """
    if environment is not None:
        return _script_of(environment, name)
    path = Path(sys.executable).with_name(name)
    if path.exists():
        return str(path)
    if found := shutil.which(name):
        return found
    raise BadInput(
        f"the command {name} is not installed",
        found=f"no {path}",
        expected="the suite installed in this environment",
        next_step="pip install -e .[train,eval,repro]",
    )


def _script_of(environment: Path, name: str) -> str:
    path = environment.absolute() / "bin" / name
    if not path.exists():
        raise BadInput(
            f"the command {name} is not installed in {environment}",
            found=f"no {path}",
            expected="an environment with the suite in it",
            next_step=f"{environment}/bin/python -m pip install --no-deps --editable .   (docs/reproduction.md)",
        )
    return str(path)


def make_stages(p: Plan) -> Stages:
    """All stages in order: base, train each, export each, evaluate base and each, tables, figures, STAPO's tokens."""
    train, evaluate, repro = (console_script(f"stapo-{x}") for x in ("train", "eval", "repro"))
    out, base = p.out, p.out / "base"
    names = [(m, s, f"{m}-s{s}") for s in p.seeds for m in p.methods]
    stages = [
        Stage(
            "base",
            (train, "base", "--out", f"{base}", "--seed", f"{BASE_SEED}"),
            base,
            (base / "model", base / "data", base / "benchmarks"),
        )
    ]
    for method, seed, name in names:
        folder = out / "train" / name
        command = (train, "run", f"method={method}", "size=mini", "hardware=cpu", "task=mini-add", f"run.seed={seed}",
                   f"run.steps={p.steps}", f"run.base={base}", f"run.out={folder}")  # fmt: skip
        outputs = (folder / "metrics.jsonl", folder / "checkpoints", folder / token_log.FOLDER)
        stages.append(Stage(f"train/{name}", command, folder, outputs, ("base",)))
    for _, _, name in names:
        folder = out / "models" / name
        command = (train, "export", "--checkpoint", f"{out / 'train' / name}", "--out", f"{folder}")
        stages.append(Stage(f"export/{name}", command, folder, (folder,), (f"train/{name}",)))
    models = [("base", base / "model", ("base",))]
    models += [(name, out / "models" / name, (f"export/{name}", "base")) for _, _, name in names]
    evaluations: Stages = []
    for name, model, needs in models:
        evaluations.append(_evaluation(p, evaluate, f"eval/{name}", model, needs))
        if p.data_dir is not None:
            evaluations.append(_evaluation(p, evaluate, f"eval-real/{name}", model, needs, p.data_dir))
    stages += evaluations
    records = ["--of", "ablation"] if p.kind == "ablation" else []
    records += ["--records", f"{out / 'eval'}", f"{out / 'train'}"]
    if p.data_dir is not None:
        records.append(f"{out / 'eval-real'}")
    evaluated, trained = tuple(s.name for s in evaluations), tuple(f"train/{name}" for _, _, name in names)
    tables, figures = out / "tables", out / "figures"
    made_of = (*evaluated, *trained)
    stages.append(Stage("tables", (repro, "tables", *records, "--out", f"{tables}"), tables, (tables,), made_of))
    stages.append(Stage("figures", (repro, "figures", *records, "--out", f"{figures}"), figures, (figures,), made_of))
    for method, _, name in names:
        if method == "stapo" and p.kind == "miniature":
            folder = out / "tokens" / name
            command = (repro, "tokens", f"{out / 'train' / name}", "--out", f"{folder}")
            stages.append(Stage(f"tokens/{name}", command, folder, (folder,), (f"train/{name}",)))
    return stages


def _evaluation(
    p: Plan, program: str, name: str, model: Path, needs: tuple[str, ...], data_dir: Path | None = None
) -> Stage:  # fmt: skip
    folder = p.out / name
    real = data_dir is not None
    benchmarks = p.real_benchmarks if real else tuple(labels.MINI_BENCHMARKS)
    command = [program, "run", "--model", f"{model}", "--benchmarks", ",".join(benchmarks), "--settings", "both",
               "--data-dir", f"{data_dir or p.out / 'base' / 'benchmarks'}", "--engine", "hf",
               "--judge", f"{p.out / 'base' / 'model'}", "--max-tokens", f"{MAX_TOKENS}",
               "--out", f"{folder}"]  # fmt: skip
    if real:
        command += ["--limit", f"{REAL_PROBLEMS}", "--n", f"{REAL_SAMPLES}"]
    elif p.quick:
        command += ["--limit", "16", "--n", "2"]
    outputs = (folder / "samples.jsonl", folder / "verdicts.jsonl", folder / "cells")
    return Stage(name, tuple(command), folder, outputs, needs)
