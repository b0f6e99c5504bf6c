"""Any OpenAI-compatible endpoint, at one address or several that serve the same model.

A request in flight is a thread; one loop hands requests out, so an address that answers slowly takes less, and what an
address that dies had in hand goes back and is done by the others. Addresses that fail are tried again after a wait
that doubles; the run ends when none has answered for `patience` seconds. The loop is our own and not a retry
library's, because what is retried is not a call but a request that may move to another address meanwhile.

The endpoint applies its own chat template and ends responses with its own tokens. Its answers are data: only the text,
the finish reason, the counts and the log-probabilities are read.
"""

from __future__ import annotations

import json
import math
import queue
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from stapo_eval.decoding import NEUTRAL, Decoding
from stapo_eval.engines.options import EngineOptions, key_of
from stapo_eval.engines.requests import Finished, Key, Queue, Request
from stapo_eval.models import ModelFiles
from stapo_results.errors import BadInput, RunFailed

MOST_TRIES = 5  # failed attempts at one request before the request itself is suspected
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0
_LONGEST_RETRY_AFTER = 300.0
_CONNECT_SECONDS = 10.0
_TRY_AGAIN = {408, 409, 425, 429}
_UNLIMITED = 1 << 30
_PROBE = Request("", "", 0, (1 << 63) - 1, tuple(b"1+1="), Decoding(1.0, 1.0, 1))  # the longest seed that is sent
_OPTIONS = {"logprobs", "seed", *NEUTRAL}
_CONTEXT = re.compile(
    r"context (?:length|size|window)(?:(?: (?:is|of))?(?: only)? \(?(\d{1,3}(?:,\d{3})+|\d+)(?: ?(k)\b)?)?", re.I
)
_SAID_WITHOUT = {
    "logprobs": "the endpoint gives no log-probabilities: logprob_sum is null",
    "seed": "the endpoint refuses seeds: its samples cannot be made again",
}


def context_of(refusal: str, known: int) -> int | None:
    """The context in tokens that a refusal names, at most the `known` one; None where it is of something else."""
    m = _CONTEXT.search(refusal)
    if m is None:
        return None
    return min(known, int((m[1] or str(known)).replace(",", "")) * (1024 if m[2] else 1))


class Refused(Exception):
    """The endpoint will never answer this request: its own fault, not the endpoint's."""


class Transient(Exception):
    """No answer this time. `reached`: whether the server had the request; `wait`: seconds that it asked for."""

    def __init__(self, message: str, *, reached: bool = True, wait: float = 0.0):
        super().__init__(message)
        self.reached, self.wait = reached, wait


@dataclass
class _Address:
    url: str
    in_flight: int = 0
    failures: int = 0  # in a row
    failed_at: float = 0.0
    failing_since: float = 0.0  # when the first of them was noticed
    resume_at: float = 0.0
    last: str = ""  # what went wrong

    def failed(self, asked_at: float, error: Transient) -> None:
        """A request that was sent at `asked_at` had no answer; all that were in flight together are one failure."""
        self.last, now = str(error), time.monotonic()
        if asked_at >= self.failed_at:
            self.failing_since = self.failing_since if self.failures else now
            self.failures, self.failed_at = self.failures + 1, now
        doubled = min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** min(self.failures - 1, 10))
        self.resume_at = max(self.resume_at, now + max(error.wait, doubled * random.uniform(0.5, 1.0)))


End = tuple[Request, _Address, float, Finished | Exception]  # with the time at which it was sent


