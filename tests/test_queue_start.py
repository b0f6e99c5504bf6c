"""The queue's start beside the ranks': who waits for whom."""

from __future__ import annotations

import threading

import pytest
import transfer_queue

from stapo_training.verl_ext import queue_start


def test_the_start_is_waited_for_by_who_uses_the_queue_and_by_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    may_start, events = threading.Event(), list[str]()

    def start(conf: str) -> None:
        may_start.wait(10)
        events.append(f"started {conf}")
        if conf == "bad":
            raise OSError("no queue")

    for name, fake in (("init", start), ("close", lambda: events.append("closed"))):
        monkeypatch.setattr(transfer_queue, name, fake)
        monkeypatch.setattr(queue_start, f"_{name}", fake)
    with queue_start.beside():
        transfer_queue.init("good")
        events.append("ranks")
        may_start.set()
        queue_start.wait()
        events.append("used")
        transfer_queue.close()
    assert events == ["ranks", "started good", "used", "closed"]
    events.clear()
    may_start.clear()
    with queue_start.beside():
        transfer_queue.init("bad")
        threading.Timer(0.2, may_start.set).start()
        transfer_queue.close()  # as after a failure of the ranks
        with pytest.raises(OSError, match="no queue"):
            queue_start.wait()
    assert events == ["started bad", "closed"]
    assert transfer_queue.init is start
