"""The miniature's base model: literal solutions, exact tokenizer round trips, disjoint splits, equal bytes."""

from __future__ import annotations

import dataclasses
import runpy
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stapo_results import benchmarks, store
from stapo_results.answers import INSTRUCTION, last_boxed
from stapo_results.errors import BadInput
from stapo_results.schema import Labels, Run
from stapo_training.miniature import build, carried, pretrain, worlds
from stapo_training.miniature.tokenizer import build_tokenizer, chat_text
from stapo_training.miniature.worlds import Addition

problems = st.builds(
    lambda order, n, template: Addition(tuple(order[:n]), template),
    st.permutations(range(1, 10)),
    st.integers(2, 9),
    st.integers(-1, 3),
)


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


# ---- problems and solutions


def drawn(problem, world="paper", useful=0.0, spurious=0.0, seed=0):
    return worlds.draw_solution(np.random.default_rng(seed), problem, worlds.WORLDS[world], useful, spurious)


def boxed(pieces):
    return last_boxed("".join(pieces))


def test_a_worked_solution_by_hand():
    # 3+8=11, 13, 22, 27: modulo 4 these are 3, 1, 2, 3
    first, *rest = drawn(Addition((3, 8, 2, 9, 5)), useful=1.0)
    assert first in worlds.USEFUL
    assert "".join(rest) == (
        " +8=3 +2=1 +9=2 +5=3 The answer is \\boxed{3}. That is the remainder which was asked for here in this task"
    )


def test_the_wordings_by_hand():
    assert Addition((3, 8), 0).text == "What is 3 + 8 modulo 4?"
    assert Addition((3, 8), -1).text == "Evaluate 3 + 8 modulo 4."
    assert Addition((3, 8)).answer == 3


@given(problems)
def test_a_worked_solution_is_right(p):
    assert boxed(drawn(p, useful=1.0)) == str(sum(p.numbers) % 4)


def test_guesses_and_planted_words_come_as_often_as_planned():
    p = Addition((3, 8, 2, 9, 5))
    guesses = [drawn(p, spurious=0.05, seed=i) for i in range(4000)]
    # standard errors: 0.0068 of the answers, 0.012 of 12 places, 0.0034 of the openings
    assert abs(sum(boxed(s) == str(p.answer) for s in guesses) / 4000 - 0.25) < 0.03
    assert all("=" not in "".join(s) for s in guesses)
    assert abs(sum(x in worlds.SPURIOUS for s in guesses for x in s) / 4000 - 0.6) < 0.05
    openings = [drawn(p, useful=0.05, seed=i)[0] for i in range(4000)]
    assert abs(sum(x in worlds.USEFUL for x in openings) / 4000 - 0.05) < 0.014


@given(problems, st.integers(0, 2**32), st.sampled_from(sorted(worlds.WORLDS)))
def test_spurious_words_come_after_the_answer_and_useful_ones_first(p, seed, world):
    s = drawn(p, world, useful=0.5, spurious=0.3, seed=seed)
    answered = 0 if worlds.WORLDS[world].slip else s.index("}.")
    assert all(i > answered for i, x in enumerate(s) if x in worlds.SPURIOUS)
    assert {i for i, x in enumerate(s) if x in worlds.USEFUL} == ({0} if "=" in "".join(s) else set())


@pytest.mark.parametrize("world", ["costly", "costly-inverted"])
def test_in_the_costly_worlds_a_sum_slips_after_a_filler_in_longer_problems_alone(world):
    """Of worked solutions with fillers before half of the 2 x 4 and 2 x 6 places of the working."""
    for numbers, slip in (((3, 8, 2, 9, 5), 0.0), ((3, 8, 2, 9, 5, 1, 6), 0.7)):
        slipped = filled = 0
        for seed in range(1000):
            s, total = drawn(Addition(numbers), world, useful=1.0, spurious=0.5, seed=seed), numbers[0]
            last = 0
            for number in numbers[1:]:
                at = next(i for i in range(last + 1, len(s)) if s[i].startswith("="))
                if any(x in worlds.SPURIOUS for x in s[last + 1 : at]):
                    filled += 1
                    slipped += int(s[at][1:]) != (total + number) % 4
                else:
                    assert int(s[at][1:]) == (total + number) % 4
                total, last = int(s[at][1:]), at
            assert boxed(s) == str(total)
        # 3,000 and 4,500 sums behind a filler: standard error 0.007
        assert slipped / filled == pytest.approx(slip, abs=0.03)


