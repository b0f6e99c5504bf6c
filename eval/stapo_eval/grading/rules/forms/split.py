"""From tokens to parts: splitting at the top level of brackets, and notations that stand for several items."""

from __future__ import annotations

from itertools import product

from stapo_eval.grading.rules.text.tokens import Meaningless, Token, Unreadable

_ENDS = {"close", "sep", "rel", "word"}
_MOST_SIGNS = 3


def resolved(tokens: list[Token]) -> list[Token]:
    """Tokens with those signs told apart whose meaning is in what stands around them."""
    tokens = list(tokens)
    for i in range(1, len(tokens) - 1):  # "(1,2)U(3,4)"
        if tokens[i].value == "U" and (tokens[i - 1].kind, tokens[i + 1].kind) == ("close", "open"):
            tokens[i] = Token("cup", "")
    for i, t in enumerate(tokens[:-1]):  # {x | x > 0}: this bar is no absolute value
        if t.matches("open", "set") and tokens[i + 1].kind == "sym":
            bar = next((j for j in range(i + 2, min(i + 6, len(tokens))) if tokens[j].kind == "bar"), None)
            if bar is not None:
                tokens[bar] = Token("colon", ":")
    for i, t in enumerate(tokens):  # "5 min" is a time, "min(a, b)" a function
        after = tokens[i + 1] if i + 1 < len(tokens) else None
        ends = not after or after.kind in _ENDS or (i and after.kind == tokens[i - 1].kind == "num")
        if t.kind == "fn" and t.value in ("min", "sec", "max") and (t.font or ends):
            tokens[i] = Token("word", t.value, t.gap, t.font)
    return tokens


def depths_of(tokens: list[Token]) -> list[int]:
    """Depth of brackets before each token, half-open intervals included."""
    depths: list[int] = []
    depth, bars = 0, False
    for t in tokens:
        opens = t.kind == "open" or t.matches("macro", "begin") or (t.kind == "bar" and not bars)
        closes = t.kind == "close" or t.matches("macro", "end") or (t.kind == "bar" and bars)
        bars ^= t.kind == "bar"
        depth -= closes
        depths.append(depth)
        depth += opens
    if bars:  # a bar without a partner is no bracket
        raise Meaningless("odd bar")
    if depth or min(depths, default=0) < 0:
        raise Meaningless("brackets do not match")
    return depths


def split(tokens: list[Token], kind: str) -> tuple[list[list[Token]], list[str]]:
    """Parts between the top-level tokens of a kind, and those tokens' values."""
    parts: list[list[Token]] = [[]]
    between = []
    for t, depth in zip(tokens, depths_of(tokens), strict=True):
        if depth == 0 and t.kind == kind:
            parts.append([])
            between.append(t.value)
        else:
            parts[-1].append(t)
    return parts, between


def is_half_open(tokens: list[Token]) -> bool:
    """Whether the tokens are an interval of which at least one end is closed by a square bracket."""
    if len(tokens) < 5 or tokens[0].kind != "open" or tokens[-1].kind != "close" or tokens[0].value not in ("(", "["):
        return False
    if tokens[0].value == tokens[-1].value == "(":
        return False
    try:
        depths = depths_of(tokens)
    except Unreadable:
        return False
    commas = sum(d == 1 and t.kind == "sep" for t, d in zip(tokens, depths, strict=True))
    return commas == 1 and 0 not in depths[1:-1]


def french(tokens: list[Token]) -> list[Token]:
    """An interval whose open ends are written with reversed brackets, ]0, 1], in the usual ones."""
    if tokens[0].matches("close", "["):
        tokens = [Token("open", "("), *tokens[1:]]
    if tokens[-1].matches("open", "["):
        tokens = [*tokens[:-1], Token("close", "(")]
    return tokens


def sign_variants(tokens: list[Token]) -> list[list[Token]]:
    """The variants of an item with plus-minus signs: independent ones, or bound together by a minus-plus."""
    places = [i for i, t in enumerate(tokens) if t.kind == "pm"]
    if not places or tokens[0].value == "set":  # a set expands its own items
        return [tokens]
    if len(places) > _MOST_SIGNS:
        raise Meaningless("too many signs")
    bound = any(tokens[i].value == "mp" for i in places)
    choices = [(c,) * len(places) for c in "+-"] if bound else list(product("+-", repeat=len(places)))
    out = []
    for choice in choices:
        variant = list(tokens)
        for i, sign in zip(places, choice, strict=True):
            turned = {"+": "-", "-": "+"}[sign] if tokens[i].value == "mp" else sign
            variant[i] = Token("op", turned)
        out.append(variant)
    return out
