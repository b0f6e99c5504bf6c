"""Starts veRL's TransferQueue in a thread while the ranks start: its two processes import torch after each other."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import wait as ended
from contextlib import contextmanager
from threading import Thread
from typing import Any

import transfer_queue

_init, _close = transfer_queue.init, transfer_queue.close
_PATIENCE_S = 30.0
"""For a start that is not over when the training is; the thread ends with the process."""
_begun: list[Future[Any]] = []


@contextmanager
def beside() -> Iterator[None]:
    """Inside, the first `transfer_queue.init` of this process returns at once; who uses the queue calls `wait` first.

    No worker uses it before `wait`: one that came first would make a queue of its own with TransferQueue's defaults.
    """

    def init(conf: Any = None) -> Any:
        transfer_queue.init = _init
        start, own_conf = Future[Any](), copy.deepcopy(conf)  # the configuration changes meanwhile

        def run() -> None:
            try:
                start.set_result(_init(own_conf))
            except BaseException as e:  # noqa: BLE001  `wait` raises it
                start.set_exception(e)

        _begun.append(start)
        Thread(target=run, name="queue-start", daemon=True).start()
        return conf

    def close() -> None:
        ended(_begun, timeout=_PATIENCE_S)  # a half-made queue would outlive its end
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
