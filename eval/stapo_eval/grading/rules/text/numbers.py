r"""Exact values of plain numbers: integers, decimals, powers of ten, fractions of those. No algebra, no rounding."""

from __future__ import annotations

import re
from fractions import Fraction

_DECIMAL = r"[+-]?(?:\d{1,100}(?:\.\d{0,100})?|\.\d{1,100})"
_POWER = r"(?:(?:[eE]|(?:\\times|\\cdot|\*)10\^)\{?([+-]?\d{1,3})\}?)"
_NUMBER = re.compile(rf"({_DECIMAL}){_POWER}?")
_POWER_OF_TEN = re.compile(r"([+-]?)10\^\{?([+-]?\d{1,3})\}?")
_RATIO = re.compile(rf"([+-]?)(?:\\frac\{{({_DECIMAL})\}}\{{({_DECIMAL})\}}|\\frac(\d)(\d)|({_DECIMAL})/({_DECIMAL}))")
_MIXED = re.compile(r"([+-]?)(\d{1,50})\\frac\{(\d{1,50})\}\{(\d{1,50})\}")
_PYTHON = re.compile(r"([+-]?\d{1,50}\.)/(\d{1,50}\.?)")
_LONGEST = 240  # characters


def number(key: str) -> Fraction | None:
    """The exact value of a plain number in normal form (see `text.key`); else None.

    A whole number before a proper fraction is a mixed number.
    """
    if len(key) > _LONGEST:
        return None
    if m := _NUMBER.fullmatch(key):
        return Fraction(m[1]) * Fraction(10) ** int(m[2] or 0)
    if m := _POWER_OF_TEN.fullmatch(key):
        return Fraction(10) ** int(m[2]) * (-1 if m[1] == "-" else 1)
    if m := _MIXED.fullmatch(key):
        if 0 < int(m[3]) < int(m[4]):
            return (int(m[2]) + Fraction(int(m[3]), int(m[4]))) * (-1 if m[1] == "-" else 1)
        return None
    if m := _PYTHON.fullmatch(key):
        return Fraction(m[1]) / Fraction(m[2]) if Fraction(m[2]) else None
    if m := _RATIO.fullmatch(key):
        over, under = next((a, b) for a, b in ((m[2], m[3]), (m[4], m[5]), (m[6], m[7])) if a)
        if Fraction(under):
            return Fraction(over) / Fraction(under) * (-1 if m[1] == "-" else 1)
    return None


def is_whole(key: str) -> bool:
    """Whether the normal form is an integer of any length."""
    return key.lstrip("+-").isdecimal() and len(key) - len(key.lstrip("+-")) <= 1 and key.isascii()


def same_whole(a: str, b: str) -> bool:
    """Whether two integers in normal form are equal: digit by digit, since a million digits have no quick `int`."""
    x, y = a.lstrip("+-").lstrip("0"), b.lstrip("+-").lstrip("0")
    return x == y and (not x or (a[0] == "-") == (b[0] == "-"))
