"""Trees of expressions, and what they hold.

A tree is a tuple: ("num", value, unit of its last decimal place or None), ("sym", name), ("inf",) and
(operation, operands...).
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

Tree = tuple[Any, ...]


def literal(text: str) -> Tree:
    """A number token with the unit of its last decimal place, which is what a rounded value may be off by."""
    value = Fraction(text)
    mantissa, _, exponent = text.lower().partition("e")
    if "." not in mantissa or value.denominator == 1:
        return ("num", value, None)
    places = len(mantissa.partition(".")[2])
    return ("num", value, Fraction(10) ** (int(exponent or 0) - places))


def exact(x: Fraction | int) -> Tree:
    """The tree of an exact number."""
    return ("num", Fraction(x), None)


def whole(tree: Tree) -> int | None:
    """The integer that a tree writes out, else None."""
    return int(tree[1]) if tree[0] == "num" and tree[1].denominator == 1 and tree[2] is None else None


def has_letters(tree: Tree) -> bool:
    """Whether an expression holds a name."""
    return tree[0] == "sym" or any(has_letters(t) for t in tree[1:] if isinstance(t, tuple))


def symbols(tree: Tree) -> frozenset[str]:
    """Names of the variables of an expression (pi, e and i are none)."""
    if tree[0] == "sym":
        return frozenset() if tree[1] in ("pi", "e", "i") else frozenset((tree[1],))
    return frozenset().union(*(symbols(t) for t in tree[1:] if isinstance(t, tuple)))


def substituted(tree: Tree, by: dict[str, Tree]) -> Tree:
    """The tree with other trees in the place of some names."""
    if tree[0] == "sym":
        return by.get(tree[1], tree)
    return tuple(substituted(t, by) if isinstance(t, tuple) else t for t in tree)


def contains(tree: Tree, *kinds: str) -> bool:
    """Whether an operation or the function or symbol of that name occurs."""
    if tree[0] in kinds or (tree[0] in ("fn", "sym") and tree[1] in kinds):
        return True
    return any(contains(t, *kinds) for t in tree[1:] if isinstance(t, tuple))


def angles_in_degrees(tree: Tree) -> bool:
    """Whether a degree sign stands inside a function's argument, where it can only mean degrees."""
    if tree[0] == "fn" and contains(tree, "deg"):
        return True
    return any(angles_in_degrees(t) for t in tree[1:] if isinstance(t, tuple))


def takes_root_of_square(tree: Tree) -> bool:
    """Whether a square root of the square of a sum occurs, which is an absolute value."""
    if tree[0] == "root" and whole(tree[1]) == 2 and tree[2][0] == "^" and whole(tree[2][2]) == 2:
        return tree[2][1][0] == "+"
    return any(takes_root_of_square(t) for t in tree[1:] if isinstance(t, tuple))
