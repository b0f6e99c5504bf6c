"""Progress of a long command: for the driver, as a bar on a terminal, as one plain line a minute elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from stapo_results import progress

EVERY = 60.0  # seconds between plain lines
_REPORT_EVERY = 0.5


class Display:
    """One stage at a time; `update` may be called as often as convenient.

    Args:
        label: what is being worked on, shown before the stage.
    """

    def __init__(self, label: str):
        self.label, self.stage = label, ""
        self.began = self.last_line = self.last_report = 0.0
        self.first = 0
        self.bar = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self.bar = Progress(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"), console=Console(stderr=True),
            )  # fmt: skip

    def __enter__(self) -> Display:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.bar:
            self.bar.stop()

    def start(self, stage: str, done: int, total: int) -> None:
        self.stage, self.first = stage, done
        self.began = self.last_line = time.monotonic()
        if self.bar:
            for task in self.bar.task_ids:
                self.bar.remove_task(task)
            self.bar.add_task(f"{self.label}: {stage}", total=total, completed=done, note="")
        else:
            print(f"{self.label}: {stage}, {done} of {total} done", file=sys.stderr, flush=True)
        progress.report(stage, done, total)

    def update(self, done: int, total: int, **values: float) -> None:
        """`values` are shown by name, rounded."""
        now = time.monotonic()
        note = ", ".join(f"{k.replace('_', ' ')} {v:,.4g}" for k, v in values.items())
        if self.bar:
            self.bar.update(self.bar.task_ids[0], completed=done, note=note)
        elif now - self.last_line >= EVERY:
            self.last_line = now
            left = (now - self.began) * (total - done) / max(1, done - self.first)
            print(
                f"{self.label}: {self.stage} {done}/{total}, {left:,.0f} s left" + (f", {note}" if note else ""),
                file=sys.stderr,
                flush=True,
            )
        if now - self.last_report >= _REPORT_EVERY or done == total:
            self.last_report = now
            progress.report(self.stage, done, total, **values)
