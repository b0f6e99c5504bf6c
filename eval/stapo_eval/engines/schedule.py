"""Which requests go to an engine next. Pure bookkeeping: no clock, no engine; the bench's simulation runs this code.

The end of a run is where engines stand idle: a long response that starts last keeps one of them busy alone. So the
longest are wanted first, but nobody knows a response's length before it is made. What is known comes from the run
itself (`Queue`): one sample of each problem and setting goes first, in the order given; after that always the problem
whose responses are expected to be longest. The expectation is the mean length of the problem's finished samples over
all settings, drawn towards its cell's mean (all cells' before the cell has one) by two samples' weight. In simulation
elapsed times of unfinished samples added nothing, and more first samples than one cost more than they told.

The order never changes a sample: each has its own seed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stapo_eval.engines.requests import Key, Request

_PRIOR_SAMPLES = 2
_SORT_EVERY = 64  # finished samples: sorting a few thousand problems takes milliseconds
# requests that a model has in hand beyond those that it works on, as a share of these: a place that becomes free is
# filled without waiting for the process that schedules
_SPARE = 1 / 8
_LONG_QUEUE = 8  # requests that wait for each place


def wanted(waiting: int, replicas: int, places: int, in_hand: int) -> int:
    """How many more requests one replica should take.

    Spare ones only while the queue is long: a request that waits in one replica's hand could else run in another's,
    and where the queue is short, that decides when the last one ends.
    """
    spare = int(places * _SPARE) if waiting > _LONG_QUEUE * replicas * places else 0
    return max(0, places + spare - in_hand)


class Schedule(Protocol):
    """Requests that wait. `take` hands out some, `give_back` returns those of an engine that died."""

    def __len__(self) -> int: ...

    def take(self, most: int) -> list[Request]: ...

    def give_back(self, requests: Iterable[Request]) -> None: ...

    def finished(self, request: Request, tokens: int) -> None: ...


@dataclass
class _Lengths:
    """Lengths in tokens of finished responses."""

    total: int = 0
    count: int = 0

    def add(self, tokens: int) -> None:
        self.total += tokens
        self.count += 1


@dataclass
class _Group:
    """The waiting samples of one problem in one cell; `problem` is shared by its other settings."""

    everything: _Lengths
    cell: _Lengths
    problem: _Lengths
    waiting: deque[Request] = field(default_factory=deque)

    def expected(self) -> float:
        prior = self.cell if self.cell.count else self.everything
        mean = prior.total / max(1, prior.count)
        return (self.problem.total + _PRIOR_SAMPLES * mean) / (self.problem.count + _PRIOR_SAMPLES)


class Queue:
    """Single requests, longest expected first; the samples of a problem follow one another, for the prefix cache.

    Args:
        requests: in the order in which first samples go out.
        done: keys of samples that were made before and are not handed out; as a mapping, with their response tokens.
    """

    def __init__(self, requests: Sequence[Request], done: Collection[Key] = ()):
        self.everything = _Lengths()
        cells: dict[str, _Lengths] = {}
        problems: dict[tuple[int, ...], _Lengths] = {}
        self.groups: dict[tuple[str, str], _Group] = {}
        self.first: deque[Request] = deque()
        self.returned: deque[Request] = deque()
        self.count = 0
        lengths = done if isinstance(done, Mapping) else {}
        for r in requests:
            group = self.groups.get((r.cell, r.problem_id))
            fresh = group is None
            if group is None:
                cell = cells.setdefault(r.cell, _Lengths())
                group = _Group(self.everything, cell, problems.setdefault(r.prompt, _Lengths()))
                self.groups[r.cell, r.problem_id] = group
            if r.key in lengths:
                self._learn(group, lengths[r.key])
            elif r.key not in done:
                (self.first if fresh else group.waiting).append(r)
                self.count += 1
        self.order: list[_Group] = []
        self.current: _Group | None = None
        self.unsorted = 0

    def __len__(self) -> int:
        return self.count

    @staticmethod
    def _learn(group: _Group, tokens: int) -> None:
        for lengths in (group.everything, group.cell, group.problem):
            lengths.add(tokens)

    def take(self, most: int) -> list[Request]:
        """At most `most` requests, fewer when fewer are left."""
        out: list[Request] = []
        while len(out) < most and self.count:
            out.append(self._next())
            self.count -= 1
        return out

    def _next(self) -> Request:
        for line in (self.returned, self.first):
            if line:
                return line.popleft()
        if self.current is None or not self.current.waiting:
            self.current = self._longest()
        return self.current.waiting.popleft()

    def _longest(self) -> _Group:
        if self.unsorted >= _SORT_EVERY or not self.order:
            # taken from the end; equals keep the order in which they were given
            waiting = [g for g in self.groups.values() if g.waiting]
            self.order = sorted(waiting, key=_Group.expected, reverse=True)[::-1]
            self.unsorted = 0
        return self.order.pop()

    def give_back(self, requests: Iterable[Request]) -> None:
        """Requests that were taken and not answered: they go first, since they were the most urgent once."""
        for r in requests:
            self.returned.append(r)
            self.count += 1

    def finished(self, request: Request, tokens: int) -> None:
        """A response came to so many tokens."""
        self._learn(self.groups[request.cell, request.problem_id], tokens)
        self.unsorted += 1


class Batches:
    """Fixed batches as they are, one at a time: what an engine needs whose rounding depends on the batch."""

    def __init__(self, batches: Iterable[list[Request]]):
        self.batches = deque(batches)

    def __len__(self) -> int:
        return sum(map(len, self.batches))

    def take(self, most: int) -> list[Request]:
        """The next batch, whole, if anything is asked for."""
        return self.batches.popleft() if most > 0 and self.batches else []

    def give_back(self, requests: Iterable[Request]) -> None:
        """A whole batch that was taken."""
        if batch := list(requests):
            self.batches.appendleft(batch)

    def finished(self, request: Request, tokens: int) -> None:
        """Nothing is learnt: the batches are fixed."""
