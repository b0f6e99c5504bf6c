"""The small model's base folder, in the miniature's layout: `stapo-train base --size smollm2-135m`.

model/        the fetched model after a short supervised warm-up, `stapo.json`
data/         train.parquet (prompts of the RL training), val.parquet (the benchmarks in the same form)
benchmarks/   small-sums.jsonl, small-words.jsonl, registry.yaml
warm-up.json  the loss of each step of the warm-up, in nats a token
run.json      the run record
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stapo_results import provenance, store
from stapo_results.answers import INSTRUCTION
from stapo_results.errors import BadInput
from stapo_results.seeds import derive_seed
from stapo_results.sizes import SMALL
from stapo_training.data.made import write_base
from stapo_training.data.rows import TRAIN_SEPARATOR
from stapo_training.miniature.pretrain import Example, Recipe, pretrain
from stapo_training.small.fetch import DTYPE, RECORD, check
from stapo_training.small.problems import KINDS, LEVEL, Problem, draw_all, worked

BENCHMARKS = {"small-sums": ("Small sums", ("sum",)), "small-words": ("Small words", ("words", "units"))}
"""Name -> title, and the kinds of its problems."""


@dataclasses.dataclass(frozen=True)
class SmallPlan:
    """How many problems, and how long the warm-up is.

    warm_up: optimizer steps on worked solutions (0: none), of `batch` examples each. As it is published the model does
        not box its answers at temperature 1, so nothing would be rewarded (docs/small-model.md).
    lr: its peak; a warm-up over a tenth of the steps, then a cosine.
    """

    warm_up: int = 36
    batch: int = 8
    lr: float = 2.0e-5
    train_prompts: int = 1024
    benchmark_rows: int = 64
    samples: int = 4

    @property
    def recipe(self) -> Recipe:
        """Of the warm-up; the model's sizes in it do not count."""
        return Recipe(steps=self.warm_up, batch=self.batch, lr=self.lr, warmup=self.warm_up // 10)


def build_base(out: Path, seed: int = 0, *, model: Path | None = None, plan: SmallPlan | None = None) -> None:
    """Write the small model's base, training data and benchmarks into `out`; a whole one is left as it is.

    Args:
        seed: decides the problems.
        model: the folder of the fetched model; None takes that of the cache.

    Raises:
        BadInput: the model is not there or its files changed, the warm-up is negative or longer than there are
            problems for, or `out` holds something else.
    """
    plan = plan or SmallPlan()
    if plan.warm_up < 0:
        raise BadInput("--warm-up must be at least 0", found=plan.warm_up, expected="0 or more",
                       next_step=f"--warm-up {SmallPlan.warm_up}")  # fmt: skip
    files = _fetched(model)
    model = model or store.fetched_folder(SMALL) / "model"
    held_out, train = draw_benchmarks(plan, seed), draw_all(KINDS, plan.train_prompts, seed, "train")
    taken = {p.text for p in train}
    warm_up = draw_all(KINDS, plan.warm_up * plan.batch, seed, "warm-up", taken=taken)
    # lists instead of tuples, as a record gives them back
    recipe = {k: getattr(plan.recipe, k) for k in ("warmup", "weight_decay", "threads")}
    made_of = {"size": SMALL, "plan": dataclasses.asdict(plan) | {"level": LEVEL}, "recipe": recipe, "dtype": DTYPE}
    config: dict[str, Any] = json.loads(json.dumps(made_of))
    run = provenance.new_run("base", config, seeds={"base": seed}, deterministic=True, revisions=files)
    parts = {name: (BENCHMARKS[name][0], problems) for name, problems in held_out.items()}

    def write_model(folder: Path) -> None:
        store.write_atomic(out / "warm-up.json", json.dumps(_warmed_up(model, folder, plan, warm_up, seed)) + "\n")

    if write_base(out, run, SMALL, parts, ("small", train), write_model, validation=list(parts), samples=plan.samples):
        print(f"next: stapo-train run method=stapo size={SMALL} hardware=cpu run.base={out} run.out=RUN")


def draw_benchmarks(plan: SmallPlan, seed: int) -> dict[str, list[Problem]]:
    """The problems of each benchmark, of numbers and wordings that no training prompt has."""
    return {
        name: draw_all(kinds, plan.benchmark_rows, seed, name, held_out=True) for name, (_, kinds) in BENCHMARKS.items()
    }


def to_examples(problems: Sequence[Problem], seed: int, tokenizer: Any) -> list[Example]:
    """The warm-up's conversations: a problem as the training asks it, and a worked solution."""
    rng = np.random.default_rng(derive_seed("small", seed, "solutions"))
    examples = []
    for p in problems:
        turn = {"role": "user", "content": p.text + TRAIN_SEPARATOR + INSTRUCTION}
        prompt = tokenizer.apply_chat_template([turn], add_generation_prompt=True, return_dict=False)
        solution = tokenizer(worked(rng, p), add_special_tokens=False)["input_ids"]
        examples.append(Example((*prompt, *solution, tokenizer.eos_token_id), len(prompt)))
    return examples


def _fetched(model: Path | None) -> dict[str, str]:
    """The hash of every file of the fetched model, which are those of its record."""
    folder = store.fetched_folder(SMALL) if model is None else model.parent
    if not (folder / RECORD).is_file() or (model is not None and model.name != "model"):
        raise BadInput(
            f"the model {SMALL} is not there",
            found=f"{model or folder / 'model'}, not made by stapo-train fetch",
            expected=f"the folder `model` beside a {RECORD}",
            next_step=f"stapo-train fetch {SMALL}; --model names DIR/model where fetch was given --out DIR",
        )
    return check(folder).files


def _warmed_up(source: Path, folder: Path, plan: SmallPlan, problems: Sequence[Problem], seed: int) -> list[float]:
    """Fill the model's folder; returns the losses of its warm-up."""
    shutil.copytree(source, folder)
    if not problems:
        return []
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, DTYPE))
    losses = pretrain(model, to_examples(problems, seed, tokenizer), plan.recipe, tokenizer.pad_token_id)
    model.save_pretrained(folder)
    return losses
