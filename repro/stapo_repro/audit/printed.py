"""Printed percentages as whole numbers of 0.01 %: how they round, and whether a count of right answers gives them.

N. J. L. Brown and J. A. J. Heathers, "The GRIM Test", Social Psychological and Personality Science 8(4), 2017: a mean
of n whole numbers is a multiple of 1/n. Here n is problems x samples, and k / n is 10,000 k / n units of 0.01 %, an
exact fraction that each way of rounding prints as one whole number.
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


def kind_of(m: int, n: int) -> str:
    """How a printed value relates to the multiples of 1/n, rounded to nearest: "possible", or what else explains it."""
    near = range(max((m - 1) * n // WHOLE, 0), min((m + 1) * n // WHOLE + 1, n) + 1)  # no other rounds to m
    found = {r for k in near for r in given_by(m, Fraction(WHOLE * k, n), ROUNDINGS)}
    if found & {*NEAREST}:
        return "possible"
    return "only by truncation" if "truncation" in found else "only by rounding up" if found else "impossible"


def neighbours(m: int, n: int) -> list[Fraction]:
    """The multiples of 1/n beside a value, in units of 0.01 %; none beyond 100 %."""
    k = m * n // WHOLE
    return [Fraction(WHOLE * i, n) for i in (k, k + 1) if i <= n]
