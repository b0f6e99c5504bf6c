"""What is asked of an engine, in which order, and how each request ends. The order changes no sample."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from stapo_eval.decoding import Decoding
from stapo_results.schema import FinishReason, Judgement, Sample, Timing, Verdict

Key = tuple[str, str, int]  # cell id, problem id, sample index


def key_of(record: Sample | Verdict | Timing | Judgement) -> Key:
    """Which sample a record is about."""
    return record.cell, record.problem_id, record.sample_index


@dataclass(frozen=True, slots=True)
class Request:
    """One sample to draw. Requests with equal `cell` share their decoding; `prompt` is what `Engine.encode` gave."""

    cell: str
    problem_id: str
    sample_index: int
    seed: int
    prompt: tuple[int, ...]
    decoding: Decoding

    @property
    def key(self) -> Key:
        return self.cell, self.problem_id, self.sample_index


@dataclass(frozen=True, slots=True)
class Finished:
    """A request's end.

    Attributes:
        seconds: from handing the request to the model to its end; in a fixed batch, its share of the batch's time.
        prompt_tokens: as the model's server counts them; None where they are the request's own.
    """

    request: Request
    text: str
    finish_reason: FinishReason
    response_tokens: int
    logprob_sum: float | None
    seconds: float
    error: str = ""
    prompt_tokens: int | None = None

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt) if self.prompt_tokens is None else self.prompt_tokens


def too_long(requests: Sequence[Request], context: int) -> tuple[list[Request], list[Finished]]:
    """(requests that fit, error ends of those whose prompt leaves no room for a token)."""
    fit, errors = [], []
    for r in requests:
        if len(r.prompt) < context:
            fit.append(r)
        else:
            message = f"the prompt has {len(r.prompt)} tokens, the model {context} positions"
            errors.append(Finished(r, "", "error", 0, None, 0.0, message))
    return fit, errors


def fixed_batches(requests: Sequence[Request], rows: Callable[[int, int], int]) -> list[list[Request]]:
    """Batches that depend on the cell's requests alone: longest prompts first, never across cells.

    Args:
        rows: the most rows of a batch by the tokens of its longest prompt and of a response.
    """
    of_cell: dict[str, list[Request]] = {}
    for r in requests:
        of_cell.setdefault(r.cell, []).append(r)
    batches: list[list[Request]] = []
    for mine in of_cell.values():
        mine.sort(key=lambda r: -len(r.prompt))  # stable
        at = 0
        while at < len(mine):
            take = max(1, rows(len(mine[at].prompt), mine[at].decoding.max_tokens))
            batches.append(mine[at : at + take])
            at += take
    return batches


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


_PRIOR_SAMPLES = 2
_SORT_EVERY = 64  # finished samples: sorting a few thousand problems takes milliseconds


class Queue:
    """Single requests, longest expected first; the samples of a problem follow one another, for the prefix cache.

    The end of a run is where engines stand idle: a long response that starts last keeps one of them busy alone. Nobody
    knows a response's length before it is made, so one sample of each problem and setting goes first, in the order
    given; after that always the problem whose responses are expected to be longest: the mean length of its finished
    samples over all settings, drawn towards the mean of all by two samples' weight.

    Args:
        requests: in the order in which first samples go out.
        done: keys of samples that were made before and are not handed out; as a mapping, with their response tokens.
    """

    def __init__(self, requests: Sequence[Request], done: Collection[Key] = ()):
        self.waiting: dict[tuple[str, str], deque[Request]] = {}  # by cell and problem
        self.lengths: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)  # of finished responses, by prompt
        self.first: deque[Request] = deque()
        self.order: list[deque[Request]] = []
        self.current: deque[Request] = deque()
        self.count = self.unsorted = self.total = self.finished_count = 0
        lengths = done if isinstance(done, Mapping) else {}
        for r in requests:
            fresh = (r.cell, r.problem_id) not in self.waiting
            waiting = self.waiting.setdefault((r.cell, r.problem_id), deque())
            if r.key in lengths:
                self.finished(r, lengths[r.key])
            elif r.key not in done:
                (self.first if fresh else waiting).append(r)
                self.count += 1

    def __len__(self) -> int:
        return self.count

    def take(self, most: int) -> list[Request]:
        """At most `most` requests, fewer when fewer are left."""
        out = [self._next() for _ in range(min(most, self.count))]
        self.count -= len(out)
        return out

    def _next(self) -> Request:
        if self.first:
            return self.first.popleft()
        if not self.current:
            if self.unsorted >= _SORT_EVERY or not self.order:
                # taken from the end; equals keep the order in which they were given
                self.order = sorted(filter(None, self.waiting.values()), key=self.expected, reverse=True)[::-1]
                self.unsorted = 0
            self.current = self.order.pop()
        return self.current.popleft()

    def expected(self, waiting: Sequence[Request]) -> float:
        """Tokens that a response to this problem may come to."""
        known = self.lengths[waiting[0].prompt]
        mean = self.total / max(1, self.finished_count)
        return (sum(known) + _PRIOR_SAMPLES * mean) / (len(known) + _PRIOR_SAMPLES)

    def give_back(self, requests: Iterable[Request]) -> None:
        """Requests that were taken and not answered: they go first, since they were the most urgent once."""
        back = list(requests)
        self.first.extendleft(reversed(back))
        self.count += len(back)

    def finished(self, request: Request, tokens: int) -> None:
        """A response came to so many tokens."""
        self.lengths[request.prompt].append(tokens)
        self.total += tokens
        self.finished_count += 1
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


Schedule = Queue | Batches
