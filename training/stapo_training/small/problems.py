"""Problems in English sentences: sums, word problems of two steps, conversions of units. All wordings are our own.

    sum     What is 17 plus 25?
    words   Mira has 8 pears. Mira gets 5 more and gives 3 away. How many pears does Mira have now?
    units   How many minutes are in 3 hours?

Training and benchmarks share neither numbers nor wordings: `is_held_out` splits the numbers by a hash, in which their
order does not count, and the wordings of the two are listed apart. A benchmark's sum or conversion is no step of a
training problem either, whatever its kind; a step of a benchmark's word problem may be one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from stapo_results.errors import BadInput
from stapo_results.seeds import derive_seed

T = TypeVar("T")
HELD_OUT = 6  # of so many number tuples, one is for the benchmarks

SUMS = {
    False: ("What is {} plus {}?", "Add {} and {}.", "Find the sum of {} and {}.", "How much is {} and {} together?"),
    True: ("Calculate {} + {}.", "What do you get when you add {} to {}?"),
}
"""Wordings of a sum, of the training (False) and of the benchmarks (True)."""


STORIES = {
    False: {
        "+-": "{name} has {a} {things}. {name} gets {b} more and gives {c} away. "
        "How many {things} does {name} have now?",
        "-+": "On a shelf there are {a} {things}. {name} takes {b} of them away and puts {c} new ones there. "
        "How many {things} are on the shelf now?",
        "++": "{name} finds {a} {things} on Monday, {b} on Tuesday and {c} on Wednesday. "
        "How many {things} did {name} find in all?",
        "*+": "{name} fills {a} bags with {b} {things} each and has {c} {things} left over. "
        "How many {things} are there in all?",
    },
    True: {
        "+-": "A basket holds {a} {things}. {name} adds {b} {things} and later sells {c}. "
        "How many {things} are left in the basket?",
        "-+": "{name} had {a} {things}, lost {b} and then bought {c}. How many {things} does {name} own?",
        "*+": "There are {a} rows of {b} {things} and {c} single {things}. How many {things} are there?",
    },
}
"""Word problems by the signs of their two steps, in the order of the numbers: "+-" is a + b - c."""
NAMES = {False: ("Mira", "Oskar", "Tilda", "Jonas", "Selma", "Ravi"), True: ("Nela", "Bruno", "Ines")}
THINGS = {False: ("pears", "marbles", "stamps", "buttons", "shells", "pencils"), True: ("plums", "beads", "cards")}

UNITS = {
    ("hours", "minutes"): 60,
    ("minutes", "seconds"): 60,
    ("days", "hours"): 24,
    ("weeks", "days"): 7,
    ("years", "months"): 12,
    ("metres", "centimetres"): 100,
    ("centimetres", "millimetres"): 10,
    ("kilometres", "metres"): 1000,
    ("kilograms", "grams"): 1000,
    ("feet", "inches"): 12,
    ("yards", "feet"): 3,
}
"""(large unit, small unit): how many small ones are one large one."""
CONVERSIONS = {
    False: (
        "How many {small} are in {n} {large}?",
        "Convert {n} {large} to {small}.",
        "{n} {large} are how many {small}?",
    ),
    True: ("Write {n} {large} in {small}.", "Express {n} {large} as a number of {small}."),
}

LEVEL = {"sum": (2, 99), "words": (2, 12), "units": (2, 60)}
"""The least and the largest number of each kind of problem."""
KINDS = tuple(LEVEL)
PATIENCE = 1000  # draws in a row without a new problem, until there are none left


@dataclass(frozen=True)
class Problem:
    """`numbers` are those of the text in their order, with the factor of a conversion.

    work: the steps to the answer, as equations.
    """

    kind: str
    text: str
    answer: int
    numbers: tuple[int, ...]
    work: tuple[str, ...]

    @property
    def key(self) -> tuple[str | int, ...]:
        """Kind and numbers, in which their order does not count."""
        return self.kind, *sorted(self.numbers)

    @property
    def keys(self) -> set[tuple[str | int, ...]]:
        """`key`, and those that its sums and products would have as problems of their own."""
        steps = [step.split() for step in self.work]
        kinds = {"+": "sum", "*": "units"}
        return {self.key} | {(kinds[s[1]], *sorted((int(s[0]), int(s[2])))) for s in steps if s[1] in kinds}


def is_held_out(key: tuple[str | int, ...]) -> bool:
    """Whether the problems of this key are those of the benchmarks."""
    return derive_seed("small", *key) % HELD_OUT == 0


def chain(numbers: Sequence[int], signs: str) -> tuple[int, tuple[str, ...]]:
    """The numbers joined by signs from left to right: (result, the equations); result 0 where a step falls below 1."""
    total, work = numbers[0], []
    for sign, n in zip(signs, numbers[1:], strict=True):
        result = {"+": total + n, "-": total - n, "*": total * n}[sign]
        work.append(f"{total} {sign} {n} = {result}")
        if result < 1:
            return 0, ()
        total = result
    return total, tuple(work)


def draw(rng: np.random.Generator, kind: str, *, held_out: bool) -> Problem:
    """One problem of a kind, for the benchmarks (`held_out`) or for the training.

    Numbers are drawn until they are of that part and no step of the problem falls below 1.
    """
    low, high = LEVEL[kind]
    while True:
        a, b, c = (int(n) for n in rng.integers(low, high + 1, 3))
        if kind == "sum":
            total, work = chain((a, b), "+")
            found = Problem(kind, _any(rng, SUMS[held_out]).format(a, b), total, (a, b), work)
        elif kind == "words":
            signs, story = _any(rng, tuple(STORIES[held_out].items()))
            name, things = _any(rng, NAMES[held_out]), _any(rng, THINGS[held_out])
            total, work = chain((a, b, c), signs)
            text = story.format(a=a, b=b, c=c, name=name, things=things)
            found = Problem(kind, text, total, (a, b, c), work)
        else:
            (large, small), factor = _any(rng, tuple(UNITS.items()))
            text = _any(rng, CONVERSIONS[held_out]).format(n=a, large=large, small=small)
            total, work = chain((a, factor), "*")
            found = Problem(kind, text, total, (a, factor), (f"1 {_one(large)} = {factor} {small}", *work))
        fits = is_held_out(found.key) if held_out else not any(is_held_out(k) for k in found.keys)
        if found.answer > 0 and fits:
            return found


def draw_all(
    kinds: Sequence[str],
    count: int,
    seed: int,
    part: str,
    *,
    held_out: bool = False,
    taken: Collection[str] = (),
) -> list[Problem]:
    """`count` problems, the kinds in turn; no text twice, and in a benchmark no numbers twice.

    Args:
        part: what they are for; each part has random numbers of its own.
        taken: texts that must not come up.

    Raises:
        BadInput: there are too few different problems.
    """
    rng = np.random.default_rng(derive_seed("small", seed, part))
    found: dict[object, Problem] = {}
    misses = 0  # in a row
    while len(found) < count:
        before = len(found)
        problem = draw(rng, kinds[before % len(kinds)], held_out=held_out)
        if problem.text not in taken:
            found.setdefault(problem.key if held_out else problem.text, problem)
        misses = misses + 1 if len(found) == before else 0
        if misses == PATIENCE:
            what, next_step = f"too few different problems for the part {part}", "ask for fewer (--warm-up STEPS)"
            raise BadInput(what, found=before, expected=count, next_step=next_step)
    return list(found.values())


BEGINNINGS = ("", "First, ", "Let us work it out: ", "We have ", "Step by step: ", "Sure! ")
ENDINGS = ("The answer is {}.", "So the answer is {}.", "That makes {}.", "The final answer is {}.", "We get {}.")


def worked(rng: np.random.Generator, problem: Problem) -> str:
    """A worked solution of the warm-up, in one of thirty wordings."""
    beginning, ending = _any(rng, BEGINNINGS), _any(rng, ENDINGS)
    return beginning + ". ".join(problem.work) + ". " + ending.format(f"\\boxed{{{problem.answer}}}")


def _one(unit: str) -> str:
    return "foot" if unit == "feet" else unit[:-1]


def _any(rng: np.random.Generator, choices: Sequence[T]) -> T:
    return choices[int(rng.integers(len(choices)))]
