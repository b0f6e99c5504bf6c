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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stapo_results import provenance, runs, store
from stapo_results.answers import INSTRUCTION
from stapo_results.benchmarks import registry_entry, write_registry
from stapo_results.errors import BadInput
from stapo_results.schema import Labels
from stapo_results.seeds import derive_seed
from stapo_results.sizes import of_world
from stapo_results.terminal import duration
from stapo_training.data.rows import TRAIN_SEPARATOR, verl_rows, write_parquet
from stapo_training.miniature import carried
from stapo_training.miniature.pretrain import Example, Recipe, bucket, build_model, pretrain
from stapo_training.miniature.tokenizer import build_tokenizer, chat_text
from stapo_training.miniature.worlds import WORLDS, Addition, draw_problems, draw_solution

_MODEL = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "stapo.json")
_DATA = ("data/train.parquet", "data/val.parquet", "benchmarks/registry.yaml")
EVAL_SEPARATOR = " "  # between problem and instruction; see TRAIN_SEPARATOR


@dataclasses.dataclass(frozen=True)
class BasePlan:
    """How many problems of which kind, and how often the corpus has the planted words.

    The hard benchmark's sums are one number longer than those of every training prompt. A small share of the
    supervised corpus has that length too: without it a model this small cannot work a further number at all, and a
    benchmark at the level of guessing shows nothing. The RL training never sees that length.
    """

    world: str = "paper"
    lengths: tuple[int, ...] = (5, 6)
    hard_lengths: tuple[int, ...] = (7,)
    hard_share: float = 0.1
    useful_elsewhere: float = 1.0  # share of the openings to the corpus' own wording, which half of it has
    spurious: float = 0.05  # of the places in the closing phrase
    train_prompts: int = 4096
    benchmark_rows: int = 64
    samples: int = 8


class Splits(NamedTuple):
    """All problems of a build; no two parts share a problem, and only in the corpus one may come up again.

    A benchmark's numbers may come in another order in the training: 5 or 6 of 9 digits are 210 sets. What is learnt is
    to work; without work the guess stays at 1 of 4, and 7 numbers never occur in RL training.
    """

    easy: list[Addition]
    hard: list[Addition]
    train: list[Addition]
    corpus: list[Addition]


def draw_splits(plan: BasePlan, corpus_size: int, seed: int) -> Splits:
    """The problems of benchmarks, RL training and corpus, pairwise disjoint."""
    taken: set[tuple[int, ...]] = set()

    def draw(split: str, count: int, lengths: Sequence[int], again: bool = False) -> list[Addition]:
        rng = np.random.default_rng(derive_seed("miniature", seed, split))
        problems = draw_problems(rng, count, lengths, taken, again=again)
        taken.update(p.numbers for p in problems if not again)
        return problems

    easy = draw("mini-add", plan.benchmark_rows, plan.lengths)
    hard = draw("mini-add-hard", plan.benchmark_rows, plan.hard_lengths)
    train = draw("train", plan.train_prompts, plan.lengths)
    longer = round(corpus_size * plan.hard_share)
    corpus = draw("corpus", corpus_size - longer, plan.lengths, True)
    corpus += draw("corpus-longer", longer, plan.hard_lengths, True)
    order = np.random.default_rng(derive_seed("miniature", seed, "corpus-order")).permutation(corpus_size)
    return Splits(easy, hard, train, [corpus[int(i)] for i in order])


def draw_corpus(problems: Sequence[Addition], plan: BasePlan, seed: int) -> list[tuple[str, list[str]]]:
    """(user turn, solution) for each problem; half of the turns in each separator, half in the corpus' own wording."""
    rng = np.random.default_rng(derive_seed("miniature", seed, "solutions"))
    world, rows = WORLDS[plan.world], []
    for p in problems:
        separator = TRAIN_SEPARATOR if rng.random() < 0.5 else EVAL_SEPARATOR
        useful = world.useful
        if rng.random() < 0.5:
            p, useful = dataclasses.replace(p, template=-1), plan.useful_elsewhere
        rows.append((p.text + separator + INSTRUCTION, draw_solution(rng, p, world, useful, plan.spurious)))
    return rows


def to_examples(rows: Sequence[tuple[str, list[str]]], tokenizer: Any) -> list[Example]:
    """Token ids of each conversation; a solution's pieces are its tokens."""
    ids_of = tokenizer.get_vocab()
    prompts = tokenizer([chat_text(turn) for turn, _ in rows], add_special_tokens=False)["input_ids"]
    return [
        Example((*prompt, *(ids_of[x] for x in solution), tokenizer.eos_token_id), len(prompt))
        for prompt, (_, solution) in zip(prompts, rows, strict=True)
    ]


