"""The simulation of many replicas, by hand where it is small; the goals where it is large."""

from __future__ import annotations

from stapo_eval.bench import makespan
from stapo_eval.bench.makespan import Known, Spread, bound, draw, looped, pulled
from stapo_eval.decoding import MAX_TOKENS, Decoding
from stapo_eval.engines import Request
from stapo_eval.engines.schedule import Queue

D = Decoding(1.0, 1.0, 100)


def _world(lengths: list[int]) -> tuple[list[Request], dict]:
    requests = [Request("c", f"p{i}", 0, 0, (i,), D) for i in range(len(lengths))]
    return requests, {r.key: n for r, n in zip(requests, lengths, strict=True)}


def test_by_hand() -> None:
    requests, lengths = _world([3, 3, 2, 2, 2])
    assert bound(lengths, 2) == 6
    assert bound(lengths, 12) == 3
    # in the order given: 3+2+2 and 3+2
    assert pulled(Queue(requests), lengths, 2, 1) == 7
    assert pulled(Queue(requests), lengths, 1, 2) == 7
    assert pulled(Queue(requests), lengths, 1, 1) == 12
    assert pulled(Known(*_world([2, 2, 3, 3, 2])), _world([2, 2, 3, 3, 2])[1], 2, 1) == 7


def test_the_usual_loop_by_hand() -> None:
    requests = [Request(c, p, i, 0, (0,), D) for c in ("a", "b") for p in ("x", "y") for i in range(3)]
    lengths = {r.key: 10 if r.problem_id == "x" else 1 for r in requests}
    # a pass of 11 with one place, 10 with two; three passes on two replicas: two in a row, then the next cell
    assert looped(requests, lengths, replicas=2, places=1) == 44
    assert looped(requests, lengths, replicas=3, places=1) == 22
    assert looped(requests, lengths, replicas=64, places=2) == 20


def test_what_is_drawn_is_one_model_in_both_settings() -> None:
    requests, lengths = draw(Spread())
    assert len(requests) == len(lengths) == 2 * 8984
    assert max(lengths.values()) == MAX_TOKENS
    assert 0.01 < sum(n == MAX_TOKENS for n in lengths.values()) / len(lengths) < 0.1
    assert draw(Spread())[1] == lengths


def test_the_queue_meets_its_goal_and_the_usual_loop_does_not() -> None:
    rows = {(r.name, r.labels["replicas"]): r for r in makespan.rows(shapes=((8, 1), (64, 1)))}
    for replicas in ("8", "64"):
        ours, usual = rows["makespan, one queue", replicas], rows["makespan, usual loop", replicas]
        assert 1 <= ours.ratio <= 1.05
        assert ours.values["met"] == 1
        assert usual.ratio > 1.4
