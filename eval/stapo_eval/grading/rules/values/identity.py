r"""Are two expressions equal in value? Exactly where numbers are rational, else to 40 digits at many points.

Two expressions that agree to 40 digits at ten points without a pattern are equal; two that differ at one are not.
This decides identities that symbolic simplification misses, in bounded time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from fractions import Fraction

from stapo_eval.grading.rules.values import modular
from stapo_eval.grading.rules.values.evaluate import (
    AGREE,
    Reading,
    Real,
    Undefined,
    Value,
    constant,
    divide,
    inexact,
    times,
    value,
)
from stapo_eval.grading.rules.values.trees import Tree, angles_in_degrees, contains, symbols, takes_root_of_square

Pairs = list[tuple[Value, Value]]  # the values of two expressions at some points

_LARGEST_INTEGER = 10**35


def _close(a: Value, b: Value) -> bool:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a == b
    x, y = inexact(a), inexact(b)
    return bool(abs(x - y) <= AGREE * max(abs(x), abs(y), Real(10) ** -20))


def coordinate(name: str, k: int, kind: str) -> Fraction:
    """The k-th value of a variable: from a hash of its name, the same for both expressions."""
    h = int.from_bytes(hashlib.sha256(f"{name}/{k}/{kind}".encode()).digest()[:6], "big")
    if kind == "whole":
        return Fraction(2 + 3 * k + h % 7)
    x = Fraction(1 + h % 1008, 1009)  # no special value
    x *= (1, 1, 4, 40)[h // 1009 % 4]  # half of them below one, where roots and inverse functions are real
    return -x if kind == "signed" and k % 3 and h // 8072 % 2 else x


def _value_or_none(tree: Tree, point: dict[str, Value], reading: Reading, real: bool) -> Value | None:
    try:
        return value(tree, point, reading, real)
    except Undefined:
        return None


_POINTS = 24
_ENOUGH = 3  # points at which both have a value
_PLENTY = 10


def _compare(a: Tree, b: Tree, reading: Reading, same: Callable[[Pairs], bool]) -> bool | None:
    names = sorted(symbols(a) | symbols(b))
    real = bool(names) and not (contains(a, "i") or contains(b, "i"))
    steps = contains(a, "floor", "ceil") and contains(b, "floor", "ceil")
    # letters of a formula stand for positive quantities, unless it takes an absolute value
    signed = any(contains(t, "abs") or takes_root_of_square(t) for t in (a, b))
    real_points = "signed" if signed else "positive"
    enough = _ENOUGH if names else 1
    for kind in ("whole",) if steps else (real_points, "whole") if names else (real_points,):
        pairs, alone = [], [0, 0]
        for k in range(_POINTS if names else 1):
            point: dict[str, Value] = {n: coordinate(n, k, kind) for n in names}
            x, y = (_value_or_none(tree, point, reading, real) for tree in (a, b))
            if x is not None and y is not None:
                pairs.append((x, y))
            else:
                alone[0] += x is not None
                alone[1] += y is not None
            if len(pairs) == _PLENTY and not signed:
                break
        one_sided = min(alone) == 0
        if signed and max(alone) and one_sided:
            return False  # ln|x| has a value where ln x has none
        if len(pairs) >= enough:
            return same(pairs)
        if not pairs and max(alone) >= enough and one_sided:
            return False  # one of them has no value anywhere: x/(x - x)
    return None


def _in_any_reading(a: Tree, b: Tree, same: Callable[[Pairs], bool]) -> bool | None:
    results = [_compare(a, b, reading, same) for reading in _readings(a, b)]
    return True if True in results else False if False in results else None


def equal(a: Tree, b: Tree) -> bool | None:
    """Whether two expressions have the same value wherever both have one; None where neither can be found.

    Where notation is ambiguous (a bare log, a degree sign on one side only) each reading that holds for both counts.
    """
    if a == b:
        return True

    def same(pairs: Pairs) -> bool:
        if not all(_close(x, y) for x, y in pairs):
            return False
        if all(isinstance(x, Fraction) and isinstance(y, Fraction) for x, y in pairs):
            return True
        different = modular.differ(a, b)
        # of a large value the digits would not show that it is off by one
        if different is None and any(abs(inexact(x)) > _LARGEST_INTEGER for pair in pairs for x in pair):
            return all(isinstance(x, Fraction) == isinstance(y, Fraction) for x, y in pairs)
        return not different

    return _in_any_reading(a, b, same)


def proportional(a: Tree, b: Tree, *, positive: bool = False) -> bool | None:
    """Whether a = c b with one constant c (greater than zero) at all points: two forms of one equation a = 0."""

    def same(pairs: Pairs) -> bool:
        first = next(((x, y) for x, y in pairs if x != 0 and y != 0), None)
        if first is None:
            return False
        ratio = divide(*first)
        if positive and not (isinstance(ratio, (Fraction, Real)) and ratio > 0):
            return False
        return all(_close(x, times(ratio, y)) for x, y in pairs)

    return _in_any_reading(a, b, same)


def _readings(a: Tree, b: Tree) -> list[Reading]:
    logs = (False, True) if contains(a, "log") or contains(b, "log") else (False,)
    degrees = (False, True) if contains(a, "deg") or contains(b, "deg") else (False,)
    if angles_in_degrees(a) or angles_in_degrees(b):
        degrees = (True,)
    return [Reading(log, degree) for log in logs for degree in degrees]


def rounds_to(decimal: Tree, exact: Tree) -> bool:
    """Whether a written decimal of six significant places or more is the rounded or cut value of `exact`, which
    cannot be written as a decimal."""
    if decimal[0] == "neg" or exact[0] == "neg":
        decimal, exact = (t[1] if t[0] == "neg" else ("neg", t) for t in (decimal, exact))
        if decimal[0] == "neg":
            decimal, exact = decimal[1], ("neg", exact)
    if decimal[0] != "num" or decimal[2] is None or abs(decimal[1] / decimal[2]) < 10**5:
        return False
    x = constant(exact)
    if x is None or (isinstance(x, Fraction) and _terminates(x)) or not isinstance(x, Fraction | Real):
        return False
    difference = abs(inexact(x) - inexact(decimal[1]))
    step = inexact(decimal[2])
    cut = difference < step and abs(inexact(x)) > abs(inexact(decimal[1]))
    return bool(difference <= step / 2 or cut)


def _terminates(x: Fraction) -> bool:
    d = x.denominator
    for p in (2, 5):
        while d % p == 0:
            d //= p
    return d == 1


def within(gold: Tree, answer: Tree, tolerance: Fraction) -> bool | None:
    """Whether two constants differ by no more than a tolerance."""
    x, y = constant(gold), constant(answer)
    if x is None or y is None:
        return None
    if isinstance(x, Fraction) and isinstance(y, Fraction):
        return abs(x - y) <= tolerance
    return bool(abs(inexact(x) - inexact(y)) <= inexact(tolerance))