class EndpointEngine:
    """`encode` gives a message's UTF-8 bytes: the endpoint has the tokenizer, and there is no token without a byte."""

    deterministic = counts_tokens = False

    def __init__(self, model: ModelFiles, options: EngineOptions):
        self.options, self.busy = options, 0.0
        self._secret = key_of(options)  # named so that no record's field is: nothing prints this object
        self.client = httpx.Client(
            headers={"Authorization": f"Bearer {self._secret}"} if self._secret else {},
            timeout=httpx.Timeout(options.timeout, connect=_CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            follow_redirects=False,  # a key is not carried to another host
        )
        self.addresses = [_Address(u.rstrip("/")) for u in options.urls]
        wanted = options.served_model or ("" if Path(model.given).is_dir() else model.name)
        found = {a.url: self._served(a.url, wanted) for a in self.addresses}
        if len({name for name, _ in found.values()}) > 1:
            raise BadInput(
                "the addresses serve different models",
                found=", ".join(f"{url}: {name}" for url, (name, _) in found.items()),
                next_step="give the model's name there: --served-model NAME",
            )
        self.model = found[self.addresses[0].url][0]
        self.context = min(context for _, context in found.values())
        self.name = f"openai {self.model}"
        self.sends = set(_OPTIONS)  # those options that every address takes
        self.limit = dict.fromkeys(found, "max_tokens")  # the name of the longest response at an address
        # (address, prompt) -> tokens that the context leaves, where it is the limit
        self.room: dict[tuple[str, tuple[int, ...]], int] = {}
        for a in self.addresses:
            self._try_out(a.url)
        self.refused = sorted(_OPTIONS - self.sends)
        self.notes = [note for option, note in _SAID_WITHOUT.items() if option not in self.sends]

    def _clean(self, text: str) -> str:
        """A server's words without the key, should it repeat it, and short."""
        text = " ".join(text.split())
        return (text.replace(self._secret, "(key)") if self._secret else text)[:300]

    def _served(self, url: str, wanted: str) -> tuple[str, int]:
        """(model, its context in tokens) at an address; `wanted` "" is the only one there."""
        try:
            response = self.client.get(f"{url}/models", timeout=30.0)
        except httpx.HTTPError as e:
            raise BadInput(
                f"{url} cannot be reached",
                found=f"{type(e).__name__}: {e}",
                next_step="start the server, or check --url (it ends in /v1)",
            ) from None
        if response.status_code in (401, 403):
            raise self._denied(url, response)
        try:
            contexts = {str(r["id"]): int(r.get("max_model_len") or _UNLIMITED) for r in response.json()["data"]}
        except (ValueError, LookupError, TypeError, AttributeError):
            contexts = {}
        if wanted and not contexts:  # it has no list
            return wanted, _UNLIMITED
        name = wanted or (next(iter(contexts)) if len(contexts) == 1 else "")
        if name not in contexts:
            raise BadInput(
                f"{url} does not serve the model {wanted}" if wanted else f"{url} serves {len(contexts)} models",
                found=", ".join(list(contexts)[:10]) or "none",
                next_step="name one of these: --served-model NAME",
            )
        return name, contexts[name]

    def _denied(self, url: str, response: httpx.Response) -> BadInput:
        what, next_step = f"{url} refuses the key", "set the variable that --key-variable names"
        if response.status_code == 404:
            what, next_step = f"{url} does not serve the model {self.model}", "check --served-model and --url"
        return BadInput(what, found=f"status {response.status_code}: {self._clean(response.text)}", next_step=next_step)

    def _try_out(self, url: str) -> None:
        """Ask for one token, without the options that the address does not take."""
        while True:
            try:
                if self._ask(url, _PROBE).logprob_sum is None:
                    self.sends.discard("logprobs")
                return
            except Refused as e:  # servers that do not know an option name it
                if "max_completion_tokens" in str(e) and self.limit[url] == "max_tokens":
                    self.limit[url] = "max_completion_tokens"
                    continue
                option = next((x for x in sorted(self.sends) if x in str(e)), None)
                if option is None:
                    raise BadInput(f"{url} refuses a request for one token", found=e) from None
                self.sends.discard(option)
            except Transient as e:
                raise BadInput(f"{url} does not answer", found=e, next_step="look at the server's log") from None

    def _ask(self, url: str, request: Request) -> Finished:
        """One answer.

        Raises:
            Refused: the request does not suit the model (status 400, 413, 422).
            Transient: the endpoint may answer another time: unreachable, overloaded, failing, or talking nonsense.
            BadInput: the key or the model's name is refused (401, 403, 404).
        """
        began, d, limit = time.perf_counter(), request.decoding, self.limit[url]
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": bytes(request.prompt).decode("utf-8")}],
            "temperature": d.temperature,
            "top_p": d.top_p,
            limit: min(d.max_tokens, self.room.get((url, request.prompt), d.max_tokens)),
        }
        body |= {k: v for k, v in {"seed": request.seed, "logprobs": True, **NEUTRAL}.items() if k in self.sends}
        response = self._post(url, body)
        context = context_of(response.text, self.context) if response.status_code == 400 else None
        if context is not None and context < _UNLIMITED:
            # prompt and longest response together exceed it; a response of one token says how long the prompt is
            refusal, response = response, self._post(url, body | {limit: 1})
            if response.status_code == 200:
                left = context - _parsed(request, response, 0.0).prompt_length
                if left < 1:
                    raise Refused(f"status 400: {self._clean(refusal.text)}")
                self.room[url, request.prompt] = body[limit] = min(left, d.max_tokens)
                response = self._post(url, body)
        status = response.status_code
        if status == 200:
            return _parsed(request, response, time.perf_counter() - began)
        if status in (401, 403, 404):
            raise self._denied(url, response)
        said = f"status {status}: {self._clean(response.text)}"
        if status in _TRY_AGAIN or status >= 500:
            raise Transient(said, wait=_retry_after(response))
        raise Refused(said)

    def _post(self, url: str, body: dict[str, Any]) -> httpx.Response:
        try:
            return self.client.post(f"{url}/chat/completions", json=body)
        except httpx.HTTPError as e:  # else a reset or a time-out after the request was sent
            reached = not isinstance(e, httpx.ConnectError | httpx.ConnectTimeout)
            raise Transient(f"{type(e).__name__}: {e}", reached=reached) from None

    def encode(self, message: str) -> list[int]:
        return list(message.encode("utf-8", "replace"))

    def stream(self, requests: Sequence[Request], done: Collection[Key]) -> Iterator[list[Finished]]:
        waiting, ends = Queue(requests, done), queue.SimpleQueue[End]()
        tries: Counter[Key] = Counter()
        began = time.monotonic()
        while waiting or any(a.in_flight for a in self.addresses):
            self._hand_out(waiting, tries, ends)
            finished = []
            for request, address, asked_at, end in _those_that_came(ends):
                address.in_flight -= 1
                if isinstance(end, Transient):
                    address.failed(asked_at, end)
                    tries[request.key] += end.reached  # a server that cannot be reached says nothing of the request
                    waiting.give_back([request])
                elif isinstance(end, Exception):
                    raise end
                else:
                    address.failures = 0  # it speaks
                    waiting.finished(request, end.response_tokens)
                    finished.append(end)
            now = time.monotonic()
            self.busy, began = self.busy + now - began, now
            if finished:
                yield finished
                began = time.monotonic()
            elif (
                all(a.failures and not a.in_flight for a in self.addresses)
                and (
                    # a long response that was given up is no silence: the time counts from then on
                    silent := now - max(a.failing_since for a in self.addresses)
                )
                > self.options.patience
            ):
                raise RunFailed(
                    f"no address has answered for {silent:.0f} s",
                    found="; ".join(f"{a.url}: {a.last}" for a in self.addresses),
                )

    def _hand_out(self, waiting: Queue, tries: Counter[Key], ends: queue.SimpleQueue[End]) -> None:
        """Fill the free places of the addresses that are not waited for, emptiest first."""
        while waiting:
            ready = [a for a in self.addresses if time.monotonic() >= a.resume_at]
            address = min(ready, key=lambda a: a.in_flight, default=None)
            if address is None or address.in_flight >= self.options.concurrency:
                return
            (request,) = waiting.take(1)
            address.in_flight += 1
            suspect = tries[request.key] + 1 >= MOST_TRIES
            # a daemon: the program may end while a response is waited for
            threading.Thread(target=self._send, args=(request, address, suspect, ends), daemon=True).start()

    def _send(self, request: Request, address: _Address, suspect: bool, ends: queue.SimpleQueue[End]) -> None:
        """Ask, and report how it ended. A suspect request that fails where another is answered is an error."""
        asked_at = time.monotonic()
        end: Finished | Exception
        try:
            end = self._ask(address.url, request)
        except Refused as e:
            end = Finished(request, "", "error", 0, None, 0.0, str(e))
        except Exception as e:  # noqa: BLE001  a thread's end must reach the run, whatever it is
            end = e
            if suspect and isinstance(e, Transient) and e.reached and self._answers(address.url):
                end = Finished(request, "", "error", 0, None, 0.0, f"{MOST_TRIES} attempts: {e}")
        ends.put((request, address, asked_at, end))

    def _answers(self, url: str) -> bool:
        """Whether an address answers a question of one token."""
        try:
            self._ask(url, _PROBE)
        except (Refused, Transient):
            return False
        return True

    def close(self) -> None:
        self.client.close()


