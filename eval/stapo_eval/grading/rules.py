r"""Rule grading: is the extracted answer the gold answer?

`quick` decides what needs no algebra and is safe on any input: equal texts and plain numbers (`text`). `full` reads the
structure of both (`shape`), then single values (`values`, `units`) by math-verify's parser (`library`). It may take any
time and memory on a hostile answer, and runs in the processes of `pool` only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from importlib import metadata
from typing import get_args

from stapo_eval.grading import shape
from stapo_eval.grading.text import clean, is_whole, joined, key, marked, number, same_whole
from stapo_eval.grading.values import Terms
from stapo_results.answers import final_boxes
from stapo_results.errors import BadInput
from stapo_results.schema import Preset

Gold = str | tuple[str, ...]
_LONGEST = 2000  # characters of an answer that is read


_BEFORE_BOX = re.compile(r"(?:(?<![A-Za-z\\])[A-Za-z]{2,}|\\in|(?<![<>!])=|[:,])[\s${\\]*[(\[]?\s*$")
_BEHIND_BOX = re.compile(r"(?:[^\d=<>\\]|\\+(?:[)\]]|text))*")  # no more than a unit


def _sought(gold: Gold) -> Gold:
    """What a gold's boxes hold, and the unit behind them, where it is a sentence; any other gold as it is."""
    if not isinstance(gold, str) or not (boxes := final_boxes(gold)):
        return gold
    before, behind = gold.partition("\\boxed")[0], gold.rpartition(boxes[-1])[2]
    boxed = _BEFORE_BOX.search(before) and _BEHIND_BOX.fullmatch(behind)
    return f"{', '.join(boxes)} {behind.lstrip('}')}" if boxed else gold


def in_one(gold: Gold) -> str:
    """A gold answer as one text; several are joined by commas."""
    return gold if isinstance(gold, str) else ", ".join(gold)


@dataclass(frozen=True)
class Options:
    """What a benchmark says about comparing.

    unordered: a gold in one text may be a list even where its commas could set thousands apart.
    tolerance: absolute. unit: of the gold, which an answer may repeat or leave out.
    ordered: the items of a list count in their order (by default in any).

    Raises:
        BadInput: the preset does not exist, or a list is to be both ordered and unordered.
    """

    unordered: bool = False
    tolerance: float | None = None
    unit: str = ""
    ordered: bool = False
    preset: str = "ours"

    def __post_init__(self) -> None:
        if self.preset not in (known := get_args(Preset)):
            raise BadInput("this grader preset does not exist", found=self.preset, expected=" | ".join(known))
        if self.unordered and self.ordered:
            raise BadInput("a list cannot be both ordered and unordered", next_step="leave one of them out")


def _items(text: str) -> list[str] | None:
    """The items of a plain list, or None where the text holds brackets or words that need reading."""
    if any(c in text for c in "()[]{}\\=<>|;") or "and" in text or "or" in text:
        return None
    return text.split(",") if "," in text else None


def quick_one(gold: str, answer: str, options: Options) -> bool | None:
    """The verdict on two keys (`text.key`) of single answers; None where algebra has to decide."""
    if gold == answer:
        return True
    if not answer:
        return False
    if is_whole(gold) and is_whole(answer):
        if same_whole(gold, answer):
            return True
        if options.tolerance is None:
            return False
    x, y = number(gold), number(answer)
    if x is None or y is None:
        return None
    if x == y or (options.tolerance is not None and abs(x - y) <= Fraction(str(options.tolerance))):
        return True
    # a decimal may be the rounded value of a fraction: that is for `full` to say
    return False if "frac" not in gold + answer and "/" not in gold + answer else None


def quick(gold: Gold, answer: str, options: Options) -> bool | None:
    """The verdict where no algebra is needed, else None. Fast and bounded on any input."""
    gold = _sought(gold)
    gold_text = gold if isinstance(gold, str) else ",".join(gold)
    if len(answer) > max(_LONGEST, 4 * len(gold_text)):
        g, a = key(gold_text), answer.strip() if is_whole(answer.strip()) else key(answer)
        return g == a or (is_whole(g) and is_whole(a) and same_whole(g, a))
    if isinstance(gold, str):
        g, a = key(gold), key(answer)
        if options.unordered and "," in gold and "," in answer and g != a:
            return None  # they may be lists and no numbers with commas
        return quick_one(g, a, options)
    golds, answers = [key(g) for g in gold], _items(key(answer))
    if answers is None or len(answers) != len(golds):
        return None
    pair = partial(quick_one, options=options)
    if options.ordered:
        results = list(map(pair, golds, answers))
        return False if False in results else None if None in results else True
    return shape.assigned(golds, answers, pair)


