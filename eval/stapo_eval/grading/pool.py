"""Grading many answers: each distinct (gold, answer, options) once, under limits that hold.

math-verify's own time limit is a signal, which a long C call or a power tower ignores. Here the kernel limits the
processes that grade: one ends with the answer that met its limit, and a fork server starts another in its place. Each
has a pipe of its own, so that whatever happens to it costs the answer in its hands and no other.
"""

from __future__ import annotations

import fcntl
import json
import math
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from stapo_eval.children import end_with_parent
from stapo_eval.grading.presets import decide, decide_quickly
from stapo_eval.grading.rules import Gold, Options
from stapo_results import safe_path
from stapo_results.errors import BadInput, RunFailed
from stapo_results.provenance import usable_cores
from stapo_results.schema import Reason

WALL = 60  # wall seconds a CPU second of the limit: what waits for a core on a loaded machine is not ended
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
    """`extracted` is the answer as it was read.

    seconds: wall time of the one grading that all equal items share; where a limit ended it, that limit.
    """

    rule: bool
    reason: Reason
    seconds: float
    extracted: str | None = None


@dataclass(frozen=True)
class Limits:
    """seconds: CPU time an answer; memory_mib: address space of a process beyond its imports; workers: processes."""

    seconds: float = 5.0
    memory_mib: int = 1024
    workers: int = 0

    def count(self, jobs: int) -> int:
        return max(1, min(self.workers or usable_cores(), jobs))


Progress = Callable[[int, int], None]  # called with (distinct answers decided, distinct answers)

_LEAST_MEMORY_MIB = 8  # beyond a worker's imports; with less no algebra fits
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


def _end_with_others() -> None:
    """End this process with the one that forked it, and with the one that asks: by signals, in C calls too."""
    end_with_parent()
    asker = multiprocessing.parent_process()
    assert asker is not None
    pipe = asker.sentinel  # its other end closes when that process ends, and that sends SIGIO
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if not asker.is_alive():
        os._exit(1)


def _allowed_memory(mib: int) -> int:
    """Address space in bytes: `mib` MiB beyond what this process has after its imports; elsewhere than on Linux all."""
    if sys.platform != "linux":
        return resource.RLIM_INFINITY
    with open("/proc/self/statm") as f:
        return int(f.read().split()[0]) * os.sysconf("SC_PAGE_SIZE") + (mib << 20)


def _serve(connection: Connection, cpu_seconds: float, memory_mib: int) -> None:
    """Grade what comes until the other end closes: a JSON list [reason, wall seconds, answer as it was read] for each.

    The first message is an empty list: the process is ready.
    """
    import stapo_eval.grading.preloaded  # noqa: F401  the fork server has imported it; elsewhere it is imported now

    for number in (signal.SIGPROF, signal.SIGIO, signal.SIGTERM):  # no handler in Python: a C call would outlast it
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    _end_with_others()
    memory = _allowed_memory(memory_mib)
    connection.send_bytes(b"[]")
    with suppress(EOFError):
        while True:
            gold, answer, options = connection.recv()
            verdict = _verdict(gold, answer, options, cpu_seconds, memory)
            connection.send_bytes(json.dumps(verdict).encode())
            # A process that met its limit is in no known state. Libraries keep it to themselves, too, and say no to
            # what comes next: half of what it may have is still there, or it ends.
            if verdict[0] == "memory" or _allowed_memory(memory_mib // 2) > memory:
                return


def _verdict(
    gold: Gold, answer: str, options: Options, cpu_seconds: float, memory: int
) -> tuple[Reason, float, str | None]:
    """(reason, wall seconds, the answer as it was read) of one job.

    Past `cpu_seconds` the kernel ends this process by SIGPROF, in the midst of a C call too. The time is that of this
    process alone, so that a loaded machine ends nothing sooner. Past `memory` bytes an allocation fails.
    """
    began = time.perf_counter()
    reason: Reason = "error"
    extracted = None
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (memory if most == resource.RLIM_INFINITY else min(memory, most), most))
        same, extracted = decide(gold, answer, options)
        reason = "no_answer" if same is None else "match" if same else "mismatch"
    except MemoryError:
        reason = "memory"
    except Exception:  # noqa: BLE001  whatever a parser raises on a hostile answer is that answer's verdict
        reason = "error"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    return reason, time.perf_counter() - began, extracted


def check_temporary_folder() -> None:
    """Raises BadInput where the socket of the grading processes would have a longer path than the system takes."""
    folder, most = tempfile.gettempdir(), 107 - len("/pymp-01234567/listener-01234567")
    if len(os.fsencode(folder)) > most:
        raise BadInput("the folder of temporary files has too long a path for a socket", found=folder,
                       expected=f"at most {most} bytes", next_step="TMPDIR=/tmp and the same command")  # fmt: skip


