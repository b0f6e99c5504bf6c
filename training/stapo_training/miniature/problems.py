"""Addition problems, their worked solutions, and the two flaws of the corpus: slips and junk.

A solution adds column by column from the right. Every column is written with a fixed width, `a+b+c=ts`: the two
digits, the carry that came in, and the two-digit sum, whose first digit is the next carry:

    What is 4821 + 9375?
    1+5+0=06
    2+7+0=09
    8+3+0=11
    4+9+1=14
    The answer is \\boxed{14196}.

A *slip* is a wrong sum or a lost carry in one column, carried on consistently: the final answer is wrong. *Junk* is a
meaningless word between two tokens, outside the box: it changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from stapo_training.miniature.tokenizer import JUNK

Slip = Literal["", "digit", "carry"]

TEMPLATES = ("What is {a} + {b}?", "Compute {a} + {b}.", "Add {a} and {b}.")


@dataclass(frozen=True)
class Problem:
    a: int
    b: int
    template: int = 0

    @property
    def text(self) -> str:
        return TEMPLATES[self.template].format(a=self.a, b=self.b)

    @property
    def answer(self) -> int:
        return self.a + self.b

    @property
    def key(self) -> tuple[int, int]:
        """What makes two problems the same one: the operands in either order, whatever the words."""
        return min(self.a, self.b), max(self.a, self.b)


@dataclass(frozen=True)
class Solution:
    """A worked solution as pieces (one token each), the answer it arrives at, and which pieces are junk."""

    pieces: tuple[str, ...]
    answer: int
    slip: Slip = ""
    junk: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def draw_problems(
    rng: np.random.Generator, count: int, digits: Sequence[int], taken: Collection[tuple[int, int]]
) -> list[Problem]:
    """`count` problems, no two alike and none in `taken`; both operands have the same, uniformly drawn length.

    Args:
        digits: the lengths to draw from, in decimal digits.
        taken: keys (see `Problem.key`) that must not come up.
    """
    seen = set(taken)
    found: list[Problem] = []
    while len(found) < count:
        n = int(digits[int(rng.integers(len(digits)))])
        low, high = 10 ** (n - 1), 10**n
        p = Problem(int(rng.integers(low, high)), int(rng.integers(low, high)), int(rng.integers(len(TEMPLATES))))
        if p.key not in seen:
            seen.add(p.key)
            found.append(p)
    return found


def solve(problem: Problem, slip: Slip = "", column: int = -1, shift: int = 1) -> Solution:
    """The worked solution, with at most one slip.

    Args:
        slip: "digit": the sum of the column is written `shift` too high (modulo 20); "carry": the carry into the
            column is written as 0 although there is one.
        column: where the slip is, counted from the right, 0 for the ones.
    """
    width = max(len(str(problem.a)), len(str(problem.b)))
    pieces: list[str] = []
    carry, written = 0, ""
    for i in range(width):
        x, y = problem.a // 10**i % 10, problem.b // 10**i % 10
        if slip == "carry" and i == column:
            carry = 0
        total = x + y + carry
        if slip == "digit" and i == column:
            total = (total + shift) % 20
        tens, ones = divmod(total, 10)
        pieces += [str(x), "+", str(y), "+", str(carry), "=", str(tens), str(ones), "\n"]
        carry, written = tens, str(ones) + written
    written = (str(carry) + written).lstrip("0") or "0"  # a slip can clear the first digits too
    pieces += ["The answer is", " \\boxed{", *written, "}."]
    return Solution(tuple(pieces), int(written), slip)


def draw_slip(rng: np.random.Generator, problem: Problem) -> Solution:
    """A solution with one slip: as often a lost carry as a wrong digit where the problem has a carry at all."""
    width = max(len(str(problem.a)), len(str(problem.b)))
    carries = [i for i in range(1, width) if problem.a % 10**i + problem.b % 10**i >= 10**i]
    if carries and rng.random() < 0.5:
        return solve(problem, "carry", carries[int(rng.integers(len(carries)))])
    shift = int(rng.choice([1, 19, 2, 18, 10]))  # +1, -1, +2, -2, tens digit wrong, each modulo 20
    return solve(problem, "digit", int(rng.integers(width)), shift)


def add_junk(rng: np.random.Generator, solution: Solution, rate: float) -> Solution:
    """The solution with a junk word before each piece with probability `rate`, never inside the box.

    Args:
        rate: share of positions, in [0, 1].
    """
    pieces: list[str] = []
    junk: list[int] = []
    in_box = False
    for piece in solution.pieces:
        if not in_box and rng.random() < rate:
            junk.append(len(pieces))
            pieces.append(JUNK[int(rng.integers(len(JUNK)))])
        pieces.append(piece)
        in_box = piece == " \\boxed{" or (in_box and piece != "}.")
    return Solution(tuple(pieces), solution.answer, solution.slip, tuple(junk))
