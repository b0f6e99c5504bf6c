"""The paper's gains beside the smallest difference that its own design (N and row counts) can tell from noise.

Uses what is printed and nothing else; formulas in `stapo_results.statistics.comparison`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from stapo_repro import labels
from stapo_repro.paper import PaperTable
from stapo_repro.tables.rounding import percent
from stapo_results.benchmarks import registry
from stapo_results.schema import SETTINGS
from stapo_results.statistics import Design, difference_se, minimal_detectable

METHOD = "stapo"
BASELINES = tuple(m for m in labels.METHODS if m != METHOD)

Reading = Literal["above both", "between", "below both"]


@dataclass(frozen=True)
class Gain:
    """STAPO's printed value minus a baseline's, in percentage points, with bounds from the design.

    Attributes:
        points: exact difference of the two printed values.
        se_sampling, se_unpaired: standard errors (see `statistics.Bounds`).
        mde_sampling, mde_unpaired: minimal detectable differences at 80 % power and a two-sided 5 %.
        reading: where the size of the gain lies beside those two.
    """

    size: str
    setting: str
    benchmark: str
    baseline: str
    points: float
    se_sampling: float
    se_unpaired: float
    mde_sampling: float
    mde_unpaired: float
    reading: Reading


def _points(fraction: float) -> float:
    value = percent(fraction)
    assert value is not None  # printed values are numbers
    return value


def _gain(paper: PaperTable, size: str, setting: str, benchmarks: Sequence[str], name: str, baseline: str) -> Gain:
    ours, theirs = paper.get(size, METHOD, setting), paper.get(size, baseline, setting)
    assert ours is not None  # `PaperTable` is complete
    assert theirs is not None
    specs = registry()
    designs = [
        Design(
            float(ours.values[b]) / 100, float(theirs.values[b]) / 100, specs[b].rows, paper.samples_per_problem[b]
        )
        for b in benchmarks
    ]  # fmt: skip
    se = difference_se(designs)
    low, high = _points(minimal_detectable(se.sampling)), _points(minimal_detectable(se.unpaired))
    points = float(Decimal(ours.values[name]) - Decimal(theirs.values[name]))
    reading: Reading = "below both" if abs(points) < low else "between" if abs(points) < high else "above both"
    return Gain(
        size, setting, name, baseline, points, _points(se.sampling), _points(se.unpaired), low, high, reading
    )  # fmt: skip


def paper_gains(paper: PaperTable) -> list[Gain]:
    """Every size, baseline, setting and column (six benchmarks and their average)."""
    columns = {**{b: (b,) for b in labels.PAPER_BENCHMARKS}, labels.AVERAGE: tuple(labels.PAPER_BENCHMARKS)}
    return [
        _gain(paper, size, setting, benchmarks, name, baseline)
        for size in labels.PAPER_SIZES
        for baseline in BASELINES
        for name, benchmarks in columns.items()
        for setting in SETTINGS
    ]
