"""What all engines share: their interface, and the loop that keeps one loaded model busy."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stapo_eval.decoding import encode_chat
from stapo_eval.engines.requests import Finished, Key, Queue, Request, failed, fixed_batches
from stapo_eval.models import ModelFiles
from stapo_results.errors import BadInput


@dataclass(frozen=True)
class Spec:
    """What a loaded model says of itself. Pickles: a replica sends it to the process that schedules.

    Attributes:
        context: tokens that a prompt and its response may have together.
        places: requests that the model works on at a time (1 for an engine with fixed batches: one batch).
        rows: the most rows of a fixed batch; 0 for an engine that takes single requests.
        cached_tokens: for how many tokens a fixed batch has room for keys and values; 0: no such limit.
    """

    name: str
    deterministic: bool
    context: int
    places: int = 1
    rows: int = 0
    cached_tokens: int = 0

    def rows_of(self, prompt_tokens: int, max_tokens: int) -> int:
        """The most rows of a batch: the same for every replica and every resumed run."""
        tokens = min(prompt_tokens + max_tokens, self.context)
        return min(self.rows, self.cached_tokens // tokens) if self.cached_tokens else self.rows


class Engine(ABC):
    """A loaded model, or several copies of one.

    Attributes:
        counts_tokens: True if `len(encode(text))` is exact; endpoints give UTF-8 bytes, an upper bound.
        busy: seconds in which the model worked or was waited for.
        notes: what happened that a reader of the records should know (a replica that was lost).
        refused: options of a request that an endpoint does not take.
    """

    counts_tokens = True
    tokenizer: Any

    def loaded(self, spec: Spec) -> None:
        """The model is there. An engine that is `deterministic` gives the same samples whatever is in `done`."""
        self.spec, self.busy = spec, 0.0
        self.name, self.deterministic, self.context = spec.name, spec.deterministic, spec.context
        self.notes: list[str] = []
        self.refused: list[str] = []

    def encode(self, message: str) -> list[int]:
        """Token ids of a user message in the model's chat template."""
        return encode_chat(self.tokenizer, message)

    def schedule(self, requests: Sequence[Request], done: Collection[Key]) -> tuple[list[Finished], Queue]:
        """(error ends of requests whose prompt leaves no room for a token, the others in the order to answer them)."""
        fit = [r for r in requests if len(r.prompt) < self.context or not self.counts_tokens]
        errors = [
            failed(r, f"the prompt has {len(r.prompt)} tokens, the model {self.context} positions")
            for r in requests
            if self.counts_tokens and len(r.prompt) >= self.context and r.key not in done
        ]
        if not self.spec.rows:
            return errors, Queue(fit, done)
        # a whole batch again, so that its missing rows come out as they would have
        batches = fixed_batches(fit, self.spec.rows_of)
        return errors, Queue((), batches=[b for b in batches if any(r.key not in done for r in b)])

    @abstractmethod
    def stream(self, requests: Sequence[Request], done: Collection[Key]) -> Iterator[list[Finished]]:
        """Finished requests in pieces as they come, each request that is not in `done` exactly once.

        Where `done` is a mapping, its values are the responses' lengths in tokens, from which the order is learnt.
        """

    @abstractmethod
    def close(self) -> None:
        """Give the model's memory back."""


class LocalEngine(Engine):
    """The loop around one model in this process; a replica holds one of these in a process of its own."""

    @abstractmethod
    def submit(self, requests: Sequence[Request]) -> None:
        """Accept requests."""

    @abstractmethod
    def poll(self) -> list[Finished]:
        """Work until something is finished; each accepted request ends exactly once."""

    def stream(self, requests: Sequence[Request], done: Collection[Key]) -> Iterator[list[Finished]]:
        errors, queue = self.schedule(requests, done)
        if errors:
            yield errors
        in_flight = 0
        while queue or in_flight:
            began = time.perf_counter()
            if fresh := queue.take(self.spec.places - in_flight):
                self.submit(fresh)
            finished = self.poll()
            self.busy += time.perf_counter() - began
            in_flight += len(fresh) - len(finished)
            for f in finished:
                queue.finished(f.request, f.response_tokens)
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
