"""Past one machine, by simulation: how long the queue keeps many replicas busy, against the least that is possible.

The queue is the one that the engines use, fed in the way in which they are. A replica answers `places` requests at a
time, each a token a unit of time. Nothing that ends all requests can be shorter than the work over all places, or than
the longest request; that bound is the baseline. Beside it stands the usual loop, which leaves its ends idle: engine by
engine over benchmarks and settings, one blocking pass a seed, the seeds dealt out to the replicas beforehand.

Lengths are drawn, not measured: log-normal around a mean of the benchmark and of the problem, cut at 20,480 tokens.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stapo_eval.decoding import MAX_TOKENS, Decoding
from stapo_eval.engines import Key, Request
from stapo_eval.engines.schedule import Queue, Schedule, wanted
from stapo_results.schema import SETTINGS, BenchRow
from stapo_results.seeds import derive_seed

GOAL = 1.05
# (replicas, places): a replica that answers one request at a time is what the goal is about; with 64 places each, the
# last requests decide, and an order that must learn the lengths meanwhile cannot come as near to the bound
MACHINES = ((8, 1), (64, 1), (8, 64), (64, 64))

# the paper's six by rows and N, with the middle length in tokens that their problems are given here
SHAPES = {
    "aime24": (30, 32, 9000),
    "aime25": (30, 32, 9000),
    "amc23": (40, 32, 5000),
    "math500": (500, 4, 2500),
    "minerva": (272, 4, 3000),
    "olympiadbench": (674, 4, 5000),
}


@dataclass(frozen=True)
class Spread:
    """How lengths vary: standard deviations of the logarithm between and within problems, and the share of responses
    that never end, whatever the problem."""

    between: float = 0.7
    within: float = 0.5
    endless: float = 0.0


def draw(spread: Spread, seed: int = 0) -> tuple[list[Request], dict[Key, int]]:
    """Every request of one model in both settings, in the order of the paper's table, and each one's length."""
    requests: list[Request] = []
    lengths: dict[Key, int] = {}
    number = 0
    for benchmark, (rows, n, middle) in SHAPES.items():
        means = middle * np.exp(spread.between * np.random.default_rng(derive_seed(seed, benchmark)).normal(size=rows))
        for setting, (temperature, top_p) in SETTINGS.items():
            decoding = Decoding(temperature, top_p, MAX_TOKENS)
            stream = np.random.default_rng(derive_seed(seed, benchmark, setting))
            for row, mean in enumerate(means):
                drawn = mean * np.exp(spread.within * stream.normal(size=n))
                drawn[stream.random(n) < spread.endless] = MAX_TOKENS
                for i, tokens in enumerate(drawn):
                    r = Request(f"{benchmark}/{setting}", str(row), i, 0, (number + row,), decoding)
                    requests.append(r)
                    lengths[r.key] = int(min(MAX_TOKENS, max(1, round(tokens))))
        number += rows
    return requests, lengths


def bound(lengths: Mapping[Key, int], places: int) -> float:
    """The least time in which so many places can end all requests."""
    return max(sum(lengths.values()) / places, max(lengths.values()))


def pulled(schedule: Schedule, lengths: Mapping[Key, int], replicas: int, places: int) -> float:
    """Time until replicas that pull from `schedule` have ended everything.

    A replica takes as many as the engines do, and starts what it has in hand in the order in which it came.
    """
    waiting: list[deque[Request]] = [deque() for _ in range(replicas)]
    running = [0] * replicas
    ends: list[tuple[float, int, int, Request]] = []
    now, count = 0.0, 0

    def feed(replica: int) -> None:
        nonlocal count
        in_hand = running[replica] + len(waiting[replica])
        waiting[replica].extend(schedule.take(wanted(len(schedule), replicas, places, in_hand)))
        while running[replica] < places and waiting[replica]:
            r = waiting[replica].popleft()
            running[replica] += 1
            count += 1
            heapq.heappush(ends, (now + lengths[r.key], count, replica, r))

    for replica in range(replicas):
        feed(replica)
    while ends:
        now, _, replica, r = heapq.heappop(ends)
        running[replica] -= 1
        schedule.finished(r, lengths[r.key])
        feed(replica)
    return now


def _pass(lengths: Sequence[int], places: int) -> float:
    """One blocking call: each place takes the next request when it is free."""
    free = [0.0] * places
    for tokens in lengths:
        heapq.heappush(free, heapq.heappop(free) + tokens)
    return max(free)


def looped(requests: Sequence[Request], lengths: Mapping[Key, int], replicas: int, places: int) -> float:
    """Time of the usual loop; loading an engine for every benchmark is not counted."""
    total = 0.0
    for cell in dict.fromkeys(r.cell for r in requests):
        passes: dict[int, list[int]] = {}
        for r in requests:
            if r.cell == cell:
                passes.setdefault(r.sample_index, []).append(lengths[r.key])
        spent = [0.0] * replicas
        for index, row in passes.items():
            spent[index % replicas] += _pass(row, places)
        total += max(spent)
    return total


class Known(Queue):
    """What no queue can do: the longest first, with every length known beforehand."""

    def __init__(self, requests: Sequence[Request], lengths: Mapping[Key, int]):
        super().__init__(requests)
        self.first = deque(sorted(requests, key=lambda r: -lengths[r.key]))


def rows(spread: Spread | None = None, shapes: Sequence[tuple[int, int]] = MACHINES) -> list[BenchRow]:
    """For each (replicas, places): our queue, the usual loop, and an order that knows the lengths.

    `seconds` is the makespan in units of a token's time, `ratio` what it is of the lower bound.
    """
    requests, lengths = draw(spread or Spread())
    cut = sum(x == MAX_TOKENS for x in lengths.values()) / len(lengths)
    out: list[BenchRow] = []
    for replicas, places in shapes:
        least = bound(lengths, replicas * places)
        timed = {
            "one queue": pulled(Queue(requests), lengths, replicas, places),
            "usual loop": looped(requests, lengths, replicas, places),
            "lengths known": pulled(Known(requests, lengths), lengths, replicas, places),
        }
        labels = {"replicas": str(replicas), "places": str(places), "unit": "token times"}
        for name, time in timed.items():
            ratio = time / least
            values = {"bound": least, "requests": float(len(requests)), "cut_share": cut}
            if name == "one queue":
                values |= {"goal": GOAL, "met": float(ratio <= GOAL)} if places == 1 else {}
            out.append(
                BenchRow(name=f"makespan, {name}", labels=labels, seconds=time, ratio=ratio, ratio_low=ratio,
                         ratio_high=ratio, values=values)
            )  # fmt: skip
    assert all(math.isfinite(r.ratio) for r in out)
    return out
