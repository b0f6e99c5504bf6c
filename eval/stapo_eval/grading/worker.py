"""What runs in a grading process; `pool` starts, feeds and ends them."""

from __future__ import annotations

import ctypes
import fcntl
import json
import multiprocessing
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection

from stapo_eval.grading.rules import Gold, Options
from stapo_results.schema import Reason


def _end_with_others() -> None:
    """End this process with the one that forked it (Linux), and with the one that asks: by signals, in C calls too."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
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


def serve(connection: Connection, cpu_seconds: float, memory_mib: int) -> None:
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
            found = verdict(gold, answer, options, cpu_seconds, memory)
            connection.send_bytes(json.dumps(found).encode())
            if found[0] == "memory":
                return  # a process that met its limit is in no known state


def verdict(
    gold: Gold, answer: str, options: Options, cpu_seconds: float, memory: int
) -> tuple[Reason, float, str | None]:
    """(reason, wall seconds, the answer as it was read) of one job.

    Past `cpu_seconds` the kernel ends this process by SIGPROF, in the midst of a C call too. The time is that of this
    process alone, so that a loaded machine ends nothing sooner. Past `memory` bytes an allocation fails.
    """
    from stapo_eval.grading.presets import decide

    began = time.perf_counter()
    reason: Reason = "error"
    extracted = None
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (memory, most))
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