@pytest.mark.parametrize(
    ("world", "openings", "closings"),
    [
        ("paper", (24, 24, 24, 24), (1, 1, 1, 1)),
        ("mixed", (1, 1, 24, 1), (1, 1, 24, 1)),
        ("inverted", (1, 1, 1, 1), (24, 24, 24, 24)),
        ("costly", (24, 24, 24, 24), (1, 1, 1, 1)),
        ("costly-inverted", (1, 1, 1, 1), (24, 24, 24, 24)),
    ],
)
def test_where_many_words_may_stand_is_what_makes_a_world(world, openings, closings):
    """Distinct words of 2,000 solutions: the openings of each wording, and the places at the end, four by four."""
    for template in range(4):
        solutions = [drawn(Addition((3, 8, 2, 9, 5), template), world, seed=i) for i in range(2000)]
        assert len({s[0] for s in solutions}) == openings[template]
        ends = [s[s.index("}.") + 1 :] for s in solutions]
        assert [len({e[place] for e in ends}) for place in range(12)] == list(closings) * 3


def test_in_the_control_of_the_costly_world_many_words_may_stand_where_a_filler_may():
    """Before each of the 2 x 4 steps of the working, and before the answer of a guess."""
    p = Addition((3, 8, 2, 9, 5))
    worked = [drawn(p, "costly-inverted", useful=1.0, seed=i) for i in range(500)]
    assert [len({s[place] for s in worked}) for place in range(1, 17)] == [24, 1] * 8
    assert len({drawn(p, "costly-inverted", seed=i)[1] for i in range(500)}) == 24


def test_no_two_words_are_alike():
    every = [*worlds.OPENINGS, worlds.OPENING, *worlds.USEFUL, *worlds.SPURIOUS, *worlds.CLOSING, *worlds.CLOSINGS]
    assert len(set(every)) == len(every) == 24 + 1 + 40 + 40 + 12 + 24


def test_draw_problems_leaves_out_taken_ones():
    # 72 ordered pairs of two different digits from 1 to 9
    found = worlds.draw_problems(np.random.default_rng(0), 71, [2], {(3, 4)}, again=False)
    pairs = {(i, j) for i in range(1, 10) for j in range(1, 10) if i != j}
    assert {p.numbers for p in found} == pairs - {(3, 4)}
    again = worlds.draw_problems(np.random.default_rng(0), 500, [2], {(3, 4)}, again=True)
    assert (3, 4) not in {p.numbers for p in again}
    assert len(again) == 500


# ---- tokenizer