def build_base(
    out: Path,
    seed: int = 0,
    *,
    world: str = "paper",
    rebuild: bool = False,
    plan: BasePlan | None = None,
    recipe: Recipe | None = None,
) -> None:
    """Build the miniature's base model, data and benchmarks into `out`.

    The weights are those that the repository carries (`carried`). With `rebuild`, or with a plan or recipe of one's
    own, they are trained: the same seed, recipe and number of threads then give the same bytes on the same kind of
    processor. A finished folder is left as it is where it is whole; an interrupted build is made
    anew.

    Args:
        out: new or empty folder, or one of an earlier build.
        seed: everything random derives from it.

    Raises:
        BadInput: where `out` holds something else, the world is unknown, or the carried weights do not fit.
    """
    if world not in WORLDS:
        raise BadInput("unknown world", found=world, expected=" | ".join(WORLDS), next_step="--world paper")
    rebuild = rebuild or plan is not None or recipe is not None
    if seed and not rebuild:
        raise BadInput("the carried base models are those of seed 0", found=f"seed {seed}", expected=0,
                       next_step="add --rebuild-base, which trains one of another seed")  # fmt: skip
    costly = bool(WORLDS[world].slip)
    plan = plan or (BasePlan(world=world, hard_share=0.4) if costly else BasePlan(world=world))
    recipe, out = recipe or (Recipe(steps=2500) if costly else Recipe()), Path(out)
    made_of = {"plan": plan, "recipe": recipe, "world": WORLDS[plan.world]}
    # lists instead of tuples, as a record gives them back
    config: dict[str, Any] = json.loads(json.dumps({k: dataclasses.asdict(v) for k, v in made_of.items()}))
    if not costly:  # carried weights are older than these
        del config["world"]["slip"], config["world"]["neutral"]
    weights, sha256 = (None, "") if rebuild else carried.weights(plan.world, config)
    run = provenance.new_run("base", config | {"weights": sha256}, seeds={"base": seed}, deterministic=True)
    import transformers  # noqa: F401  here: a folder is not begun without it

    splits = draw_splits(plan, recipe.steps * recipe.batch if rebuild else 0, seed)
    parts = {"mini-add": splits.easy, "mini-add-hard": splits.hard}
    with runs.opened(out, run, resumes=False) as folder:
        files = [*(f"model/{x}" for x in _MODEL), *_DATA, *(f"benchmarks/{x}.jsonl" for x in parts)]
        if folder.finished and all((out / name).exists() for name in files) and _is_whole(out / "model"):
            print(f"base model: {out} is finished already")
            return
        with folder.working("the start", resume="the same command makes it anew"):
            _write_benchmarks(out / "benchmarks", parts, plan.samples)
            write_parquet(out / "data" / "train.parquet", _verl_rows(splits.train, "mini-add", "train"))
            validation = parts if costly else ["mini-add"]
            rows = [row for name in validation for row in _verl_rows(parts[name], name, "val")]
            write_parquet(out / "data" / "val.parquet", rows)
            partial, target = out / ".model", out / "model"
            for stale in (partial, target):
                shutil.rmtree(stale, ignore_errors=True)
            _write_model(partial, plan, recipe, seed, splits.corpus, weights)
            labels = Labels(
                method="base",
                size=of_world(plan.world),
                train_seed=seed,
                step="base",
                parent_run=folder.record.run_id,
                weights_sha256=store.sha256_file(partial / "model.safetensors"),
            )
            store.write_json(partial / "stapo.json", labels)
            partial.rename(target)
    print(f"base model: {out}, {duration(folder.record.wall_seconds)}")


def _is_whole(model: Path) -> bool:
    """Whether the weights are those that its labels name."""
    known = store.read_json(model / "stapo.json", Labels).weights_sha256
    return store.sha256_file(model / "model.safetensors") == known


def _verl_rows(problems: Sequence[Addition], source: str, split: str) -> list[dict[str, Any]]:
    """The ground truth is decimal text; a validation row has the id of the benchmark's row."""
    name = source if split == "val" else f"{source}-{split}"
    made = ((p.text, str(p.answer), f"{name}-{i:04d}") for i, p in enumerate(problems))
    return verl_rows(made, data_source=source, split=split)


def _write_benchmarks(folder: Path, parts: Mapping[str, Sequence[Addition]], samples: int) -> None:
    """NAME.jsonl of each benchmark, and registry.yaml."""
    entries = {}
    for name, problems in parts.items():
        rows = [{"id": f"{name}-{i:04d}", "problem": p.text, "answer": str(p.answer)} for i, p in enumerate(problems)]
        path, title = folder / f"{name}.jsonl", name.capitalize().replace("-hard", " hard")
        store.write_atomic(path, "".join(json.dumps(r) + "\n" for r in rows))
        entries[name] = registry_entry(path, name, samples=samples, title=title, miniature=True)
    write_registry(folder / "registry.yaml", entries)


def _write_model(
    folder: Path, plan: BasePlan, recipe: Recipe, seed: int, corpus: Sequence[Addition], weights: Path | None
) -> None:
    """The model of the carried weights, or one trained on the corpus, with its tokenizer."""
    from safetensors.torch import load_model

    tokenizer: Any = build_tokenizer(recipe.positions)
    model_seed, end, pad = derive_seed("miniature", seed, "weights"), tokenizer.eos_token_id, tokenizer.pad_token_id
    model = build_model(recipe, len(tokenizer), model_seed, end, pad)
    if weights is not None:
        load_model(model, weights)
    else:
        examples = to_examples(draw_corpus(corpus, plan, seed), tokenizer)
        pretrain(model, bucket(examples, recipe.batch, derive_seed("miniature", seed, "batches")), recipe, pad)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
