r"""From an expression to its value: exact fractions as long as possible, else 60 digits. No text is evaluated.

Everything that could grow without bound (powers, factorials) is measured before it is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import ceil, comb, factorial, floor, prod
from typing import Any

import mpmath
from mpmath.libmp import ComplexResult  # raised where a real function leaves the reals

from stapo_eval.grading.rules.text.tokens import Meaningless, Unreadable
from stapo_eval.grading.rules.values.trees import Tree, symbols

DIGITS = 60
_mp = mpmath.MPContext()
_mp.dps = DIGITS
Real, Complex = _mp.mpf, _mp.mpc
Value = Any  # Fraction, Real or Complex

AGREE = Real(10) ** -40
_BITS = 8192  # of an exact number
_LARGEST_POWER = 2**20  # binary exponent of an inexact one
_LARGEST_FACTORIAL = 2000
_LARGEST_ANGLE = Real(10) ** 15  # beyond, 60 digits do not fix the phase


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


def _exact(a: Value, b: Value) -> bool:
    return isinstance(a, Fraction) and isinstance(b, Fraction)


def _is_whole(x: Value) -> bool:
    return isinstance(x, Fraction) and x.denominator == 1


def _bits(x: Fraction) -> int:
    return max(x.numerator.bit_length(), x.denominator.bit_length())


def _bounded(x: Value) -> Value:
    """A result as it is kept: finite, of bounded size, real where its imaginary part is only rounding."""
    if isinstance(x, Fraction):
        return x if _bits(x) <= _BITS else inexact(x)
    if isinstance(x, Complex):
        if not (_mp.isfinite(x.real) and _mp.isfinite(x.imag)):
            raise Undefined
        return x.real if abs(x.imag) <= AGREE * abs(x.real) else x
    if not _mp.isfinite(x):
        raise Undefined
    return x


def divide(a: Value, b: Value) -> Value:
    """The quotient, exact where both are."""
    if b == 0:
        raise Undefined
    return a / b if _exact(a, b) else inexact(a) / inexact(b)


def times(a: Value, b: Value) -> Value:
    """The product, exact where both factors are."""
    return a * b if _exact(a, b) else inexact(a) * inexact(b)


def _plus(a: Value, b: Value) -> Value:
    return a + b if _exact(a, b) else inexact(a) + inexact(b)


def _power(a: Value, b: Value) -> Value:
    if _is_whole(b):
        n = int(b)
        if a == 0 and n <= 0:
            raise Undefined
        if isinstance(a, Fraction) and _bits(a) * abs(n) <= _BITS:
            return a**n
    if a == 0:
        if isinstance(b, Fraction) and b > 0:
            return Fraction(0)
        raise Undefined
    if _exact(a, b) and a > 0 and b.denominator <= 64:
        root = _root(Fraction(b.denominator), a)
        if isinstance(root, Fraction) and _bits(root) * abs(b.numerator) <= _BITS:
            return root**b.numerator
    x, y = inexact(a), inexact(b)
    if x == 1:
        return Fraction(1)
    if abs(y) > _LARGEST_POWER or abs(_mp.log(abs(x), 2) * abs(y)) > _LARGEST_POWER:
        raise Meaningless("too large a power")
    return _mp.power(x, y)


def _root(index: Value, a: Value) -> Value:
    if not _is_whole(index) or not 2 <= index <= 1000:
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
    if _is_whole(a) and a < 0:
        raise Undefined
    if (a if _is_whole(a) else abs(inexact(a))) > _LARGEST_FACTORIAL:
        raise Meaningless("too large a factorial")
    return Fraction(_factorial_of(int(a))) if _is_whole(a) else _mp.gamma(inexact(a) + 1)


def _double_factorial(a: Value) -> Value:
    if not _is_whole(a) or a < -1:
        raise Undefined
    if a > _LARGEST_FACTORIAL:
        raise Meaningless("too large a factorial")
    return Fraction(prod(range(int(a), 1, -2)))


def _binomial(n: Value, k: Value) -> Value:
    if max(abs(inexact(n)), abs(inexact(k))) > _LARGEST_FACTORIAL:
        raise Meaningless("too large a binomial")
    if _is_whole(n) and _is_whole(k) and 0 <= k <= n:
        return Fraction(comb(int(n), int(k)))
    return _mp.binomial(inexact(n), inexact(k))


def _stepping(exact: Callable[[Fraction], int], inexactly: Callable[[Value], Value]) -> Callable[[Value], Value]:
    return lambda a: Fraction(exact(a) if isinstance(a, Fraction) else int(inexactly(_mp.re(a))))


def _log(x: Value) -> Value:
    if x == 0:
        raise Undefined
    return _mp.log(inexact(x))


_OPERATIONS: dict[str, Callable[..., Value]] = {
    "neg": lambda a: -a,
    "+": _plus,
    "*": times,
    "/": divide,
    "^": _power,
    "root": _root,
    # any product that its order changes the sign of
    "cross": lambda a, b: times(times(a, b), inexact(a) - inexact(b)),
    "abs": abs,
    "floor": _stepping(floor, _mp.floor),
    "ceil": _stepping(ceil, _mp.ceil),
    "fact": _factorial,
    "fact2": _double_factorial,
    "binom": _binomial,
    "log": lambda base, x: divide(_log(x), _log(base)),
}


def _inexactly(name: str, *, inverted: bool = False) -> Callable[[Value], Value]:
    f = getattr(_mp, name)
    return (lambda x: divide(Fraction(1), f(inexact(x)))) if inverted else (lambda x: f(inexact(x)))


_FUNCTIONS: dict[str, Callable[[Value], Value]] = {
    **{name: _inexactly(name) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    **{"arc" + name: _inexactly("a" + name) for name in ("sin", "cos", "tan", "cot")},
    **{"ar" + name: _inexactly("a" + name) for name in ("sinh", "cosh", "tanh")},
    "cot": _inexactly("tan", inverted=True),
    "sec": _inexactly("cos", inverted=True),
    "csc": _inexactly("sin", inverted=True),
    "coth": _inexactly("tanh", inverted=True),
    "ln": _log,
    "lg": lambda x: _log(x) / _mp.ln(10),
}
_CONSTANTS = {"pi": lambda: +_mp.pi, "e": lambda: +_mp.e, "i": lambda: Complex(0, 1)}
_PERIODIC = {"sin", "cos", "tan", "cot", "sec", "csc"}


def _function(name: str, a: Value, reading: Reading) -> Value:
    if name == "log":
        name = "lg" if reading.log10 else "ln"
    if name in _PERIODIC and abs(inexact(a)) > _LARGEST_ANGLE:
        raise Meaningless("too large an angle")
    if name not in _FUNCTIONS:
        raise Unreadable("fn")
    return _FUNCTIONS[name](a)


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
        return _CONSTANTS[tree[1]]() if tree[1] in _CONSTANTS else point[tree[1]]
    if kind == "inf":
        raise Meaningless("infinity")
    args = [value(t, point, reading, real) for t in tree[1:] if isinstance(t, tuple)]
    try:
        if kind == "fn":
            result = _function(tree[1], args[0], reading)
        elif kind == "deg":
            result = inexact(args[0]) * _mp.pi / 180 if reading.degree else args[0]
        else:
            result = _OPERATIONS[kind](*args)
        result = _bounded(result)
    except Unreadable:
        raise
    except (ZeroDivisionError, ComplexResult, OverflowError, ValueError):
        raise Undefined from None
    if real and not isinstance(result, Fraction) and not isinstance(result, Real):
        raise Undefined
    return result


def constant(tree: Tree) -> Value | None:
    """The value of an expression without variables; None where it has none."""
    if symbols(tree):
        return None
    try:
        return value(tree, {}, Reading(), real=False)
    except Undefined:
        return None