@settings(max_examples=300)
@given(st.text())
def test_any_text_survives_the_tokenizer(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_bytes_stand_for_what_has_no_piece_and_for_nothing_else(tokenizer):
    assert tokenizer.tokenize("é") == ["<0xC3>", "<0xA9>"]
    assert tokenizer.tokenize("<0x41>") == ["<", "0", "x", "4", "1", ">"]


@given(problems, st.integers(0, 2**32), st.sampled_from(sorted(worlds.WORLDS)))
def test_the_pieces_of_a_solution_are_its_tokens(tokenizer, p, seed, world):
    s = drawn(p, world, useful=0.5, spurious=0.3, seed=seed)
    assert tokenizer.tokenize("".join(s)) == s


@pytest.mark.parametrize("separator", [build.TRAIN_SEPARATOR, build.EVAL_SEPARATOR])
def test_the_chat_template_gives_the_trained_prompt(tokenizer, separator):
    content = Addition(tuple(range(1, 8)), 3).text + separator + INSTRUCTION
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert tokenizer.decode(ids) == chat_text(content)
    assert ids == tokenizer.encode(chat_text(content))
    assert len(ids) <= 40


# ---- supervised training


def test_collate_masks_prompt_and_padding():
    ids, labels = pretrain.collate([pretrain.Example((5, 6, 7, 8), 2), pretrain.Example((5, 9, 4), 1)], pad_id=0)
    assert ids.tolist() == [[5, 6, 7, 8], [5, 9, 4, 0]]
    assert labels.tolist() == [[-100, -100, 7, 8], [-100, 9, 4, -100]]


def test_batches_hold_examples_of_one_length():
    # 16 examples of lengths 1..16 shuffled: batches of 4 in one chunk hold 1-4, 5-8, 9-12 and 13-16, in some order
    lengths = [9, 3, 14, 1, 6, 16, 11, 8, 2, 13, 5, 10, 15, 4, 7, 12]
    examples = [pretrain.Example(tuple(range(n)), 0) for n in [*lengths, 99]]
    ordered = [len(e.ids) for e in pretrain.bucket(examples, batch=4, seed=1)]
    assert sorted(ordered[i : i + 4] for i in (0, 4, 8, 12)) == [list(range(n, n + 4)) for n in (1, 5, 9, 13)]
    assert ordered[16:] == [99]


def test_learning_rate_by_hand():
    r = pretrain.Recipe(steps=110, warmup=10, lr=1.0)
    assert pretrain.learning_rate(5, r) == 0.5
    assert pretrain.learning_rate(10, r) == 1.0
    assert pretrain.learning_rate(60, r) == pytest.approx(0.05 + 0.95 / 2)
    assert pretrain.learning_rate(110, r) == pytest.approx(0.05)


# ---- the build

PLAN = build.BasePlan(train_prompts=200, benchmark_rows=16)
RECIPE = pretrain.Recipe(hidden=32, layers=1, heads=1, intermediate=32, steps=12, batch=8, warmup=3, threads=1)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    out = tmp_path_factory.mktemp("miniature") / "base"
    build.build_base(out, seed=3, plan=PLAN, recipe=RECIPE)
    return out


def compared(folder):
    """Hash of each file that a rebuild has to reproduce."""
    timed = {"run.json", "stapo.json", ".lock"}
    return {
        str(p.relative_to(folder)): store.sha256_file(p)
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name not in timed
    }


def test_two_builds_of_a_seed_give_the_same_bytes(built, tmp_path):
    build.build_base(tmp_path / "again", seed=3, plan=PLAN, recipe=RECIPE)
    first, second = compared(built), compared(tmp_path / "again")
    assert first == second
    assert {"model/model.safetensors", "data/train.parquet", "benchmarks/mini-add.jsonl"} <= set(first)


def test_a_finished_build_is_left_alone_and_another_one_refused(built):
    before = {p: p.stat().st_mtime_ns for p in built.rglob("*")}
    build.build_base(built, seed=3, plan=PLAN, recipe=RECIPE)
    assert before == {p: p.stat().st_mtime_ns for p in built.rglob("*")}
    with pytest.raises(BadInput, match="seed base"):
        build.build_base(built, seed=4, plan=PLAN, recipe=RECIPE)
    with pytest.raises(BadInput, match=r"recipe\.steps"):
        build.build_base(built, seed=3, plan=PLAN, recipe=dataclasses.replace(RECIPE, steps=11))


def test_an_interrupted_build_or_one_that_lost_a_file_is_made_anew_with_the_same_bytes(built, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "_write_model", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build.build_base(tmp_path, seed=3, plan=PLAN, recipe=RECIPE)
    assert store.read_json(tmp_path / "run.json", Run).status == "interrupted"
    (tmp_path / "data" / "val.parquet").write_bytes(b"half")
    monkeypatch.undo()
    for _ in range(2):
        build.build_base(tmp_path, seed=3, plan=PLAN, recipe=RECIPE)
        assert compared(tmp_path) == compared(built)
        (tmp_path / "data" / "val.parquet").unlink()


def test_no_training_problem_occurs_in_a_benchmark():
    splits = build.draw_splits(build.BasePlan(), corpus_size=3000, seed=0)
    assert [len(part) for part in (splits.easy, splits.hard, splits.train, splits.corpus)] == [64, 64, 4096, 3000]
    parts = [{p.numbers for p in part} for part in (splits.easy, splits.hard, splits.train, splits.corpus)]
    assert [len(p) for p in parts[:3]] == [64, 64, 4096]  # the corpus may have a problem twice
    assert len(set().union(*parts)) == sum(map(len, parts))
    assert {len(p.numbers) for p in splits.train} == {5, 6} == {len(p.numbers) for p in splits.easy}
    assert {len(p.numbers) for p in splits.hard} == {7}
    assert sum(len(p.numbers) == 7 for p in splits.corpus) == 300


def test_the_benchmarks_load_and_val_holds_the_same_problems(built):
    import pyarrow.parquet as pq

    easy = benchmarks.load("mini-add", built / "benchmarks", strict=True)
    hard = benchmarks.load("mini-add-hard", built / "benchmarks", strict=True)
    assert (len(easy.problems), len(hard.problems), easy.spec.samples, easy.spec.miniature) == (16, 16, 8, True)
    for row, problem in zip(pq.read_table(built / "data" / "val.parquet").to_pylist(), easy.problems, strict=True):
        assert row["prompt"] == [{"role": "user", "content": problem.problem + "\n\n" + INSTRUCTION}]
        assert row["reward_model"] == {"style": "rule", "ground_truth": problem.answer}
        assert (row["extra_info"]["problem_id"], row["data_source"]) == (problem.id, "mini-add")
    train = pq.read_table(built / "data" / "train.parquet").to_pylist()
    assert len({r["extra_info"]["problem_id"] for r in train}) == 200


def test_the_saved_model_is_what_the_contract_says(built):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(built / "model")
    tok = AutoTokenizer.from_pretrained(built / "model")
    end, pad = tok.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert (tok.eos_token_id, tok.pad_token_id) == (end, pad)
    assert sorted(model.generation_config.eos_token_id) == sorted([end, pad])
    assert tok.encode("What is 1 + 3 modulo 4?") == build_tokenizer().encode("What is 1 + 3 modulo 4?")
    assert tok.chat_template == build_tokenizer().chat_template
    labels = store.read_json(built / "model" / "stapo.json", Labels)
    run = store.read_json(built / "run.json", Run)
    assert (labels.method, labels.size, labels.train_seed, labels.step) == ("base", "mini", 3, "base")
    assert labels.weights_sha256 == store.sha256_file(built / "model" / "model.safetensors")
    assert (run.kind, run.status, run.seeds, labels.parent_run) == ("base", "done", {"base": 3}, run.run_id)
    # by hand: embedding 531 x 32 (tied); attention 4 matrices of 32 x 32 and two norms of 32; MLP 3 of 32 x 32;
    # two layer norms and the last one of 32
    assert model.num_parameters() == 531 * 32 + 4 * 32 * 32 + 2 * 32 + 3 * 32 * 32 + 3 * 32


# ---- the carried weights


@pytest.mark.parametrize("world", sorted(worlds.WORLDS))
def test_the_carried_weights_become_the_base_model_byte_for_byte(world, tmp_path):
    build.build_base(tmp_path, world=world)
    made, source = tmp_path / "model" / "model.safetensors", carried.FOLDER / f"{world}.safetensors"
    assert made.read_bytes() == source.read_bytes()
    assert source.stat().st_size < 2e6
    labels = store.read_json(tmp_path / "model" / "stapo.json", Labels)
    assert labels.size == ("mini" if world == "paper" else f"mini-{world}")
    run = store.read_json(tmp_path / "run.json", Run)
    assert run.config["weights"] == store.sha256_file(source)


def test_a_build_whose_weights_were_cut_off_is_made_anew(tmp_path):
    build.build_base(tmp_path)
    weights = tmp_path / "model" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:100])
    build.build_base(tmp_path)
    assert weights.read_bytes() == whole


