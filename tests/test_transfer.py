"""Waiting for the weights: with real tasks of Ray, each a rank."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import ray

from stapo_results.errors import RunFailed
from stapo_training.verl_ext.waiting import wait_for_ranks


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=80 * 2**20)
    yield
    ray.shutdown()


@ray.remote
def rank(seconds: float, error: str = "") -> None:
    time.sleep(seconds)
    if error:
        raise OSError(error)


def test_all_ranks_are_waited_for() -> None:
    pending = [rank.remote(0.5), rank.remote(0.1)]
    wait_for_ranks(pending, 60, step=1)
    assert ray.wait(pending, num_returns=2, timeout=0)[1] == []


def test_the_ranks_that_are_late_are_named() -> None:
    pending = [rank.remote(0.0), rank.remote(60), rank.remote(60)]
    ray.get(pending[0])
    began = time.monotonic()
    with pytest.raises(RunFailed) as caught:
        wait_for_ranks(pending, 1.0, step=7)
    assert 0.9 < time.monotonic() - began < 10
    assert "step 7" in str(caught.value)
    assert caught.value.found == "rank 1, 2 of 3 not done after 1 s"
    for late in pending[1:]:
        ray.cancel(late, force=True)


def test_a_ranks_own_error_does_not_wait_for_the_others() -> None:
    pending = [rank.remote(60), rank.remote(0.0, "no weights")]
    with pytest.raises(OSError, match="no weights"):
        wait_for_ranks(pending, 30, step=1)
    ray.cancel(pending[0], force=True)
