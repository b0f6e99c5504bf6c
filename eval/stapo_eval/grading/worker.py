"""The grading processes, started by `pool`, killed at will.

One process imports math-verify once and forks a worker whenever it is told to, so that a worker costs milliseconds and
not the second or two of the imports. A worker reads one JSON line a job and writes one a verdict. It imports no torch,
limits its own memory, and ends with the process that started it.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import signal
import socket
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


def _verdict(line: bytes) -> tuple[str, str | None]:
    """(reason, the answer as it was read) of one job."""
    from stapo_eval.grading.presets import decide
    from stapo_eval.grading.rules import Options

    gold, answer, options = json.loads(line)
    try:
        same, extracted = decide(gold if isinstance(gold, str) else tuple(gold), answer, Options(**options))
        return "no_answer" if same is None else "match" if same else "mismatch", extracted
    except MemoryError:
        return "memory", None
    except Exception:  # noqa: BLE001  whatever a parser raises on a hostile answer is that answer's verdict
        return "error", None


def serve(connection: socket.socket, memory_mib: int) -> None:
    """Answer jobs until the other end closes: [reason, seconds, extracted] a job."""
    with connection, connection.makefile("rwb") as stream:
        stream.write(f"ready {os.getpid()}\n".encode())
        stream.flush()
        if sys.platform == "linux":
            _limit_memory(memory_mib)
        for line in stream:
            began = time.perf_counter()
            reason, extracted = _verdict(line)
            stream.write(json.dumps([reason, time.perf_counter() - began, extracted]).encode() + b"\n")
            stream.flush()
            if reason == "memory":
                return  # a process that met its limit is in no known state


def load() -> None:
    """Import what grading needs; the first parse builds grammars and expressions, which no job should pay for."""
    warnings.simplefilter("ignore")
    from stapo_eval.grading.presets import decide
    from stapo_eval.grading.rules import Options, library

    library.verify(r"\frac{x}{2}", r"0.5x")
    library.grade("2", r"The answer is $\boxed{\frac{4}{2}}$.")
    for preset in ("ours", "justrl"):
        decide(r"\sqrt{x}/2", r"0.5\sqrt{x}", Options(preset=preset))
    gc.collect()
    gc.freeze()  # the garbage collector of a worker leaves the shared pages alone


def main() -> None:
    """Fork workers as the control socket (file descriptor argv[1]) says: "start" with a socket, "stop PID"."""
    _die_with_parent()
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)  # whatever a library prints
    control = socket.socket(fileno=int(sys.argv[1]))
    memory_mib = int(sys.argv[2])
    load()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 64, 1)
        if not message:
            return
        if descriptors:
            connection = socket.socket(fileno=descriptors[0])
            if os.fork() == 0:
                control.close()
                _die_with_parent()
                serve(connection, memory_mib)
                os._exit(0)
            connection.close()
            continue
        # only this process reaps its children, so the number is still that child's
        pid = int(message.split()[1])
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
