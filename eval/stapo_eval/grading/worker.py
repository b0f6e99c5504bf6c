"""What runs in a grading process; `pool` starts, feeds and ends them."""

from __future__ import annotations

import ctypes
import fcntl
import multiprocessing
import os
import resource
import signal
import sys
import time

from stapo_eval.grading.rules import Gold, Options
from stapo_results.schema import Reason

SPENT = 75  # exit code of a process that met its memory limit: it is in no known state


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


def _limit_memory(mib: int) -> None:
    """Allow `mib` MiB of address space beyond what the imports have taken."""
    with open("/proc/self/statm") as f:
        used = int(f.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limit = used + (mib << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def prepare(memory_mib: int) -> None:
    """Make this process one that grades: it outlives no other, and has a memory limit (Linux)."""
    import stapo_eval.grading.preloaded  # noqa: F401  the fork server has imported it; elsewhere it is imported now

    for number in (signal.SIGPROF, signal.SIGIO, signal.SIGTERM):  # no handler in Python: a C call would outlast it
        signal.signal(number, signal.SIG_DFL)
    _end_with_others()
    if sys.platform == "linux":
        _limit_memory(memory_mib)


def verdict(
    gold: Gold, answer: str, options: Options, cpu_seconds: float, fresh: bool
) -> tuple[Reason, float, str | None]:
    """(reason, wall seconds, the answer as it was read) of one job.

    Past `cpu_seconds` the kernel ends this process by SIGPROF, in the midst of a C call too. The time is that of this
    process alone, so that a loaded machine ends nothing sooner.

    Args:
        fresh: this process grades nothing before and nothing after.
    """
    from stapo_eval.grading.presets import decide

    began = time.perf_counter()
    reason: Reason
    extracted = None
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    try:
        same, extracted = decide(gold, answer, options)
        reason = "no_answer" if same is None else "match" if same else "mismatch"
    except MemoryError:
        if not fresh:
            os._exit(SPENT)
        reason = "memory"
    except Exception:  # noqa: BLE001  whatever a parser raises on a hostile answer is that answer's verdict
        reason = "error"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return reason, time.perf_counter() - began, extracted
