r"""Rule grading: is the extracted answer the gold answer?

Two stages, both pure. `quick` decides what needs no algebra (the same text in normal form, plain numbers) and is safe
on any input. `symbolic` asks math-verify 0.9.0 and can take any time and memory on a hostile answer: it runs in the
worker processes of `grading_pool` only. math-verify sees the contents of the last box alone, since it merges
neighbouring boxes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from importlib import metadata

from stapo_results.answers import strip_boxes
from stapo_results.errors import BadInput

PRESET = "ours"
Gold = str | tuple[str, ...]

_LEFT_RIGHT = re.compile(r"\\(?:left|right)(?![A-Za-z])|\\displaystyle(?![A-Za-z])|\\q?quad(?![A-Za-z])")
_SPACES = re.compile(r"\\[,;:! ]|[\s~$]|\\[()\[\]]")
_FRACTION = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_WRAPPED = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname)\{([^{}]*)\}")
_DEGREES = re.compile(r"\^\{?\\circ\}?|\\degree(?![A-Za-z])|°")
_THOUSANDS = re.compile(r"([+-]?)(\d{1,3}(?:,\d{3})+)((?:\.\d+)?)")
_NAMED = re.compile(r"[A-Za-z](?:_\{?\w+\}?)?(?:\([A-Za-z](?:,[A-Za-z])*\))?=(?!=)")
_INTEGER = re.compile(r"([+-]?)(\d+)")
_DECIMAL = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)"
_NUMBER = re.compile(rf"({_DECIMAL})(?:(?:[eE]|(?:\\times|\\cdot|\*|×)10\^)\{{?([+-]?\d{{1,3}})\}}?)?")
_RATIO = re.compile(rf"([+-]?)(?:\\frac\{{({_DECIMAL})\}}\{{({_DECIMAL})\}}|\\frac(\d)(\d)|({_DECIMAL})/({_DECIMAL}))")
_AND = re.compile(r"\\text\{\s*(?:and|or)\s*\}|\s(?:and|or)\s")
_LONGEST_NUMBER = 100  # characters; longer ones are compared as text or left to a worker


@dataclass(frozen=True)
class Options:
    """What a benchmark says about comparing: unordered lists, an absolute tolerance, the unit of the gold."""

    unordered: bool = False
    tolerance: float | None = None
    unit: str = ""


def grader_version() -> str:
    """The versions that a verdict depends on."""
    return f"math-verify {metadata.version('math-verify')}, latex2sympy2_extended " + metadata.version(
        "latex2sympy2_extended"
    )


def check_preset(preset: str) -> None:
    """Raises BadInput for a preset that does not exist."""
    if preset != PRESET:
        raise BadInput(
            "this grader preset does not exist", found=preset, expected=PRESET, next_step="use --preset ours"
        )


def normalise(text: str) -> str:
    """Normal form of an answer: everything that only sets the type is gone, white space as well."""
    text = text.replace("−", "-").replace("–", "-").replace("{,}", ",").replace("\\$", "")
    text = _SPACES.sub("", _LEFT_RIGHT.sub("", _WRAPPED.sub(r"\1", strip_boxes(text.strip()))))
    text = _DEGREES.sub("", _FRACTION.sub(r"\\frac", text)).rstrip(".").replace(r"\%", "%")
    if m := _THOUSANDS.fullmatch(text):
        text = m[1] + m[2].replace(",", "") + m[3]
    return text


def number(text: str) -> Fraction | None:
    """The exact value of a plain number in normal form: integer, decimal, power of ten, fraction; else None."""
    if len(text) > _LONGEST_NUMBER:
        return None
    if m := _NUMBER.fullmatch(text):
        return Fraction(m[1]) * Fraction(10) ** int(m[2] or 0)
    if m := _RATIO.fullmatch(text):
        over, under = next((a, b) for a, b in ((m[2], m[3]), (m[4], m[5]), (m[6], m[7])) if a)
        if Fraction(under):
            return Fraction(over) / Fraction(under) * (-1 if m[1] == "-" else 1)
    return None


def _unname(text: str) -> str:
    """Without a leading "x=" or "f(x)="."""
    m = _NAMED.match(text)
    return text[m.end() :] if m else text


def _prepare(gold: str, answer: str, options: Options) -> tuple[str, str]:
    g, a = normalise(gold), normalise(answer)
    if unit := normalise(options.unit):
        g, a = g.removesuffix(unit), a.removesuffix(unit)
    if ("=" in g) != ("=" in a):
        g, a = _unname(g), _unname(a)
    return g, a


def _quick_single(gold: str, answer: str, options: Options) -> bool | None:
    g, a = _prepare(gold, answer, options)
    if g == a:
        return True
    if (mg := _INTEGER.fullmatch(g)) and (ma := _INTEGER.fullmatch(a)):
        x, y = (m[2].lstrip("0") for m in (mg, ma))
        if x == y and (not x or (mg[1] == "-") == (ma[1] == "-")):
            return True
        if options.tolerance is None:
            return False
    x, y = number(g), number(a)
    if x is None or y is None:
        return None if a else False
    if x == y or (options.tolerance is not None and abs(x - y) <= Fraction(options.tolerance)):
        return True
    # math-verify compares after rounding to six places; only a difference that it could round away is left to it
    return False if abs(x - y) > max(abs(x), abs(y), Fraction(1, 100)) / 1000 else None


def split_items(text: str) -> list[str]:
    """The items of a list at commas and semicolons outside of brackets, and at "and" or "or"."""
    text = _AND.sub(",", text.strip().strip("$").strip())
    if text.startswith(r"\{") and text.endswith(r"\}"):
        text = text[2:-2]
    items, depth, start = [], 0, 0
    for m in re.finditer(r"\\?[(\[{]|\\?[)\]}]|(?<!\\)[,;]", text.replace(r"\left", "").replace(r"\right", "")):
        if m[0] in ",;":
            if depth == 0:
                items.append(m.start())
        else:
            depth = max(0, depth + (1 if m[0][-1] in "([{" else -1))
    bare = text.replace(r"\left", "").replace(r"\right", "")
    parts = []
    for at in [*items, len(bare)]:
        parts.append(bare[start:at].strip())
        start = at + 1
    parts = [p for p in parts if p.strip("$ ")]
    return [x for p in parts for x in ((p.replace(r"\pm", "+", 1), p.replace(r"\pm", "-", 1)) if r"\pm" in p else (p,))]


def _is_list(gold: Gold, options: Options) -> tuple[str, ...] | None:
    """The gold's items where several answers are asked for."""
    if not isinstance(gold, str):
        return tuple(x for g in gold for x in split_items(g)) if len(gold) > 1 else None
    if options.unordered and not _THOUSANDS.fullmatch(normalise(gold)):
        items = split_items(gold)
        # "f(n) = n, g(n) = 1" or "t = 1, x > 2" are statements of which each has to be there, as items have
        return tuple(items) if len(items) > 1 else None
    return None


