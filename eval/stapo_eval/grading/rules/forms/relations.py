"""From equations and inequalities to what they say: the name of a quantity and its value, or a range of numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from itertools import product

from stapo_eval.grading.rules.forms.types import (
    EMPTY,
    INFINITY,
    MOST_ITEMS,
    REALS,
    Collection,
    Form,
    Relation,
    Scalar,
    Sequence,
)
from stapo_eval.grading.rules.text.tokens import Meaningless, Token, spells
from stapo_eval.grading.rules.values.evaluate import Real, Value, constant, inexact

ANYTHING = "it"  # what an inequality without a left side speaks of
ORDERS = {"<", ">", "<=", ">=", "!="}
FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
MINUS_INFINITY = REALS.items[0]
_MAGNITUDE = re.compile(r"\|[A-Za-z]\|")
_NO_NAME = {"num", "macro", "inf", "deg", "pct", "fn", "pm", "cup"}  # kinds of tokens
_QUANTITIES = tuple("pqxyPQXY")  # whose supply and demand are written as powers
# f^{-1}(x), y^s, y^{d}
_MARKS = [("^", "{", "-", "1", "{"), *(m for c in "sdSD" for m in (("^", c), ("^", "{", c, "{")))]
_CLOSING = {"(": ")", "[": "]"}


def name_of(tokens: list[Token]) -> str:
    r"""The text of a side that only names a quantity: x, f(x), \angle ABC, [ABC], m + n, "Area"; else ""."""
    for i, mark in product(range(1, len(tokens)), _MARKS):
        if spells(tokens[i : i + 5], *mark) and (mark[2:3] == ("-",) or tokens[i - 1].value in _QUANTITIES):
            tokens = [*tokens[:i], Token("prime", "".join(mark).replace("{", "")), *tokens[i + len(mark) :]]
            break
    if not tokens or (len(tokens) == 1 and tokens[0].value in ("pi", "e", "i")):
        return ""
    for t in _unsubscripted(tokens):
        if (t.kind in _NO_NAME and not t.value.startswith("accent")) or (t.kind == "op" and t.value not in "_+-*"):
            return ""
    parts = (_CLOSING.get(t.value, t.value) if t.kind == "close" else t.value or t.kind for t in tokens)
    return "".join(part for t, part in zip(tokens, parts, strict=True) if t.value != "{")


def _unsubscripted(tokens: list[Token]) -> list[Token]:
    """Tokens without subscripts."""
    out: list[Token] = []
    at = 0
    while at < len(tokens):
        if not tokens[at].matches("op", "_"):
            out.append(tokens[at])
            at += 1
            continue
        at += 1
        depth = int(at < len(tokens) and tokens[at].kind == "open")
        while depth and at + 1 < len(tokens):
            at += 1
            depth += (tokens[at].kind == "open") - (tokens[at].kind == "close")
        at += 1
    return out


def as_range(r: Relation) -> Form:
    """A chain of inequalities around one name as the numbers that it allows; other relations as they are."""
    if any("|" in name or "+" in name or "-" in name for name in r.names):
        return _around_zero(r)
    if r.operators == ("!=",) and r.names[0]:
        return all_but(r.sides[1], r.names[0])
    if not all(op in FLIPPED for op in r.operators):
        return r
    if len(r.operators) == 1:
        if r.names[1] and not r.names[0]:
            r = flipped(r)
        op, bound = r.operators[0], r.sides[1]
        if r.names[0] and isinstance(bound, Scalar):
            if op in (">", ">="):
                return Sequence("(" if op == ">" else "[", ")", (bound, INFINITY), r.names[0], r)
            return Sequence("(", ")" if op == "<" else "]", (MINUS_INFINITY, bound), r.names[0], r)
    elif len(r.operators) == 2 and r.names[1] and len({op[0] for op in r.operators}) == 1:
        r = flipped(r) if r.operators[0][0] == ">" else r
        left, right = ("[" if r.operators[0] == "<=" else "("), ("]" if r.operators[1] == "<=" else ")")
        return Sequence(left, right, (r.sides[0], r.sides[2]), r.names[1])
    return r


def flipped(r: Relation) -> Relation:
    """The same inequalities from right to left."""
    return Relation(tuple(FLIPPED[op] for op in r.operators[::-1]), r.sides[::-1], r.names[::-1])


def all_but(point: Form, variable: str = "") -> Form:
    """The real line without a point."""
    parts = (Sequence("(", ")", (MINUS_INFINITY, point)), Sequence("(", ")", (point, INFINITY)))
    return Collection(parts, union=True, variable=variable)


def _around_zero(r: Relation) -> Form:
    """|x| < a and |x| > a as the ranges that they are; other relations as they are."""
    bound = r.sides[-1]
    if len(r.operators) != 1 or r.operators[0] not in FLIPPED or not isinstance(bound, Scalar):
        return r
    if not _MAGNITUDE.fullmatch(r.names[0]):
        return r
    low, high, variable = replace(bound, tree=("neg", bound.tree)), bound, r.names[0][1]
    match r.operators[0]:
        case "<":
            return Sequence("(", ")", (low, high), variable)
        case "<=":
            return Sequence("[", "]", (low, high), variable)
        case op:
            left, right = ("(", ")") if op == ">" else ("[", "]")
            parts = (Sequence("(", right, (MINUS_INFINITY, low)), Sequence(left, ")", (high, INFINITY)))
            return Collection(parts, union=True, variable=variable)


def is_range(form: Form) -> bool:
    """Whether an inequality says it: x < 5 (read as an interval), x + y < 5."""
    if isinstance(form, Relation):
        return bool(ORDERS & set(form.operators))
    return isinstance(form, Sequence | Collection) and bool(form.variable)


def conjoined(forms: tuple[Form, ...], between: list[str]) -> Form | None:
    """Inequalities with what stands between them; None where there is none among the items.

    "And" between ranges of one variable is their intersection, "or" their union. A comma is "and", or between ranges
    that have nothing in common "or".

    Raises:
        Meaningless: "and" and "or" without brackets.
    """
    if not any(map(is_range, forms)):
        return None
    joints = set(between) - {","} or {","}
    if len(joints) > 1:
        raise Meaningless("and beside or")
    joint = joints.pop()
    ranges = [f for f in forms if isinstance(f, Sequence | Collection) and f.variable]
    variable = ranges[0].variable if ranges else ""
    if len(ranges) < len(forms) or any(f.variable != variable for f in ranges):
        return Collection(forms, either=joint == "or")
    union = Collection(tuple(x for f in forms for x in _intervals(f)), union=True, variable=variable)
    if joint == "or":
        return union
    found = _intersection(forms)
    if found is None:
        return Collection(forms)
    if not found:
        return union if joint == "," else EMPTY
    if len(found) == 1:
        return replace(found[0], variable=variable, source=None)
    return Collection(tuple(found), union=True, variable=variable)


def _intervals(form: Form) -> tuple[Sequence, ...]:
    if isinstance(form, Collection):
        return tuple(x for f in form.items for x in _intervals(f))
    return (form,) if isinstance(form, Sequence) else ()


def _intersection(forms: tuple[Form, ...]) -> list[Sequence] | None:
    """The intervals that all of the forms have in common; None where an end has no value."""
    left = [REALS]
    for f in forms:
        crossed = [_common(x, y) for x in left for y in _intervals(f)]
        if len(crossed) > MOST_ITEMS:
            raise Meaningless("too many ranges")
        if None in crossed:
            return None
        left = [x for x in crossed if isinstance(x, Sequence)]
    return left


def _common(x: Sequence, y: Sequence) -> Sequence | bool | None:
    """What two intervals have in common: an interval, False for nothing, None where it cannot be told."""
    ends = [_end(item) for item in (*x.items, *y.items)]
    if any(e is None for e in ends):
        return None
    a, b, c, d = map(inexact, ends)
    low = max((a, x.left == "(", x), (c, y.left == "(", y), key=lambda t: t[:2])  # an open end leaves less
    high = min((b, x.right == "]", x), (d, y.right == "]", y), key=lambda t: t[:2])
    if low[0] > high[0] or (low[0] == high[0] and (low[1] or not high[1])):
        return False
    return Sequence(low[2].left, high[2].right, (low[2].items[0], high[2].items[1]))


def _end(item: Form) -> Value | None:
    """The value of an interval's end; None where it has none, or a complex one."""
    if not isinstance(item, Scalar) or item.unit or item.percent:
        return None
    if item.tree in (("inf",), ("neg", ("inf",))):
        return Real("inf") if item.tree == ("inf",) else Real("-inf")
    x = constant(item.tree)
    return x if isinstance(x, Fraction | Real) else None
