"""Grading many answers: each distinct (gold, answer, options) once, under limits that hold.

math-verify's own time limit is a signal, which a long C call or a power tower ignores. Here the limit is the life of a
worker process: one that takes too long is killed and replaced, one that dies costs the answer in its hands.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stapo_eval.rules import Gold, Options, quick
from stapo_results.answers import last_boxed
from stapo_results.errors import RunFailed
from stapo_results.schema import Reason

START_LIMIT = 120.0  # seconds for a worker's imports, on a loaded machine


@dataclass(frozen=True)
class Item:
    """One thing to grade; `answer` is what was extracted, or None."""

    gold: Gold
    answer: str | None
    options: Options


@dataclass(frozen=True)
class Outcome:
    """`seconds` is the time of the one grading that all equal items share."""

    rule: bool
    reason: Reason
    seconds: float


@dataclass(frozen=True)
class Limits:
    """seconds: wall time an answer; memory_mib: address space of a worker beyond its imports; workers: processes."""

    seconds: float = 5.0
    memory_mib: int = 1024
    workers: int = 0

    def count(self, jobs: int) -> int:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        # a worker costs about a second of imports: a few jobs do not deserve many
        return max(1, min(self.workers or cores, (jobs + 7) // 8))


class _Worker:
    def __init__(self, limits: Limits):
        # not -P or -I: the package may stand in an editable installation or in PYTHONPATH
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stapo_eval.grading_worker", str(limits.memory_mib)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        self.ready = False
        self.job: Item | None = None
        self.since = time.monotonic()
        self.limit = limits.seconds

    def send(self, item: Item) -> None:
        o = item.options
        line = json.dumps([item.gold, item.answer, o.unordered, o.tolerance, o.unit]) + "\n"
        self.job, self.since = item, time.monotonic()
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode())
        self.process.stdin.flush()

    def deadline(self) -> float:
        if not self.ready:
            return self.since + START_LIMIT
        return self.since + self.limit if self.job else float("inf")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                pass  # what was buffered for the process that was just killed


def _run(jobs: Sequence[Item], limits: Limits, done: Callable[[Item, Outcome], None]) -> None:
    waiting = deque(jobs)
    workers: list[_Worker] = []
    failed_starts = 0
    selector = selectors.DefaultSelector()

    def start() -> None:
        w = _Worker(limits)
        workers.append(w)
        selector.register(w.process.stdout, selectors.EVENT_READ, w)  # type: ignore[arg-type]

    def drop(w: _Worker) -> None:
        selector.unregister(w.process.stdout)  # type: ignore[arg-type]
        workers.remove(w)
        w.stop()

    def feed(w: _Worker) -> None:
        if waiting:
            try:
                w.send(waiting[0])
            except BrokenPipeError:  # it died idle; its end of file will be read next
                w.job = None
                return
            waiting.popleft()

    try:
        while waiting or any(w.job for w in workers):
            busy = sum(w.job is not None for w in workers)
            while len(workers) < min(limits.count(len(jobs)), len(waiting) + busy):
                start()
            pause = max(0.0, min(w.deadline() for w in workers) - time.monotonic())
            for key, _ in selector.select(pause if pause < 3600 else None):
                w: _Worker = key.data
                line = w.process.stdout.readline()  # type: ignore[union-attr]
                if line == b"ready\n":
                    w.ready = True
                elif line.endswith(b"\n") and w.job:
                    reason, seconds = json.loads(line)
                    done(w.job, Outcome(reason == "match", reason, seconds))
                    w.job = None
                    if reason == "memory":
                        drop(w)
                        continue
                else:  # the process ended: a crash of the interpreter is the answer's doing, unless it had none
                    if w.job:
                        done(w.job, Outcome(False, "error", time.monotonic() - w.since))
                    elif not w.ready:
                        failed_starts += 1
                    code = w.process.poll()
                    drop(w)
                    if failed_starts >= 3:
                        raise RunFailed(
                            "the grading processes do not start",
                            found=f"three ended during their imports, the last with exit code {code}",
                            next_step=f"{sys.executable} -m stapo_eval.grading_worker 1024   shows why",
                        )
                    continue
                feed(w)
            now = time.monotonic()
            for w in [w for w in workers if w.deadline() <= now]:
                if w.job:
                    done(w.job, Outcome(False, "timeout", now - w.since))
                elif not w.ready:
                    raise RunFailed(f"a grading process did not start within {START_LIMIT:.0f} s")
                drop(w)
    finally:
        for w in list(workers):
            drop(w)
        selector.close()


def grade(
    items: Sequence[Item], limits: Limits | None = None, progress: Callable[[int, int], None] = lambda done, total: None
) -> list[Outcome]:
    """One outcome an item, in order. Items that need no algebra are decided here; no process starts for them.

    Args:
        progress: called with (distinct answers decided, distinct answers).

    Raises:
        RunFailed: the worker processes do not start at all.
    """
    limits = limits or Limits()
    outcomes: dict[Item, Outcome] = {}
    hard: list[Item] = []
    distinct = list(dict.fromkeys(items))
    for item in distinct:
        if item.answer is None:
            outcomes[item] = Outcome(False, "no_answer", 0.0)
            continue
        began = time.perf_counter()
        decided = quick(item.gold, item.answer, item.options)
        if decided is None:
            hard.append(item)
        else:
            outcomes[item] = Outcome(decided, "match" if decided else "mismatch", time.perf_counter() - began)
    progress(len(outcomes), len(distinct))

    def done(item: Item, outcome: Outcome) -> None:
        outcomes[item] = outcome
        progress(len(outcomes), len(distinct))

    if hard:
        _run(hard, limits, done)
    return [outcomes[i] for i in items]


def grade_responses(
    golds: Sequence[Gold], responses: Sequence[str], options: Sequence[Options], limits: Limits | None = None
) -> list[tuple[str | None, Outcome]]:
    """(extracted answer, outcome) of whole responses, in order."""
    answers = [last_boxed(r) for r in responses]
    graded = grade([Item(g, a, o) for g, a, o in zip(golds, answers, options, strict=True)], limits)
    return list(zip(answers, graded, strict=True))
