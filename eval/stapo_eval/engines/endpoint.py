"""Any OpenAI-compatible endpoint, at one address or several that serve the same model.

A thread a place in flight takes work from the one queue, so an address that answers slowly takes less, and what an
address that dies had in hand goes back and is done by the others. Addresses that fail are tried again after a wait
that doubles; the run ends when none has answered for `patience` seconds. The loop is our own and not a retry
library's, because what is retried is not a call but a request that may move to another address meanwhile.

The endpoint applies its own chat template and ends responses with its own tokens. Its answers are data: only the text,
the finish reason, the counts and the log-probabilities are read.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from stapo_eval.engines import protocol
from stapo_eval.engines.options import EngineOptions, key_of
from stapo_eval.engines.requests import Finished, Key, Request
from stapo_eval.engines.schedule import Queue
from stapo_eval.models import ModelFiles
from stapo_results.errors import BadInput, RunFailed

MOST_TRIES = 5  # failed attempts at one request before the request itself is suspected
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0
_CONNECT_SECONDS = 10.0
_ERRORS_AT_FIRST = 16  # refusals in a row, with no answer at all, that mean a misconfigured run and not bad requests


@dataclass
class _Address:
    url: str
    failures: int = 0  # in a row
    failed_at: float = 0.0
    resume_at: float = 0.0
    last: str = ""  # what went wrong

    def failed(self, asked_at: float, reason: str, wait: float) -> None:
        """A request that was sent at `asked_at` had no answer; all that were in flight together are one failure."""
        self.last, now = reason, time.monotonic()
        if asked_at >= self.failed_at:
            self.failures, self.failed_at = self.failures + 1, now
        doubled = min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** min(self.failures - 1, 10))
        self.resume_at = max(self.resume_at, now + max(wait, doubled * random.uniform(0.5, 1.0)))


@dataclass
class _Work:
    """What the threads share; `lock` guards all of it."""

    schedule: Queue
    lock: threading.Condition = field(default_factory=threading.Condition)
    results: queue.Queue[Finished | Exception] = field(default_factory=queue.Queue)
    tries: Counter[Key] = field(default_factory=Counter)
    in_hand: int = 0
    answered: int = 0  # with those on record: requests that this model can answer at all
    refused: list[Finished] = field(default_factory=list)  # kept back until something was answered
    last_answer: float = field(default_factory=time.monotonic)
    stop: bool = False


class EndpointEngine:
    """`encode` gives a message's UTF-8 bytes: the endpoint has the tokenizer, and there is no token without a byte."""

    deterministic = False

    def __init__(self, model: ModelFiles, options: EngineOptions):
        self.options, self.busy, self.notes = options, 0.0, []
        self._secret = key_of(options)  # named so that no record's field is: nothing prints this object
        headers = {"Authorization": f"Bearer {self._secret}"} if self._secret else {}
        self.client = httpx.Client(
            headers=headers,
            timeout=httpx.Timeout(options.timeout, connect=_CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            follow_redirects=False,  # a key is not carried to another host
        )
        self.addresses = [_Address(u.rstrip("/")) for u in options.urls]
        wanted = options.served_model or ("" if Path(model.given).is_dir() else model.name)
        found = [protocol.check(self.client, a.url, wanted, self._clean) for a in self.addresses]
        if len({f.model for f in found}) > 1:
            raise BadInput(
                "the addresses serve different models",
                found=", ".join(f"{a.url}: {f.model}" for a, f in zip(self.addresses, found, strict=True)),
                next_step="give the model's name there: --served-model NAME",
            )
        self.model = found[0].model
        self.logprobs = all(f.logprobs for f in found)
        self.context = min(f.context for f in found)
        self.name = f"openai {self.model}"
        if not self.logprobs:
            self.notes.append("the endpoint gives no log-probabilities: logprob_sum is null")
        if not all(f.seeds for f in found):
            self.notes.append("the endpoint refuses seeds: its samples cannot be made again")
        self.seeds = all(f.seeds for f in found)

    def _clean(self, text: str) -> str:
        """A server's words without the key, should it repeat it, and short."""
        text = " ".join(text.split())
        return (text.replace(self._secret, "(key)") if self._secret else text)[:300]

    def encode(self, message: str) -> list[int]:
        return list(message.encode("utf-8", "replace"))

    def stream(self, requests: Sequence[Request], done: Collection[Key]) -> Iterator[list[Finished]]:
        work = _Work(Queue(requests, done), answered=len(done))
        began, left = time.perf_counter(), len(work.schedule)
        threads = [
            threading.Thread(target=self._serve, args=(work, a), daemon=True)
            for a in self.addresses
            for _ in range(min(self.options.concurrency, left))
        ]
        for t in threads:
            t.start()
        try:
            while left:
                if finished := self._next(work):
                    left -= len(finished)
                    self.busy += time.perf_counter() - began
                    yield finished
                    began = time.perf_counter()
        finally:
            with work.lock:
                work.stop = True
                work.lock.notify_all()

    def _next(self, work: _Work) -> list[Finished]:
        """What has come, after at most a second.

        Raises:
            RunFailed: no address has answered for `patience` seconds, or the endpoint refuses everything.
        """
        items: list[Finished | Exception] = []
        try:
            items.append(work.results.get(timeout=1.0))
            while True:
                items.append(work.results.get_nowait())
        except queue.Empty:
            pass
        for item in items:
            if isinstance(item, Exception):
                raise item
        silent = time.monotonic() - work.last_answer
        if not items and silent > self.options.patience and all(a.failures for a in self.addresses):
            raise RunFailed(
                f"no address has answered for {silent:.0f} s",
                found="; ".join(f"{a.url}: {a.last}" for a in self.addresses),
            )
        return [i for i in items if isinstance(i, Finished)]

    def _serve(self, work: _Work, address: _Address) -> None:
        """One place in flight at one address: takes a request, asks, reports; ends when nothing is left to do."""
        while True:
            with work.lock:
                while True:
                    wait = address.resume_at - time.monotonic()
                    if work.stop or not (len(work.schedule) or work.in_hand):
                        return
                    if len(work.schedule) and wait <= 0:
                        break
                    # nothing to take: others' requests may yet come back
                    work.lock.wait(max(wait, 0.05) if wait > 0 else None)
                (request,) = work.schedule.take(1)
                work.in_hand += 1
            asked_at = time.monotonic()
            try:
                self._report(work, address, self._ask(request, address))
            except protocol.Refused as e:
                self._report(work, address, Finished(request, "", "error", 0, None, 0.0, str(e)))
            except protocol.Transient as e:
                self._failed(work, address, request, e, asked_at)
            except Exception as e:  # noqa: BLE001  a thread's end must reach the run, whatever it is
                with work.lock:
                    work.stop = True
                    work.lock.notify_all()
                work.results.put(e)
                return

    def _ask(self, request: Request, address: _Address) -> Finished:
        began = time.perf_counter()
        message = bytes(request.prompt).decode("utf-8")
        seed = request.seed if self.seeds else None
        sent = protocol.body(self.model, message, request.decoding, seed, self.logprobs)
        a = protocol.ask(self.client, address.url, sent, self._clean)
        seconds = time.perf_counter() - began
        return Finished(request, a.text, a.reason, a.tokens, a.logprob_sum, seconds, a.error, a.prompt_tokens)

    def _failed(self, work: _Work, address: _Address, request: Request, e: protocol.Transient, asked_at: float) -> None:
        """Put the request back; after too many failures, find out whether it or the address is at fault."""
        with work.lock:
            if work.stop:
                return
            address.failed(asked_at, str(e), e.wait)
            # a server that cannot be reached says nothing about the request
            work.tries[request.key] += e.reached
            suspect = work.tries[request.key] >= MOST_TRIES
        if suspect and self._answers(address):
            self._report(work, address, Finished(request, "", "error", 0, None, 0.0, f"{MOST_TRIES} attempts: {e}"))
            return
        with work.lock:
            work.schedule.give_back([request])
            work.in_hand -= 1
            work.lock.notify_all()

    def _answers(self, address: _Address) -> bool:
        """Whether the address answers a question of one token."""
        sent = protocol.probe(self.model, 0 if self.seeds else None, self.logprobs)
        try:
            protocol.ask(self.client, address.url, sent, self._clean)
        except (protocol.Refused, protocol.Transient):
            return False
        return True

    def _report(self, work: _Work, address: _Address, finished: Finished) -> None:
        with work.lock:
            work.in_hand -= 1
            work.last_answer = time.monotonic()
            if finished.finish_reason == "error":
                work.refused.append(finished)
                address.failures = 0  # it speaks
            else:
                work.answered += 1
                address.failures = 0
                work.schedule.finished(finished.request, finished.response_tokens)
                work.results.put(finished)
            nothing_left = not (len(work.schedule) or work.in_hand)
            if work.answered:
                for f in work.refused:
                    work.results.put(f)
                work.refused.clear()
            elif nothing_left or len(work.refused) >= _ERRORS_AT_FIRST:
                work.stop = True
                first = work.refused[0].error
                work.results.put(
                    RunFailed(f"the endpoint refuses every request ({len(work.refused)} so far)", found=first)
                )
            work.lock.notify_all()

    def close(self) -> None:
        self.client.close()
