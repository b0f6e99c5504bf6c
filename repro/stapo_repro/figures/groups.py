"""The records of the main experiment, by size, and the few quantities that several figures show.

Quantities come from the tables' own functions, so that a figure and a table never differ.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

from matplotlib.figure import Figure

from stapo_repro import labels
from stapo_repro.figures.style import Sketch
from stapo_repro.paper import PaperTable, variant
from stapo_repro.read import Loaded, TrainingRun, check_seeds, final_step
from stapo_repro.scores import Difference, Score, ScoreKey, average, difference, score_all, unlike
from stapo_results.statistics import Number

_NO_TEST = 100  # resamples of the sign-flip test, whose p-value no figure shows


@dataclass(frozen=True)
class Group:
    """The records of one size: the miniature, one of the paper's sizes, or another model.

    Attributes:
        cells: evaluations, of final checkpoints alone (see `final_step`); runs: trainings.
        methods: those that figures show, in drawing order, without the base model.
    """

    size: str
    cells: Sequence[Loaded]
    runs: Sequence[TrainingRun]
    paper: PaperTable
    methods: tuple[str, ...]

    @property
    def name(self) -> str:
        """First part of the files' names."""
        return "miniature" if self.size == labels.MINI else re.sub(r"[^A-Za-z0-9.-]+", "_", self.size)

    @cached_property
    def benchmarks(self) -> tuple[str, ...]:
        """Those of the table in its order; of a model without any of its own those that it was evaluated on."""
        if self.size in (labels.MINI, *labels.PAPER_SIZES) or (self.cells and self.size in labels.REAL_SIZES):
            return tuple(labels.benchmarks_of(self.size))
        return tuple(sorted({c.record.cell.benchmark for c in self.cells}))

    @cached_property
    def models(self) -> tuple[str, ...]:
        """The methods, behind the base model where that was evaluated or something was trained from it."""
        trained = self.runs or any(c.record.cell.step != "base" for c in self.cells)
        expected = {*labels.METHODS} & {*self.methods} or labels.BASE in self.recorded
        return (labels.BASE, *self.methods) if trained or expected else self.methods

    @cached_property
    def recorded(self) -> set[str]:
        """Every method with a record, runs with another tau_p or q among them."""
        return {c.record.cell.method for c in self.cells} | {r.method for r in self.runs}

    @cached_property
    def scores(self) -> dict[ScoreKey, Score]:
        return score_all(self.cells)

    def runs_of(self, method: str) -> list[TrainingRun]:
        """The trainings of a method."""
        return [r for r in self.runs if r.method == method]

    def finished(self, method: str) -> list[TrainingRun]:
        """Those of them that are done."""
        return [r for r in self.runs_of(method) if r.status == "done"]

    def only(self, *methods: str) -> Group:
        """The same records, of which figures show these methods."""
        return replace(self, methods=methods)

    def accuracy(self, method: str, benchmarks: Sequence[str], setting: str) -> Number:
        """Accuracy in percent, averaged (unweighted) over `benchmarks`; not known unless all of them were run."""
        return average(self._scores_of(method, benchmarks, setting)).percent

    def _scores_of(self, method: str, benchmarks: Sequence[str], setting: str) -> list[Score]:
        return [self.scores.get((self.size, method, b, setting), Score()) for b in benchmarks]

    def difference(self, first: str, second: str, benchmarks: Sequence[str], setting: str) -> Difference:
        """Accuracy of `first` minus `second` in points, paired by problem; or why there is none."""
        ours, theirs = (self._scores_of(m, benchmarks, setting) for m in (first, second))
        return difference(ours, theirs, (first, second, "", setting), flips=_NO_TEST)

    def sketch(
        self, kind: str, title: str, figure: Figure, caption: str, missing: Sequence[str] = (), *,
        finding: str = "", evaluated: bool = False,
    ) -> Sketch:  # fmt: skip
        """The figure under the group's name. What is not a result of the paper's models says so in title and caption.

        Args:
            evaluated: it shows evaluations: the caption says loudly where samples or problems of them are missing.
        """
        title += " (miniature)" if self.size == labels.MINI else f", {labels.size_label(self.size)}"
        sentences = [labels.what_it_is(self.size)]
        if any(c.record.synthetic for c in self.cells) or any(r.synthetic for r in self.runs):
            title += ", SYNTHETIC RECORDS"
            sentences.append(labels.SYNTHETIC)
        sentences.append(caption)
        if evaluated:
            sentences += self._remarks()
        caption = " ".join(filter(None, sentences))
        return Sketch(f"{self.name}_{kind}", title, figure, caption, tuple(missing), finding)

    def _remarks(self) -> list[str]:
        """What the scores that are shown lack: samples, then problems of a benchmark."""
        shown = [(key[2], s) for key, s in self.scores.items() if key[2] in self.benchmarks]
        lacking = [s.estimate.missing for _, s in shown if s.estimate.missing]
        parts = {(name, s.estimate.problems, s.rows) for name, s in shown if s.estimate.problems != s.rows}
        remarks = [f"Only {n} of {rows} problems of {labels.benchmark_label(name)}." for name, n, rows in sorted(parts)]
        if lacking:
            remarks.insert(0, f"MISSING SAMPLES: {sum(lacking)} in {len(lacking)} cells, see the table.")
        sampled = {(name, s.cells[0].record.cell.setting, engine) for name, s in shown for _, engine in s.engines}
        if len(sampled) > len({(name, setting) for name, setting, _ in sampled}):
            remarks.append("NOT SAMPLED ALIKE: by several engines, see the table.")
        pairs = combinations(
            [(key[2:], s) for key, s in self.scores.items() if key[2] in self.benchmarks and s.cells], 2
        )
        if any(x == y and unlike(a, b) - {"engines"} for (x, a), (y, b) in pairs):
            remarks.append("NOT EVALUATED ALIKE, see the table.")
        return remarks


def groups(cells: Sequence[Loaded], runs: Sequence[TrainingRun], paper: PaperTable) -> dict[str, Group]:
    """Size -> its group, of each size with any record: the miniature, the paper's, others. Without any: the miniature.

    A group's methods are the paper's, and further ones with a record; of another model those with a record alone. Runs
    with another tau_p or q are in no group's methods: they have a figure of their own.

    Raises:
        BadInput: two trainings of one seed.
    """
    check_seeds(runs)
    final = final_step(cells)[0]
    sizes = {c.record.cell.size for c in final} | {r.size for r in runs} or {labels.MINI}
    expected = [s for s in (labels.MINI, *labels.PAPER_SIZES) if s in sizes]
    out = {}
    for size in (*expected, *sorted(sizes.difference(expected))):
        cells_of_size = [c for c in final if c.record.cell.size == size]
        group = Group(size, cells_of_size, [r for r in runs if r.size == size], paper, ())
        recorded = {m for m in group.recorded if not variant(m)}
        papers = [m for m in labels.METHODS if size in expected or m in recorded]
        out[size] = group.only(*papers, *sorted(recorded.difference(papers, [labels.BASE])))
    return out
