"""Splitting tokens at the top level of brackets, and rewriting notations that stand for several items."""

from __future__ import annotations

from itertools import product

from stapo_eval.grading.rules.tokens import Meaningless, Token, Unreadable

_ENDS = {"close", "sep", "rel", "word"}


def resolved(tokens: list[Token]) -> list[Token]:
    """Tokens with those signs told apart whose meaning is in what stands around them."""
    tokens = list(tokens)
    for i in range(1, len(tokens) - 1):  # "(1,2)U(3,4)"
        if tokens[i].value == "U" and (tokens[i - 1].kind, tokens[i + 1].kind) == ("close", "open"):
            tokens[i] = Token("cup", "")
    for i, t in enumerate(tokens[:-1]):  # {x | x > 0}: this bar is no absolute value
        if t.kind == "open" and t.value == "set":
            bar = next((j for j in range(i + 2, min(i + 6, len(tokens))) if tokens[j].kind == "bar"), None)
            if bar is not None and tokens[i + 1].kind == "sym":
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
        if t.kind == "close" or (t.kind == "macro" and t.value == "end"):
            depth -= 1
        if t.kind == "bar" and bars:
            bars, depth = False, depth - 1
            depths.append(depth)
            continue
        depths.append(depth)
        if t.kind == "open" or (t.kind == "macro" and t.value == "begin"):
            depth += 1
        if t.kind == "bar":
            bars, depth = True, depth + 1
    if bars:  # a bar without a partner is no bracket
        raise Meaningless("odd bar")
    if depth or min(depths, default=0) < 0:
        raise Meaningless("brackets do not match")
    return depths


def split(tokens: list[Token], kind: str, values: tuple[str, ...] = ()) -> tuple[list[list[Token]], list[str]]:
    """Parts between the top-level tokens of a kind, and those tokens' values."""
    parts: list[list[Token]] = [[]]
    between = []
    for t, depth in zip(tokens, depths_of(tokens), strict=True):
        if depth == 0 and t.kind == kind and (not values or t.value in values):
            parts.append([])
            between.append(t.value)
        else:
            parts[-1].append(t)
    return parts, between


def is_interval(tokens: list[Token], *, half: bool = False) -> bool:
    if len(tokens) < 5 or tokens[0].kind != "open" or tokens[-1].kind != "close" or tokens[0].value not in ("(", "["):
        return False
    if half and tokens[0].value == tokens[-1].value == "(":
        return False
    try:
        depths = depths_of(tokens)
    except Unreadable:
        return False
    inside = [t for t, d in zip(tokens, depths, strict=True) if d == 1 and t.kind == "sep"]
    return len(inside) == 1 and not any(d == 0 for d in depths[1:-1])


def french(tokens: list[Token]) -> list[Token]:
    """An interval whose open ends are written with reversed brackets, ]0, 1], in the usual ones."""
    first, last = tokens[0], tokens[-1]
    if first.kind == "close" and first.value == "[":
        tokens = [Token("open", "("), *tokens[1:]]
    if last.kind == "open" and last.value == "[":
        tokens = [*tokens[:-1], Token("close", "(")]
    return tokens


def environment(tokens: list[Token], at: int) -> tuple[str, int]:
    """The name of an environment (\\begin{pmatrix}) and where its contents begin."""
    name = ""
    if at < len(tokens) and tokens[at].kind == "open":
        at += 1
        while at < len(tokens) and tokens[at].kind != "close":
            name += tokens[at].value
            at += 1
        return name, at + 1
    raise Meaningless("environment")


def sign_variants(tokens: list[Token]) -> list[list[Token]]:
    """The variants of an item with plus-minus signs: independent ones, or bound together by a minus-plus."""
    places = [i for i, t in enumerate(tokens) if t.kind == "pm"]
    if not places or tokens[0].value == "set":  # a set expands its own items
        return [tokens]
    if len(places) > 3:
        raise Meaningless("too many signs")
    bound = any(tokens[i].value == "mp" for i in places)
    choices = [(c,) * len(places) for c in "+-"] if bound else list(product("+-", repeat=len(places)))
    out = []
    for choice in choices:
        variant = list(tokens)
        for i, sign in zip(places, choice, strict=True):
            if tokens[i].value == "mp":
                sign = "-" if sign == "+" else "+"
            variant[i] = Token("op", sign)
        out.append(variant)
    return out


def is_domain(tokens: list[Token]) -> bool:
    """ "k in Z" behind an answer says what a letter runs over."""
    return (
        len(tokens) == 3
        and tokens[1] == Token("rel", "in", tokens[1].gap, tokens[1].font)
        and tokens[2].value[:2] == "bb"
    )


def has_signs(tokens: list[Token]) -> bool:
    return any(t.kind == "pm" for t in tokens)
