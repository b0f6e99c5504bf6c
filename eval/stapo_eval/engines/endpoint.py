"""Any OpenAI-compatible endpoint, at one address or several that serve the same model.

The `openai` SDK sends, waits, and tries again what may succeed another time. What still fails says something of the
request where the address answers a question of one token, and of the address where it does not: then the request goes
to the next address, and this one rests.

The endpoint applies its own chat template and ends responses with its own tokens. Its answers are data: only the text,
the finish reason, the counts and the log-probabilities are read.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai

from stapo_eval.decoding import NEUTRAL, Decoding
from stapo_eval.engines.base import Engine, Spec
from stapo_eval.engines.options import EngineOptions
from stapo_eval.engines.requests import Finished, Key, Queue, Request, failed
from stapo_eval.models import ModelFiles
from stapo_results.errors import BadInput, RunFailed

RETRIES = 4  # of the SDK, in about eight seconds; a request is asked in two rounds of them before it is blamed
REST_SECONDS = 5.0  # of an address that does not answer
_UNLIMITED = 1 << 30
_PROBE = Request("", "", 0, (1 << 63) - 1, tuple(b"1+1="), Decoding(1.0, 1.0, 1))  # the longest seed that is sent
_OPTIONS = {"logprobs", "seed", *NEUTRAL}


@dataclass(eq=False)
class _Address:
    url: str
    client: openai.AsyncOpenAI
    limit: str = "max_tokens"  # how it calls the longest response
    in_flight: int = 0
    rests_until: float = 0.0
    silent_since: float = 0.0  # 0: the last request was answered
    last: str = ""  # what went wrong


class EndpointEngine(Engine):
    """`encode` gives a message's UTF-8 bytes: the endpoint has the tokenizer, and there is no token without a byte."""

    counts_tokens = False

    def __init__(self, model: ModelFiles, options: EngineOptions):
        # named so that no record's field is: nothing prints this object
        self._secret = os.environ.get(options.key_variable, "").strip()
        if not (self._secret.isascii() and self._secret.isprintable()):
            raise BadInput(f"${options.key_variable} is no key", expected="printable ASCII; its value is not shown")
        self.options, self.runner = options, asyncio.Runner()
        key, timeout = self._secret or "none", openai.Timeout(options.timeout, connect=10.0)
        self.addresses = [
            _Address(u, openai.AsyncOpenAI(api_key=key, base_url=u, timeout=timeout, max_retries=RETRIES))
            for u in options.urls
        ]
        self.model = options.served_model or ("" if Path(model.given).is_dir() else model.name)
        self.sends = set(_OPTIONS)  # those options that every address takes
        self.room: dict[tuple[int, ...], int] = {}  # prompt -> tokens that the context leaves, where it is the limit
        self.suspects: set[Key] = set()  # requests that failed at an address that answers others
        try:
            context = min([self.runner.run(self._meet(a)) for a in self.addresses])
        except BaseException:
            self.close()
            raise
        self.loaded(Spec(f"openai {self.model}", False, context))
        self.refused = sorted(_OPTIONS - self.sends)

    def _said(self, error: Exception) -> str:
        """A server's words without the key, should it repeat it, and short."""
        text = " ".join(f"{error} {error.__cause__ or ''}".split())
        return (text.replace(self._secret, "(key)") if self._secret else text)[:300]

    async def _meet(self, a: _Address) -> int:
        """The context in tokens of the model at an address, which is asked for one token without what it refuses."""
        contexts, found = {self.model: _UNLIMITED} if self.model else {}, "none"
        try:
            models = await a.client.with_options(max_retries=0, timeout=30.0).models.list()
            contexts = {str(m.id): int(getattr(m, "max_model_len", 0) or _UNLIMITED) for m in models.data}
            found = ", ".join(list(contexts)[:10])
        except (openai.OpenAIError, AttributeError, TypeError, ValueError) as e:  # it has no list
            found = self._said(e)
        self.model = self.model or (next(iter(contexts)) if len(contexts) == 1 else "")
        if self.model not in contexts:
            raise BadInput(
                f"{a.url} does not serve the model {self.model}" if self.model else f"{a.url} does not say its model",
                found=found,
                next_step="check --url (it ends in /v1); give the model's name there: --served-model NAME",
            )
        while True:
            try:
                if (await self._probe(a)).logprob_sum is None:
                    self.sends.discard("logprobs")
                return contexts[self.model]
            except (openai.BadRequestError, openai.UnprocessableEntityError) as e:  # who knows no option names it
                if "max_completion_tokens" in str(e) and a.limit == "max_tokens":
                    a.limit = "max_completion_tokens"
                elif option := next((x for x in sorted(self.sends) if x in str(e)), None):
                    self.sends.discard(option)
                else:
                    raise BadInput(f"{a.url} refuses a request for one token", found=self._said(e)) from None
            except openai.OpenAIError as e:
                next_step = "start the server, or check --url (it ends in /v1)"
                raise BadInput(f"{a.url} does not answer", found=self._said(e), next_step=next_step) from None

    async def _probe(self, a: _Address) -> Finished:
        return await self._chat(_Address(a.url, a.client.with_options(max_retries=0), a.limit), _PROBE, 1)

    async def _chat(self, a: _Address, request: Request, max_tokens: int) -> Finished:
        """One answer.

        Raises:
            BadInput: the key or the model's name is refused (401, 403, 404).
            openai.OpenAIError: no answer, or one that cannot be read.
        """
        began, d = time.perf_counter(), request.decoding
        options: dict[str, Any] = {"seed": request.seed, "logprobs": True, **NEUTRAL}
        try:
            answer = await a.client.chat.completions.create(
                model=self.model,
                messages=[{"role": "user", "content": bytes(request.prompt).decode()}],
                temperature=d.temperature,
                top_p=d.top_p,
                extra_body={a.limit: max_tokens} | {k: v for k, v in options.items() if k in self.sends},
            )
            return _parsed(request, answer, time.perf_counter() - began)
        except (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError) as e:
            raise BadInput(
                f"{a.url} refuses the key or the model {self.model}",
                found=self._said(e),
                next_step="set the variable that --key-variable names, or check --served-model and --url",
            ) from None
        except (
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
            ArithmeticError,
            RecursionError,
        ) as e:  # any JSON comes
            raise openai.OpenAIError(f"the answer cannot be read: {type(e).__name__}: {e}") from None

    async def _ask(self, a: _Address, request: Request) -> Finished:
        """One answer, which may have what the context leaves; the server alone can count the prompt."""
        most = request.decoding.max_tokens
        try:
            return await self._chat(a, request, self.room.get(request.prompt, most))
        except openai.BadRequestError:
            if self.context == _UNLIMITED:
                raise
            left = self.context - (await self._chat(a, request, 1)).prompt_length
            if not 0 < left < most:
                raise
            self.room[request.prompt] = left
            return await self._chat(a, request, left)

    async def _end(self, a: _Address, request: Request) -> Finished | BadInput | None:
        """How a request ended; None where it has to be asked again, an error where no other will do better."""
        try:
            end = await self._ask(a, request)
            a.silent_since = 0.0
            return end
        except BadInput as e:  # of this message alone, where the address answers another
            return failed(request, str(e.found)) if await self._answers(a) else e
        except openai.OpenAIError as e:
            status, a.last = getattr(e, "status_code", 0), self._said(e)
        if status in (400, 413, 422):
            return failed(request, a.last)
        now = time.monotonic()
        if now < a.rests_until:  # another request has found it silent
            return None
        if status == 429 or not await self._answers(a):
            a.silent_since, a.rests_until = a.silent_since or now, now + REST_SECONDS
        elif request.key in self.suspects:
            return failed(request, f"{2 * (1 + RETRIES)} attempts: {a.last}")
        else:
            self.suspects.add(request.key)
        return None

    async def _answers(self, a: _Address) -> bool:
        """Whether an address answers a question of one token."""
        try:
            await self._probe(a)
        except (BadInput, openai.OpenAIError):
            return False
        return True

    def encode(self, message: str) -> list[int]:
        return list(message.encode("utf-8", "replace"))

    def stream(self, requests: Sequence[Request], done: Collection[Key]) -> Iterator[list[Finished]]:
        queue, running = Queue(requests, done), dict[asyncio.Task[Any], tuple[_Address, Request]]()
        while queue or running:
            began = time.monotonic()
            places = sorted(  # the emptiest address first
                (number, i)
                for i, a in enumerate(self.addresses)
                if began >= a.rests_until
                for number in range(a.in_flight, self.options.concurrency)
            )
            for (_, i), request in zip(places, queue.take(len(places)), strict=False):
                a = self.addresses[i]
                a.in_flight += 1
                running[self.runner.get_loop().create_task(self._end(a, request))] = a, request
            finished = []
            for task in self.runner.run(_first(running)):
                a, request = running.pop(task)
                a.in_flight -= 1
                if isinstance(end := task.result(), BadInput):
                    raise end
                if end is None:
                    queue.give_back([request])
                else:
                    queue.finished(request, end.response_tokens)
                    finished.append(end)
            self.busy += time.monotonic() - began
            if finished:
                yield finished
            elif not running and all(a.silent_since for a in self.addresses):
                silent = time.monotonic() - max(a.silent_since for a in self.addresses)
                if silent > self.options.patience:
                    said = "; ".join(f"{a.url}: {a.last}" for a in self.addresses)
                    raise RunFailed(f"no address has answered for {silent:.0f} s", found=said)

    def close(self) -> None:
        for a in self.addresses:
            self.runner.run(a.client.close())
        self.runner.close()  # what is in flight is given up


