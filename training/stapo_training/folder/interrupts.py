"""Ctrl-C and SIGTERM as a wish: the first one is remembered until the step is finished, a second one stops at once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

REPEAT_SECONDS = 1.0
"""A terminal sends Ctrl-C to every process of its group, and a parent such as tox passes it on: one key press arrives
twice. Signals this soon after the first are the first."""


class StopRequest:
    """Whether somebody asked this process to stop.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.by = ""
        """The name of the first signal (SIGINT, SIGTERM); "" while nobody asked."""
        self._clock = clock
        self._at = 0.0
        self._before: dict[int, object] = {}
        self._announce: Callable[[], str] = lambda: ""

    def __bool__(self) -> bool:
        return bool(self.by)

    def catch(self, announce: Callable[[], str]) -> None:
        """Handle the signals from now on (main thread only); `announce` gives the line that the first one prints."""
        self._announce = announce
        self._before = {n: signal.signal(n, self._handle) for n in _SIGNALS}

    def release(self) -> None:
        """Put back the handlers that were there before `catch`; without one before it, do nothing."""
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal returned
        self._before = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = self._clock()
        if not self.by:
            self.by, self._at = signal.Signals(number).name, now
            # print() may be what was interrupted, and its buffer refuses a second entry
            os.write(2, f"\n{self.by}: {self._announce()}\n".encode())
        elif now - self._at >= REPEAT_SECONDS:
            raise KeyboardInterrupt
