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
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    parents, found = dict[psutil.Process, int](), set[psutil.Process]()
    for p in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # ended meanwhile, or another user's
            environment, parent = p.environ(), p.ppid()
            if p.status() != psutil.STATUS_ZOMBIE:
                parents[p] = parent
                found |= {p} if environment.get(MARK, "").startswith(mark) else set()
    while more := {p for p, parent in parents.items() if parent in {f.pid for f in found}} - found:
        found |= more
    return sorted((p for p in found if p.pid != os.getpid()), key=lambda p: p.pid)


class Family:
    """All processes of one mark; one that was seen once still belongs to it when its parent is gone."""

    def __init__(self, mark: str):
        self.mark = mark
        self._seen: set[psutil.Process] = set()  # psutil compares pid and start time, so a reused pid is another one

    def members(self) -> list[psutil.Process]:
        """Those alive now."""
        self._seen.update(marked(self.mark))
        self._seen = {p for p in self._seen if _alive(p)}
        return sorted(self._seen, key=lambda p: p.pid)

    def wait_gone(self, seconds: float) -> list[psutil.Process]:
        """Wait until none is alive, at most so many seconds; returns those left."""
        end = time.monotonic() + seconds
        while (left := self.members()) and time.monotonic() < end:
            time.sleep(0.05)
        return left


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def start(command: Sequence[str], log: Path, mark: str, environment: Mapping[str, str], cwd: Path) -> subprocess.Popen:
    """Start a child in a session of its own, stdout and stderr appended to `log`, stdin closed.

    A session of its own: Ctrl-C at the terminal reaches the driver only, which then ends the child in order.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    variables = {**os.environ, **environment, MARK: mark}
    with open(log, "ab") as sink:
        return subprocess.Popen(list(command), stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT,
                                start_new_session=True, cwd=cwd, env=variables)  # fmt: skip


def _signal(processes: Iterable[psutil.Process], number: int) -> None:
    for p in processes:
        with contextlib.suppress(psutil.Error):
            p.send_signal(number)


def describe(processes: Iterable[psutil.Process]) -> list[str]:
    """ "pid name" of each, for messages."""
    out = []
    for p in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            out.append(f"{p.pid} {p.name()}")
    return out


def end_all(family: Family, child: subprocess.Popen | None = None, grace: float = 30.0) -> list[str]:
    """End the child (None when only orphans may be left) and its family: TERM to the child, which may end its own in
    order; after `grace` seconds TERM to the rest; then KILL.

    Returns:
        What is still alive after KILL (empty, unless a process hangs in the kernel), as "pid name".
    """
    family.members()  # seen before the child ends: afterwards some have no parent to be found by
    if child is not None and child.poll() is None:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(grace)
    left = family.members()
    _signal(left, signal.SIGTERM)
    left = family.wait_gone(3.0) if left else []
    deadline = time.monotonic() + 10
    while left and time.monotonic() < deadline:  # again and again: a process may fork while it is being killed
        _signal(left, signal.SIGKILL)
        left = family.wait_gone(0.5)
    if child is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(1)
    return describe(left)


def sweep(family: Family, patience: float = 5.0) -> list[str]:
    """After a child ended by itself: give its daemons `patience` seconds, then end them; those, as "pid name"."""
    left = describe(family.wait_gone(patience))
    if left:
        end_all(family)
    return left


def resident(processes: Iterable[psutil.Process]) -> int:
    """Bytes of memory that these processes hold; pages that several share count for each."""
    total = 0
    for p in processes:
        with contextlib.suppress(psutil.Error):
            total += p.memory_info().rss
    return total


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


def _watch(mark: str) -> None:
    """The watchdog's own process: wait until the driver's end of the pipe closes, then end all with the mark."""
    if sys.stdin.buffer.read() != b"done":
        end_all(Family(mark))


if __name__ == "__main__":
    _watch(sys.argv[1])
