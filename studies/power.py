"""What a t test can tell: its power, the runs that it needs, and whether two things are the same."""

from __future__ import annotations

import math

from scipy.optimize import brentq
from scipy.special import nctdtr, stdtr, stdtrit

from stapo_repro.statistics import ALPHA, POWER
from stapo_results.statistics import Number

MOST_RUNS = 10_000
"""Runs beyond which `runs_needed` looks no further."""


def t_power(effect: float, se: float, df: float, alpha: float = ALPHA) -> float:
    """The chance that a two-sided t test at `alpha` finds a true mean of `effect`, on the side where it lies.

    P(T > t) for T noncentral t with `df` degrees of freedom and noncentrality |effect| / se, where t is the critical
    value t(1 - alpha / 2, df).
    """
    return 1.0 - float(nctdtr(df, abs(effect) / se, stdtrit(df, 1 - alpha / 2)))


def detectable(se: float, df: float) -> float:
    """The smallest true mean that a two-sided t test at `ALPHA` finds with probability `POWER`; NaN without an SE."""
    if math.isnan(se) or se == 0:
        return se
    return se * brentq(lambda effect: t_power(effect, 1.0, df) - POWER, 0.0, 1e4, xtol=1e-13)  # type: ignore[operator]


def runs_needed(effect: float, sd: float, alpha: float = ALPHA) -> int | None:
    """The fewest runs, from 2 on, whose t test at `alpha` finds a true mean of `effect` with probability `POWER`.

    Args:
        sd: standard deviation between runs, as a pilot gives it. 0 needs two.

    Returns:
        None where more than `MOST_RUNS` are needed.
    """
    counts = range(2, MOST_RUNS + 1)
    return next((n for n in counts if sd == 0 or t_power(effect, sd / math.sqrt(n), n - 1, alpha) >= POWER), None)


def runs_for_equivalence(margin: float, sd: float, alpha: float = ALPHA) -> int | None:
    """The fewest runs whose two one-sided tests find a true mean of 0 to lie within +- margin; None as `runs_needed`.

    The power is 2 P(T < margin / se - t) - 1 with t = t(1 - alpha, df) and T central t with df = n - 1.
    """

    def enough(n: int) -> bool:
        room = margin * math.sqrt(n) / sd - float(stdtrit(n - 1, 1 - alpha)) if sd else math.inf
        return 2 * float(stdtr(n - 1, room)) - 1 >= POWER

    return next(filter(enough, range(2, MOST_RUNS + 1)), None)


def tost_interval(found: Number) -> tuple[float, float]:
    """The 1 - 2 `ALPHA` t interval, which two one-sided tests set against the margin; NaN without a standard error."""
    half = found.se * float(stdtrit(found.df, 1 - ALPHA)) if found.se else 0.0
    return found.mean - half, found.mean + half


def tost_p(found: Number, margin: float) -> float:
    """p of "the true mean lies outside +- margin": the larger p of two one-sided t tests (Schuirmann 1987).

    Below alpha exactly where the 1 - 2 alpha interval lies within the margin. NaN without a standard error; where that
    is 0, 0 within the margin and else 1.
    """
    if found.se == 0:
        return 0.0 if abs(found.mean) < margin else 1.0
    return float(stdtr(found.df, (abs(found.mean) - margin) / found.se))
