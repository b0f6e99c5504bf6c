"""Ctrl-C as a wish: what the first, an echo of it, and a second signal do."""

import os
import signal

import pytest

from stapo_training.run.interrupts import StopRequest


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
def test_the_first_signal_is_remembered_and_announced(caught, capfd, name: str) -> None:
    stop, _ = caught
    assert not stop
    os.kill(os.getpid(), signal.Signals[name])
    assert stop
    assert stop.by == name
    assert capfd.readouterr().err == f"\n{name}: step 7 is finished first\n"


def test_the_echo_of_one_key_press_is_not_a_second_one(caught, capfd) -> None:
    stop, clock = caught
    os.kill(os.getpid(), signal.SIGINT)
    clock.now += 0.9
    os.kill(os.getpid(), signal.SIGINT)
    assert stop.by == "SIGINT"
    assert capfd.readouterr().err.count("step 7") == 1


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_one_stops_at_once(caught, second: signal.Signals) -> None:
    _, clock = caught
    os.kill(os.getpid(), signal.SIGINT)
    clock.now += 1.0
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), second)
