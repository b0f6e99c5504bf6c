r"""The forms of answers: a number with a unit, a list, a tuple, a set, an interval, a matrix, a relation, a text."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from stapo_eval.grading.rules.trees import Tree
from stapo_eval.grading.rules.units import Unit

MOST_ITEMS = 64


@dataclass(frozen=True)
class Scalar:
    """A value; `percent`: the number stands before a percent sign."""

    tree: Tree
    unit: Unit | None = None
    percent: bool = False


@dataclass(frozen=True)
class Words:
    """A text answer in lower case, without articles."""

    words: tuple[str, ...]


@dataclass(frozen=True)
class Sequence:
    """An ordered list in brackets: a point, a vector, an interval.

    variable, source: what an inequality says is in the interval, and that inequality.
    """

    left: str
    right: str
    items: tuple[Form, ...]
    variable: str = field(default="", compare=False)
    source: Relation | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Collection:
    """Items whose order does not count. braces: a set, in which a repeated item counts once. union: of sets. either:
    they stand between "or"s. variable: what inequalities say is in the union."""

    items: tuple[Form, ...]
    braces: bool = False
    union: bool = False
    either: bool = False
    variable: str = field(default="", compare=False)


@dataclass(frozen=True)
class Relation:
    """sides[0] operators[0] sides[1] ...; `names[i]` is the i-th side's text where it is only a name."""

    operators: tuple[str, ...]
    sides: tuple[Form, ...]
    names: tuple[str, ...]


@dataclass(frozen=True)
class Matrix:
    rows: tuple[tuple[Form, ...], ...]
    determinant: bool = False


@dataclass(frozen=True)
class Based:
    """A number written in a base."""

    digits: str
    base: int


@dataclass(frozen=True)
class Ratio:
    parts: tuple[Form, ...]


Form = Scalar | Words | Sequence | Collection | Relation | Matrix | Based | Ratio
INFINITY = Scalar(("inf",))
REALS = Sequence("(", ")", (Scalar(("neg", ("inf",))), INFINITY))
EMPTY = Collection((), braces=True)
_NOTHING = {("no", "solution"), ("empty", "set"), ("no", "real", "solution"), ("none",), ("no", "such", "number")}
_EVERYTHING = {("all", "real", "number"), ("all", "real"), ("real", "number")}
_ARTICLES = {"a", "an", "the"}


def words_form(words: list[str]) -> Form:
    """A text answer; phrases for no solution and for all numbers are the sets they name."""
    plain = tuple(_plural(w.lower()) for w in words)
    plain = tuple(w for w in plain if w not in _ARTICLES) or plain
    if plain in _NOTHING:
        return EMPTY
    if plain in _EVERYTHING or plain[:2] == ("all", "real"):
        return REALS
    if plain == ("infinity",):
        return INFINITY
    if (n := number_word(plain)) is not None:
        return Scalar(("num", Fraction(n), None))
    part = _PARTS.get(plain[-1].rstrip("s")) if len(plain) > 1 else None
    if part and (n := number_word(plain[:-1])) is not None:
        return Scalar(("num", Fraction(n, part), None))
    return Words(plain)


def _plural(word: str) -> str:
    return word[:-1] if word in ("solutions", "numbers", "reals") else word


_UNITS_OF_TEN = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = {
    "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90,
}  # fmt: skip


_PARTS = {
    "half": 2, "halve": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "eighth": 8, "tenth": 10,
}  # fmt: skip


def number_word(words: tuple[str, ...]) -> int | None:
    """The value of "six", "twenty five", "one hundred"."""
    if not words or len(words) > 4:
        return None
    total = 0
    for i, w in enumerate(words):
        if w in _UNITS_OF_TEN:
            n = _UNITS_OF_TEN.index(w)
            if i and not ((words[i - 1] in _TENS and n < 10) or words[i - 1] in ("hundred", "thousand")):
                return None
            total += n
        elif w in _TENS:
            if i and words[i - 1] not in ("hundred", "thousand"):
                return None
            total += _TENS[w]
        elif w in ("hundred", "thousand") and total and i:
            total *= 100 if w == "hundred" else 1000
        else:
            return None
    return total
