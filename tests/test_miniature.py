"""The miniature's base model: literal solutions, exact tokenizer round trips, disjoint splits, equal bytes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stapo_results import benchmarks, store
from stapo_results.answers import last_boxed
from stapo_results.errors import BadInput
from stapo_results.schema import Labels, Run
from stapo_training.data.rows import INSTRUCTION
from stapo_training.miniature import build, pretrain
from stapo_training.miniature.problems import Problem, add_junk, draw_problems, draw_slip, solve
from stapo_training.miniature.tokenizer import JUNK, build_tokenizer, chat_text

operand = st.integers(min_value=1000, max_value=9_999_999)


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


# ---------------------------------------------------------------- worked solutions


def test_a_worked_solution_by_hand():
    # 1+5=6; 2+7=9; 8+3=11 carries 1; 4+9+1=14: 4821 + 9375 = 14196
    s = solve(Problem(4821, 9375))
    assert s.text == "1+5+0=06\n2+7+0=09\n8+3+0=11\n4+9+1=14\nThe answer is \\boxed{14196}."
    assert (s.answer, s.slip, s.junk) == (14196, "", ())


def test_a_lost_carry_by_hand():
    # the 1 of 8+3=11 is lost in column 3: 4+9+0=13, so the result is 1000 short
    s = solve(Problem(4821, 9375), "carry", 3)
    assert s.text == "1+5+0=06\n2+7+0=09\n8+3+0=11\n4+9+0=13\nThe answer is \\boxed{13196}."
    assert (s.answer, s.slip) == (13196, "carry")


def test_a_wrong_digit_by_hand_is_carried_on():
    # 2+7 is written as 10 (one too high): its carry goes into the next column, and the result is 100/10 = 10 too high
    s = solve(Problem(4821, 9375), "digit", 1, shift=1)
    assert s.text == "1+5+0=06\n2+7+0=10\n8+3+1=12\n4+9+1=14\nThe answer is \\boxed{14206}."
    assert s.answer == 14196 + 10


def test_a_slip_that_clears_the_first_digits_leaves_no_leading_zero():
    # 1+1 is written as 00 (two too low): nothing is left
    assert solve(Problem(1000, 1000), "digit", 3, shift=18).text.endswith(
        "0+0+0=00\n1+1+0=00\nThe answer is \\boxed{0}."
    )


@given(operand, operand, st.integers(0, 2**32))
def test_a_solution_is_right_and_a_slip_is_wrong(a, b, seed):
    rng = np.random.default_rng(seed)
    p = Problem(a, b)
    right, slipped = solve(p), draw_slip(rng, p)
    assert last_boxed(right.text) == str(a + b)
    assert slipped.slip
    assert slipped.answer != a + b
    assert last_boxed(slipped.text) == str(slipped.answer)


@given(operand, operand, st.integers(0, 2**32), st.floats(0, 1))
def test_junk_changes_nothing_but_the_listed_positions(a, b, seed, rate):
    clean = solve(Problem(a, b))
    noisy = add_junk(np.random.default_rng(seed), clean, rate)
    assert tuple(x for i, x in enumerate(noisy.pieces) if i not in noisy.junk) == clean.pieces
    assert all(noisy.pieces[i] in JUNK for i in noisy.junk)
    assert last_boxed(noisy.text) == str(a + b)


def test_junk_at_rate_one_stands_before_every_piece_outside_the_box():
    noisy = add_junk(np.random.default_rng(0), solve(Problem(1203, 4005)), 1.0)
    # 36 pieces of 4 columns, "The answer is" and the box's opening; the 4 digits and the end follow without junk
    assert noisy.junk == tuple(range(0, 76, 2))
    assert len(noisy.pieces) == 36 + 2 + 38 + 5


def test_draw_problems_leaves_out_taken_ones_and_swapped_ones():
    # of the 81 pairs of one-digit numbers from 1 to 9, 45 differ beyond order; all but (3, 4) are left
    found = draw_problems(np.random.default_rng(0), 44, [1], {(3, 4)})
    assert {p.key for p in found} == {(i, j) for i in range(1, 10) for j in range(i, 10)} - {(3, 4)}


# ---------------------------------------------------------------- tokenizer


@settings(max_examples=300)
@given(st.text())
def test_any_text_survives_the_tokenizer(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    "text", ["<0x41>", "é", "汉字", "🙂‍↔️", "\x00\r\n\t", "\u2028", " hmm hmm", "<unk>", "ﬁ", "e\u0301", "  ", "▁a"]
)
def test_awkward_texts_survive(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text
    if text == "é":
        assert tokenizer.convert_ids_to_tokens(ids) == ["<0xC3>", "<0xA9>"]
    if text == "<0x41>":
        assert tokenizer.convert_ids_to_tokens(ids) == ["<", "0", "x", "4", "1", ">"]


@given(operand, operand, st.integers(0, 2**32))
def test_the_pieces_of_a_solution_are_its_tokens(tokenizer, a, b, seed):
    rng = np.random.default_rng(seed)
    s = add_junk(rng, draw_slip(rng, Problem(a, b)), 0.2)
    assert tuple(tokenizer.tokenize(s.text)) == s.pieces


@pytest.mark.parametrize("separator", [build.TRAIN_SEPARATOR, build.EVAL_SEPARATOR])
def test_the_chat_template_gives_the_trained_prompt(tokenizer, separator):
    content = Problem(9999999, 1234567).text + separator + INSTRUCTION
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert tokenizer.decode(ids) == chat_text(content)
    assert ids == tokenizer.encode(chat_text(content))
    assert len(ids) <= 40


# ---------------------------------------------------------------- supervised training


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


# ---------------------------------------------------------------- the build

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


def test_an_interrupted_build_is_made_anew_with_the_same_bytes(built, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "_make_model", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build.build_base(tmp_path, seed=3, plan=PLAN, recipe=RECIPE)
    assert store.read_json(tmp_path / "run.json", Run).status == "interrupted"
    (tmp_path / "data" / "val.parquet").write_bytes(b"half")
    monkeypatch.undo()
    build.build_base(tmp_path, seed=3, plan=PLAN, recipe=RECIPE)
    assert compared(tmp_path) == compared(built)


def test_no_training_problem_occurs_in_a_benchmark():
    splits = build.draw_splits(build.BasePlan(), corpus_size=3000, seed=0)
    parts = [{p.key for p in part} for part in (splits.easy, splits.hard, splits.train, splits.corpus)]
    assert [len(p) for p in parts] == [64, 64, 4096, 3000]
    assert len(set().union(*parts)) == sum(map(len, parts))
    assert {len(str(p.a)) for p in splits.train} == {4, 5, 6} == {len(str(p.a)) for p in splits.easy}
    assert {len(str(p.a)) for p in splits.hard} == {7}
    assert sum(len(str(p.a)) == 7 for p in splits.corpus) == round(3000 * build.BasePlan().hard_share)


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
    assert tok.encode("What is 12 + 34?") == build_tokenizer().encode("What is 12 + 34?")
    assert tok.chat_template == build_tokenizer().chat_template
    labels = store.read_json(built / "model" / "stapo.json", Labels)
    run = store.read_json(built / "run.json", Run)
    assert (labels.method, labels.size, labels.train_seed, labels.step) == ("base", "mini", 3, "base")
    assert labels.weights_sha256 == store.sha256_file(built / "model" / "model.safetensors")
    assert (run.kind, run.status, run.seeds, labels.parent_run) == ("base", "done", {"base": 3}, run.run_id)
    # by hand: embedding 391 x 32 (tied); attention 4 matrices of 32 x 32 and two norms of 32; MLP 3 of 32 x 32;
    # two layer norms and the last one of 32
    assert model.num_parameters() == 391 * 32 + 4 * 32 * 32 + 2 * 32 + 3 * 32 * 32 + 3 * 32
