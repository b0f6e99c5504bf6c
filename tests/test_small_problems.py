"""The small model's problems: answers recomputed from the text, parts that share nothing, the same ones for a seed."""

from __future__ import annotations

import hashlib
import re

import numpy as np
import pytest

from stapo_results.answers import last_boxed
from stapo_results.errors import BadInput
from stapo_training.small import problems
from stapo_training.small.build import SmallPlan, draw_benchmarks
from stapo_training.small.problems import KINDS, Level

# what the verbs of the stories do to the first number, read off the text alone
SECOND = {"gets": "+", "Tuesday": "+", "adds": "+", "takes": "-", "lost": "-", "bags with": "*", "rows of": "*"}
THIRD = {"gives": "-", "sells": "-", "puts": "+", "Wednesday": "+", "left over": "+", "bought": "+", "single": "+"}
FACTORS = {
    "hours": 60, "minutes": 60, "days": 24, "weeks": 7, "years": 12, "metres": 100, "centimetres": 10,
    "kilometres": 1000, "kilograms": 1000, "feet": 12, "yards": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def train():
    return problems.draw_all(KINDS, 1024, Level(), 0, "train", held_out=False)


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


def test_chains_by_hand():
    assert problems.chain((5, 2, 3), "+-") == (4, ("5 + 2 = 7", "7 - 3 = 4"))
    assert problems.chain((2, 6, 1), "*+") == (13, ("2 * 6 = 12", "12 + 1 = 13"))
    assert problems.chain((3, 5, 9), "-+") == (0, ())  # nobody takes five of three
    assert problems.chain((3, 3, 9), "-+") == (0, ())


def test_training_and_benchmarks_share_neither_numbers_nor_wordings(train, held_out):
    def keys(part):
        return {(p.kind, p.unit, tuple(sorted(p.numbers))) for p in part}

    def wordings(part):
        """Digits and what fills a gap taken out."""
        fillers = [w for group in (problems.NAMES, problems.THINGS) for words in group.values() for w in words]
        units = sorted({u for pair in problems.UNITS for u in pair}, key=len, reverse=True)
        return {re.sub(r"\d+|" + "|".join([*fillers, *units]), "_", p.text) for p in part}

    assert keys(train) & keys(held_out) == set()
    assert wordings(train) & wordings(held_out) == set()
    assert (len(wordings(train)), len(wordings(held_out))) == (4 + 4 + 3, 2 + 3 + 2)
    assert len({p.text for p in train}) == 1024
    assert len({p.text for p in held_out}) == 128


def test_about_one_of_six_tuples_is_held_out():
    pairs = [(a, b) for a in range(60) for b in range(a, 60)]
    share = sum(problems.is_held_out("sum", p) for p in pairs) / len(pairs)
    assert abs(share - 1 / 6) < 0.035  # 1,830 tuples: four standard errors of 0.0087
    assert problems.is_held_out("sum", (3, 9)) == problems.is_held_out("sum", (9, 3))


def test_a_seed_gives_the_same_problems(train):
    text = "\n".join(f"{p.text} {p.answer}" for p in train)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "1be4fe02b9765746"
    other = problems.draw_all(KINDS, 1024, Level(), 1, "train", held_out=False)
    assert other != train


def test_a_worked_solution_ends_in_its_answer(train):
    rng = np.random.default_rng(0)
    solutions = [(p, problems.worked(rng, p)) for p in train[:300]]
    assert all(last_boxed(s) == str(p.answer) for p, s in solutions)
    assert all(step in s for p, s in solutions for step in p.work)
    yards = next(p for p in train if p.unit == "feet")
    assert yards.work[0] == "1 foot = 12 inches"


def test_numbers_that_give_too_few_problems_are_refused():
    with pytest.raises(BadInput) as e:
        problems.draw_all(["sum"], 100, Level(sum=(2, 4)), 0, "train", held_out=False)
    assert e.value.expected == 100
