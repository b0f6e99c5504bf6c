"""What all engines share: their interface, and the loop that keeps one loaded model busy."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stapo_eval.decoding import encode_chat
from stapo_eval.engines.requests import (
    Batches,
    Finished,
    Key,
    Queue,
    Request,
    Schedule,
    fixed_batches,
    too_long,
    wanted,
)
from stapo_eval.models import ModelFiles
from stapo_results.errors import BadInput


class Engine(Protocol):
    """A loaded model, or several copies of one.

    `stream` yields finished requests in pieces as they come, each request that is not in `done` exactly once; where
    `done` is a mapping its values are the responses' lengths in tokens, from which the order of the rest is learnt. An
    engine that says it is `deterministic` gives the same samples whatever is in `done`.

    Attributes:
        context: tokens that a prompt and its response may have together.
        counts_tokens: whether `encode` gives the model's own tokens; else what it gives is never fewer.
        busy: seconds in which the model worked or was waited for.
        notes: what happened that a reader of the records should know (a replica that was lost).
        refused: options of a request that an endpoint does not take.
    """

    name: str
    deterministic: bool
    context: int
    counts_tokens: bool
    busy: float
    notes: list[str]
    refused: list[str]

    def encode(self, message: str) -> list[int]: ...

    def stream(self, requests: Sequence[Request], done: Collection[Key]) -> Iterator[list[Finished]]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class RowLimit:
    """How many rows a fixed batch may have: `most`, and fewer where the keys and values would not fit `cache_bytes`.

    A function of the model and the request alone, so that every replica and every resumed run makes the same batches.
    """

    most: int
    kv_bytes: int  # of one token
    context: int
    cache_bytes: int  # 0: no such limit

    def __call__(self, prompt_tokens: int, max_tokens: int) -> int:
        tokens = min(prompt_tokens + max_tokens, self.context)
        return min(self.most, self.cache_bytes // (self.kv_bytes * tokens)) if self.cache_bytes else self.most


@dataclass(frozen=True)
class EngineSpec:
    """What a loaded model says of itself. Pickles: a replica sends it to the process that schedules.

    Attributes:
        places: requests that the model works on at a time (1 for an engine with fixed batches: one batch).
        rows: the limit of a fixed batch; None for an engine that takes single requests.
    """

    name: str
    deterministic: bool
    context: int
    places: int
    rows: RowLimit | None = None

    def schedule(self, requests: Sequence[Request], done: Collection[Key]) -> tuple[list[Finished], Schedule]:
        """(error ends of requests that can have no answer, the others in the order in which they are handed out)."""
        fit, errors = too_long(requests, self.context)
        errors = [e for e in errors if e.request.key not in done]
        if self.rows is None:
            return errors, Queue(fit, done)
        # a whole batch again, so that its missing rows come out as they would have
        batches = fixed_batches(fit, self.rows)
        return errors, Batches(b for b in batches if any(r.key not in done for r in b))


class LoadedEngine:
    """What an engine says of itself, from its model's `spec`."""

    tokenizer: Any
    counts_tokens = True

    def loaded(self, spec: EngineSpec) -> None:
        """The model is there."""
        self.spec, self.busy = spec, 0.0
        self.notes: list[str] = []
        self.refused: list[str] = []
        self.name, self.deterministic, self.context = spec.name, spec.deterministic, spec.context

    def encode(self, message: str) -> list[int]:
        return encode_chat(self.tokenizer, message)


class LocalEngine(LoadedEngine, ABC):
    """The loop around one model in this process; a replica holds one of these in a process of its own."""

    @abstractmethod
    def submit(self, requests: Sequence[Request]) -> None:
        """Take requests in hand."""

    @abstractmethod
    def poll(self) -> list[Finished]:
        """Work until something is finished; each request in hand ends exactly once."""

    @abstractmethod
    def close(self) -> None:
        """Give the model's memory back."""

    def stream(self, requests: Sequence[Request], done: Collection[Key]) -> Iterator[list[Finished]]:
        errors, schedule = self.spec.schedule(requests, done)
        if errors:
            yield errors
        in_hand = 0
        while schedule or in_hand:
            fresh = schedule.take(wanted(len(schedule), 1, self.spec.places, in_hand))
            began = time.perf_counter()
            if fresh:
                self.submit(fresh)
            finished = self.poll()
            self.busy += time.perf_counter() - began
            in_hand += len(fresh) - len(finished)
            for f in finished:
                schedule.finished(f.request, f.response_tokens)
            if missing := [f for f in finished if f.request.key not in done]:
                yield missing


def load_tokenizer(model: ModelFiles) -> Any:
    """The model's tokenizer; raises BadInput for one without a chat template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model.folder, trust_remote_code=False)
    if not tokenizer.chat_template:
        raise BadInput(
            f"the tokenizer of {model.given} has no chat template",
            next_step="add the model family's chat_template.jinja to its folder: the paper's prompt is a chat message",
        )
    return tokenizer
