"""Progress of a long command: for the driver; on a terminal, live; elsewhere, one plain line a minute."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from stapo_eval.tally import Row, Tally
from stapo_results import progress

if TYPE_CHECKING:
    from rich.console import Group
    from rich.progress import Progress

EVERY = 60.0  # seconds between plain lines
REDRAW = 1.0  # seconds between redrawn tables: they cost statistics
_REPORT_EVERY = 0.5


def clock(seconds: float | None) -> str:
    """1:02:03 or 02:03."""
    if seconds is None:
        return "?"
    whole = int(seconds + 0.5)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60:02}:{rest % 60:02}"


def accuracy(row: Row) -> str:
    """So far by rule, with the 95 % interval, in %; and how many samples the cheap rule left open."""
    if row.accuracy is None:
        return "?"
    a = row.accuracy
    interval = "" if a.low != a.low else f" ({100 * a.low:.0f} to {100 * a.high:.0f})"
    return f"{100 * a.mean:.1f}{interval}" + (f", {row.open} open" if row.open else "")


def cells_line(rows: Sequence[Row]) -> str:
    """Every cell in one line: `aime24 t1.0 5/96 31.2 (20 to 42) 120 tokens/s 00:10 left`, a finished one shorter."""
    parts = []
    for r in rows:
        text = f"{r.benchmark} {r.setting} {r.done}/{r.total} {accuracy(r)}"
        if r.done < r.total:
            text += f" {r.speed:,.0f} tokens/s {clock(r.left)} left"
        parts.append(text + (f" {r.errors} FAILED" if r.errors else ""))
    return "; ".join(parts)


class Display:
    """One stage at a time; `update` may be called as often as convenient.

    Args:
        label: what is being worked on, shown before the stage.
    """

    def __init__(self, label: str):
        self.label, self.stage = label, ""
        self.began = self.last_line = self.last_report = self.last_table = 0.0
        self.first = 0
        self.live = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self.bar = Progress(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
            )  # fmt: skip
            self.live = Live(self.bar, console=Console(stderr=True), refresh_per_second=4)

    def __enter__(self) -> Display:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.live:
            self.live.stop()

    def start(self, stage: str, done: int, total: int) -> None:
        self.stage, self.first = stage, done
        self.began = self.last_line = time.monotonic()
        self.last_table = 0.0
        if self.live:
            for task in self.bar.task_ids:
                self.bar.remove_task(task)
            self.bar.add_task(f"{self.label}: {stage}", total=total, completed=done, note="")
            self.live.update(self.bar)
        else:
            print(f"{self.label}: {stage}, {done} of {total} done", file=sys.stderr, flush=True)
        progress.report(stage, done, total)

    def update(self, done: int, total: int, **values: float) -> None:
        """`values` are shown by name, rounded."""
        now = time.monotonic()
        note = ", ".join(f"{k.replace('_', ' ')} {v:,.4g}" for k, v in values.items())
        if self.live:
            self.bar.update(self.bar.task_ids[0], completed=done, note=note)
        elif now - self.last_line >= EVERY:
            self.last_line = now
            left = (now - self.began) * (total - done) / max(1, done - self.first)
            self._say(f"{done}/{total}, {clock(left)} left" + (f", {note}" if note else ""))
        self._report(now, done, total, **values)

    def cells(self, tally: Tally) -> None:
        """Show where generation stands, cell by cell."""
        now = time.monotonic()
        seconds = now - self.began
        done, total, speed = tally.done, tally.total, tally.speed(seconds)
        if self.live:
            self.bar.update(self.bar.task_ids[0], completed=done, note=f"{speed:,.0f} tokens/s")
            if now - self.last_table >= REDRAW or done == total:
                self.last_table = now
                self.live.update(_table(tally.rows(seconds), self.bar))
        elif now - self.last_line >= EVERY:
            self.last_line = now
            whole = f"{done}/{total}, {speed:,.0f} tokens/s, {clock(tally.left(seconds))} left"
            self._say(f"{whole}, in % so far by rule: {cells_line(tally.rows(seconds))}")
        self._report(now, done, total, tokens_per_second=speed)

    def _say(self, text: str) -> None:
        print(f"{self.label}: {self.stage} {text}", file=sys.stderr, flush=True)

    def _report(self, now: float, done: int, total: int, **values: float) -> None:
        if now - self.last_report >= _REPORT_EVERY or done == total:
            self.last_report = now
            progress.report(self.stage, done, total, **values)


def _table(rows: Sequence[Row], bar: Progress) -> Group:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for name in ("benchmark", "setting", "samples", "tokens/s", "% so far by rule", "left", ""):
        table.add_column(name, justify="left" if name in ("benchmark", "setting") else "right")
    for r in rows:
        left = "done" if r.done == r.total else clock(r.left)
        failed = f"[bold red]{r.errors} failed[/]" if r.errors else ""
        table.add_row(
            Text(r.benchmark), r.setting, f"{r.done}/{r.total}", f"{r.speed:,.0f}", accuracy(r), left, failed
        )  # fmt: skip
    return Group(table, bar)
