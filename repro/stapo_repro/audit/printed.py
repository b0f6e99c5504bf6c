"""Printed percentages as whole numbers of 0.01 %: how they round, and whether a count of right answers gives them.

N. J. L. Brown and J. A. J. Heathers, "The GRIM Test", Social Psychological and Personality Science 8(4), 2017: a mean
of n whole numbers is a multiple of 1/n. Here n is problems x samples, and k / n is x = 10,000 k / n units of 0.01 %.
Each way of rounding prints the whole number m for the x of one interval:

    half up     m - 1/2 <= x <  m + 1/2
    half even   the same for odd m without its lower end, for even m with both ends
    truncation  m <= x < m + 1
    ceiling     m - 1 < x <= m
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Literal

Rounding = Literal["half up", "half even", "truncation", "ceiling"]
NEAREST: tuple[Rounding, ...] = ("half up", "half even")
ROUNDINGS: tuple[Rounding, ...] = (*NEAREST, "truncation", "ceiling")
WHOLE = 10_000  # 100 % in units of 0.01 %


def units(text: str) -> int:
    """A percentage with two decimals, such as "7.60", in units of 0.01 %."""
    return int(text.replace(".", ""))


def nearest(x: Fraction) -> str:
    """An exact number of units as a percentage, rounded half to even."""
    return f"{Decimal(round(x)).scaleb(-2):f}"


def round_to(x: Fraction, rounding: Rounding) -> int:
    """Whole units of an exact number of them."""
    if rounding == "half even":
        return round(x)
    if rounding == "half up":
        return math.floor(x + Fraction(1, 2))
    return math.floor(x) if rounding == "truncation" else math.ceil(x)


def given_by(m: int, x: Fraction, roundings: tuple[Rounding, ...] = NEAREST) -> list[Rounding]:
    """The ways of rounding that print x units as m."""
    return [r for r in roundings if round_to(x, r) == m]


def numerators(m: int, n: int, rounding: Rounding) -> range:
    """All k in 0..n for which k / n is printed as m units."""
    odd = m % 2 == 1
    low, low_open, high, high_open = {  # ends of the interval of 2 x, and whether they are outside of it
        "half up": (2 * m - 1, False, 2 * m + 1, True),
        "half even": (2 * m - 1, odd, 2 * m + 1, odd),
        "truncation": (2 * m, False, 2 * m + 2, True),
        "ceiling": (2 * m - 2, True, 2 * m, False),
    }[rounding]
    first = low * n // (2 * WHOLE) + 1 if low_open else -(-low * n // (2 * WHOLE))
    last = -(-high * n // (2 * WHOLE)) - 1 if high_open else high * n // (2 * WHOLE)
    return range(max(first, 0), min(last, n) + 1)


def kind_of(m: int, n: int) -> str:
    """How a printed value relates to the multiples of 1/n, rounded to nearest: "possible", or what else explains it."""
    if any(len(numerators(m, n, r)) for r in NEAREST):
        return "possible"
    if numerators(m, n, "truncation"):
        return "only by truncation"
    return "only by rounding up" if numerators(m, n, "ceiling") else "impossible"


def neighbours(m: int, n: int) -> list[Fraction]:
    """The multiples of 1/n beside a value, in units of 0.01 %; none beyond 100 %."""
    k = m * n // WHOLE
    return [Fraction(WHOLE * i, n) for i in (k, k + 1) if i <= n]
