"""What is asked of an engine, in which order, and how each request ends. The order changes no sample."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from stapo_eval.decoding import Decoding
from stapo_results.schema import FinishReason, Judgement, Sample, Verdict

Key = tuple[str, str, int]  # cell id, problem id, sample index


def key_of(record: Sample | Verdict | Judgement) -> Key:
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


def failed(request: Request, error: str) -> Finished:
    """The end of a request that got no response."""
    return Finished(request, "", "error", 0, None, 0.0, error)


def fixed_batches(requests: Sequence[Request], rows: Callable[[int, int], int]) -> list[list[Request]]:
    """Batches that depend on the cell's requests alone: longest prompts first, never across cells.

    Args:
        rows: the most rows of a batch by the tokens of its longest prompt and of a response.
    """
    of_cell: defaultdict[str, list[Request]] = defaultdict(list)
    for r in requests:
        of_cell[r.cell].append(r)
    batches: list[list[Request]] = []
    for rest in of_cell.values():
        rest.sort(key=lambda r: -len(r.prompt))  # stable
        while rest:
            take = max(1, rows(len(rest[0].prompt), rest[0].decoding.max_tokens))
            batches.append(rest[:take])
            del rest[:take]
    return batches


_SORT_EVERY = 256  # requests: sorting some ten thousand takes milliseconds


class Queue:
    """Fixed batches in their order, or single requests: one of each problem and setting, then longest expected first.

    A long response that starts last keeps one engine busy alone at the end of a run. Nobody knows a response's length
    before it is made; a problem is expected to take the mean of its finished samples over all settings, or of all
    problems' where it has none. A problem's samples stay together, for the prefix cache.

    Args:
        done: keys of samples that were made before and are not handed out; as a mapping, with their response tokens.
        batches: what is handed out whole, one at a time, instead of requests.
    """

    def __init__(
        self, requests: Sequence[Request], done: Collection[Key] = (), batches: Sequence[list[Request]] | None = None
    ):
        self.fixed = batches is not None
        self.next = deque(batches or [])
        self.rest: list[Request] = []
        self.lengths: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)  # of finished responses, by prompt
        seen: set[tuple[str, str]] = set()
        for r in requests:
            if r.key in done:
                if isinstance(done, Mapping):
                    self.finished(r, done[r.key])
            elif (r.cell, r.problem_id) in seen:
                self.rest.append(r)
            else:
                self.next.append([r])
            seen.add((r.cell, r.problem_id))

    def __len__(self) -> int:
        return len(self.next) + len(self.rest)

    def take(self, most: int) -> list[Request]:
        """At most `most` requests, or a whole batch if anything is asked for."""
        taken = []
        for _ in range(min(most, len(self))):
            if not self.next:
                self._sort()
            taken += self.next.popleft()
        return taken

    def _sort(self) -> None:
        every = [n for lengths in self.lengths.values() for n in lengths]
        other = sum(every) / max(1, len(every))
        mean = {prompt: sum(lengths) / len(lengths) for prompt, lengths in self.lengths.items()}
        self.rest.sort(key=lambda r: -mean.get(r.prompt, other))  # stable
        self.next.extend([r] for r in self.rest[:_SORT_EVERY])
        del self.rest[:_SORT_EVERY]

    def give_back(self, requests: list[Request]) -> None:
        """What was taken and not answered; it is taken next."""
        self.next.extendleft([requests] if self.fixed else [[r] for r in reversed(requests)])

    def finished(self, request: Request, tokens: int) -> None:
        """A response came to so many tokens."""
        self.lengths[request.prompt].append(tokens)
