"""Which fractions k / n are printed as a given percentage, for each way of rounding. Integers alone, so exact.

A printed value with d decimals is an integer m of units of 10^-d percent; k / n lies at x = k S / n units, where
S = 100 * 10^d. Each way of rounding prints m for the x of one interval:

    half up     m - 1/2 <= x <  m + 1/2
    half even   the same for odd m without its lower end, for even m with both ends
    truncation  m <= x < m + 1
    ceiling     m - 1 < x <= m
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Literal

Rounding = Literal["half up", "half even", "truncation", "ceiling"]
NEAREST: tuple[Rounding, ...] = ("half up", "half even")
ROUNDINGS: tuple[Rounding, ...] = (*NEAREST, "truncation", "ceiling")


@dataclass(frozen=True)
class Printed:
    """A percentage as printed: `units` of 10^-`decimals`."""

    text: str
    units: int
    decimals: int

    @staticmethod
    def of(text: str) -> Printed:
        decimals = len(text.partition(".")[2])
        return Printed(text, int(text.replace(".", "")), decimals)

    @property
    def scale(self) -> int:
        """Units in 100 percent."""
        return 100 * 10**self.decimals

    @property
    def value(self) -> Fraction:
        """In percent."""
        return Fraction(self.units, 10**self.decimals)


def as_text(units: int, decimals: int) -> str:
    return str(Decimal(units).scaleb(-decimals).quantize(Decimal(1).scaleb(-decimals)))


def numerators(printed: Printed, n: int, rounding: Rounding) -> range:
    """All k in 0..n for which k / n is printed as this value."""
    m, s = printed.units, printed.scale

    def least(twice: int) -> int:  # smallest k with x >= twice / 2
        return -(-twice * n // (2 * s))

    def most(twice: int) -> int:  # largest k with x <= twice / 2
        return twice * n // (2 * s)

    if rounding == "truncation":
        low, high = least(2 * m), least(2 * m + 2) - 1
    elif rounding == "ceiling":
        low, high = most(2 * m - 2) + 1, most(2 * m)
    elif rounding == "half up":
        low, high = least(2 * m - 1), least(2 * m + 1) - 1
    elif m % 2 == 0:
        low, high = least(2 * m - 1), most(2 * m + 1)
    else:
        low, high = most(2 * m - 1) + 1, least(2 * m + 1) - 1
    return range(max(low, 0), min(high, n) + 1)


def round_to(percent: Fraction, decimals: int, rounding: Rounding) -> int:
    """Units of 10^-decimals of an exact percentage."""
    units = percent * 10**decimals
    if rounding == "half even":
        return round(units)
    if rounding == "half up":
        return math.floor(units + Fraction(1, 2))
    return math.floor(units) if rounding == "truncation" else math.ceil(units)


def fits(printed: Printed, n: int) -> bool:
    """Whether some k / n is printed so by rounding to nearest, half up or half even."""
    return any(len(numerators(printed, n, r)) for r in NEAREST)
