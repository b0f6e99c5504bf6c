"""Child processes that cannot outlive the driver, whatever they start in their turn and however the driver ends.

All descendants of a child inherit a mark in its environment, also those that leave its process group and are adopted by
init (Ray's daemons). A watchdog process holds one end of a pipe. When the driver dies, even by SIGKILL, the pipe closes
and the watchdog ends every process with the mark. Linux only: reads /proc.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

MARK = "STAPO_DRIVER_MARK"


def mark_of(folder: Path) -> str:
    """What the marks of all processes begin with that work for this output folder, whichever driver started them."""
    return hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:24] + "-"


def new_mark(folder: Path) -> str:
    """The mark of one driver on this folder: a dead driver's watchdog must not end its successor's children."""
    return mark_of(folder) + uuid.uuid4().hex[:12]


def marked(mark: str) -> list[psutil.Process]:
    """Living processes of this user whose mark begins with this one, and all their descendants, the caller excepted.

    Descendants by parent too, because a process may wipe its environment (setproctitle writes Ray's worker names over
    it).
    """
    parents, processes = dict[psutil.Process, int](), set[psutil.Process]()
    for p in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # ended meanwhile, or another user's
            # psutil's own reading ends where a process has overwritten the beginning with zeros
            parent, environment = p.ppid(), Path(f"/proc/{p.pid}/environ").read_bytes().split(b"\0")
            if p.status() != psutil.STATUS_ZOMBIE:
                parents[p] = parent
                processes |= {p} if any(x.startswith(f"{MARK}={mark}".encode()) for x in environment) else set()
    while more := {p for p, parent in parents.items() if parent in {f.pid for f in processes}} - processes:
        processes |= more
    return sorted((p for p in processes if p.pid != os.getpid()), key=lambda p: p.pid)


class Family:
    """All processes of one mark; one that was seen once still belongs to it when its parent is gone."""

    def __init__(self, mark: str):
        self.mark = mark
        self._seen: set[psutil.Process] = set()  # psutil compares pid and start time, so a reused pid is another one

    def members(self) -> list[psutil.Process]:
        """Those alive now."""
        alive = set(marked(self.mark))
        for p in self._seen - alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                alive |= {p} if p.is_running() and p.status() != psutil.STATUS_ZOMBIE else set()
        self._seen = alive
        return sorted(alive, key=lambda p: p.pid)

    def names(self) -> list[str]:
        """ "pid name" of each that is alive, for messages."""
        parts = []
        for p in self.members():
            with contextlib.suppress(psutil.NoSuchProcess):
                parts.append(f"{p.pid} {p.name()}")
        return parts

    def resident(self) -> int:
        """Bytes of memory that they hold; pages that several share count for each."""
        total = 0
        for p in self.members():
            with contextlib.suppress(psutil.Error):
                total += p.memory_info().rss
        return total

    def wait_gone(self, seconds: float) -> bool:
        """Wait at most so many seconds; whether none is alive."""
        end = time.monotonic() + seconds
        while self.members():
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True

    def end(self, child: subprocess.Popen | None = None, grace: float = 30.0) -> None:
        """End the child (None when only orphans may be left) and the rest: TERM to the child, which may end its own in
        order; after `grace` seconds TERM to the rest; then KILL. A process that hangs in the kernel is left."""
        self.members()  # seen before the child ends: afterwards some have no parent to be found by
        if child is not None and child.poll() is None:
            child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(grace)
        # KILL again and again: a process may fork while it is being killed
        for number, seconds in [(signal.SIGTERM, 3.0), *[(signal.SIGKILL, 0.5)] * 20]:
            for p in self.members():
                with contextlib.suppress(psutil.Error):
                    p.send_signal(number)
            if self.wait_gone(seconds):
                break
        if child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(1)


def start(command: Sequence[str], log: Path, mark: str, environment: Mapping[str, str]) -> subprocess.Popen:
    """Start a child in a session of its own, stdout and stderr appended to `log`, stdin closed.

    A session of its own: Ctrl-C at the terminal reaches the driver only, which then ends the child in order.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    variables = {**os.environ, **environment, MARK: mark}
    with open(log, "ab") as sink:
        return subprocess.Popen(list(command), stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT,
                                start_new_session=True, env=variables)  # fmt: skip


@contextlib.contextmanager
def watched(mark: str) -> Iterator[None]:
    """A watchdog that ends every process with the mark if this one dies while this is open, or leaves by an exception:
    a Ctrl-C may have come while they were being ended."""
    command = [sys.executable, "-m", "stapo_repro.run.processes", mark]
    watchdog = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    last_word = b""
    try:
        yield
        last_word = b"done"
    finally:
        with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
            watchdog.communicate(last_word, timeout=20)


if __name__ == "__main__":  # the watchdog: waits until the driver's end of the pipe closes
    if sys.stdin.buffer.read() != b"done":
        Family(sys.argv[1]).end()
