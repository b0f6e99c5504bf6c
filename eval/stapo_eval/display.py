"""What a running evaluation shows, one stage at a time, and tells the driver."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from stapo_eval.tally import CellProgress, Tally
from stapo_results import terminal
from stapo_results.terminal import Display, duration

if TYPE_CHECKING:
    from rich.table import Table

_REDRAW_SECONDS = 1.0  # a table costs statistics
_REPORT_SECONDS = 0.5


class StageDisplay:
    """Counts of a stage; `update` and `cells` may be called as often as convenient.

    Args:
        label: what is being worked on, shown before the stage.
    """

    def __init__(self, label: str):
        self.label, self.stage, self.first = label, "", 0
        self.began = self.drawn = self.reported = 0.0
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

    def update(self, done: int, total: int) -> None:
        left = (time.monotonic() - self.began) * (total - done) / max(1, done - self.first)
        self._show(lambda: f"{done}/{total}, {duration(left)} left", done, total, {})

    def cells(self, tally: Tally) -> None:
        """Show where generation stands, cell by cell."""
        seconds = time.monotonic() - self.began
        done, total, speed = tally.done, tally.total, tally.speed(seconds)

        def line() -> str:
            whole = f"{done}/{total}, {speed:,.0f} tokens/s, {duration(tally.left(seconds))} left"
            if self.display.is_live:
                return whole
            return f"{whole}, in % so far by rule: {cells_line(tally.cells_at(seconds))}"

        self._show(line, done, total, {"tokens_per_second": speed}, lambda: table(tally.cells_at(seconds)))

    def _show(
        self,
        line: Callable[[], str],
        done: int,
        total: int,
        values: dict[str, float],
        above: Callable[[], Table] | None = None,
    ) -> None:
        now = time.monotonic()
        if not self.display.is_live or now - self.drawn >= _REDRAW_SECONDS or done == total:
            self.drawn = now
            self.display.show(lambda: f"{self.label}: {self.stage} {line()}", done / max(1, total), above)
        if now - self.reported >= _REPORT_SECONDS or done == total:
            self.reported = now
            terminal.report_progress(self.stage, done, total, **values)


def accuracy(cell: CellProgress) -> str:
    """So far by rule, with the 95 % interval, in %; and how many samples the cheap rule left open."""
    if cell.accuracy is None:
        return "?"
    a = cell.accuracy
    interval = "" if a.low != a.low else f" ({100 * a.low:.0f} to {100 * a.high:.0f})"
    return f"{100 * a.mean:.1f}{interval}" + (f", {cell.open} open" if cell.open else "")


def cells_line(cells: Sequence[CellProgress]) -> str:
    """Every cell in one line: `aime24 t1.0 5/96 31.2 (20 to 42) 120 tokens/s 10 s left`, a finished one shorter."""
    parts = []
    for c in cells:
        text = f"{c.benchmark} {c.setting} {c.done}/{c.total} {accuracy(c)}"
        if c.done < c.total:
            text += f" {c.speed:,.0f} tokens/s {duration(c.left)} left"
        parts.append(text + (f" {c.errors} FAILED" if c.errors else ""))
    return "; ".join(parts)


def table(cells: Sequence[CellProgress]) -> Table:
    """Every cell in one row."""
    from rich.table import Table
    from rich.text import Text

    found = Table(box=None, pad_edge=False)
    for name in ("benchmark", "setting", "samples", "tokens/s", "% so far by rule", "left", ""):
        found.add_column(name, justify="left" if name in ("benchmark", "setting") else "right")
    for c in cells:
        left = "done" if c.done == c.total else duration(c.left)
        failed = f"[bold red]{c.errors} failed[/]" if c.errors else ""
        count, speed = f"{c.done}/{c.total}", f"{c.speed:,.0f}"
        found.add_row(Text(c.benchmark), c.setting, count, speed, accuracy(c), left, failed)
    return found
