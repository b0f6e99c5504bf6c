"""What a running evaluation knows of its cells: counts, speed, the accuracy so far by the cheap part of the rule."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from stapo_eval.grading.rules import Gold, Options, quick
from stapo_results.answers import last_boxed
from stapo_results.schema import Sample
from stapo_results.statistics import Estimate, clustered


@dataclass
class CellTally:
    """One cell.

    Attributes:
        golds: answer and grading options by problem id.
        scores: by problem id, 1.0, 0.0, or NaN where the rule would need algebra; samples that failed are not in it.
        decided: score by problem id and answer.
        tokens: those that this process has made; all_tokens: with those from before.
    """

    benchmark: str
    setting: str
    total: int
    golds: dict[str, tuple[Gold, Options]]
    scores: dict[str, list[float]] = field(default_factory=dict)
    decided: dict[tuple[str, str], float] = field(default_factory=dict)
    done: int = 0
    tokens: int = 0
    all_tokens: int = 0
    errors: int = 0

    def add(self, sample: Sample, *, fresh: bool) -> None:
        self.done += 1
        self.all_tokens += sample.response_tokens
        if fresh:
            self.tokens += sample.response_tokens
        if sample.finish_reason == "error":
            self.errors += 1
        else:
            self.scores.setdefault(sample.problem_id, []).append(self._score(sample))

    def _score(self, sample: Sample) -> float:
        answer = last_boxed(sample.response)
        if answer is None:
            return 0.0
        known = self.decided.get((sample.problem_id, answer))
        if known is None:
            gold, options = self.golds[sample.problem_id]
            verdict = quick(gold, answer, options)
            known = math.nan if verdict is None else float(verdict)
            self.decided[sample.problem_id, answer] = known
        return known

    def accuracy(self) -> Estimate | None:
        """Over the problems and samples that are decided so far; None while there is none."""
        rows = [[x for x in s if not math.isnan(x)] for s in self.scores.values()]
        rows = [r for r in rows if r]
        if not rows:
            return None
        longest = max(map(len, rows))
        return clustered([r + [math.nan] * (longest - len(r)) for r in rows])

    @property
    def open(self) -> int:
        """Samples whose verdict needs algebra and is therefore not in the accuracy yet."""
        return sum(math.isnan(x) for s in self.scores.values() for x in s)


@dataclass(frozen=True)
class CellProgress:
    """A cell as it is shown; speeds in tokens per second, times in seconds, None where not known yet."""

    benchmark: str
    setting: str
    done: int
    total: int
    speed: float
    left: float | None
    accuracy: Estimate | None
    open: int
    errors: int


class Tally:
    """All cells of a run. The caller asks the clock, so a figure is a function of what was added and when."""

    def __init__(self, cells: dict[str, CellTally], recorded: Iterable[Sample]):
        self.cells = cells
        for s in recorded:
            cells[s.cell].add(s, fresh=False)

    def add(self, samples: Iterable[Sample]) -> None:
        for s in samples:
            self.cells[s.cell].add(s, fresh=True)

    @property
    def done(self) -> int:
        return sum(c.done for c in self.cells.values())

    @property
    def total(self) -> int:
        return sum(c.total for c in self.cells.values())

    def speed(self, seconds: float) -> float:
        return sum(c.tokens for c in self.cells.values()) / seconds if seconds > 0 else 0.0

    def left(self, seconds: float, cells: Sequence[CellTally] | None = None) -> float | None:
        """Seconds until the cells (default: all) are done at the speed so far, by each cell's mean length, or by all
        cells' where it has none. Short responses come first, so early figures are low."""
        everything, speed = list(self.cells.values()), self.speed(seconds)
        if not (self.done and speed):
            return None
        mean = sum(c.all_tokens for c in everything) / self.done
        tokens = sum((c.total - c.done) * (c.all_tokens / c.done if c.done else mean) for c in cells or everything)
        return tokens / speed

    def cells_at(self, seconds: float) -> list[CellProgress]:
        """Every cell after `seconds` of generating. A cell's time left is what it needs with the engine to itself."""
        return [
            CellProgress(
                benchmark=c.benchmark,
                setting=c.setting,
                done=c.done,
                total=c.total,
                speed=c.tokens / seconds if seconds > 0 else 0.0,
                left=self.left(seconds, [c]),
                accuracy=c.accuracy(),
                open=c.open,
                errors=c.errors,
            )
            for c in self.cells.values()
        ]
