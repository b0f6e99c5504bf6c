"""What a t test of a mean difference can find, how many runs it takes, and whether a difference is small enough.

Values are plain numbers in any unit. The far tail of a two-sided test (finding the opposite of what is true) is left
out of its power, as in `comparison.minimal_detectable`. Nothing here reads a record or rounds a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy.special import nctdtr, stdtr, stdtrit

from stapo_results.statistics.comparison import ALPHA, POWER
from stapo_results.statistics.crossed import Crossed

MOST = 10_000
"""Runs beyond which `runs_needed` looks no further."""


def t_power(effect: float, se: float, df: float, *, alpha: float = ALPHA) -> float:
    """The chance that a two-sided t test at `alpha` finds a true mean of `effect`, on the side where it lies.

    P(T > t) for T noncentral t with `df` degrees of freedom and noncentrality |effect| / se, where t is the critical
    value t(1 - alpha / 2, df).
    """
    return 1.0 - float(nctdtr(df, abs(effect) / se, stdtrit(df, 1 - alpha / 2)))


def detectable(se: float, df: float, *, alpha: float = ALPHA, power: float = POWER) -> float:
    """The smallest true mean that a two-sided t test at `alpha` finds with probability `power`; NaN without an SE."""
    if math.isnan(se) or se == 0:
        return se
    low, high = 0.0, 1.0
    while t_power(high * se, se, df, alpha=alpha) < power:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_power(middle * se, se, df, alpha=alpha) < power else (low, middle)
    return high * se


def runs_needed(effect: float, sd: float, *, alpha: float = ALPHA, power: float = POWER) -> int | None:
    """The fewest runs, from 2 on, whose t test finds a true mean of `effect` with probability `power`.

    Args:
        sd: standard deviation between runs, as a pilot gives it. 0 needs two.

    Returns:
        None where more than `MOST` are needed.
    """
    return _fewest(lambda n: sd == 0 or t_power(effect, sd / math.sqrt(n), n - 1, alpha=alpha) >= power)


def runs_for_equivalence(margin: float, sd: float, *, alpha: float = ALPHA, power: float = POWER) -> int | None:
    """The fewest runs whose two one-sided tests find a true mean of 0 to lie within +- margin; None as `runs_needed`.

    The power is 2 P(T < margin / se - t) - 1 with t = t(1 - alpha, df) and T central t with df = n - 1.
    """

    def enough(n: int) -> bool:
        if sd == 0:
            return True
        room = margin * math.sqrt(n) / sd - float(stdtrit(n - 1, 1 - alpha))
        return 2 * float(stdtr(n - 1, room)) - 1 >= power

    return _fewest(enough)


def _fewest(enough: Callable[[int], bool]) -> int | None:
    return next((n for n in range(2, MOST + 1) if enough(n)), None)


def tost_p(found: Crossed, margin: float) -> float:
    """p of "the true mean lies outside +- margin": the larger p of two one-sided t tests (Schuirmann 1987).

    Below alpha exactly where the 1 - 2 alpha interval lies within the margin. NaN without a standard error; where that
    is 0, 0 within the margin and else 1.
    """
    if math.isnan(found.se):
        return math.nan
    if found.se == 0:
        return 0.0 if abs(found.mean) < margin else 1.0
    return float(stdtr(found.df, (abs(found.mean) - margin) / found.se))
