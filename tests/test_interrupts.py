"""Ctrl-C as a wish: what the first, an echo of it, and a second signal do."""

import os
import signal

import pytest

from stapo_training.folder.interrupts import StopRequest


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def caught():
    clock = Clock()
    stop = StopRequest(clock)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    stop.catch(lambda: "step 7 is finished first")
    yield stop, clock
    stop.release()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_the_first_signal_is_remembered_and_its_echo_is_not_a_second_one(caught, capfd, name: str) -> None:
    stop, clock = caught
    assert not stop
    for _ in range(2):
        os.kill(os.getpid(), signal.Signals[name])
        clock.now += 0.9
    assert (bool(stop), stop.by) == (True, name)
    assert capfd.readouterr().err == f"\n{name}: step 7 is finished first\n"


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_one_stops_at_once(caught, second: signal.Signals) -> None:
    _, clock = caught
    os.kill(os.getpid(), signal.SIGINT)
    clock.now += 1.0
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), second)
