"""Ends a run whose cluster loses a node: what waits for a process of that node would wait for ever.

Ray tells a caller that an actor died; veRL's trainer asks a queue instead, which nobody fills any more.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayActorError

from stapo_results.errors import RunFailed, StapoError

_EVERY_SECONDS = 5.0
_NOTICED_SECONDS = 30.0  # Ray calls a node dead after it missed its health checks for 15 s


def _alive() -> dict[str, str]:
    """Node id -> the address by which its other nodes know it."""
    return {n["NodeID"]: n["NodeManagerAddress"] for n in ray.nodes() if n["Alive"]}


@contextmanager
def watched(command: str) -> Iterator[None]:
    """Raises RunFailed in this, the main thread, where a node or a process of the run is lost; `command` goes on."""
    before, over = _alive(), threading.Event()

    def lost() -> list[str]:
        now = _alive()
        return [f"{address} (node {name[:12]})" for name, address in before.items() if name not in now]

    def watch() -> None:
        while not over.wait(_EVERY_SECONDS):
            if lost():
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                return

    def give_up(*_: Any) -> None:
        over.set()
        raise _failed(lost(), "gone from Ray's list of nodes", command)

    handler = signal.signal(signal.SIGUSR1, give_up)
    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    except StapoError:
        raise
    except Exception as e:  # of a lost node many kinds are made: an actor's death, a closed connection of gloo's
        deadline = time.monotonic() + (_NOTICED_SECONDS if len(before) > 1 else 0)
        while not (nodes := lost()) and time.monotonic() < deadline:
            time.sleep(1)
        if nodes or isinstance(e, RayActorError):
            raise _failed(nodes, (str(e).strip().splitlines() or [type(e).__name__])[-1], command) from e
        raise
    finally:
        over.set()
        signal.signal(signal.SIGUSR1, handler)


def _failed(nodes: list[str], found: str, command: str) -> RunFailed:
    return RunFailed(
        "a node of the cluster was lost" if nodes else "a process of the run died",
        found=f"{', '.join(nodes)}: {found}" if nodes else found,
        expected="every node and process alive to the end",
        next_step=(
            "start the node again (ray start --address=...)"
            if nodes
            else "look above and in the kernel's log for what ended it, often too little memory"
        )
        + f", then go on from the last checkpoint: {command}",
    )
