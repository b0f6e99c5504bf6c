"""Starts veRL's TransferQueue in a thread while the ranks start: its two processes import torch after each other."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as ended
from contextlib import contextmanager
from typing import Any

import transfer_queue

_init, _close = transfer_queue.init, transfer_queue.close
_begun: list[Future[Any]] = []


@contextmanager
def beside() -> Iterator[None]:
    """Inside, the first `transfer_queue.init` of this process returns at once; who uses the queue calls `wait` first.

    A worker that asks for the queue waits for it, as it always does.
    """
    with ThreadPoolExecutor(1) as threads:

        def init(conf: Any = None) -> Any:
            transfer_queue.init = _init
            _begun.append(threads.submit(_init, conf))
            return conf

        def close() -> None:
            ended(_begun)  # a half-made queue would outlive its end
            _close()

        transfer_queue.init, transfer_queue.close = init, close
        try:
            yield
        finally:
            transfer_queue.init, transfer_queue.close = _init, _close
            _begun.clear()


def wait() -> None:
    """Return when the queue is there; raises what its start raised."""
    for start in _begun:
        start.result()