def _match_items(golds: tuple[str, ...], answers: list[str], same: Callable[[str, str], bool | None]) -> bool | None:
    """Whether a one-to-one assignment exists (augmenting paths). None: it hangs on pairs that `same` left open."""
    if len(golds) != len(answers):
        return False
    table = [[same(g, a) for a in answers] for g in golds]
    if any(x is None for row in table for x in row) and not _assigns(table, sure=True):
        return None if _assigns(table, sure=False) else False
    return _assigns(table, sure=True)


def _assigns(table: list[list[bool | None]], *, sure: bool) -> bool:
    owner: dict[int, int] = {}

    def place(row: int, seen: set[int]) -> bool:
        for column, same in enumerate(table[row]):
            if (same or (same is None and not sure)) and column not in seen:
                seen.add(column)
                if column not in owner or place(owner[column], seen):
                    owner[column] = row
                    return True
        return False

    return all(place(row, set()) for row in range(len(table)))


_MOST_ITEMS = 64


def quick(gold: Gold, answer: str, options: Options) -> bool | None:
    """The verdict where no algebra is needed, else None. Fast and bounded on any input."""
    if golds := _is_list(gold, options):
        answers = split_items(answer)
        if len(golds) != len(answers) or len(golds) > _MOST_ITEMS:
            return None
        return _match_items(golds, answers, lambda g, a: _quick_single(g, a, options))
    return _quick_single(gold if isinstance(gold, str) else gold[0], answer, options)


def _parsed(text: str) -> list:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    text = strip_boxes(text.strip()).replace("$", " ").replace("np.", "\\").strip()
    config = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
    # no timeout of math-verify's own: it rests on SIGALRM, which is not a limit
    return parse(f"${text}$", extraction_config=config, parsing_timeout=0, raise_on_error=True)


def _symbolic_single(gold: str, answer: str, options: Options) -> bool:
    from math_verify import verify

    decided = _quick_single(gold, answer, options)
    if decided is not None:
        return decided
    g, a = gold, answer
    if unit := options.unit.strip().strip("$"):
        g, a = g.strip().removesuffix(unit), a.strip().removesuffix(unit)
    if ("=" in g) != ("=" in a):
        g, a = (_unname(re.sub(r"\s*([=(),])\s*", r"\1", x.strip().strip("$").strip())) for x in (g, a))
    parsed_gold, parsed_answer = _parsed(g), _parsed(a)
    if not parsed_gold or not parsed_answer:
        return False
    return bool(verify(parsed_gold, parsed_answer, timeout_seconds=0, raise_on_error=True))


def symbolic(gold: Gold, answer: str, options: Options) -> bool:
    """The full verdict. Unbounded in time and memory: call it in a process that may be killed.

    Raises:
        Exception: whatever math-verify or sympy raise on an answer that they cannot take.
    """
    golds = _is_list(gold, options)
    if not golds:
        return _symbolic_single(gold if isinstance(gold, str) else gold[0], answer, options)
    answers = split_items(answer)
    if len(golds) == len(answers) <= _MOST_ITEMS:
        return bool(_match_items(golds, answers, lambda g, a: _symbolic_single(g, a, options)))
    whole = gold if isinstance(gold, str) else ", ".join(gold)
    return _symbolic_single(whole, answer, options)
