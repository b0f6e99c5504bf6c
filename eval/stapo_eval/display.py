"""What a running evaluation shows, one stage at a time, and tells the driver."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType

from stapo_eval.grading.rules import Gold, Options, quick
from stapo_results import terminal
from stapo_results.answers import last_boxed
from stapo_results.schema import Sample
from stapo_results.terminal import Display, duration

_REPORT_SECONDS = 0.5


class StageDisplay:
    """Counts of a stage; `update` may be called as often as convenient.

    Args:
        label: what is being worked on, shown before the stage.
    """

    def __init__(self, label: str):
        self.label, self.stage, self.first = label, "", 0
        self.began = self.reported = 0.0
        self.display = Display()

    def __enter__(self) -> StageDisplay:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.display.close()

    def start(self, stage: str, done: int, total: int) -> None:
        self.stage, self.first, self.began = stage, done, time.monotonic()
        if not self.display.is_live:
            self.display.say(f"{self.label}: {stage}, {done} of {total} done")
        terminal.report_progress(stage, done, total)

    def update(self, done: int, total: int, more: Callable[[], str] = str, **values: float) -> None:
        """Show where the stage stands.

        Args:
            more: what else the line says.
            values: what else the driver is told.
        """
        now = time.monotonic()
        left = (now - self.began) * (total - done) / max(1, done - self.first)
        line = f"{self.label}: {self.stage} {done}/{total}, {duration(left)} left"
        self.display.show(lambda: line + more(), done / max(1, total))
        if now - self.reported >= _REPORT_SECONDS or done == total:
            self.reported = now
            terminal.report_progress(self.stage, done, total, **values)

    def generated(self, tally: Tally) -> None:
        """Show where generation stands."""
        speed = tally.tokens / max(1e-9, time.monotonic() - self.began)
        self.update(tally.done, tally.total, lambda: f", {speed:,.0f} tokens/s{tally}", tokens_per_second=speed)


@dataclass
class CellTally:
    """One cell: what is asked, and how many samples the cheap part of the rule has decided and found right."""

    name: str
    golds: Mapping[str, tuple[Gold, Options]]
    decided: int = 0
    right: int = 0
    known: dict[tuple[str, str | None], bool | None] = field(default_factory=dict)

    def add(self, problem: str, answer: str | None) -> None:
        if (problem, answer) not in self.known:
            gold, options = self.golds[problem]
            self.known[problem, answer] = False if answer is None else quick(gold, answer, options)
        verdict = self.known[problem, answer]
        self.decided += verdict is not None
        self.right += bool(verdict)


class Tally:
    """All cells of a run.

    Attributes:
        tokens: those that this process has made.
        failed: samples on which the engine failed, which are in no accuracy.
    """

    def __init__(self, cells: dict[str, CellTally], total: int, recorded: Iterable[Sample]):
        self.cells, self.total = cells, total
        self.done = self.failed = self.tokens = 0
        self.add(recorded)
        self.tokens = 0

    def add(self, samples: Iterable[Sample]) -> None:
        for s in samples:
            self.done += 1
            self.tokens += s.response_tokens
            if s.finish_reason == "error":
                self.failed += 1
            else:
                self.cells[s.cell].add(s.problem_id, last_boxed(s.response))

    def __str__(self) -> str:
        """The end of a line: failures, and each cell's accuracy in percent over what is decided without algebra."""
        shares = [f"{c.name} {100 * c.right / c.decided:.1f}" for c in self.cells.values() if c.decided]
        failed = f", {self.failed} FAILED" if self.failed else ""
        return failed + (f", in % so far by rule: {'; '.join(shares)}" if shares else "")
