"""A function in a process of its own, forked from the test's: what it imports and loads is there already."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing.forkserver
import os
import signal
import time
from collections.abc import Callable, Iterator

import torch


class Forked:
    """A child process; `code` is its exit code once it has ended, negative for a signal."""

    def __init__(self, pid: int):
        self.pid, self.code = pid, None

    def alive(self) -> bool:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is None

    def kill(self) -> None:
        if self.alive():
            os.kill(self.pid, signal.SIGKILL)
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill_when(self, condition: Callable[[], bool], seconds: float = 60) -> bool:
        """Wait for the condition, then kill; False where the process ended before."""
        deadline = time.monotonic() + seconds
        while self.alive() and not condition():
            assert time.monotonic() < deadline
            time.sleep(0.001)
        met = self.alive()
        self.kill()
        return met


@contextlib.contextmanager
def forked(work: Callable[[], object]) -> Iterator[Forked]:
    """Run `work` in a child, which is killed at the end of the block. torch works on one thread on both sides:
    a pool of threads does not survive a fork."""
    torch.set_num_threads(1)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            importlib.reload(multiprocessing.forkserver)  # the parent's grading server is no child of this process
            for stream in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
            work()
            code = 0
        finally:
            os._exit(code)
    process = Forked(pid)
    try:
        yield process
    finally:
        process.kill()
