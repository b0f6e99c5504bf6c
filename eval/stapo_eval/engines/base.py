"""What all engines share: requests and their ends, the order of asking, and the loop that keeps an engine busy."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stapo_eval.decoding import Chat, Decoding, encode_chat
from stapo_eval.models import ModelFiles
from stapo_results.errors import BadInput, message_of
from stapo_results.schema import FinishReason, Judgement, Sample, Verdict

_VOCABULARY = ("tokenizer.json", "vocab.json", "tokenizer.model")
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
    """A request's end; `prompt_tokens` as the model counts them, which for an endpoint is its server."""

    request: Request
    text: str
    finish_reason: FinishReason
    prompt_tokens: int
    response_tokens: int
    logprob_sum: float | None
    error: str = ""


def failed(request: Request, error: str) -> Finished:
    """The end of a request that got no response."""
    return Finished(request, "", "error", len(request.prompt), 0, None, error)


@dataclass(frozen=True)
class EngineSpec:
    """What a loaded model says of itself. Pickles: a replica sends it to the process that schedules.

    Attributes:
        context: tokens that a prompt and its response may have together.
        places: requests that the model works on at a time.
    """

    name: str
    deterministic: bool
    context: int
    places: int = 1


_SORT_EVERY = 256  # requests: sorting some ten thousand takes milliseconds


class Queue:
    """The order of requests: one of each problem and setting, then longest expected first.

    A long response that starts last keeps one engine busy alone at the end of a run. Nobody knows a response's length
    before it is made; a problem is expected to take the mean of its finished samples over all settings, or of all
    problems' where it has none. A problem's samples stay together, for the prefix cache.

    Args:
        done: keys of samples that were made before and are not asked for, with their response tokens.
    """

    def __init__(self, requests: Sequence[Request], done: Mapping[Key, int]):
        self.next: deque[Request] = deque()
        self.rest: list[Request] = []
        self.lengths: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)  # of finished responses, by prompt
        seen: set[tuple[str, str]] = set()
        for r in requests:
            if r.key in done:
                self.finished(r, done[r.key])
            elif (r.cell, r.problem_id) in seen:
                self.rest.append(r)
            else:
                self.next.append(r)
            seen.add((r.cell, r.problem_id))

    def __len__(self) -> int:
        return len(self.next) + len(self.rest)

    def take(self) -> Request:
        """The next request."""
        if not self.next:
            every = [n for lengths in self.lengths.values() for n in lengths]
            other = sum(every) / max(1, len(every))
            mean = {prompt: sum(lengths) / len(lengths) for prompt, lengths in self.lengths.items()}
            self.rest.sort(key=lambda r: -mean.get(r.prompt, other))  # stable
            self.next.extend(self.rest[:_SORT_EVERY])
            del self.rest[:_SORT_EVERY]
        return self.next.popleft()

    def finished(self, request: Request, tokens: int) -> None:
        """A response came to so many tokens."""
        self.lengths[request.prompt].append(tokens)


class Engine(ABC):
    """A loaded model, or several copies of one.

    Attributes:
        counts_tokens: True if `len(encode(text))` is exact; endpoints give UTF-8 bytes, an upper bound.
        copies: engines behind this one; 0: it is one itself.
        under_way: tokens of responses that are not finished, where the engine can tell.
        busy: seconds in which the model worked or was waited for.
        notes: what happened that a reader of the records should know (a replica that was lost).
        refused: options of a request that an endpoint does not take.
        chat: what goes with a message; the evaluation sets that of its model, a judge has none.
    """

    counts_tokens, copies, under_way = True, 0, 0
    chat = Chat()
    tokenizer: Any

    def loaded(self, spec: EngineSpec) -> None:
        """The model is there. An engine that is `deterministic` gives the same samples whatever is in `done`."""
        self.spec, self.busy = spec, 0.0
        self.name, self.deterministic, self.context = spec.name, spec.deterministic, spec.context
        self.notes: list[str] = []
        self.refused: list[str] = []

    def encode(self, message: str) -> list[int]:
        """Token ids of a user message in the model's chat template, with what goes with it."""
        return encode_chat(self.tokenizer, message, self.chat)

    @abstractmethod
    def submit(self, request: Request) -> None:
        """Accept a request."""

    @abstractmethod
    def poll(self) -> list[Finished]:
        """Work until some requests are finished, or for some seconds; each accepted request ends exactly once."""

    @abstractmethod
    def close(self) -> None:
        """Give the model's memory back."""

    def stream(self, requests: Sequence[Request], done: Mapping[Key, int]) -> Iterator[list[Finished]]:
        """Finished requests in pieces as they come, each request that is not in `done` exactly once.

        Args:
            done: keys of samples that were made before, with their response tokens, from which the order is learnt.
        """
        longest = self.context - 1 if self.counts_tokens else sys.maxsize
        if errors := [
            failed(r, f"the prompt has {len(r.prompt)} tokens, the model {self.context} positions")
            for r in requests
            if len(r.prompt) > longest and r.key not in done
        ]:
            yield errors
        queue = Queue([r for r in requests if len(r.prompt) <= longest], done)
        working = 0
        while queue or working:
            began = time.perf_counter()
            while queue and working < self.spec.places:
                self.submit(queue.take())
                working += 1
            finished = self.poll()
            self.busy += time.perf_counter() - began
            working -= len(finished)
            for f in finished:
                queue.finished(f.request, f.response_tokens)
            yield finished


def load_tokenizer(model: ModelFiles) -> Any:
    """The model's tokenizer. Raises: BadInput for one that cannot be read, or has no chat template."""
    from transformers import AutoTokenizer

    if not any((model.folder / name).exists() for name in _VOCABULARY):  # transformers may make an empty one
        raise BadInput(f"{model.given} has no tokenizer", expected=f"one of {', '.join(_VOCABULARY)}",
                       next_step="add the files of the model family's tokenizer to its folder")  # fmt: skip
    try:
        tokenizer = AutoTokenizer.from_pretrained(model.folder, trust_remote_code=False)
    except Exception as e:  # noqa: BLE001  a file may be wrong in any way
        raise BadInput(f"the tokenizer of {model.given} cannot be read", found=message_of(e),
                       next_step="copy its files again, or do what the library says") from None  # fmt: skip
    if not tokenizer.chat_template:
        raise BadInput(
            f"the tokenizer of {model.given} has no chat template",
            next_step="add the model family's chat_template.jinja to its folder: the paper's prompt is a chat message",
        )
    return tokenizer
