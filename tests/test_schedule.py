"""The order of requests: longest expected first, every request once, whatever dies or was done before."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from stapo_eval.decoding import Decoding
from stapo_eval.engines import Request
from stapo_eval.engines.requests import Batches, Queue, wanted

D = Decoding(1.0, 1.0, 100)


def _requests(problems: int, samples: int, cells: tuple[str, ...] = ("t1.0", "t0.7")) -> list[Request]:
    return [Request(c, f"p{p}", i, 0, (p,), D) for c in cells for p in range(problems) for i in range(samples)]


def _names(requests: list[Request]) -> list[str]:
    return [f"{r.cell} {r.problem_id} {r.sample_index}" for r in requests]


def test_one_sample_of_each_problem_and_setting_goes_first_in_the_order_given() -> None:
    queue = Queue(_requests(2, 3))
    assert _names(queue.take(4)) == ["t1.0 p0 0", "t1.0 p1 0", "t0.7 p0 0", "t0.7 p1 0"]
    # nothing is known yet: the order given, and a problem's samples stay together
    assert _names(queue.take(3)) == ["t1.0 p0 1", "t1.0 p0 2", "t1.0 p1 1"]
    assert len(queue) == 5


def test_the_problem_with_the_longest_responses_comes_next() -> None:
    queue = Queue(_requests(3, 3, ("c",)))
    for r, tokens in zip(queue.take(3), (10, 90, 40), strict=True):
        queue.finished(r, tokens)
    # cell mean 140/3; expected (10 + 2m)/3 = 34.4, (90 + 2m)/3 = 61.1, (40 + 2m)/3 = 44.4
    assert [round(queue.expected(w), 1) for w in queue.waiting.values()] == [34.4, 61.1, 44.4]
    assert [r.problem_id for r in queue.take(6)] == ["p1", "p1", "p2", "p2", "p0", "p0"]


def test_a_problem_is_known_by_its_other_setting() -> None:
    requests = _requests(2, 2)
    queue = Queue(requests, {r.key: 500 if r.problem_id == "p1" else 100 for r in requests if r.cell == "t1.0"})
    # mean of all 300; expected (2 x 100 + 2 x 300) / 4 and (2 x 500 + 2 x 300) / 4
    assert [queue.expected(queue.waiting["t0.7", p]) for p in ("p0", "p1")] == [200.0, 400.0]
    assert _names(queue.take(4)) == ["t0.7 p0 0", "t0.7 p1 0", "t0.7 p1 1", "t0.7 p0 1"]


def test_batches_are_handed_out_whole_one_at_a_time_and_come_back_whole() -> None:
    a, b = _requests(1, 2, ("c",)), _requests(2, 1, ("d",))
    batches = Batches([a, b])
    assert batches.take(0) == []
    assert batches.take(1) == a
    batches.give_back(a)
    assert len(batches) == 4
    assert [batches.take(9), batches.take(9), batches.take(9)] == [a, b, []]


@settings(max_examples=60, deadline=None)
@given(
    problems=st.integers(1, 8),
    samples=st.integers(1, 5),
    steps=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3), st.integers(0, 500)), max_size=60),
    recorded=st.sets(st.integers(0, 79)),
)
def test_every_request_that_is_not_done_is_answered_once(problems, samples, steps, recorded) -> None:
    requests = _requests(problems, samples)
    done = {r.key for i, r in enumerate(requests) if i in recorded}
    queue = Queue(requests, dict.fromkeys(done, 7))
    hand: list[Request] = []
    answered: list[Request] = []
    # a replica takes `most`, dies with what it has, or finishes one
    for most, action, tokens in [*steps, *[(4, 1, 3)] * 200]:
        if action == 0:
            queue.give_back(hand)
            hand = []
        elif action == 1 or not hand:
            taken = queue.take(most)
            assert len(taken) == min(most, len(taken) + len(queue))
            hand += taken
        if hand:
            queue.finished(hand[0], tokens)
            answered.append(hand.pop(0))
    answered += hand
    assert not queue
    assert sorted(r.key for r in answered) == sorted(r.key for r in requests if r.key not in done)


def test_spare_requests_are_taken_only_while_the_queue_is_long() -> None:
    # 64 places: 8 spare while more than 8 requests wait for each place of both replicas
    assert wanted(waiting=1025, replicas=2, places=64, in_hand=60) == 12
    assert wanted(waiting=1024, replicas=2, places=64, in_hand=60) == 4
    assert wanted(waiting=10, replicas=2, places=64, in_hand=70) == 0
    assert wanted(waiting=10**6, replicas=1, places=1, in_hand=0) == 1
