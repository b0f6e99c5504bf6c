"""Ends a run whose cluster loses a node: what waits for a process of that node would wait for ever.

Ray tells a caller that an actor died; veRL's trainer waits for a queue that only the dead actor filled.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from stapo_results.errors import RunFailed, StapoError, message_of

_EVERY_SECONDS = 5.0
_NOTICED_SECONDS = 75.0
"""Ray calls a node dead after five health checks: 15 s where its host answers, a minute where the host is gone."""


class _Watch:
    """A thread that asks Ray for its nodes, and wakes the main thread when one that was there is gone."""

    def __init__(self) -> None:
        self.before, self.lost, self.over = _alive(), list[str](), threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def look(self) -> list[str]:
        """The nodes that are gone, by address."""
        if not self.lost:
            now = _alive()
            self.lost = [f"{address} (node {name[:12]})" for name, address in self.before.items() if name not in now]
        return self.lost

    def wait(self) -> list[str]:
        """As `look`, once Ray has had the time to notice."""
        deadline = time.monotonic() + _NOTICED_SECONDS
        while len(self.before) > 1 and not self.look() and time.monotonic() < deadline:
            time.sleep(1)
        return self.lost

    def _run(self) -> None:
        while not self.over.wait(_EVERY_SECONDS):
            if self.look():  # again and again: a callback may swallow what the signal raises
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)


def _alive() -> dict[str, str]:
    """Node id -> the address by which its other nodes know it."""
    return {n["NodeID"]: n["NodeManagerAddress"] for n in ray.nodes() if n["Alive"]}


@contextmanager
def watched(command: str) -> Iterator[None]:
    """Raises RunFailed in this, the main thread, where a node or a process of the run is lost; `command` resumes it."""

    def wake(*_: Any) -> None:
        raise KeyboardInterrupt  # the one exception that gets out of Ray's waits

    watch, handler = _Watch(), signal.signal(signal.SIGUSR1, wake)
    watch.thread.start()
    try:
        yield
    except KeyboardInterrupt:
        if watch.lost:
            raise _failed(watch.lost, "gone from Ray's list of nodes", command) from None
        raise
    except Exception as e:  # of a lost node many kinds are made: an actor's death, a closed connection of gloo's
        own = isinstance(e, StapoError) and not isinstance(e.__cause__, RayError)
        if not own and (watch.wait() or isinstance(e, RayActorError)):
            raise _failed(watch.lost, message_of(e), command, killed=not getattr(e, "actor_init_failed", False)) from e
        raise
    finally:
        watch.over.set()
        watch.thread.join()
        signal.signal(signal.SIGUSR1, handler)


def _failed(nodes: list[str], found: str, command: str, killed: bool = True) -> RunFailed:
    """`killed`: no exception of its own ended the process."""
    return RunFailed(
        "a node of the cluster was lost" if nodes else "a process of the run died",
        found=f"{', '.join(nodes)}: {found}" if nodes else found,
        expected="every node and process alive to the end",
        next_step=(
            "start the node again (ray start --address=...)"
            if nodes
            else "look above and in the kernel's log for what ended it, often too little memory"
            if killed
            else "correct what it says"
        )
        + f", then go on from the last checkpoint: {command}",
    )
