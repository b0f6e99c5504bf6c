"""Percent and printed digits. One place, so that every form of a table prints the same number.

Numbers are rounded half to even (53.125 prints 53.12, 53.135 prints 53.14), on the decimal value with at most eight
digits, never on the binary one; what rounds to zero has no sign.
"""

from __future__ import annotations

import math
from decimal import ROUND_HALF_EVEN, Decimal


def percent(fraction: float) -> float | None:
    """Percent with eight decimals (beyond that two machines may differ); None for NaN."""
    return None if math.isnan(fraction) else round(100 * fraction, 8) + 0.0


def shown(value: float | None, digits: int = 2) -> str:
    """The printed number; "n/a" for None."""
    if value is None:
        return "n/a"
    rounded = Decimal(repr(value)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_EVEN)
    return str(rounded if rounded else abs(rounded))


def signed(value: float | None, digits: int = 2) -> str:
    """The printed number with its sign; zero has none."""
    text = shown(value, digits)
    return f"+{text}" if value is not None and Decimal(text) > 0 else text


def p_shown(p: float | None) -> str:
    """A p-value to three digits; "<0.001" below that."""
    return "<0.001" if p is not None and p < 0.001 else shown(p, 3)
