"""A single value: an expression with its unit, percent sign or scale word; a number in a base; words."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import pairwise

from stapo_eval.grading.rules.expression import Parser
from stapo_eval.grading.rules.forms import Based, Form, Scalar, words_form
from stapo_eval.grading.rules.split import depths_of
from stapo_eval.grading.rules.tokens import Meaningless, Token, Unreadable
from stapo_eval.grading.rules.units import SCALES, parse_unit

_BASES = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "twelve": 12,
    "sixteen": 16,
}  # fmt: skip


def quantity(tokens: list[Token], *, tight: bool) -> Form:
    """A value with its unit, a number in a base, or words.

    Raises:
        Unreadable: it is none of these.
    """
    if in_base := based(tokens):
        return in_base
    if tokens and all(t.kind in ("word", "dots") or t == Token("op", "-", t.gap, t.font) for t in tokens):
        return words_form([t.value for t in tokens if t.kind == "word"])
    if any(t.kind == "word" for t in tokens) and all(
        t.kind == "word" or (t.kind == "sym" and (t.font or tokens[0].kind == "word")) for t in tokens
    ):
        return words_form([t.value for t in tokens])
    if len(tokens) > 1 and tokens[0].kind == "word" and tokens[0].value.lower() in ("negative", "minus"):
        tokens = [Token("op", "-"), *tokens[1:]]
    if total := _compound(tokens, tight):
        return total
    unit = None
    if tokens and tokens[0].kind == "cur":
        unit, tokens = parse_unit(tokens[0].value), tokens[1:]
    elif len(tokens) > 1 and tokens[1].kind == "cur" and tokens[0].value == "-":
        unit, tokens = parse_unit(tokens[1].value), [tokens[0], *tokens[2:]]
    head, tail = _unit_tail(tokens)
    if tail and tail[0].kind == "cur":
        unit, tail = parse_unit(tail[0].value), tail[1:]
    scale, percent = 1, False
    while tail and tail[0].value.lower() in SCALES:
        scale, tail = scale * SCALES[tail[0].value.lower()], tail[1:]
    while tail and (tail[0].kind == "pct" or tail[0].value.lower() in ("percent", "percentage", "pct")):
        percent, tail = True, tail[1:]
    if tail:
        text = _unit_text(tail)
        unit = parse_unit(text)
        if unit is None:
            raise Unreadable("words behind a number")
    if not head:
        raise Meaningless("no number")
    tree = Parser(head, tight=tight).whole_input()
    if tree[0] == "deg":
        tree, unit = tree[1], unit or parse_unit("degree")
    if scale != 1:
        tree = ("*", tree, ("num", Fraction(scale), None))
    return Scalar(tree, unit, percent)


def _compound(tokens: list[Token], tight: bool) -> Scalar | None:
    """The sum of a quantity in several units of falling size: 2 hours 30 minutes; None for anything else."""
    starts = [i for i, t in enumerate(tokens) if t.kind == "num" and i and _is_unit_word(tokens[i - 1])]
    if not starts or len(starts) > 3 or tokens[0].kind != "num":
        return None
    ends = [0, *starts, len(tokens)]
    parts = [quantity(tokens[a:b], tight=tight) for a, b in pairwise(ends)]
    units = [p.unit for p in parts if isinstance(p, Scalar) and p.unit and not p.unit.words and not p.percent]
    first = units[0] if len(units) == len(parts) else None
    if first is None or len(first.dimensions) != 1 or any(u.dimensions != first.dimensions for u in units):
        return None
    if any(a.size <= b.size for a, b in pairwise(units)):
        return None
    tree = parts[0].tree  # type: ignore[union-attr]
    for part, unit in zip(parts[1:], units[1:], strict=True):
        tree = ("+", tree, ("*", part.tree, ("num", unit.size / first.size, None)))  # type: ignore[union-attr]
    return Scalar(tree, first)


def based(tokens: list[Token]) -> Based | None:
    """digits_base: 52_8, (52)_8, 52_{\\text{eight}}."""
    bare = [t for t in tokens if t.kind not in ("open", "close") or t.value not in "({"]
    if len(bare) != 3 or bare[0].kind != "num" or bare[1] != Token("op", "_", bare[1].gap, bare[1].font):
        return None
    base = (
        int(bare[2].value)
        if bare[2].value.isdecimal() and len(bare[2].value) < 3
        else _BASES.get(bare[2].value.lower())
    )
    if base is None or not bare[0].value.replace(".", "", 1).isdecimal():
        return None
    return Based(bare[0].value.lstrip("0") or "0", base)


def _unit_tail(tokens: list[Token]) -> tuple[list[Token], list[Token]]:
    """An expression and the unit, percent sign or scale word behind it."""
    depths = depths_of(tokens)
    for i in range(1, len(tokens)):
        t = tokens[i]
        if (
            depths[i] == 0
            and tokens[i - 1].value not in ("_", "^")
            and (
                (t.kind == "word" and t.value not in ("st", "nd", "rd", "th"))
                or (t.kind == "sym" and t.font and tokens[i - 1].kind not in ("op",) and _only_unit(tokens[i:]))
                or (t.value in ("mu", "frac") and tokens[i - 1].kind in ("num", "close") and _is_unit(tokens[i + 1 :]))
                or (t.kind == "pct" and i == len(tokens) - 1)
                or (t.kind == "cur" and i == len(tokens) - 1)
            )
        ):
            return tokens[:i], tokens[i:]
    return tokens, []


def _unit_text(tokens: list[Token]) -> str:
    """The unit that the tokens behind a number spell."""
    text, in_power, fraction = "", False, False
    for i, t in enumerate(tokens):
        if t.kind == "macro" and t.value == "frac":
            fraction = True
        elif fraction and t.value == "{" and t.kind == "close" and tokens[i + 1 : i + 2] and tokens[i + 1].value == "{":
            text, in_power, fraction = text + "/", False, False
        elif t.value == "mu":
            text += " \u03bc"
        elif t.kind in ("word", "sym"):
            glued = text.endswith(" \u03bc") or (t.value == "Omega" and re.search(r" [kMGm]$", text))
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
