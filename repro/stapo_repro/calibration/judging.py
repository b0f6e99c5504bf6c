"""When two scores agree, differ, or cannot be told apart; and the scores of a cell's record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from stapo_results.schema import CellRecord
from stapo_results.statistics import holm, parse_verdicts
from stapo_results.statistics.fixed import Fixed

ALPHA = 0.05
MARGIN = 5.0  # points
Verdict = Literal["agrees", "differs", "cannot tell", "not run"]


def rule(margin: float) -> str:
    """The rule of a verdict, as every output prints it."""
    return (
        f"differs: p after Holm below {ALPHA:g}; else agrees: the 95 % interval lies within {margin:g} points of 0; "
        "else cannot tell"
    )


@dataclass(frozen=True)
class Difference:
    """A difference of two scores with its verdict; points, None where undefined.

    `why`: of "cannot tell", what stands in the way.
    """

    points: float | None = None
    se: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    verdict: Verdict = "not run"
    why: str = ""


def _points(x: float) -> float | None:
    return None if math.isnan(x) else round(100 * x, 6) + 0.0


def measured(found: Fixed, why: str = "") -> Difference:
    """Without its verdict, which takes all differences of a table (`judged`).

    Args:
        why: what forbids any verdict; the difference is then shown without interval and p.
    """
    if why:
        return Difference(_points(found.difference), verdict="cannot tell", why=why)
    p = None if math.isnan(found.p) else found.p
    points, se, low, high = map(_points, (found.difference, found.se, found.low, found.high))
    return Difference(points, se, low, high, p, verdict="cannot tell")


def judged(differences: Sequence[Difference], margin: float) -> list[Difference]:
    """The same differences with Holm's p over all of them, and each with its verdict."""
    adjusted = holm([math.nan if d.p is None else d.p for d in differences])
    return [_judged(d, p, margin) for d, p in zip(differences, adjusted, strict=True)]


def _judged(d: Difference, p: float, margin: float) -> Difference:
    if d.verdict == "not run" or d.why:
        return d
    if math.isnan(p):
        return replace(d, why="the noise cannot be estimated")
    verdict, why = "cannot tell", ""
    if p < ALPHA:
        verdict = "differs"
    elif d.low is not None and d.high is not None and -margin <= d.low and d.high <= margin:
        verdict = "agrees"
    elif d.low is None:
        why = "too few samples differ" if d.points else "these samples have no spread"
    elif d.low > 0 or (d.high is not None and d.high < 0):
        why = "0 is outside the interval, but not after Holm"
    else:
        why = "the interval is wider than the margin"
    return replace(d, p_holm=p, verdict=verdict, why=why)


def scores(record: CellRecord, by: Literal["scored", "rule"] = "scored") -> list[list[float]]:
    """(Q, N), NaN where a sample is missing: as scored, or by the rule alone."""
    return [parse_verdicts((p.rule or p.verdicts) if by == "rule" else p.verdicts) for p in record.problems]


def obstacle(record: CellRecord) -> str:
    """Why no difference of this cell can be judged; "" for nothing."""
    letters = "".join(p.verdicts for p in record.problems)
    if missing := letters.count("-"):
        return f"{missing} of {len(letters):,} samples missing"
    return "one sample a problem has no spread" if record.n < 2 else ""
