"""From tokens to a single value: an expression with its unit, percent sign or scale word; a number in a base; words."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import pairwise

from stapo_eval.grading.rules.forms.expression import Parser
from stapo_eval.grading.rules.forms.split import depths_of
from stapo_eval.grading.rules.forms.types import EMPTY, INFINITY, REALS, Based, Form, Scalar, Words
from stapo_eval.grading.rules.text.tokens import Meaningless, Token, Unreadable
from stapo_eval.grading.rules.text.units import SCALES, parse_unit
from stapo_eval.grading.rules.text.vocabulary import ORDINALS, pairs, words
from stapo_eval.grading.rules.values.trees import exact

_BASES = words("two three four five six seven eight nine ten twelve sixteen")
_PERCENT = words("percent percentage pct")
_PREFIXED = re.compile(r" [kMGm]$")


def quantity(tokens: list[Token], *, tight: bool) -> Form:
    """A value with its unit, a number in a base, or words.

    Raises:
        Unreadable: it is none of these.
    """
    if in_base := _based(tokens):
        return in_base
    if (only_words := _words_of(tokens)) is not None:
        return words_form(only_words)
    if len(tokens) > 1 and tokens[0].kind == "word" and tokens[0].value.lower() in ("negative", "minus"):
        tokens = [Token("op", "-"), *tokens[1:]]
    if total := _compound(tokens, tight):
        return total
    unit = None
    at = 1 if len(tokens) > 1 and tokens[0].value == "-" else 0  # -$5
    if len(tokens) > at and tokens[at].kind == "cur":
        unit, tokens = parse_unit(tokens[at].value), [*tokens[:at], *tokens[at + 1 :]]
    head, tail = _unit_tail(tokens)
    if tail and tail[0].kind == "cur":
        unit, tail = parse_unit(tail[0].value), tail[1:]
    scale, percent = 1, False
    while tail and tail[0].value.lower() in SCALES:
        scale, tail = scale * SCALES[tail[0].value.lower()], tail[1:]
    while tail and (tail[0].kind == "pct" or tail[0].value.lower() in _PERCENT):
        percent, tail = True, tail[1:]
    if tail and (unit := parse_unit(_unit_text(tail))) is None:
        raise Unreadable("words behind a number")
    if not head:
        raise Meaningless("no number")
    if tail and len(head) > 1 and {t.value for t in head[1:]} <= {"^", "{", *ORDINALS}:  # the 12th grade is not 12
        return Words(tuple(t.value.lower() for t in tokens if t.kind in ("num", "word")))
    tree = Parser(head, tight=tight).whole_input()
    if tree[0] == "deg":
        tree, unit = tree[1], unit or parse_unit("degree")
    if scale != 1:
        tree = ("*", tree, exact(scale))
    return Scalar(tree, unit, percent)


def _words_of(tokens: list[Token]) -> list[str] | None:
    """The words that the tokens are, hyphens and dots aside; None where they are something else."""
    if tokens and all(t.kind in ("word", "dots") or t.matches("op", "-") for t in tokens):
        return [t.value for t in tokens if t.kind == "word"]
    if not any(t.kind == "word" for t in tokens):
        return None
    letters = tokens[0].kind == "word"  # which may stand beside words: "Ali and B"
    if all(t.kind == "word" or (t.kind == "sym" and (t.font or letters)) for t in tokens):
        return [t.value for t in tokens]
    return None


def _compound(tokens: list[Token], tight: bool) -> Scalar | None:
    """The sum of a quantity in several units of falling size: 2 hours 30 minutes; None for anything else."""
    starts = [i for i, t in enumerate(tokens) if t.kind == "num" and i and _is_unit_word(tokens[i - 1])]
    if not starts or len(starts) > 3 or tokens[0].kind != "num":
        return None
    parts = [quantity(tokens[a:b], tight=tight) for a, b in pairwise([0, *starts, len(tokens)])]
    found = [(p.tree, p.unit) for p in parts if isinstance(p, Scalar) and p.unit and not p.unit.words and not p.percent]
    if len(found) < len(parts):
        return None
    (tree, first), *rest = found
    if len(first.dimensions) != 1 or any(unit.dimensions != first.dimensions for _, unit in rest):
        return None
    if any(a.size <= b.size for (_, a), (_, b) in pairwise(found)):
        return None
    for part, unit in rest:
        tree = ("+", tree, ("*", part, exact(unit.size / first.size)))
    return Scalar(tree, first)


def _based(tokens: list[Token]) -> Based | None:
    """digits_base: 52_8, (52)_8, 52_{\\text{eight}}."""
    bare = [t for t in tokens if t.kind not in ("open", "close") or t.value not in "({"]
    if len(bare) != 3 or bare[0].kind != "num" or not bare[1].matches("op", "_"):
        return None
    digits, name = bare[0].value, bare[2].value
    if name.isdecimal() and len(name) < 3:
        base = int(name)
    else:
        base = NUMBERS[name.lower()] if name.lower() in _BASES else None
    if base is None or not digits.replace(".", "", 1).isdecimal():
        return None
    return Based(digits.lstrip("0") or "0", base)


def _unit_tail(tokens: list[Token]) -> tuple[list[Token], list[Token]]:
    """An expression and the unit, percent sign or scale word behind it."""
    depths = depths_of(tokens)
    for i in range(1, len(tokens)):
        if depths[i] == 0 and tokens[i - 1].value not in ("_", "^") and _begins_unit(tokens, i):
            return tokens[:i], tokens[i:]
    return tokens, []


def _begins_unit(tokens: list[Token], i: int) -> bool:
    before, t = tokens[i - 1], tokens[i]
    if t.kind == "word":
        return t.value not in ORDINALS
    if t.kind in ("pct", "cur"):
        return i == len(tokens) - 1
    if t.kind == "sym" and t.font and before.kind != "op" and _only_unit(tokens[i:]):
        return True
    return t.value in ("mu", "frac") and before.kind in ("num", "close") and _is_unit(tokens[i + 1 :])


def _unit_text(tokens: list[Token]) -> str:
    """The unit that the tokens behind a number spell."""
    text, in_power, fraction = "", False, False
    for i, t in enumerate(tokens):
        if t.matches("macro", "frac"):
            fraction = True
        elif fraction and t.matches("close", "{") and tokens[i + 1 : i + 2] and tokens[i + 1].value == "{":
            text, in_power, fraction = text + "/", False, False
        elif t.value == "mu":
            text += " \u03bc"
        elif t.kind in ("word", "sym"):
            glued = text.endswith(" \u03bc") or (t.value == "Omega" and _PREFIXED.search(text))
            text, in_power = text + ("" if glued else " ") + t.value, False
        elif t.kind == "op" and t.value in "/*^":
            text, in_power = text + t.value, t.value == "^"
        elif in_power and (t.kind == "num" or t.value in ("-", "{")):
            text += t.value.strip("{")
        elif not (t.kind in ("open", "close") and t.value in "({"):
            raise Meaningless("more than a unit behind a number")
    if fraction:
        raise Meaningless("half a fraction of units")
    return text


def _is_unit(tokens: list[Token]) -> bool:
    """Whether text in an upright font begins here and nothing but a unit follows."""
    first = next((t for t in tokens if t.kind != "open"), None)
    return first is not None and (first.font or first.kind == "word") and _only_unit(tokens)


def _is_unit_word(t: Token) -> bool:
    return t.kind == "word" or (t.kind == "sym" and t.font)


def _only_unit(tokens: list[Token]) -> bool:
    return all(t.font or t.kind in ("op", "num", "word", "open", "close") for t in tokens)


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
