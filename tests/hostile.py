"""Answers that try to crash, stop or bloat a grader: written ones (data/grader_cases_hostile.jsonl), seeded fuzz."""

from __future__ import annotations

import random
from pathlib import Path

from stapo_results.benchmarks import read_jsonl

_CASES = Path(__file__).parent / "data" / "grader_cases_hostile.jsonl"


def written() -> list[str]:
    answers = []
    for case in read_jsonl(_CASES):
        if "open" in case:
            answers.append(case["open"] * case["times"] + "1" + case["close"] * case["times"])
        elif "repeat" in case:
            answers.append(case["repeat"] * case["times"] + case["then"])
        else:
            answers.append(case["answer"])
    return answers


_PIECES = (
    "\\frac", "\\sqrt", "\\binom", "\\left(", "\\right)", "\\text{", "\\begin{pmatrix}", "\\end{pmatrix}", "\\boxed{",
    "{", "}", "(", ")", "[", "]", "\\{", "\\}", "|", "^", "_", "^{", "_{", "+", "-", "*", "/", "!", "=", "<", ",", ";",
    "\\pm", "\\cup", "\\infty", "\\pi", "\\sum", "\\int", "\\lim", "\\log", "\\sin", "\\ln", "\\in", "\\le", "%", "$",
    "&", "\\\\", "\\", " ", "\n", "x", "y", "n", "e", "i", "0", "1", "7", "99", "10^{9}", "1e99", ".5", "0.3", "and",
    "apples", "cm", "\x00", "\ud800", "\u202e", "\ufffd", "½", "²", "−", "，", "四", "'", ":", "°", "\\deg", "\\mod",
)  # fmt: skip
_OPENERS = (("{", "}"), ("(", ")"), ("\\frac{1}{", "}"), ("\\sqrt{", "}"), ("x^{", "}"), ("\\left[", "\\right]"))


def _soup(r: random.Random) -> str:
    return "".join(r.choices(_PIECES, k=r.choice((3, 8, 20, 60, 150))))


def _tower(r: random.Random) -> str:
    height = r.randint(3, 30)
    return "^{".join(str(r.choice((2, 3, 9, 10, "x", "e"))) for _ in range(height)) + "}" * (height - 1)


def _nest(r: random.Random) -> str:
    opening, closing = r.choice(_OPENERS)
    times = r.choice((5, 40, 300, 10_000))
    return opening * times + r.choice(("1", "x", "")) + closing * (times - r.choice((0, 0, 1)))


def _digits(r: random.Random) -> str:
    size = r.choice((50, 500, 5_000, 200_000))
    block = "".join(r.choices("0123456789", k=min(size, 500)))
    return block * (size // len(block)) + r.choice(("", ".5", "x", "!", "e9"))


def _repetition(r: random.Random) -> str:
    return "".join(r.choices(_PIECES, k=r.randint(1, 4))) * r.choice((10, 100, 20_000))


def _bytes(r: random.Random) -> str:
    return r.randbytes(r.choice((4, 40, 400))).decode("utf-8", r.choice(("replace", "surrogateescape")))


_SOUND = (
    r"\frac{1+\sqrt{5}}{2}", r"(-\infty, 2) \cup (3, \infty)", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", "x^2+2x+1",
    r"15\text{ cm}^2", "1, -2", r"\{1, 2\}", "f(x) = 2x",
)  # fmt: skip


def _broken(r: random.Random) -> str:
    """A sound answer with a few characters taken out, doubled or replaced."""
    text = list(r.choice(_SOUND))
    for _ in range(r.randint(1, 6)):
        at = r.randrange(len(text))
        text[at] = r.choice(("", text[at] * 2, r.choice(_PIECES)))
    return "".join(text)


_KINDS = (_soup, _soup, _soup, _tower, _nest, _digits, _repetition, _bytes, _broken, _broken)


def fuzzed(count: int, seed: int = 0) -> list[str]:
    """The same answers for the same seed; the first of a larger count are those of a smaller one."""
    r = random.Random(seed)
    return [r.choice(_KINDS)(r) for _ in range(count)]
