r"""Values of expressions: exact fractions as long as possible, else 60 digits. No text is evaluated.

Everything that could grow without bound (powers, factorials) is measured before it is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import comb, factorial, prod
from typing import Any

import mpmath
from mpmath.libmp import ComplexResult  # raised where a real function leaves the reals

from stapo_eval.grading.rules.tokens import Meaningless, Unreadable
from stapo_eval.grading.rules.trees import Tree, symbols

DIGITS = 60
_mp = mpmath.MPContext()
_mp.dps = DIGITS
Real, Complex = _mp.mpf, _mp.mpc
Value = Any  # Fraction, Real or Complex

AGREE = Real(10) ** -40
_BITS = 8192  # of an exact number
_LARGEST_POWER = 2**20  # binary exponent of an inexact one
_LARGEST_FACTORIAL = 2000


class Undefined(ArithmeticError):
    """The expression has no value at this point."""


@dataclass(frozen=True)
class Reading:
    """How ambiguous notation is read: the base of a bare log (None: e), and what a degree sign is worth."""

    log10: bool = False
    degree: bool = False  # pi / 180, else 1


def inexact(x: Value) -> Value:
    """As a number of 60 digits."""
    return Real(x.numerator) / x.denominator if isinstance(x, Fraction) else x


def _size(x: Fraction) -> int:
    return max(x.numerator.bit_length(), x.denominator.bit_length())


def _bounded(x: Value) -> Value:
    if isinstance(x, Fraction):
        return x if _size(x) <= _BITS else inexact(x)
    if isinstance(x, Complex):
        if not (_mp.isfinite(x.real) and _mp.isfinite(x.imag)):
            raise Undefined
        if abs(x.imag) <= AGREE * abs(x.real):
            return x.real
        return x
    if not _mp.isfinite(x):
        raise Undefined
    return x


def divide(a: Value, b: Value) -> Value:
    """The quotient, exact where both are."""
    if b == 0:
        raise Undefined
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a / b
    return inexact(a) / inexact(b)


def times(a: Value, b: Value) -> Value:
    """The product, exact where both factors are."""
    return a * b if isinstance(a, Fraction) and isinstance(b, Fraction) else inexact(a) * inexact(b)


def _power(a: Value, b: Value) -> Value:
    if isinstance(b, Fraction) and b.denominator == 1:
        n = int(b)
        if a == 0 and n <= 0:
            raise Undefined
        if isinstance(a, Fraction) and _size(a) * abs(n) <= _BITS:
            return a**n
    if a == 0:
        if isinstance(b, Fraction) and b > 0:
            return Fraction(0)
        raise Undefined
    if isinstance(a, Fraction) and isinstance(b, Fraction) and a > 0 and b.denominator <= 64:
        root = _root(Fraction(b.denominator), a)
        if isinstance(root, Fraction) and _size(root) * abs(b.numerator) <= _BITS:
            return root**b.numerator
    x, y = inexact(a), inexact(b)
    if x == 1:
        return Fraction(1)
    if abs(y) > _LARGEST_POWER:
        raise Meaningless("too large a power")
    if abs(_mp.log(abs(x), 2) * abs(y)) > _LARGEST_POWER:
        raise Meaningless("too large a power")
    return _mp.power(x, y)


def _root(index: Value, a: Value) -> Value:
    if not isinstance(index, Fraction) or index.denominator != 1 or not 2 <= index <= 1000:
        return _power(a, divide(Fraction(1), index))
    n = int(index)
    if isinstance(a, Fraction) and a >= 0:
        over, under = _exact_root(a.numerator, n), _exact_root(a.denominator, n)
        if over is not None and under is not None:
            return Fraction(over, under)
    x = inexact(a)
    if n % 2 and not isinstance(x, Complex) and x < 0:
        return -_mp.root(-x, n)
    return _mp.sqrt(x) if n == 2 else _mp.root(x, n)


def _exact_root(x: int, n: int) -> int | None:
    if x < 2:
        return x
    r = int(_mp.nint(_mp.root(Real(x), n)))
    return r if r**n == x else None


_factorial_of = cache(factorial)


def _factorial(a: Value) -> Value:
    if isinstance(a, Fraction) and a.denominator == 1:
        n = int(a)
        if n < 0:
            raise Undefined
        if n > _LARGEST_FACTORIAL:
            raise Meaningless("too large a factorial")
        return Fraction(_factorial_of(n))
    if abs(inexact(a)) > _LARGEST_FACTORIAL:
        raise Meaningless("too large a factorial")
    return _mp.gamma(inexact(a) + 1)


def _double_factorial(a: Value) -> Value:
    if not isinstance(a, Fraction) or a.denominator != 1 or a < -1:
        raise Undefined
    if a > _LARGEST_FACTORIAL:
        raise Meaningless("too large a factorial")
    return Fraction(prod(range(int(a), 1, -2)))


def _binomial(n: Value, k: Value) -> Value:
    if max(abs(inexact(n)), abs(inexact(k))) > _LARGEST_FACTORIAL:
        raise Meaningless("too large a binomial")
    if isinstance(n, Fraction) and isinstance(k, Fraction) and n.denominator == k.denominator == 1 and 0 <= k <= n:
        return Fraction(comb(int(n), int(k)))
    return _mp.binomial(inexact(n), inexact(k))


def _log(x: Value) -> Value:
    if x == 0:
        raise Undefined
    return _mp.log(inexact(x))


def _inverse(f: str) -> Callable[[Value], Value]:
    return lambda x: divide(Fraction(1), getattr(_mp, f)(inexact(x)))


_FUNCTIONS: dict[str, Callable[[Value], Value]] = {
    name: (lambda f: lambda x: f(inexact(x)))(getattr(_mp, attribute))
    for name, attribute in {
        "sin": "sin", "cos": "cos", "tan": "tan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh",
        "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arsinh": "asinh", "arcosh": "acosh", "artanh": "atanh",
        "arccot": "acot",
    }.items()
}  # fmt: skip
_FUNCTIONS |= {"cot": _inverse("tan"), "sec": _inverse("cos"), "csc": _inverse("sin"), "coth": _inverse("tanh")}
_FUNCTIONS |= {"ln": _log, "lg": lambda x: _log(x) / _mp.ln(10)}
_PERIODIC = {"sin", "cos", "tan", "cot", "sec", "csc"}
_LARGEST_ANGLE = Real(10) ** 15  # beyond, 60 digits do not fix the phase


def value(tree: Tree, point: dict[str, Value], reading: Reading, real: bool) -> Value:
    """The value of an expression.

    Args:
        point: values of its variables.
        real: an intermediate result off the real line has no value.

    Raises:
        Undefined: no value at this point.
        Unreadable: too large to compute, or not a number (infinity).
    """
    kind = tree[0]
    if kind == "num":
        return tree[1]
    if kind == "sym":
        if tree[1] == "pi":
            return +_mp.pi
        if tree[1] == "e":
            return +_mp.e
        return Complex(0, 1) if tree[1] == "i" else point[tree[1]]
    if kind == "inf":
        raise Meaningless("infinity")
    args = [value(t, point, reading, real) for t in tree[1:] if isinstance(t, tuple)]
    try:
        result = _bounded(_apply(tree, args, reading))
    except (ZeroDivisionError, ComplexResult, OverflowError, ValueError) as e:
        if isinstance(e, Unreadable):
            raise
        raise Undefined from None
    if real and not isinstance(result, Fraction) and not isinstance(result, Real):
        raise Undefined
    return result


def _apply(tree: Tree, args: list[Value], reading: Reading) -> Value:
    kind, a = tree[0], args[0]
    if kind == "neg":
        return -a
    if kind == "*":
        return times(a, args[1])
    if kind == "cross":  # any product that its order changes the sign of
        return times(times(a, args[1]), inexact(a) - inexact(args[1]))
    if kind == "+":
        exact = isinstance(a, Fraction) and isinstance(args[1], Fraction)
        return a + args[1] if exact else inexact(a) + inexact(args[1])
    if kind == "/":
        return divide(a, args[1])
    if kind == "^":
        return _power(a, args[1])
    if kind == "root":
        return _root(a, args[1])
    if kind == "abs":
        return abs(a)
    if kind in ("floor", "ceil"):
        x = a if isinstance(a, Fraction) else _mp.re(a)
        if not isinstance(x, Fraction):
            return Fraction(int(_mp.floor(x) if kind == "floor" else _mp.ceil(x)))
        return Fraction(x.__floor__() if kind == "floor" else x.__ceil__())
    if kind == "fact":
        return _factorial(a)
    if kind == "fact2":
        return _double_factorial(a)
    if kind == "binom":
        return _binomial(a, args[1])
    if kind == "deg":
        return inexact(a) * _mp.pi / 180 if reading.degree else a
    if kind == "log":
        return divide(_log(args[1]), _log(a))
    if kind == "fn":
        if tree[1] == "log":
            return _log(a) / _mp.ln(10) if reading.log10 else _log(a)
        if tree[1] in _PERIODIC and abs(inexact(a)) > _LARGEST_ANGLE:
            raise Meaningless("too large an angle")
        if tree[1] in _FUNCTIONS:
            return _FUNCTIONS[tree[1]](a)
    raise Unreadable(str(kind))


def constant(tree: Tree) -> Value | None:
    """The value of an expression without variables; None where it has none."""
    if symbols(tree):
        return None
    try:
        return value(tree, {}, Reading(), real=False)
    except Undefined:
        return None
