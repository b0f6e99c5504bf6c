"""Trees of expressions, and a cursor over tokens that the parser moves.

A tree is a tuple: ("num", value, unit of its last decimal place or None), ("sym", name), ("inf",) and
(operation, operands...).
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from stapo_eval.rules.tokens import Meaningless, Token

Tree = tuple[Any, ...]


def literal(text: str) -> Tree:
    """A number token with the unit of its last decimal place, which is what a rounded value may be off by."""
    value = Fraction(text)
    mantissa, _, exponent = text.lower().partition("e")
    if "." not in mantissa or value.denominator == 1:
        return ("num", value, None)
    places = len(mantissa.partition(".")[2])
    return ("num", value, Fraction(10) ** (int(exponent or 0) - places))


def whole(tree: Tree) -> int | None:
    """The integer that a tree writes out, else None."""
    return int(tree[1]) if tree[0] == "num" and tree[1].denominator == 1 and tree[2] is None else None


def has_letters(tree: Tree) -> bool:
    """Whether an expression holds a name."""
    return tree[0] == "sym" or any(has_letters(t) for t in tree[1:] if isinstance(t, tuple))


class Cursor:
    """A place in a list of tokens."""

    def __init__(self, tokens: list[Token]):
        self.tokens, self.at = list(tokens), 0

    def peek(self, ahead: int = 0) -> Token | None:
        at = self.at + ahead
        return self.tokens[at] if at < len(self.tokens) else None

    def is_next(self, kind: str, value: str | None = None) -> bool:
        t = self.peek()
        return t is not None and t.kind == kind and (value is None or t.value == value)

    def take(self) -> Token:
        t = self.peek()
        if t is None:
            raise Meaningless("unexpected end")
        self.at += 1
        return t

    def expect(self, kind: str, value: str) -> None:
        if not self.is_next(kind, value):
            raise Meaningless(f"no {value}")
        self.at += 1

    def raw_group(self) -> str:
        """The text of a brace group or of the next token, for names."""
        t = self.take()
        if t != Token("open", "{", t.gap, t.font):
            return t.value or t.kind
        depth, parts = 1, []
        while depth:
            t = self.take()
            depth += (t.kind == "open") - (t.kind == "close")
            if depth:
                parts.append(t.value or t.kind)
        return "".join(parts)
