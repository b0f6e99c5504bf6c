"""What runs in a grading process; `pool` starts, feeds and ends them."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time

from stapo_eval.grading.rules import Gold, Options
from stapo_results.schema import Reason

SPENT = 75  # exit code of a process that met its memory limit: it is in no known state


def _die_with_parent() -> None:
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _limit_memory(mib: int) -> None:
    """Allow `mib` MiB of address space beyond what the imports have taken."""
    with open("/proc/self/statm") as f:
        used = int(f.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limit = used + (mib << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def prepare(memory_mib: int) -> None:
    """Make this process one that grades: it ends with its parent, prints nothing, and has a memory limit (Linux)."""
    import stapo_eval.grading.preloaded  # noqa: F401  the fork server has imported it; elsewhere it is imported now

    _die_with_parent()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):  # whatever a library prints
        os.dup2(null, stream)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
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