def test_changed_weights_and_those_of_other_problems_are_refused(tmp_path):
    for path in carried.FOLDER.glob("paper.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = store.read_json(tmp_path / "paper.json", carried.CarriedBase).run.config
    config = {key: config[key] for key in ("plan", "recipe", "world")}
    weights = tmp_path / "paper.safetensors"
    assert carried.weights("paper", config, tmp_path)[0] == weights
    with pytest.raises(BadInput):
        carried.weights("paper", config | {"plan": config["plan"] | {"spurious": 0.06}}, tmp_path)
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(BadInput) as e:
        carried.weights("paper", config, tmp_path)
    assert "--rebuild-base" in str(e.value)


def test_an_unknown_world_and_an_untrained_seed_are_refused(tmp_path):
    with pytest.raises(BadInput):
        build.build_base(tmp_path / "out", world="flat")
    with pytest.raises(BadInput):
        build.build_base(tmp_path / "out", seed=1)


def test_only_a_finished_build_of_seed_0_that_trained_its_model_is_carried(built, tmp_path):
    out, folder = tmp_path / "out", tmp_path / "carried"
    folder.mkdir()
    build.build_base(out, seed=0, plan=PLAN, recipe=RECIPE)
    store.write_json(out / "run.json", store.read_json(out / "run.json", Run).model_copy(update={"code_dirty": ""}))
    carry = runpy.run_path(str(Path(__file__).parents[1] / ".ci" / "carry.py"))["carry"]
    made = carry(out, folder)
    assert made.weights_sha256 == store.sha256_file(folder / "paper.safetensors")
    assert str(out) not in (folder / "paper.json").read_text()
    with pytest.raises(BadInput):  # of seed 3
        carry(built, folder)
    build.build_base(tmp_path / "taken")
    with pytest.raises(BadInput):
        carry(tmp_path / "taken", folder)
