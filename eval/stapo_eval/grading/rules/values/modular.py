r"""Exact comparison of huge numbers: values modulo large primes.

Two rational expressions that are equal agree modulo every prime that divides no denominator. Two that differ agree
modulo one prime of 120 bits or more with a chance below 2^-100 (Schwartz 1980, Zippel 1979, for variables at points
without a pattern), so that six digits of a million cannot be taken for others.
"""

from __future__ import annotations

import hashlib
from fractions import Fraction
from functools import cache
from math import comb

from stapo_eval.grading.rules.values.trees import Tree

# Mersenne primes: 2^127 - 1, 2^521 - 1, 2^607 - 1
PRIMES = (2**127 - 1, 2**521 - 1, 2**607 - 1)
_LARGEST_EXPONENT = 4096  # bits
_LARGEST_FACTORIAL = 2000


class NotRational(ValueError):
    """The expression is no fraction of integers and variables, or too large even for residues."""


@cache
def _letter(name: str, prime: int) -> int:
    digest = hashlib.sha512(f"{name}/{prime}".encode()).digest() * 2
    return int.from_bytes(digest, "big") % prime


def residue(tree: Tree, prime: int) -> int | None:
    """The value modulo a prime; variables, pi and e at points without a pattern. None where the prime divides a
    denominator.

    Raises:
        NotRational: it holds roots, functions, the imaginary unit or exponents that are no integers.
    """
    kind: str = tree[0]
    if kind == "num":
        return _divided(tree[1].numerator % prime, tree[1].denominator % prime, prime)
    if kind == "sym":
        if tree[1] == "i":
            raise NotRational("i")
        return _letter(tree[1], prime)
    if kind == "^":
        return _power(residue(tree[1], prime), _integer(tree[2]), prime)
    if kind in ("fact", "fact2"):
        return _factorial(_integer(tree[1]), 1 if kind == "fact" else 2, prime)
    if kind == "binom":
        return _binomial(_integer(tree[1]), _integer(tree[2])) % prime
    if kind not in ("neg", "+", "*", "/"):
        raise NotRational(str(kind))
    values = [residue(t, prime) for t in tree[1:]]
    a, b = values[0], values[-1]
    if a is None or b is None:
        return None
    if kind == "neg":
        return -a % prime
    if kind == "/":
        return _divided(a, b, prime)
    return (a + b if kind == "+" else a * b) % prime


def _divided(a: int, b: int, prime: int) -> int | None:
    return a * pow(b, -1, prime) % prime if b else None


def _power(a: int | None, n: int, prime: int) -> int | None:
    if a is None or (a == 0 and n <= 0):
        return None
    return pow(a, n % (prime - 1), prime)  # Fermat


def _factorial(n: int, step: int, prime: int) -> int:
    if not 0 <= n <= _LARGEST_FACTORIAL:
        raise NotRational("factorial")
    out = 1
    for k in range(n, 1, -step):
        out = out * k % prime
    return out


def _binomial(n: int, k: int) -> int:
    if not 0 <= k <= n <= _LARGEST_FACTORIAL:
        raise NotRational("binomial")
    return comb(n, k)


def _integer(tree: Tree) -> int:
    """The integer that an exponent is, of bounded size."""
    x = _exact(tree)
    if x.denominator != 1:
        raise NotRational("no integer")
    return int(x)


def _exact(tree: Tree) -> Fraction:
    kind = tree[0]
    if kind == "num":
        x = tree[1]
    elif kind == "neg":
        x = -_exact(tree[1])
    elif kind in ("+", "*"):
        a, b = _exact(tree[1]), _exact(tree[2])
        x = a + b if kind == "+" else a * b
    elif kind == "/" and (below := _exact(tree[2])):
        x = _exact(tree[1]) / below
    elif kind == "^":
        a, n = _exact(tree[1]), _integer(tree[2])
        if _bits(a) * abs(n) > _LARGEST_EXPONENT or (not a and n <= 0):
            raise NotRational("exponent")
        x = a**n
    else:
        raise NotRational(str(kind))
    if _bits(x) > _LARGEST_EXPONENT:
        raise NotRational("exponent")
    return x


def _bits(x: Fraction) -> int:
    return max(x.numerator.bit_length(), x.denominator.bit_length())


def differ(a: Tree, b: Tree) -> bool | None:
    """Whether two rational expressions are certainly not equal; None where one is not rational."""
    try:
        pairs = [(residue(a, p), residue(b, p)) for p in PRIMES]
    except NotRational:
        return None
    return any(x != y for x, y in pairs if x is not None and y is not None)
