"""The small model's base folder, in the miniature's layout: `stapo-train base --size smollm2-135m`.

    model/        the fetched model with sharper probabilities, `stapo.json`
    data/         train.parquet (prompts of the RL training), val.parquet (the benchmarks in the same form)
    benchmarks/   small-sums.jsonl, small-words.jsonl, registry.yaml
    run.json      the run record
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

from stapo_results import provenance, runs, store
from stapo_results.errors import BadInput
from stapo_results.schema import Labels
from stapo_results.sizes import SMALL
from stapo_results.terminal import duration
from stapo_training.artifacts.weights import missing_files
from stapo_training.data.made import verl_rows, write_benchmarks
from stapo_training.data.rows import write_parquet
from stapo_training.small.fetch import cached
from stapo_training.small.problems import KINDS, Level, Problem, draw_all

BENCHMARKS = {"small-sums": ("Small sums", ("sum",)), "small-words": ("Small words", ("words", "units"))}
"""Name -> title, and the kinds of its problems."""
NORM = "model.norm.weight"
"""The last norm, of whose result the output matrix makes the logits."""


@dataclasses.dataclass(frozen=True)
class SmallPlan:
    """How many problems, how hard, and how sharp the base model is.

    sharpen: the logits are multiplied by it, so that temperature 1 is 1 / `sharpen` of the model as it was published.
        At its own temperature 1 it rambles: no answer was right (docs/small.md).
    """

    level: Level = Level()
    sharpen: float = 3.0
    train_prompts: int = 2048
    benchmark_rows: int = 64
    samples: int = 4


def build_base(out: Path, seed: int = 0, *, model: Path | None = None, plan: SmallPlan | None = None) -> None:
    """Write the small model's base, training data and benchmarks into `out`; a finished folder is left as it is.

    Args:
        seed: decides the problems.
        model: the folder of the fetched model; None takes that of the cache.

    Raises:
        BadInput: the model is not there, or `out` holds something else.
    """
    model, plan = model or cached(SMALL) / "model", plan or SmallPlan()
    if lacking := missing_files(model):
        raise BadInput(
            f"the model {SMALL} is not there",
            found=f"no {', no '.join(lacking)} in {model}",
            expected="what stapo-train fetch leaves",
            next_step=f"stapo-train fetch {SMALL}; --model names its folder where it is not in the cache",
        )
    # lists instead of tuples, as a record gives them back
    config: dict[str, Any] = json.loads(json.dumps({"size": SMALL, "plan": dataclasses.asdict(plan)}))
    revisions = {"model": store.sha256_file(model / "model.safetensors")}
    run = provenance.new_run("base", config, seeds={"base": seed}, deterministic=True, revisions=revisions)
    with runs.opened(out, run, resumes=False) as folder:
        if folder.finished:
            print(f"base model: {out} is finished already")
            return
        with folder.working("the start", resume="the same command makes it anew"):
            held_out = draw_benchmarks(plan, seed)
            parts = {name: (BENCHMARKS[name][0], problems) for name, problems in held_out.items()}
            write_benchmarks(out / "benchmarks", parts, plan.samples)
            train = draw_all(KINDS, plan.train_prompts, plan.level, seed, "train", held_out=False)
            write_parquet(out / "data" / "train.parquet", [*verl_rows(train, "small", "train")])
            val = [row for name, problems in held_out.items() for row in verl_rows(problems, name, "val")]
            write_parquet(out / "data" / "val.parquet", val)
            _write_model(model, out / "model", plan.sharpen, folder.record.run_id, seed)
    print(f"base model ({SMALL}, logits times {plan.sharpen:g}): {out}, {duration(folder.record.wall_seconds)}")
    print(f"next: stapo-train run method=stapo size={SMALL} hardware=cpu run.base={out} run.out=RUN")


def draw_benchmarks(plan: SmallPlan, seed: int) -> dict[str, list[Problem]]:
    """The problems of each benchmark, of numbers and wordings that no training prompt has."""
    return {
        name: draw_all(kinds, plan.benchmark_rows, plan.level, seed, name, held_out=True)
        for name, (_, kinds) in BENCHMARKS.items()
    }


def _write_model(source: Path, target: Path, sharpen: float, run_id: str, seed: int) -> None:
    """The model's folder, in one step; of its weights the last norm alone is changed."""
    from safetensors.torch import load_file, save_file

    partial = target.with_name(".model")
    for stale in (partial, target):
        shutil.rmtree(stale, ignore_errors=True)
    shutil.copytree(source, partial, ignore=shutil.ignore_patterns("model.safetensors"))
    tensors = load_file(source / "model.safetensors")
    tensors[NORM] = tensors[NORM] * sharpen
    weights = partial / "model.safetensors"
    save_file(tensors, weights, metadata={"format": "pt"})
    labels = Labels(method="base", size=SMALL, train_seed=seed, step="base", parent_run=run_id)
    store.write_json(partial / "stapo.json", labels.model_copy(update={"weights_sha256": store.sha256_file(weights)}))
    partial.rename(target)
