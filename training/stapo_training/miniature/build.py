"""Building the miniature from a seed: base model, training problems and benchmarks.

What `build_base` leaves in its folder:

    model/        Hugging Face folder of the base model, with `stapo.json`
    data/         train.parquet (prompts of the RL training), val.parquet (mini-add in the same form)
    benchmarks/   mini-add.jsonl, mini-add-hard.jsonl, registry.yaml
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

from stapo_results import provenance, runs, store
from stapo_results.benchmarks import registry_entry, write_registry
from stapo_results.schema import Labels
from stapo_results.seeds import derive_seed
from stapo_results.terminal import duration
from stapo_training.data.rows import INSTRUCTION, TRAIN_SEPARATOR, verl_row, write_parquet
from stapo_training.miniature.pretrain import Example, Recipe, bucket, build_model, pretrain
from stapo_training.miniature.problems import Problem, Solution, add_junk, draw_problems, draw_slip, solve
from stapo_training.miniature.tokenizer import END_OF_TEXT, IM_END, build_tokenizer, chat_text

EVAL_SEPARATOR = " "  # between problem and instruction; see TRAIN_SEPARATOR

DATA_SOURCE = "mini-add"


@dataclasses.dataclass(frozen=True)
class BasePlan:
    """How many problems of which kind, and how often the corpus errs.

    The hard benchmark's numbers are one digit longer than those of every training prompt. A small share of the
    supervised corpus has that length too: without it a model this small cannot write a further column at all, and a
    benchmark that stands at zero shows nothing. The RL training never sees that length.
    """

    digits: tuple[int, ...] = (4, 5, 6)
    hard_digits: tuple[int, ...] = (7,)
    hard_share: float = 0.03
    slip_rate: float = 0.10
    junk_rate: float = 0.0125  # a position; the box has none, so about 1 % of the tokens
    train_prompts: int = 4096
    benchmark_rows: int = 64
    samples: int = 8


@dataclasses.dataclass(frozen=True)
class Splits:
    """All problems of a build; no two of them share a key (see `Problem.key`)."""

    easy: list[Problem]
    hard: list[Problem]
    train: list[Problem]
    corpus: list[Problem]


def draw_splits(plan: BasePlan, corpus_size: int, seed: int) -> Splits:
    """The problems of benchmarks, RL training and corpus: pairwise disjoint, also with the operands swapped."""
    taken: set[tuple[int, int]] = set()

    def draw(split: str, count: int, digits: Sequence[int]) -> list[Problem]:
        problems = draw_problems(np.random.default_rng(derive_seed("miniature", seed, split)), count, digits, taken)
        taken.update(p.key for p in problems)
        return problems

    easy = draw("mini-add", plan.benchmark_rows, plan.digits)
    hard = draw("mini-add-hard", plan.benchmark_rows, plan.hard_digits)
    train = draw("train", plan.train_prompts, plan.digits)
    longer = round(corpus_size * plan.hard_share)
    corpus = draw("corpus", corpus_size - longer, plan.digits) + draw("corpus-longer", longer, plan.hard_digits)
    order = np.random.default_rng(derive_seed("miniature", seed, "corpus-order")).permutation(corpus_size)
    return Splits(easy, hard, train, [corpus[int(i)] for i in order])


def draw_corpus(problems: Sequence[Problem], plan: BasePlan, seed: int) -> list[tuple[str, Solution]]:
    """(user turn, solution) for each problem, with slips and junk; half of the turns in each separator."""
    rng = np.random.default_rng(derive_seed("miniature", seed, "solutions"))
    rows = []
    for p in problems:
        separator = TRAIN_SEPARATOR if rng.random() < 0.5 else EVAL_SEPARATOR
        solution = draw_slip(rng, p) if rng.random() < plan.slip_rate else solve(p)
        rows.append((p.text + separator + INSTRUCTION, add_junk(rng, solution, plan.junk_rate)))
    return rows


def to_examples(rows: Sequence[tuple[str, Solution]], tokenizer: Any) -> list[Example]:
    """Token ids of each conversation; a solution's pieces are its tokens, so junk positions are token positions."""
    ids_of = tokenizer.get_vocab()
    prompts = tokenizer([chat_text(turn) for turn, _ in rows], add_special_tokens=False)["input_ids"]
    return [
        Example((*prompt, *(ids_of[x] for x in solution.pieces), tokenizer.eos_token_id), len(prompt))
        for prompt, (_, solution) in zip(prompts, rows, strict=True)
    ]


