"""Made-up responses with known labels, as many and as repetitive as those of one evaluation with the six benchmarks.

Golds come from the benchmark files where they are at hand, otherwise from small problems of our own in the same
proportions. Of each problem's samples a share that differs from problem to problem is correct, written in a few
ways; the wrong ones share a handful of wrong answers; some are cut off before a box.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stapo_eval.grading.pool import Item
from stapo_eval.grading.presets import extract
from stapo_eval.grading.rules import Gold, Options
from stapo_results.benchmarks import load

# name -> (problems, samples): 8,984 responses
SIZES = {
    "aime24": (30, 32),
    "aime25": (30, 32),
    "amc23": (40, 32),
    "math500": (500, 4),
    "minerva": (272, 4),
    "olympiadbench": (674, 4),
}
_INTEGERS = ("aime24", "aime25", "amc23")
_CUT_OFF = 0.04
_STEP = (
    "We rewrite the expression as $x^2 - {a}x + {b} = 0$, whose discriminant is $\\Delta = {a}^2 - 4 \\cdot {b}$.\n",
    "Substituting $n = {a}$ gives $\\frac{{{a}}}{{{b}}}$, so both sides agree modulo ${b}$.\n",
    "Wait, let me check this again: the sum of the first {a} terms is {b}, which fits.\n",
    "By the law of cosines, $c^2 = {a}^2 + {b}^2 - 2 \\cdot {a} \\cdot {b} \\cos\\theta$.\n",
)


@dataclass(frozen=True)
class Response:
    """One response to grade; `label`: whether it is correct by construction."""

    gold: Gold
    options: Options
    text: str
    label: bool

    @property
    def item(self) -> Item:
        return Item(self.gold, extract(self.text, self.gold), self.options)


def _own_gold(r: random.Random, kind: int) -> Gold:
    a, b, c = r.randint(2, 40), r.randint(2, 40), r.randint(2, 9)
    golds: tuple[Gold, ...] = (
        str(a * b), f"\\frac{{{2 * a + 1}}}{{{2 * b}}}", f"{a}\\sqrt{{{c * c + 1}}}", f"({a}, {-b})", f"{a}\\pi",
        f"{a / 8}", f"{a}.{b}e{c}", f"x^2+{a}x-{b}", f"[{-a}, {b})", f"{a}^\\circ", (str(a), str(-b)),
        f"\\frac{{{a} n}}{{{b}}}+{c}", f"{a}-{b}i", f"y={c}x-{b}", f"{a} \\text{{ cm}}^2", (f"({a},{c})", f"({c},{a})"),
    )  # fmt: skip
    return golds[kind % len(golds)]


def _golds(data_dir: Path | None, r: random.Random) -> Iterator[tuple[str, int, list[tuple[Gold, Options]]]]:
    for name, (problems, samples) in SIZES.items():
        if data_dir is not None:
            b = load(name, data_dir)
            own = Options(b.spec.unordered, b.spec.tolerance)
            yield name, samples, [(p.answer, Options(own.unordered, own.tolerance, p.unit)) for p in b.problems]
        elif name in _INTEGERS:
            yield name, samples, [(str(r.randint(0, 999)), Options()) for _ in range(problems)]
        else:
            yield name, samples, [(_own_gold(r, r.randint(0, 15)), Options()) for _ in range(problems)]


def _ways(gold: Gold) -> list[str]:
    """A gold as a model may write it."""
    if not isinstance(gold, str):
        return [", ".join(gold), ", ".join(reversed(gold)), r" \text{ and } ".join(gold)]
    ways = [gold, gold.replace("\\frac", "\\dfrac"), gold.replace("(", "\\left(").replace(")", "\\right)")]
    if m := re.fullmatch(r"\\frac\{(\d+)\}\{(\d+)\}", gold):
        ways.append(f"{m[1]}/{m[2]}")
    return ways


def _wrong(gold: Gold, others: list[Gold], r: random.Random) -> str:
    if isinstance(gold, str) and re.fullmatch(r"-?\d+", gold):
        return str(int(gold) + r.choice((-100, -10, -2, -1, 1, 2, 3, 10)))
    other = r.choice(others)
    for _ in range(20):
        if other != gold and not ("\\pi" in gold and "circ" in other):  # pi is 180 degrees
            break
        other = r.choice(others)
    return other if isinstance(other, str) else ", ".join(other)


def _text(answer: str | None, steps: int, r: random.Random) -> str:
    body = "".join(r.choice(_STEP).format(a=r.randint(2, 99), b=r.randint(2, 99)) for _ in range(steps))
    return body if answer is None else f"{body}Therefore, the final answer is $\\boxed{{{answer}}}$."


def make(data_dir: Path | None, *, seed: int = 0, share: float = 1.0, steps: int = 20) -> list[Response]:
    """The responses, the same for the same arguments.

    Args:
        data_dir: folder of the six benchmarks, or None for problems of our own.
        share: of each benchmark's problems.
        steps: sentences before the answer, about 90 characters each.
    """
    r = random.Random(seed)
    made = []
    for _, samples, golds in _golds(data_dir, r):
        kept = golds[: max(1, round(share * len(golds)))]
        others = [g for g, _ in golds]
        for gold, options in kept:
            skill = r.betavariate(0.7, 0.7)
            ways = _ways(gold)
            wrong = [_wrong(gold, others, r) for _ in range(4)]
            weights = (8, 4, 2, 1)
            for _ in range(samples):
                if r.random() < _CUT_OFF:
                    made.append(Response(gold, options, _text(None, steps, r), False))
                elif r.random() < skill:
                    made.append(Response(gold, options, _text(r.choice(ways), steps, r), True))
                else:
                    made.append(Response(gold, options, _text(r.choices(wrong, weights)[0], steps, r), False))
    r.shuffle(made)
    return made
