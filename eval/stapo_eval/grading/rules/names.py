"""What a relation says: the name of a quantity and its value, or a range as an interval."""

from __future__ import annotations

import re
from dataclasses import replace

from stapo_eval.grading.rules.forms import INFINITY, REALS, Collection, Form, Relation, Scalar, Sequence
from stapo_eval.grading.rules.tokens import Token


def spread_name(forms: tuple[Form, ...]) -> tuple[Form, ...]:
    """ "x = 2, 3" names both."""
    first = forms[0]
    if isinstance(first, Relation) and first.operators == ("=",) and first.names[0] and len(forms) > 1:
        rest = forms[1:]
        if not any(isinstance(f, Relation) for f in rest):
            return (first, *(replace(first, sides=(first.sides[0], f), names=(first.names[0], "")) for f in rest))
    return forms


def name_of(tokens: list[Token]) -> str:
    """The text of a side that only names a quantity: x, f(x), \\angle ABC, [ABC], m + n, "Area"; else ""."""
    inverse = [
        i for i, t in enumerate(tokens) if t.value == "^" and [u.value for u in tokens[i : i + 5]] == list("^{-1{")
    ]
    for i in inverse[:1]:  # f^{-1}(x)
        tokens = [*tokens[:i], Token("prime", "^-1"), *tokens[i + 5 :]]
    if not tokens or any(
        t.kind in ("num", "macro", "inf", "deg", "pct", "fn", "pm", "cup") and not t.value.startswith("accent")
        for t in _unsubscripted(tokens)
    ):
        return ""
    if any(
        (t.kind == "op" and t.value not in "_+-^*") or (t.kind == "op" and t.value == "^")
        for t in _unsubscripted(tokens)
    ):
        return ""
    if len(tokens) == 1 and tokens[0].value in ("pi", "e", "i"):
        return ""
    closing = {"(": ")", "[": "]"}
    return "".join(
        closing.get(t.value, t.value) if t.kind == "close" else t.value or t.kind for t in tokens if t.value != "{"
    )


def _unsubscripted(tokens: list[Token]) -> list[Token]:
    """Tokens without subscripts."""
    out, i = [], 0
    while i < len(tokens):
        if tokens[i] == Token("op", "_", tokens[i].gap, tokens[i].font):
            i += 1
            if i < len(tokens) and tokens[i].kind == "open":
                depth = 1
                while depth and i + 1 < len(tokens):
                    i += 1
                    depth += (tokens[i].kind == "open") - (tokens[i].kind == "close")
            i += 1
            continue
        out.append(tokens[i])
        i += 1
    return out


ANYTHING = "it"  # what an inequality without a left side speaks of
_FLIP = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}


def as_interval(r: Relation) -> Form:
    """A chain of inequalities around one name as an interval; other relations as they are."""
    if any("|" in name or "+" in name or "-" in name for name in r.names):
        return _around_zero(r)
    if all(op in _FLIP for op in r.operators):
        if len(r.operators) == 1:
            if r.names[1] and not r.names[0]:
                r = Relation((_FLIP[r.operators[0]],), r.sides[::-1], r.names[::-1])
            if r.names[0] and isinstance(r.sides[1], Scalar):
                op, bound = r.operators[0], r.sides[1]
                if op in (">", ">="):
                    return Sequence("(" if op == ">" else "[", ")", (bound, INFINITY), r.names[0], r)
                return Sequence("(", ")" if op == "<" else "]", (REALS.items[0], bound), r.names[0], r)
        elif len(r.operators) == 2 and r.names[1] and len({op[0] for op in r.operators}) == 1:
            if r.operators[0][0] == ">":
                r = Relation(tuple(_FLIP[op] for op in r.operators[::-1]), r.sides[::-1], r.names[::-1])
            left, right = ("[" if r.operators[0] == "<=" else "("), ("]" if r.operators[1] == "<=" else ")")
            return Sequence(left, right, (r.sides[0], r.sides[2]), r.names[1])
    if r.operators == ("!=",) and r.names[0]:
        return all_but(r.sides[1], r.names[0])
    return r


def all_but(point: Form, variable: str = "") -> Form:
    low, high = REALS.items
    parts = (Sequence("(", ")", (low, point)), Sequence("(", ")", (point, high)))
    return Collection(parts, union=True, variable=variable)


_MAGNITUDE = re.compile(r"\|[A-Za-z]\|")


def _around_zero(r: Relation) -> Form:
    """|x| < a and |x| > a as the ranges that they are; other relations as they are."""
    bound = r.sides[-1]
    if len(r.operators) != 1 or r.operators[0] not in _FLIP or not isinstance(bound, Scalar):
        return r
    if not _MAGNITUDE.fullmatch(r.names[0]):
        return r
    low, high = replace(bound, tree=("neg", bound.tree)), bound
    if r.operators[0] in ("<", "<="):
        left, right = ("(", ")") if r.operators[0] == "<" else ("[", "]")
        return Sequence(left, right, (low, high), r.names[0][1])
    left, right = ("(", ")") if r.operators[0] == ">" else ("[", "]")
    parts = (Sequence("(", right, (REALS.items[0], low)), Sequence(left, ")", (high, INFINITY)))
    return Collection(parts, union=True, variable=r.names[0][1])
