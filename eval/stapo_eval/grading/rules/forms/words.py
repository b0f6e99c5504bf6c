"""From words to the form that they say: a text answer, a number in words, no solution, all real numbers."""

from __future__ import annotations

from fractions import Fraction

from stapo_eval.grading.rules.forms.types import EMPTY, INFINITY, REALS, Form, Scalar, Words
from stapo_eval.grading.rules.text.vocabulary import pairs
from stapo_eval.grading.rules.values.trees import exact

_NOTHING = {("no", "solution"), ("empty", "set"), ("no", "real", "solution"), ("none",), ("no", "such", "number")}
_EVERYTHING = {("all", "real", "number"), ("all", "real"), ("real", "number")}
_ARTICLES = {"a", "an", "the"}
_SINGULAR = {"solutions": "solution", "numbers": "number", "reals": "real"}
NUMBERS = {name: n for n, name in enumerate(pairs("""
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen
"""))}  # fmt: skip
_TENS = {name: 10 * n for n, name in enumerate(pairs("twenty thirty forty fifty sixty seventy eighty ninety"), 2)}
_PARTS = {
    "half": 2, "halve": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "eighth": 8, "tenth": 10,
}  # fmt: skip


def words_form(words: list[str]) -> Form:
    """A text answer; phrases for no solution and for all numbers are the sets they name."""
    plain = tuple(_SINGULAR.get(w.lower(), w.lower()) for w in words)
    plain = tuple(w for w in plain if w not in _ARTICLES) or plain
    if plain in _NOTHING:
        return EMPTY
    if plain in _EVERYTHING or plain[:2] == ("all", "real"):
        return REALS
    if plain == ("infinity",):
        return INFINITY
    if (n := number_word(plain)) is not None:
        return Scalar(exact(n))
    part = _PARTS.get(plain[-1].rstrip("s")) if len(plain) > 1 else None
    if part and (n := number_word(plain[:-1])) is not None:
        return Scalar(exact(Fraction(n, part)))
    return Words(plain)


def number_word(words: tuple[str, ...]) -> int | None:
    """The value of "six", "twenty five", "one hundred"."""
    if not words or len(words) > 4:
        return None
    total = 0
    for before, w in zip(("", *words), words, strict=False):
        if w in NUMBERS:
            if before and before not in ("hundred", "thousand") and not (before in _TENS and NUMBERS[w] < 10):
                return None
            total += NUMBERS[w]
        elif w in _TENS:
            if before and before not in ("hundred", "thousand"):
                return None
            total += _TENS[w]
        elif w in ("hundred", "thousand") and total and before:
            total *= 100 if w == "hundred" else 1000
        else:
            return None
    return total
