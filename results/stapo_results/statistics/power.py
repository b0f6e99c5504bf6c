"""What a design can tell from noise: standard errors and minimal detectable differences from N and row counts alone.

Let p_q be a model's chance on problem q, p their mean, and N the samples a problem. A problem's score has the variance
p (1 - p) / N + Var(p_q) (1 - 1 / N), and Var(p_q) lies between 0 (problems alike) and p (1 - p) (each problem always
right or always wrong). So a printed mean alone bounds its standard error between sqrt(p (1 - p) / (Q N)) and
sqrt(p (1 - p) / Q). Values are fractions; dimensions: Q problems, N samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import ndtri

from stapo_results.errors import BadInput

POWER = 0.8
ALPHA = 0.05


@dataclass(frozen=True)
class Design:
    """Two models on one benchmark: their mean scores (fractions), its problems, and the samples a problem."""

    first: float
    second: float
    problems: int
    samples: int


@dataclass(frozen=True)
class Bounds:
    """Two standard errors of a difference between which an unpaired comparison lies.

    Attributes:
        sampling: problems alike in difficulty, so that only the sampling of answers is left.
        unpaired: each problem always right or always wrong, and the models' problems independent of one another.
    """

    sampling: float
    unpaired: float


def difference_se(designs: Sequence[Design]) -> Bounds:
    """Standard error of the difference of two models, averaged over benchmarks unweighted.

    A comparison paired by problem may lie below `unpaired` by any amount, since what makes a problem hard for both
    models drops out; below `sampling` only as far as problems are nearly certain for both.

    Raises:
        BadInput: no benchmark, a score outside 0 to 1, or a count below 1.
    """
    if not designs:
        raise BadInput("a comparison needs at least one benchmark", found=0, expected=">= 1")
    for d in designs:
        if not (0 <= d.first <= 1 and 0 <= d.second <= 1):
            raise BadInput("a score lies outside 0 to 1", found=(d.first, d.second), expected="fractions")
        if d.problems < 1 or d.samples < 1:
            raise BadInput("a benchmark without problems or samples", found=(d.problems, d.samples), expected=">= 1")
    spread = [(d.first * (1 - d.first) + d.second * (1 - d.second)) / d.problems for d in designs]
    k = len(designs)
    return Bounds(
        sampling=math.sqrt(math.fsum(v / d.samples for v, d in zip(spread, designs, strict=True))) / k,
        unpaired=math.sqrt(math.fsum(spread)) / k,
    )


def minimal_detectable(se: float, *, power: float = POWER, alpha: float = ALPHA) -> float:
    """The true difference that a two-sided test at `alpha` finds with probability `power`.

    (z(1 - alpha / 2) + z(power)) SE, by the normal approximation without the far tail (Bloom 1995, Evaluation Review
    19(5)): 2.8016 SE at 0.05 and 0.8.

    Raises:
        BadInput: a negative standard error, or a probability that is not between 0 and 1.
    """
    if not (0 < power < 1 and 0 < alpha < 1):
        raise BadInput("power and alpha lie between 0 and 1", found=(power, alpha), expected=(POWER, ALPHA))
    if se < 0:
        raise BadInput("a standard error is not negative", found=se, expected=">= 0")
    return float(ndtri(1 - alpha / 2) + ndtri(power)) * se
