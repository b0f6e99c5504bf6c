"""Grading many answers: each distinct (gold, answer, options) once, under limits that hold.

math-verify's own time limit is a signal, which a long C call or a power tower ignores. Here the limit is the life of a
worker process: one that takes too long is killed and replaced, one that dies costs the answer in its hands.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from types import TracebackType

from stapo_eval.grading.presets import decide_quickly
from stapo_eval.grading.rules import Gold, Options
from stapo_results.errors import BadInput, RunFailed
from stapo_results.schema import Reason

START_LIMIT = 120.0  # seconds for the imports, on a loaded machine
_MOST_FAILURES = 3


@dataclass(frozen=True)
class Item:
    """One thing to grade; `answer` is what was extracted (see `presets.extract`), or None."""

    gold: Gold
    answer: str | None
    options: Options


@dataclass(frozen=True)
class Outcome:
    """`seconds` is the time of the one grading that all equal items share; `extracted` the answer as it was read."""

    rule: bool
    reason: Reason
    seconds: float
    extracted: str | None = None


@dataclass(frozen=True)
class Limits:
    """seconds: wall time an answer; memory_mib: address space of a worker beyond its imports; workers: processes."""

    seconds: float = 5.0
    memory_mib: int = 1024
    workers: int = 0

    def count(self, jobs: int) -> int:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(1, min(self.workers or cores, jobs))


Progress = Callable[[int, int], None]  # called with (distinct answers decided, distinct answers)


def _silent(done: int, total: int) -> None:
    """Tells nobody of the progress."""


_LEAST_MEMORY_MIB = 8  # beyond a worker's imports: some algebra fits
_MOST_WORKERS = 1024


def check_limits(limits: Limits) -> None:
    """Raises BadInput for limits under which nothing can be graded."""
    seconds, memory, workers = limits.seconds, limits.memory_mib, limits.workers
    for name, value, fits, expected in (
        ("seconds", seconds, math.isfinite(seconds) and seconds > 0, "more than 0, such as 5"),
        ("memory-mib", memory, memory >= _LEAST_MEMORY_MIB, f"{_LEAST_MEMORY_MIB} or more, such as 1024"),
        ("workers", workers, 0 <= workers <= _MOST_WORKERS, f"0 (one a core) to {_MOST_WORKERS}"),
    ):
        if not fits:
            what = f"--{name} is out of bounds"
            raise BadInput(what, found=f"{value:g}", expected=expected, next_step=f"leave out --{name}")


def _text_of(item: Item) -> str | None:
    """The answer of an item whose grading came to no end; a whole response is none."""
    return None if item.options.preset == "math-verify" else item.answer


class _Worker:
    """One forked process and the job in its hands."""

    def __init__(self, connection: socket.socket, limit: float):
        self.connection, self.limit = connection, limit
        self.stream = connection.makefile("rb")
        self.pid = 0  # until it says that it is ready
        self.job: Item | None = None
        self.jobs = 0
        self.since = time.monotonic()

    def send(self, item: Item) -> None:
        line = json.dumps([item.gold, item.answer, asdict(item.options)]) + "\n"
        self.job, self.since = item, time.monotonic()
        self.jobs += 1
        self.connection.sendall(line.encode())

    def deadline(self) -> float:
        if not self.pid:
            return self.since + START_LIMIT
        return self.since + self.limit if self.job else float("inf")


class Pool:
    """Worker processes that stay warm between calls of `grade`; nothing is started before it is needed."""

    def __init__(self, limits: Limits | None = None):
        self.limits = limits or Limits()
        self.workers: list[_Worker] = []
        self.selector = selectors.DefaultSelector()
        self.server: subprocess.Popen | None = None
        self.control: socket.socket | None = None
        self.failures = 0

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for w in list(self.workers):
            self._forget(w)
        self._end_server()
        self.selector.close()

    def _end_server(self) -> None:
        """End the process that forks, and with it its workers."""
        if self.server is not None and self.control is not None:
            self.server.kill()
            self.server.wait()
            self.control.close()
            self.server = None

    def _start(self) -> None:
        if self.server is None:
            self.control, theirs = socket.socketpair()
            with theirs:
                # not -P or -I: the package may stand in an editable installation or in PYTHONPATH
                module = [sys.executable, "-m", "stapo_eval.grading.worker"]
                self.server = subprocess.Popen(
                    [*module, str(theirs.fileno()), str(self.limits.memory_mib)],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                )
        assert self.control is not None
        ours, theirs = socket.socketpair()
        with theirs, suppress(OSError):  # the process is gone: the end of the worker's socket says so
            socket.send_fds(self.control, [b"start"], [theirs.fileno()])
        w = _Worker(ours, self.limits.seconds)
        self.workers.append(w)
        self.selector.register(ours, selectors.EVENT_READ, w)

    def _forget(self, w: _Worker) -> None:
        self.selector.unregister(w.connection)
        self.workers.remove(w)
        w.stream.close()
        w.connection.close()

    def _stop(self, w: _Worker) -> None:
        """Kill a worker; the process that forked it does so, because only there its number cannot be another's."""
        self._forget(w)
        if w.pid and self.control is not None:
            try:
                self.control.send(b"stop %d" % w.pid)
            except OSError:
                self._end_server()

    def _feed(self, w: _Worker, waiting: deque[Item]) -> None:
        if waiting and w.pid:
            item = waiting.popleft()
            try:
                w.send(item)
            except OSError:  # it died idle; its end will be read next, and the job is another's
                w.job = None
                waiting.appendleft(item)

    def _read(self, w: _Worker, waiting: deque[Item], done: Callable[[Item, Outcome], None]) -> None:
        try:
            line = w.stream.readline()
        except OSError:
            line = b""
        if line.startswith(b"ready "):
            w.pid, self.failures = int(line.split()[1]), 0
        elif line.endswith(b"\n") and w.job:
            reason, seconds, extracted = json.loads(line)
            if reason in ("memory", "error") and self._again(w, waiting):
                return
            known = extracted if reason in ("match", "mismatch") else _text_of(w.job)
            done(w.job, Outcome(reason == "match", reason, seconds, known))
            w.job = None
            if reason == "memory":
                self._stop(w)
                return
        else:  # the process ended: a crash of the interpreter is the answer's doing, unless it had none
            if not self._again(w, waiting):
                self._ended(w, done)
            return
        self._feed(w, waiting)

    def _again(self, w: _Worker, waiting: deque[Item]) -> bool:
        """Whether a job that failed is tried once more, in a fresh process: those before may have used this one up."""
        if w.job is None or w.jobs == 1:
            return False
        waiting.appendleft(w.job)
        self._stop(w)
        return True

    def _ended(self, w: _Worker, done: Callable[[Item, Outcome], None]) -> None:
        if w.job:
            done(w.job, Outcome(False, "error", time.monotonic() - w.since, _text_of(w.job)))
        self._stop(w)
        code = self.server.poll() if self.server else None
        if not w.pid or code is not None:
            self.failures += 1
            self._end_server()
            if self.failures >= _MOST_FAILURES:
                raise RunFailed(
                    "the grading processes do not start",
                    found=f"{self.failures} ended before their first job, the last with exit code {code}",
                    next_step=f'{sys.executable} -c "import stapo_eval.grading.worker as g; g.load()"   shows why',
                )

    def run(self, jobs: Sequence[Item], done: Callable[[Item, Outcome], None]) -> None:
        """Grade items in worker processes; `done` hears of each once, in any order."""
        waiting = deque(jobs)
        for w in self.workers:
            self._feed(w, waiting)
        while waiting or any(w.job for w in self.workers):
            busy = sum(w.job is not None for w in self.workers)
            while len(self.workers) < min(self.limits.count(len(jobs)), len(waiting) + busy):
                self._start()
            pause = max(0.0, min(w.deadline() for w in self.workers) - time.monotonic())
            for key, _ in self.selector.select(pause if pause < 3600 else None):
                if key.data in self.workers:
                    self._read(key.data, waiting, done)
            now = time.monotonic()
            for w in [w for w in self.workers if w.deadline() <= now]:
                if not w.pid:
                    raise RunFailed(f"a grading process did not start within {START_LIMIT:.0f} s")
                if w.job:
                    done(w.job, Outcome(False, "timeout", now - w.since, _text_of(w.job)))
                self._stop(w)

    def grade(self, items: Sequence[Item], progress: Progress = _silent) -> list[Outcome]:
        """One outcome an item, in order. Items that need no algebra are decided here; no process starts for them.

        Raises:
            RunFailed: the worker processes do not start at all.
        """
        outcomes: dict[Item, Outcome] = {}
        hard: list[Item] = []
        distinct = list(dict.fromkeys(items))
        for item in distinct:
            if item.answer is None or not item.answer.strip():  # an empty box answers nothing
                outcomes[item] = Outcome(False, "no_answer", 0.0)
                continue
            began = time.perf_counter()
            decided = decide_quickly(item.gold, item.answer, item.options)
            if decided is None:
                hard.append(item)
            else:
                reason: Reason = "match" if decided else "mismatch"
                outcomes[item] = Outcome(decided, reason, time.perf_counter() - began, item.answer)
        progress(len(outcomes), len(distinct))

        def done(item: Item, outcome: Outcome) -> None:
            outcomes[item] = outcome
            progress(len(outcomes), len(distinct))

        self.run(hard, done)
        return [outcomes[i] for i in items]


def grade(items: Sequence[Item], limits: Limits | None = None, progress: Progress = _silent) -> list[Outcome]:
    """`Pool.grade` with processes of its own."""
    with Pool(limits) as pool:
        return pool.grade(items, progress)
