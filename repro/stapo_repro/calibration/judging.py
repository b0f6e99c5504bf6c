"""When two scores agree, differ, or cannot be told apart; and the scores of a cell's record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from stapo_repro.text import p_shown, percent
from stapo_results.benchmarks import registry
from stapo_results.schema import Cell, CellRecord
from stapo_results.statistics import holm, parse_verdicts
from stapo_results.statistics.fixed import Fixed

ALPHA = 0.05
MARGIN = 5.0  # points
Verdict = Literal["agrees", "differs", "cannot tell", "not run"]


def rule(margin: float) -> str:
    """The rule of a verdict, as every output prints it."""
    return (
        f"differs: p after Holm below {ALPHA:g}; else agrees: the 95 % interval, not corrected for the number of rows, "
        f"holds 0 and lies within {margin:g} points of it; else cannot tell"
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


def measured(found: Fixed, why: str = "") -> Difference:
    """Without its verdict, which takes all differences of a table (`judged`).

    Args:
        why: what forbids any verdict; the difference is then shown without interval and p.
    """
    if why:
        return Difference(percent(found.difference), verdict="cannot tell", why=why)
    p = None if math.isnan(found.p) else found.p
    points, se, low, high = map(percent, (found.difference, found.se, found.low, found.high))
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
    elif d.low is None or d.high is None:
        why = "too few samples differ" if d.points else "these samples have no spread"
    elif not d.low <= 0 <= d.high:
        before = "not after Holm" if d.p is not None and d.p < ALPHA else f"p is {p_shown(d.p)} before Holm too"
        why = f"0 is outside the t interval, but {before}"
    elif -margin <= d.low and d.high <= margin:
        verdict = "agrees"
    else:
        why = "the interval is wider than the margin"
    return replace(d, p_holm=p, verdict=verdict, why=why)


def scores(record: CellRecord, by: Literal["scored", "rule"] = "scored") -> list[list[float]]:
    """(Q, N), NaN where a sample is missing: as scored, or by the rule alone."""
    return [parse_verdicts((p.rule or p.verdicts) if by == "rule" else p.verdicts) for p in record.problems]


def mean(scores_QN: ArrayLike) -> float | None:
    """In percent; None with a missing sample."""
    return percent(float(np.asarray(scores_QN, dtype=np.float64).mean()))


def at(cell: Cell) -> str:
    """The decoding's name, with the evaluation seed where it is not the first."""
    return cell.setting + (f", seed {cell.eval_seed}" if cell.eval_seed else "")


def obstacle(record: CellRecord) -> str:
    """Why no difference of this cell can be judged; "" for nothing."""
    letters = "".join(p.verdicts for p in record.problems)
    if missing := letters.count("-"):
        return f"{missing} of {len(letters):,} samples missing"
    return "one sample a problem has no spread" if record.n < 2 else ""


def other_problems(r: CellRecord) -> str:
    """Why these are not the registered problems; "" where they are."""
    spec = registry().get(r.cell.benchmark)
    if r.variant:
        return f"other problems: {r.variant}"
    if spec and (len(r.problems), r.benchmark_sha256) != (spec.rows, spec.golds_sha256):
        return f"other problems: {len(r.problems)}, registered are {spec.rows}, or other answers"
    return ""