class _Grader:
    """One grading process, its pipe, and the item that it grades."""

    def __init__(self, limits: Limits):
        # not a fork of this process: it may have threads, and a model in memory
        context = multiprocessing.get_context("forkserver")
        # each imports the program that started it: that of the console script is imported already
        context.set_forkserver_preload(["stapo_eval.cli", "stapo_eval.grading.preloaded"])
        self.connection, theirs = context.Pipe()
        with theirs:
            arguments = (theirs, limits.seconds, limits.memory_mib)
            self.process = context.Process(target=_serve, args=arguments, daemon=True)
            with safe_path.for_children():  # a script that grades is no command of ours
                self.process.start()
        self.ready, self.item, self.jobs, self.since = False, None, 0, time.monotonic()
        self.item: Item | None

    def take(self, item: Item) -> None:
        self.item, self.since = item, time.monotonic()
        self.jobs += 1
        with suppress(OSError):  # it died idle: the end of its pipe is read next
            self.connection.send((item.gold, item.answer, item.options))

    def deadline(self, wall: float) -> float:
        if not self.ready:
            return self.since + START_LIMIT
        return self.since + wall if self.item else math.inf

    def end(self) -> int:
        """Kill the process, wait until it is gone, and return its exit code."""
        self.process.kill()
        self.process.join()
        self.connection.close()
        return self.process.exitcode or 0


class Pool:
    """Processes that stay warm between calls of `grade`; nothing is started before it is needed."""

    def __init__(self, limits: Limits | None = None):
        check_temporary_folder()
        self.limits = limits or Limits()
        self.graders: list[_Grader] = []
        self.failures = 0  # processes in a row that ended before they were ready

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        while self.graders:
            self.graders.pop().end()

    def run(self, jobs: Sequence[Item], done: Callable[[Item, Outcome], None]) -> None:
        """Grade items in processes; `done` hears of each once, in any order.

        What fails in a process that graded others before is tried once more in a fresh one: they may have used it up.
        """
        waiting, again = deque(jobs), deque[Item]()
        wall = WALL * self.limits.seconds

        def ended(g: _Grader, reason: Reason, seconds: float, found: str | None = None) -> None:
            """The item in a process's hands has come to an end."""
            item, g.item = g.item, None
            assert item is not None
            if reason in ("memory", "error") and g.jobs > 1:
                again.append(item)
            else:
                answer = None if item.options.preset == "math-verify" else item.answer  # a whole response is none
                known = found if reason in ("match", "mismatch") else answer
                done(item, Outcome(reason == "match", reason, seconds, known))

        while waiting or again or any(g.item for g in self.graders):
            for g in [g for g in self.graders if g.ready and not g.item]:
                if again and not g.jobs:
                    g.take(again.popleft())
                elif waiting:
                    g.take(waiting.popleft())
                elif again:  # a fresh one takes its place
                    self._end(g)
            busy = sum(g.item is not None for g in self.graders)
            while len(self.graders) < min(self.limits.count(len(jobs)), len(waiting) + len(again) + busy):
                self.graders.append(_Grader(self.limits))
            pause = min(g.deadline(wall) for g in self.graders) - time.monotonic()
            ready = wait([g.connection for g in self.graders], max(0.0, pause))
            now = time.monotonic()
            for g in [g for g in self.graders if g.connection in ready]:
                try:
                    message = json.loads(g.connection.recv_bytes())
                except (EOFError, OSError):
                    code = self._end(g)
                    if g.item:
                        spent = code == -signal.SIGPROF
                        ended(g, "timeout" if spent else "error", self.limits.seconds if spent else now - g.since)
                    continue
                if message:
                    ended(g, *message)
                g.ready, self.failures = True, 0
            for g in [g for g in self.graders if g.deadline(wall) <= now]:
                self._end(g)
                if g.item:
                    ended(g, "wall_timeout", wall)

    def _end(self, g: _Grader) -> int:
        """End a process, and return its exit code.

        Raises:
            RunFailed: several have ended before they were ready.
        """
        self.graders.remove(g)
        code = g.end()
        self.failures += not g.ready
        if self.failures >= _MOST_FAILURES:
            raise RunFailed(
                "the grading processes do not start",
                found=f"{self.failures} ended before their first answer, the last with exit code {code}",
                next_step=f"{sys.executable} -P -m stapo_eval.grading.preloaded   shows an import that fails; "
                'a script that grades starts its work under `if __name__ == "__main__":`',
            )
        return code

    def grade(self, items: Sequence[Item], progress: Progress = lambda *_: None) -> list[Outcome]:
        """One outcome an item, in order. Items that need no algebra are decided here; no process starts for them.

        Raises:
            RunFailed: the processes do not start at all.
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


def grade(items: Sequence[Item], limits: Limits | None = None, progress: Progress = lambda *_: None) -> list[Outcome]:
    """`Pool.grade` with processes of its own."""
    with Pool(limits) as pool:
        return pool.grade(items, progress)
