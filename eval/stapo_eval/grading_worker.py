"""A grading process: reads one JSON line a job, writes one a verdict. Started by `grading_pool`, killed at will.

It imports no torch, limits its own memory, and ends with the process that started it.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import time
import warnings


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


def main() -> None:
    _die_with_parent()
    # the protocol gets a descriptor of its own, so that a library that prints cannot break it
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    warnings.simplefilter("ignore")
    import math_verify  # noqa: F401  before the clock of the first job runs

    from stapo_eval.rules import Options, symbolic

    # the first parse builds grammars and regular expressions, which no job should pay for
    symbolic(r"\frac{x}{2}", r"0.5x", Options())
    if sys.platform == "linux":
        _limit_memory(int(sys.argv[1]))
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        gold, answer, unordered, tolerance, unit = json.loads(line)
        began = time.perf_counter()
        try:
            options = Options(unordered, tolerance, unit)
            same = symbolic(gold if isinstance(gold, str) else tuple(gold), answer, options)
            reason = "match" if same else "mismatch"
        except MemoryError:
            reason = "memory"
        except Exception:  # noqa: BLE001  whatever a parser raises on a hostile answer is that answer's verdict
            reason = "error"
        print(json.dumps([reason, time.perf_counter() - began]), file=out, flush=True)
        if reason == "memory":
            return  # a process that met its limit is in no known state


if __name__ == "__main__":
    main()
