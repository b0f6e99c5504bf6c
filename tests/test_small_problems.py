"""The small model's problems: answers recomputed from the text, parts that share nothing, the same ones for a seed."""

from __future__ import annotations

import hashlib
import re

import numpy as np
import pytest

from stapo_results.answers import last_boxed
from stapo_results.errors import BadInput
from stapo_training.small import problems
from stapo_training.small.build import SmallPlan, draw_benchmarks, to_examples
from stapo_training.small.problems import KINDS, LEVEL

# what the verbs of the stories do to the first number, read off the text alone
SECOND = {"gets": "+", "Tuesday": "+", "adds": "+", "takes": "-", "lost": "-", "bags with": "*", "rows of": "*"}
THIRD = {"gives": "-", "sells": "-", "puts": "+", "Wednesday": "+", "left over": "+", "bought": "+", "single": "+"}
FACTORS = {
    "hours": 60, "minutes": 60, "days": 24, "weeks": 7, "years": 12, "metres": 100, "centimetres": 10,
    "kilometres": 1000, "kilograms": 1000, "feet": 12, "yards": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def train():
    return problems.draw_all(KINDS, 1024, 0, "train")


@pytest.fixture(scope="module")
def held_out():
    return [p for part in draw_benchmarks(SmallPlan(), 0).values() for p in part]


def read_answer(p: problems.Problem) -> int:
    """The answer from the words and digits of the text."""
    numbers = [int(n) for n in re.findall(r"\d+", p.text)]
    if p.kind == "sum":
        return sum(numbers)
    if p.kind == "units":
        large = re.search(r"\d+ ([a-z]+)", p.text)
        assert large
        return numbers[0] * FACTORS[large[1]]
    (second,) = {sign for word, sign in SECOND.items() if word in p.text}
    (third,) = {sign for word, sign in THIRD.items() if word in p.text}
    a, b, c = numbers
    first = {"+": a + b, "-": a - b, "*": a * b}[second]
    return first + c if third == "+" else first - c


def test_the_answers_follow_from_the_texts(train, held_out):
    assert [p.answer for p in train + held_out] == [read_answer(p) for p in train + held_out]
    assert min(p.answer for p in train + held_out) >= 1
    assert {p.kind for p in train} == {p.kind for p in held_out} == set(KINDS)


def test_nobody_puts_back_more_than_was_taken(train, held_out):
    assert [p.text for p in train + held_out if "back" in p.text and p.numbers[2] > p.numbers[1]] == []


def test_chains_by_hand():
    assert problems.chain((5, 2, 3), "+-") == (4, ("5 + 2 = 7", "7 - 3 = 4"))
    assert problems.chain((2, 6, 1), "*+") == (13, ("2 * 6 = 12", "12 + 1 = 13"))
    assert problems.chain((3, 5, 9), "-+") == (0, ())  # nobody takes five of three
    assert problems.chain((3, 3, 9), "-+") == (0, ())


def test_training_and_benchmarks_share_neither_numbers_nor_wordings(train, held_out):
    def wordings(part):
        """Digits and what fills a gap taken out."""
        fillers = [w for group in (problems.NAMES, problems.THINGS) for words in group.values() for w in words]
        units = sorted({u for pair in problems.UNITS for u in pair}, key=len, reverse=True)
        return {re.sub(r"\d+|" + "|".join([*fillers, *units]), "_", p.text) for p in part}

    keys = [p.key for p in held_out]
    assert len(set(keys)) == len(keys) == 128  # no numbers twice among the benchmarks
    assert not set(keys) & {key for p in train for key in p.keys}
    assert wordings(train) & wordings(held_out) == set()
    assert (len(wordings(train)), len(wordings(held_out))) == (4 + 4 + 3, 2 + 3 + 2)
    assert len({p.text for p in train}) == 1024


def test_the_keys_of_a_problem_are_its_numbers_and_those_of_its_steps():
    story = problems.Problem("words", "", 9, (3, 2, 3), ("3 * 2 = 6", "6 + 3 = 9"))
    assert story.key == ("words", 2, 3, 3)
    assert story.keys == {story.key, ("units", 2, 3), ("sum", 3, 6)}
    less = problems.Problem("words", "", 4, (5, 2, 3), ("5 + 2 = 7", "7 - 3 = 4"))
    assert less.keys == {less.key, ("sum", 2, 5)}
    yards = problems.Problem("units", "", 6, (2, 3), ("1 yard = 3 feet", "2 * 3 = 6"))
    assert yards.keys == {("units", 2, 3)}


def test_about_one_of_six_tuples_is_held_out():
    pairs = [("sum", a, b) for a in range(60) for b in range(a, 60)]
    share = sum(problems.is_held_out(p) for p in pairs) / len(pairs)
    assert abs(share - 1 / 6) < 0.035  # 1,830 tuples: four standard errors of 0.0087


def test_a_seed_gives_the_same_problems(train):
    text = "\n".join(f"{p.text} {p.answer}" for p in train)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "b2a032db3b23bcb4"
    other = problems.draw_all(KINDS, 1024, 1, "train")
    assert other != train


def test_a_worked_solution_ends_in_its_answer(train):
    rng = np.random.default_rng(0)
    solutions = [(p, problems.worked(rng, p)) for p in train[:300]]
    assert all(last_boxed(s) == str(p.answer) for p, s in solutions)
    assert all(step in s for p, s in solutions for step in p.work)
    feet = next(p for p in train if p.text.endswith("feet to inches."))
    assert feet.work[0] == "1 foot = 12 inches"


def test_numbers_that_give_too_few_problems_are_refused(monkeypatch):
    monkeypatch.setitem(LEVEL, "sum", (2, 4))

    def draw(count: int):
        return problems.draw_all(["sum"], count, 0, "warm-up")

    with pytest.raises(BadInput) as e:
        draw(10**9)
    most = int(str(e.value.found))
    assert e.value.expected == 10**9
    assert len(draw(most)) == most
    assert draw(0) == []


class Letters:
    """A tokenizer of one token a letter, whose template is <1>turn<2>, and 0 ends a turn."""

    eos_token_id = 0

    def apply_chat_template(self, turns, add_generation_prompt, return_dict):
        (turn,) = turns
        return [1, *map(ord, turn["content"]), 2]

    def __call__(self, text, add_special_tokens):
        return {"input_ids": list(map(ord, text))}


def test_a_conversation_of_the_warm_up():
    p = problems.Problem("sum", "Add 2 and 3.", 5, (2, 3), ("2 + 3 = 5",))
    (example,) = to_examples([p], 0, Letters())
    turn = "Add 2 and 3.\n\nPlease reason step by step, and put your final answer within \\boxed{}."
    assert example.start == len(turn) + 2
    assert example.ids[: example.start] == (1, *map(ord, turn), 2)
    solution = "".join(map(chr, example.ids[example.start : -1]))
    assert solution == "Sure! 2 + 3 = 5. So the answer is \\boxed{5}."
    assert example.ids[-1] == 0
