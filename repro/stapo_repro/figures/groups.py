"""The records of the main experiment, by group, and the few quantities that several figures show.

A group is what one figure shows: the miniature, one of the paper's sizes, or another model.
Quantities come from the tables' own functions, so that a figure and a table never differ.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from stapo_repro import labels
from stapo_repro.paper import PaperTable
from stapo_repro.read import Loaded, TrainingRun, final_step
from stapo_repro.scores import Score, ScoreKey, average, difference, score_all
from stapo_results.sizes import SMALL

Gap = Literal["not run", "other problems", "samples missing"]
TAU_P, Q = 0.002, 0.75  # the paper's values (Section "Experiments", table of hyperparameters)
_NO_TEST = 100  # resamples of the sign-flip test, whose p-value no figure shows
_NUMBER = r"\d+(?:\.\d+)?(?:e-?\d+)?"
_VARIANT = re.compile(rf"(stapo|stapo-high-entropy|stapo-random)(?:-tau({_NUMBER}))?(?:-q({_NUMBER}))?")


def variant(label: str) -> tuple[str, float, float] | None:
    """(selector, tau_p, q) of a run with another tau_p or q, from its label as the trainer writes it:
    `stapo-tau0.0002`, `stapo-random-q0.5`; None for any other label, the plain methods among them."""
    found = _VARIANT.fullmatch(label)
    if not found or not (found[2] or found[3]):
        return None
    return found[1], float(found[2] or TAU_P), float(found[3] or Q)


@dataclass(frozen=True)
class Value:
    """A quantity with its 95 % interval (None: there is none, as with a single seed) and the value of each seed."""

    mean: float
    low: float | None = None
    high: float | None = None
    seeds: tuple[float, ...] = ()


@dataclass(frozen=True)
class Group:
    """What one figure shows.

    Attributes:
        size: the size label of its records.
        methods: in drawing order, without the base model.
        models: the same, behind the base model where that was evaluated or something was trained from it.
        benchmarks: in the table's order.
    """

    size: str
    methods: tuple[str, ...]
    models: tuple[str, ...]
    benchmarks: tuple[str, ...]
    synthetic: bool = False

    @property
    def name(self) -> str:
        """First part of the file's name."""
        return "miniature" if self.size == labels.MINI else re.sub(r"[^A-Za-z0-9.-]+", "_", self.size)

    def heading(self, text: str) -> str:
        """The figure's title: what is not a result of the paper's models says so in it."""
        where = " (miniature)" if self.size == labels.MINI else f", {labels.size_label(self.size)}"
        return f"{text}{where}{', SYNTHETIC RECORDS' if self.synthetic else ''}"

    def opening(self, what: str) -> str:
        """First sentence of the caption."""
        where = " in the miniature" if self.size == labels.MINI else f" for {labels.size_label(self.size)}"
        aside = labels.what_it_is(self.size)
        end = f": {aside}." if aside else "."
        return f"{what}{where}{end}{' SYNTHETIC RECORDS, made up for a test.' if self.synthetic else ''}"


@dataclass(frozen=True)
class Experiment:
    """All records of the main experiment.

    Attributes:
        cells: evaluations, of final checkpoints alone (see `final_step`).
        runs: trainings.
    """

    cells: Sequence[Loaded]
    runs: Sequence[TrainingRun]
    paper: PaperTable

    @classmethod
    def from_records(cls, cells: Sequence[Loaded], runs: Sequence[TrainingRun], paper: PaperTable) -> Experiment:
        """Order the records of one experiment.

        Raises:
            RecordError: records that do not fit into one table (see `scores.score`).
        """
        return cls(final_step(cells)[0], runs, paper)

    @cached_property
    def scores(self) -> dict[ScoreKey, Score]:
        return score_all(self.cells)

    def groups(self) -> list[Group]:
        """One group per size with any record: the miniature, the paper's, others. Without any: the miniature."""
        found = {c.record.cell.size for c in self.cells} | {r.size for r in self.runs} or {labels.MINI}
        known = [s for s in (labels.MINI, *labels.PAPER_SIZES) if s in found]
        return [self.group(size) for size in (*known, *sorted(found - set(known)))]

    def group(self, size: str) -> Group:
        """What is on record of a size, and which of the paper's methods and benchmarks are expected of it."""
        cells = [c.record for c in self.cells if c.record.cell.size == size]
        runs = [r for r in self.runs if r.size == size]
        own = tuple(labels.METHODS)
        # runs with another tau_p or q have a figure of their own
        found = {m for m in (*(c.cell.method for c in cells), *(r.method for r in runs)) if not variant(m)}
        benchmarks = tuple(labels.benchmarks_of(size))
        if size not in (labels.MINI, SMALL, *labels.PAPER_SIZES):
            benchmarks = tuple(sorted({c.cell.benchmark for c in cells}))
            own = tuple(m for m in own if m in found)
        methods = (*own, *sorted(found - {*own, labels.BASE}))
        trained = own or runs or any(c.cell.step != "base" for c in cells)
        models = (labels.BASE, *methods) if trained or labels.BASE in found else methods
        return Group(size, methods, models, benchmarks, any(x.synthetic for x in (*cells, *runs)))

    def runs_of(self, size: str, methods: Sequence[str]) -> dict[str, list[TrainingRun]]:
        """Trainings by method, in the order of `methods`; one without a run has an empty list."""
        return {m: [r for r in self.runs if (r.size, r.method) == (size, m)] for m in methods}

    def accuracy(self, size: str, method: str, benchmarks: Sequence[str], setting: str) -> Value | None:
        """Accuracy in percent, averaged (unweighted) over `benchmarks`; None unless all of them were run."""
        found = average([self.scores.get((size, method, b, setting)) for b in benchmarks])
        if isinstance(found, str):
            return None
        e = found.estimate
        ends = (None, None) if math.isnan(e.low) else (100 * e.low, 100 * e.high)
        return Value(100 * e.mean, *ends, tuple(100 * x for x in found.seeds.values()))

    def difference(self, size: str, first: str, second: str, benchmarks: Sequence[str], setting: str) -> Value | Gap:
        """Accuracy of `first` minus `second` in points, paired by problem; or why there is none."""
        one, other = ([self.scores.get((size, m, b, setting)) for b in benchmarks] for m in (first, second))
        d = difference(one, other, (first, second, "", setting), flips=_NO_TEST)
        if d.status != "run":
            return d.status
        return "samples missing" if d.points is None else Value(d.points, d.low, d.high)

    def remarks(self, group: Group) -> list[str]:
        """What a caption must say loudly: missing samples, benchmarks of which only a part was run."""
        shown = {k: s for k, s in self.scores.items() if k[0] == group.size and k[2] in group.benchmarks}
        lacking = [s.estimate.missing for s in shown.values() if s.estimate.missing]
        out = [f"MISSING SAMPLES: {sum(lacking)} in {len(lacking)} cells, see the table."] if lacking else []
        parts = {(k[2], s.estimate.problems, s.rows) for k, s in shown.items() if s.estimate.problems != s.rows}
        return out + [f"Only {n} of {rows} problems of {labels.benchmark_label(b)}." for b, n, rows in sorted(parts)]