def _those_that_came(ends: queue.SimpleQueue[End]) -> list[End]:
    """What has ended, after a short wait."""
    found = []
    try:
        found.append(ends.get(timeout=0.05))
        while True:
            found.append(ends.get_nowait())
    except queue.Empty:
        return found


def _retry_after(response: httpx.Response) -> float:
    try:
        return min(_LONGEST_RETRY_AFTER, max(0.0, float(response.headers.get("retry-after", "0"))))
    except ValueError:  # a date: our own wait will do
        return 0.0


def _parsed(request: Request, response: httpx.Response, seconds: float) -> Finished:
    try:
        data = response.json()
        choice = data["choices"][0]
        text = choice["message"].get("content") or ""
        tokens, prompt_tokens = int(data["usage"]["completion_tokens"]), int(data["usage"]["prompt_tokens"])
        said = choice.get("finish_reason")
        logprob_sum = _sum(choice.get("logprobs"))
        if not isinstance(text, str) or tokens < 0 or prompt_tokens < 0:
            raise ValueError("a field has another type")
    except (json.JSONDecodeError, UnicodeDecodeError, LookupError, TypeError, ValueError, AttributeError) as e:
        raise Transient(f"the answer cannot be read: {type(e).__name__}: {e}") from None
    if said not in ("stop", "length"):
        error = f"the endpoint ended the response with {str(said)[:40]!r}"
        return Finished(request, "", "error", 0, None, seconds, error, prompt_tokens)
    # lone surrogates are JSON and no text: they could not be written down
    text = text.encode("utf-8", "replace").decode("utf-8")
    return Finished(request, text, said, tokens, logprob_sum, seconds, "", prompt_tokens)


def _sum(logprobs: Any) -> float | None:
    """The response's log-probability in nats, if the endpoint gave one for every token."""
    entries = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not entries:
        return None
    total = math.fsum(float(x["logprob"]) for x in entries)
    return round(total, 6) if math.isfinite(total) else None
