"""Grading many answers: each distinct (gold, answer, options) once, under limits that hold.

math-verify's own time limit is a signal, which a long C call or a power tower ignores. Here the kernel limits the
processes that grade; pebble starts them, and replaces one that a limit has ended.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from types import TracebackType

from pebble import ProcessExpired, ProcessPool

from stapo_eval.grading import worker
from stapo_eval.grading.presets import decide_quickly
from stapo_eval.grading.rules import Gold, Options
from stapo_results.errors import BadInput, RunFailed
from stapo_results.schema import Reason

WALL = 60  # wall seconds a CPU second of the limit: what waits for a core on a loaded machine is not ended
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

    `seconds` is the wall time of the one grading that all equal items share. Where a time limit ended it, `seconds` is
    that limit; where the process died, 0.
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


class Pool:
    """Processes that stay warm between calls of `grade`; nothing is started before it is needed."""

    def __init__(self, limits: Limits | None = None):
        self.limits = limits or Limits()
        self.pools: dict[bool, ProcessPool] = {}  # by whether each process grades one answer alone

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for fresh in list(self.pools):
            self._end(fresh)

    def _end(self, fresh: bool) -> None:
        """End the processes of one kind, whatever they do."""
        pool = self.pools.pop(fresh)
        pool.stop()
        pool.join()

    def _started(self, fresh: bool, jobs: int) -> ProcessPool:
        if fresh not in self.pools:
            # not a fork of this process: it may have threads, and a model in memory
            context = multiprocessing.get_context("forkserver")
            # a process imports the program that started it: that of the console script is imported already
            context.set_forkserver_preload(["stapo_eval.cli", "stapo_eval.grading.preloaded"])
            self.pools[fresh] = ProcessPool(
                self.limits.count(jobs),
                max_tasks=int(fresh),
                initializer=worker.prepare,
                initargs=[self.limits.memory_mib],
                context=context,
            )
        return self.pools[fresh]

    def _graded(self, jobs: Sequence[Item], fresh: bool) -> Iterator[tuple[Item, Outcome | None]]:
        """(item, outcome) in the order in which they end; None for what was not graded when the whole pool broke."""
        cpu, wall = self.limits.seconds, WALL * self.limits.seconds
        pool = self._started(fresh, len(jobs))
        of: dict[Future, Item] = {}
        for job in jobs:
            try:
                of[pool.schedule(worker.verdict, (job.gold, job.answer, job.options, cpu, fresh), timeout=wall)] = job
            except RuntimeError:  # pebble's word for a pool that broke
                yield job, None
        for future in as_completed(of):
            reason: Reason = "error"
            seconds, found = 0.0, None
            try:
                reason, seconds, found = future.result()
            except ProcessExpired as e:
                if e.exitcode == -signal.SIGPROF:
                    reason, seconds = "timeout", cpu
                elif e.exitcode == worker.SPENT:
                    reason = "memory"
            except TimeoutError:
                reason, seconds = "wall_timeout", wall
            except BrokenProcessPool:
                yield of[future], None
                continue
            known = found if reason in ("match", "mismatch") else _text_of(of[future])
            yield of[future], Outcome(reason == "match", reason, seconds, known)

    def run(self, jobs: Sequence[Item], done: Callable[[Item, Outcome], None]) -> None:
        """Grade items in processes; `done` hears of each once, in any order.

        What failed in a process that other answers may have used up is tried once more in one that grades it alone.
        """
        for fresh in (False, True):
            failed: list[Item] = []
            failures = 0
            while jobs:
                lost: list[Item] = []
                for item, outcome in self._graded(jobs, fresh):
                    if outcome is None:
                        lost.append(item)
                    elif outcome.reason in ("memory", "error") and not fresh:
                        failed.append(item)
                    else:
                        done(item, outcome)
                if lost:
                    self._end(fresh)
                    failures = failures + 1 if len(lost) == len(jobs) else 1
                if failures == _MOST_FAILURES:
                    raise RunFailed(
                        "the grading processes do not start",
                        found=f"{failures} times all of them had ended before they were given an answer",
                        next_step=f"{sys.executable} -m stapo_eval.grading.preloaded   shows why",
                    )
                jobs = lost
            jobs = failed

    def grade(self, items: Sequence[Item], progress: Progress = _silent) -> list[Outcome]:
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


def grade(items: Sequence[Item], limits: Limits | None = None, progress: Progress = _silent) -> list[Outcome]:
    """`Pool.grade` with processes of its own."""
    with Pool(limits) as pool:
        return pool.grade(items, progress)
