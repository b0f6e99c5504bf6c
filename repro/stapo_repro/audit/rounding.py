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
        return Printed(text, int(text.replace(".", "")), len(text.partition(".")[2]))

    @property
    def scale(self) -> int:
        """Units in 100 percent."""
        return 100 * 10**self.decimals

    @property
    def value(self) -> Fraction:
        """In percent."""
        return Fraction(self.units, 10**self.decimals)

    @property
    def slack(self) -> Fraction:
        """How far the value before rounding to nearest may lie from the printed one, in percent."""
        return Fraction(1, 2 * 10**self.decimals)

    def gives(self, exact: Fraction, roundings: tuple[Rounding, ...] = NEAREST) -> list[Rounding]:
        """The ways of rounding that print `exact` (in percent) as this value."""
        return [r for r in roundings if round_to(exact, self.decimals, r) == self.units]


def as_text(units: int, decimals: int) -> str:
    return str(Decimal(units).scaleb(-decimals).quantize(Decimal(1).scaleb(-decimals)))


def nearest(percent: Fraction, decimals: int) -> str:
    """An exact percentage as it is printed when rounded half to even."""
    return as_text(round_to(percent, decimals, "half even"), decimals)


def numerators(printed: Printed, n: int, rounding: Rounding) -> range:
    """All k in 0..n for which k / n is printed as this value."""
    m = printed.units
    odd = m % 2 == 1
    low, low_open, high, high_open = {  # ends of the interval of 2 x, and whether they are outside of it
        "half up": (2 * m - 1, False, 2 * m + 1, True),
        "half even": (2 * m - 1, odd, 2 * m + 1, odd),
        "truncation": (2 * m, False, 2 * m + 2, True),
        "ceiling": (2 * m - 2, True, 2 * m, False),
    }[rounding]
    first = low * n // (2 * printed.scale) + 1 if low_open else -(-low * n // (2 * printed.scale))
    last = -(-high * n // (2 * printed.scale)) - 1 if high_open else high * n // (2 * printed.scale)
    return range(max(first, 0), min(last, n) + 1)


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