_CHOICE = re.compile(r'\s*"?\(?"?([A-J])"?\s*(?:[).]|:(?!\s*\d))\s*"?(?=[^\s+\-*/^=<>])(.+)', re.S)
_OTHER_CHOICE = re.compile(
    r"(?<![A-Za-z\\])(?:[A-J]|\([a-j]\)|^[a-j]$|(?i:not|no|never|wrong|false|incorrect|untrue|excluded|rejected"
    r"|eliminated|except|neither|nor))(?![A-Za-z])"
)
_CROSS = re.compile(r"\\(?:vec|hat|mathbf|boldsymbol|bm|pmb|overrightarrow|widehat)\b.{1,12}\\times")
_DECIMAL_COMMA = re.compile(r"([+-]?\d+|[+-]?\d{1,3}(?:\.\d{3})+),(\d+)")


def _written_otherwise(gold: str, answer: str, terms: Terms) -> bool:
    """Whether the answer is the gold with a decimal comma, or behind the letter of a choice: "(C) 12"."""
    if (comma := _DECIMAL_COMMA.fullmatch(clean(answer).strip())) and "." in key(gold):
        x = number(key(gold))
        return x is not None and x == number(f"{comma[1].replace('.', '')}.{comma[2]}")
    if not (m := _CHOICE.fullmatch(marked(answer))):
        return False
    if re.fullmatch(r"\(?[A-J]\)?", key(gold)):  # an equation or a list behind it says more than the choice
        more = any(c in m[2] for c in "=<>,;+") or _OTHER_CHOICE.search(m[2].replace('"', ""))
        return m[1].upper() == key(gold).strip("()") and not more
    return shape.same(marked(gold), m[2], terms)


def full(gold: Gold, answer: str, options: Options) -> bool:
    """The verdict where `quick` has none. May take any time and memory: call it in a process that may be killed.

    Raises:
        Exception: whatever math-verify or sympy raise on an answer that they cannot take.
    """
    gold = _sought(gold)
    tolerance = None if options.tolerance is None else Fraction(str(options.tolerance))
    terms = Terms(options.unit.strip().strip("$").strip(), tolerance, options.ordered)
    if any(_CROSS.search(x) for x in (answer, in_one(gold))):
        return False  # a vector product is none of numbers
    try:
        if not isinstance(gold, str) and len(gold) > 1:
            return shape.same_lists([marked(g) for g in gold], marked(answer), terms)
        gold = in_one(gold)
        gold_text, text = (x if options.unordered else joined(clean(x)) for x in (gold, answer))
        return shape.same(marked(gold_text), marked(text), terms) or _written_otherwise(gold, answer, terms)
    except RecursionError:
        return False


def listed(text: Gold) -> int:
    """How many answers a text lists, a plus-minus sign as two; 1 for a point, an interval, a union, a number."""
    if not isinstance(text, str):
        return sum(map(listed, text))
    return len(shape.items(marked(joined(clean(text)))).members) if len(text) <= _LONGEST else 1


def are_parts(boxes: list[str], gold: Gold) -> bool:
    """Whether boxes are equations of values, x = 2 and y = 3, or bounds, x > 1 and x < 2, of which each is a part of
    a gold of several: a point, an interval with two bounds, a union."""
    golds = [marked(g) for g in ([gold] if isinstance(gold, str) else gold)]
    short = max(map(len, boxes)) <= _LONGEST
    return short and any(map(shape.has_parts, golds)) and shape.are_parts([marked(b) for b in boxes])


_RULES = 8  # one more with every change of the rules or of the boxes that are read, since a verdict may change


def grader_version() -> str:
    """The versions that a verdict depends on."""
    packages = ("math-verify", "latex2sympy2_extended", "sympy", "mpmath")
    return ", ".join([f"rules {_RULES}", *(f"{p} {metadata.version(p)}" for p in packages)])