def verl_rows(problems: Sequence[Problem], split: str) -> list[dict[str, Any]]:
    """Rows in veRL's columns; the ground truth is the sum as decimal text."""
    name = DATA_SOURCE if split == "val" else f"{DATA_SOURCE}-{split}"
    return [
        verl_row(p.text, str(p.answer), data_source=DATA_SOURCE, split=split, index=i, problem_id=f"{name}-{i:04d}")
        for i, p in enumerate(problems)
    ]


def _write_benchmarks(folder: Path, splits: Splits, plan: BasePlan) -> None:
    entries = {}
    for name, problems, title in (
        ("mini-add", splits.easy, "Mini-add"),
        ("mini-add-hard", splits.hard, "Mini-add hard"),
    ):
        rows = [{"id": f"{name}-{i:04d}", "problem": p.text, "answer": str(p.answer)} for i, p in enumerate(problems)]
        store.write_atomic(folder / f"{name}.jsonl", "".join(json.dumps(r) + "\n" for r in rows))
        entries[name] = registry_entry(
            folder / f"{name}.jsonl", name, samples=plan.samples, title=title, answer_type="integer", miniature=True
        )
    write_registry(folder / "registry.yaml", entries)


def build_base(out: Path, seed: int = 0, *, plan: BasePlan | None = None, recipe: Recipe | None = None) -> None:
    """Build the miniature's base model, data and benchmarks into `out`.

    The same seed, recipe and number of threads give the same bytes of everything but run.json (it holds times) and
    stapo.json (it names the run). A finished folder is left as it is; an interrupted build is made anew.

    Args:
        out: new or empty folder, or one of an earlier build.
        seed: everything random derives from it.

    Raises:
        BadInput: where `out` holds something else.
    """
    plan, recipe, out = plan or BasePlan(), recipe or Recipe(), Path(out)
    # lists, as JSON gives them back
    digits = {"digits": list(plan.digits), "hard_digits": list(plan.hard_digits)}
    config = {"plan": dataclasses.asdict(plan) | digits, "recipe": dataclasses.asdict(recipe)}
    run = provenance.new_run("base", config, seeds={"base": seed}, deterministic=True)
    with runs.opened(out, run, resumes=False) as folder:
        if folder.finished:
            print(f"base model: {out} is finished already")
            return
        with folder.working("the start", resume="the same command makes it anew"):
            splits = draw_splits(plan, recipe.steps * recipe.batch, seed)
            _write_benchmarks(out / "benchmarks", splits, plan)
            write_parquet(out / "data" / "train.parquet", verl_rows(splits.train, "train"))
            write_parquet(out / "data" / "val.parquet", verl_rows(splits.easy, "val"))
            rows = draw_corpus(splits.corpus, plan, seed)
            labels = Labels(method="base", size="mini", train_seed=seed, step="base", parent_run=folder.record.run_id)
            _make_model(out / "model", rows, recipe, labels)
    print(f"base model: {out}, {duration(folder.record.wall_seconds)}")


def _make_model(folder: Path, rows: Sequence[tuple[str, Solution]], recipe: Recipe, labels: Labels) -> None:
    """Train the base model on the corpus and write its folder in one step."""
    tokenizer, seed = build_tokenizer(recipe.positions), labels.train_seed
    ids_of = tokenizer.get_vocab()
    end_id, pad_id = ids_of[IM_END], ids_of[END_OF_TEXT]
    model = build_model(recipe, len(tokenizer), derive_seed("miniature", seed, "weights"), end_id, pad_id)
    examples = bucket(to_examples(rows, tokenizer), recipe.batch, derive_seed("miniature", seed, "batches"))
    pretrain(model, examples, recipe, pad_id)
    partial = folder.with_name(".model")
    for stale in (partial, folder):
        shutil.rmtree(stale, ignore_errors=True)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    weights = store.sha256_file(partial / "model.safetensors")
    store.write_json(partial / "stapo.json", labels.model_copy(update={"weights_sha256": weights}))
    partial.rename(folder)
