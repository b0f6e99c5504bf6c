"""Building the miniature from a seed: base model, training problems, benchmarks and the corpus with known junk.

What `build_base` leaves in its folder:

    model/        Hugging Face folder of the base model, with `stapo.json`
    data/         train.parquet (prompts of the RL training), val.parquet (mini-add in the same form)
    benchmarks/   mini-add.jsonl, mini-add-hard.jsonl, registry.yaml
    corpus.parquet  the supervised corpus: prompt, solution, slip and which solution tokens are junk
    miniature.json  facts: sizes, junk tokens and their ids, seconds
    run.json      the run record, written last: a folder without it is not finished
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stapo_results import provenance, store
from stapo_results.benchmarks import registry_entry, write_registry
from stapo_results.errors import BadInput
from stapo_results.schema import Labels, Run
from stapo_results.seeds import derive_seed
from stapo_training.data.rows import INSTRUCTION, TRAIN_SEPARATOR, verl_row, write_parquet
from stapo_training.miniature.pretrain import Example, Recipe, bucket, build_model, pretrain
from stapo_training.miniature.problems import Problem, Solution, add_junk, draw_problems, draw_slip, solve
from stapo_training.miniature.tokenizer import END_OF_TEXT, IM_END, JUNK, build_tokenizer, chat_text

if TYPE_CHECKING:
    from collections.abc import Sequence

EVAL_SEPARATOR = " "  # between problem and instruction; see TRAIN_SEPARATOR

DATA_SOURCE = "mini-add"
_PARTS = ("model", "data", "benchmarks", "corpus.parquet", "miniature.json", "run.json")  # run.json last
_PARTIAL = ".partial"


@dataclasses.dataclass(frozen=True)
class Plan:
    """How much of what is made.

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


def draw_splits(plan: Plan, corpus_size: int, seed: int) -> Splits:
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


def draw_corpus(problems: Sequence[Problem], plan: Plan, seed: int) -> list[tuple[str, Solution]]:
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


def _write_benchmarks(folder: Path, splits: Splits, plan: Plan) -> None:
    import json

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


def _finished(out: Path, config: dict[str, Any], seed: int) -> bool:
    """Whether `out` holds this very build.

    Raises:
        BadInput: where it holds another build, or files that no build left there.
    """
    if (out / "run.json").exists():
        run = store.read_json(out / "run.json", Run)
        labels = store.read_json(out / "model" / "stapo.json", Labels)
        if run.seeds != {"base": seed} or run.config != config:
            raise BadInput(
                f"{out} holds a base model of another seed or recipe",
                found=f"seed {run.seeds.get('base')}",
                expected=f"seed {seed} and the present recipe",
                next_step="give another --out, or delete that folder",
            )
        found = store.sha256_file(out / "model" / "model.safetensors")
        if found != labels.weights_sha256:
            raise BadInput(
                f"the weights in {out / 'model'} were changed after the build",
                found=f"sha256 {found[:16]}",
                expected=labels.weights_sha256[:16],
                next_step="delete the folder and build it again",
            )
        return True
    if out.exists() and not (out / _PARTIAL).exists() and any(out.iterdir()):
        raise BadInput(
            f"{out} is not empty and holds no build of a base model",
            found=", ".join(sorted(p.name for p in out.iterdir())[:5]),
            expected="an empty or a new folder",
            next_step="give another --out",
        )
    return False


def build_base(out: Path, seed: int = 0, *, plan: Plan | None = None, recipe: Recipe | None = None) -> None:
    """Build the miniature's base model, data and benchmarks into `out`.

    The same seed, recipe and number of threads give the same bytes of everything but run.json, miniature.json (they
    hold times) and stapo.json (it names the run). A finished folder is left as it is; an interrupted build is made
    anew.

    Args:
        out: new or empty folder, or one of an earlier build.
        seed: everything random derives from it.

    Raises:
        BadInput: where `out` holds something else.
    """
    plan, recipe, out = plan or Plan(), recipe or Recipe(), Path(out)
    # lists, as JSON gives them back
    config = {
        "plan": {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(plan).items()},
        "recipe": dataclasses.asdict(recipe),
    }
    if _finished(out, config, seed):
        print(f"base model: {out} is finished already")
        return
    began = time.monotonic()
    run = provenance.new_run("base", config, seeds={"base": seed}, deterministic=True)
    partial = out / _PARTIAL
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)

    splits = draw_splits(plan, recipe.steps * recipe.batch, seed)
    _write_benchmarks(partial / "benchmarks", splits, plan)
    write_parquet(partial / "data" / "train.parquet", verl_rows(splits.train, "train"))
    write_parquet(partial / "data" / "val.parquet", verl_rows(splits.easy, "val"))
    rows = draw_corpus(splits.corpus, plan, seed)
    write_parquet(
        partial / "corpus.parquet",
        [
            {
                "user": turn,
                "solution": s.text,
                "answer": str(s.answer),
                "slip": s.slip,
                "slip_column": s.slip_column,
                "junk": list(s.junk),
            }
            for turn, s in rows
        ],
    )

    tokenizer = build_tokenizer(recipe.positions)
    ids_of = tokenizer.get_vocab()
    end_id, pad_id = ids_of[IM_END], ids_of[END_OF_TEXT]
    model = build_model(recipe, len(tokenizer), derive_seed("miniature", seed, "weights"), end_id, pad_id)
    examples = bucket(to_examples(rows, tokenizer), recipe.batch, derive_seed("miniature", seed, "batches"))
    losses = pretrain(model, examples, recipe, pad_id)
    folder = partial / "model"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    weights = store.sha256_file(folder / "model.safetensors")
    store.write_json(
        folder / "stapo.json",
        Labels(method="base", size="mini", train_seed=seed, step="base", parent_run=run.run_id, weights_sha256=weights),
    )

    seconds = time.monotonic() - began
    lengths = [len(s.pieces) + 1 for _, s in rows]
    store.write_json(
        partial / "miniature.json",
        {
            "parameters": sum(p.numel() for p in model.parameters()),
            "vocabulary": len(tokenizer),
            "junk": {word: ids_of[word] for word in JUNK},
            "junk_share": sum(len(s.junk) for _, s in rows) / sum(lengths),
            "slip_share": sum(bool(s.slip) for _, s in rows) / len(rows),
            "corpus_examples": len(rows),
            "response_tokens_mean": sum(lengths) / len(lengths),
            "response_tokens_longest": max(lengths),
            "loss_last_20_steps": sum(losses[-20:]) / len(losses[-20:]),
            "seconds": round(seconds, 1),
        },
    )
    provenance.close_run(run, partial / "run.json", "done", seconds)
    for name in _PARTS:
        if (out / name).is_dir():
            shutil.rmtree(out / name)
        (partial / name).replace(out / name)
    partial.rmdir()
    print(f"base model: {out}, {seconds:.0f} s")