async def _first(running: Collection[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    """What ends within a short wait."""
    if not running:
        await asyncio.sleep(0.1)
        return set()
    ended, _ = await asyncio.wait(running, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
    return ended


def _parsed(request: Request, answer: Any, seconds: float) -> Finished:
    """What an answer says; whatever error that raises, it is none."""
    choice = answer.choices[0]
    # lone surrogates are JSON and no text: they could not be written down
    text = (choice.message.content or "").encode("utf-8", "replace").decode()
    prompt_tokens, tokens = int(answer.usage.prompt_tokens), int(answer.usage.completion_tokens)
    if min(tokens, prompt_tokens) < 0:
        raise ValueError("fewer than no tokens")
    if choice.finish_reason not in ("stop", "length"):
        error = f"the endpoint ended the response with {str(choice.finish_reason)[:40]!r}"
        return Finished(request, "", "error", 0, None, seconds, error, prompt_tokens)
    logprobs = choice.logprobs and [float(x.logprob) for x in choice.logprobs.content or ()]
    total = math.fsum(logprobs) if logprobs else math.nan  # in nats
    logprob_sum = round(total, 6) if math.isfinite(total) else None
    return Finished(request, text, choice.finish_reason, tokens, logprob_sum, seconds, "", prompt_tokens)
