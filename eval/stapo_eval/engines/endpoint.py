"""Any OpenAI-compatible endpoint, at one address or several that serve the same model.

The `openai` SDK sends, waits, and tries again what may succeed another time. What still fails says something of the
request where the address answers a question of one token, and of the address where it does not: then the request is
asked at the next address, and this one rests. A router (litellm's) counts failures alone, which says neither, and calls
an unknown finish reason stop.

The endpoint applies its own chat template and ends responses with its own tokens. Its answers are data: only the text,
the finish reason, the counts and the log-probabilities are read.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai

from stapo_eval.decoding import NEUTRAL, Chat, Decoding
from stapo_eval.engines.base import Engine, EngineSpec, Finished, Request, failed
from stapo_eval.engines.options import EngineOptions
from stapo_eval.models import ModelFiles
from stapo_results.errors import BadInput, RunFailed

RETRIES = 4  # of the SDK, in about eight seconds; a request is asked in two rounds of them before it is blamed
REST_SECONDS = 5.0  # of an address that does not answer
PROBE_SECONDS = 60.0  # the longest wait for one token, and for the list of models
CONNECT_SECONDS = 10.0
_UNLIMITED = 1 << 30
_PROBE = Request("", "", 0, (1 << 63) - 1, tuple(b"1+1="), Decoding(1.0, 1.0, 1))  # the longest seed that is sent
_OPTIONS = {"logprobs", "seed", *NEUTRAL}
_OF_THE_REQUEST = (400, 413, 422)  # statuses that say something of a request, such as its length


@dataclass(eq=False)
class _Address:
    url: str
    client: openai.AsyncOpenAI
    limit: str = "max_tokens"  # how it calls the longest response
    in_flight: int = 0
    down: bool = False  # it gets requests again once it has answered a question of one token
    rests_until: float = 0.0
    silent_since: float = 0.0  # when the first request failed after the last one that was answered; 0: none has
    last: str = ""  # what went wrong
    refuses: bool = False  # the key or the model, when it was asked for one token last


class _UnreadableAnswer(openai.OpenAIError):
    """An answer without what is read of one."""


class EndpointEngine(Engine):
    """`encode` gives a message's UTF-8 bytes: the endpoint has the tokenizer, and there is no token without a byte."""

    counts_tokens = False

    def __init__(self, model: ModelFiles, options: EngineOptions, chat: Chat | None = None):
        self.chat = chat or Chat()
        # named so that no record's field is: nothing prints this object
        self._secret = os.environ.get(options.key_variable, "").strip()
        if not (self._secret.isascii() and self._secret.isprintable()):
            raise BadInput(f"${options.key_variable} is no key", expected="printable ASCII; its value is not shown")
        self.options, self.runner = options, asyncio.Runner()
        key = self._secret or "none"
        # a response's own limit holds for all its attempts: `_ask`
        timeout, self.probe_seconds = openai.Timeout(None, connect=CONNECT_SECONDS), min(PROBE_SECONDS, options.timeout)
        self.probe_limits = openai.Timeout(self.probe_seconds, connect=min(CONNECT_SECONDS, self.probe_seconds))
        self.addresses = [
            _Address(u, openai.AsyncOpenAI(api_key=key, base_url=u, timeout=timeout, max_retries=RETRIES))
            for u in options.urls
        ]
        self.model = options.served_model or ("" if Path(model.given).is_dir() else model.name)
        self.sends = set(_OPTIONS)  # those options that every address takes
        self.room: dict[tuple[int, ...], int] = {}  # prompt -> tokens that the context leaves, where it is the limit
        self.running: set[asyncio.Task[Finished]] = set()
        try:
            contexts = [self.runner.run(self._meet(a)) for a in self.addresses]
        except BaseException:
            self.close()
            raise
        places = options.concurrency * len(self.addresses)
        self.loaded(EngineSpec(f"openai {self.model}", False, min(contexts), places))
        self.refused = sorted(_OPTIONS - self.sends)
        if unknown := [a.url for a, context in zip(self.addresses, contexts, strict=True) if context == _UNLIMITED]:
            self._note(
                f"{', '.join(unknown)} does not say how many tokens prompt and response may have: what is longer will "
                "be an error of its sample, unless --max-model-len (a judge: --judge-max-model-len) gives the number"
            )

    def _note(self, text: str) -> None:
        self.notes.append(text)
        print(f"note: {text}", file=sys.stderr, flush=True)

    def _said(self, error: Exception) -> str:
        """A server's words without the key, should it repeat it, and short."""
        text = " ".join(f"{error} {error.__cause__ or ''}".split())
        return (text.replace(self._secret, "(key)") if self._secret else text)[:300]

    async def _meet(self, a: _Address) -> int:
        """The context in tokens of the model at an address, which is asked for one token without what it refuses."""
        contexts, found = {self.model: 0} if self.model else {}, "none"
        try:
            models = await a.client.with_options(max_retries=0, timeout=self.probe_limits).models.list()
            contexts = {str(m.id): int(getattr(m, "max_model_len", 0) or 0) for m in models.data}
            found = ", ".join(list(contexts)[:10])
        except openai.APIConnectionError as e:  # also a time-out
            raise self._silent(a, e) from None
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
                return self.options.max_model_len or contexts[self.model] or _UNLIMITED
            except (
                openai.BadRequestError,
                openai.UnprocessableEntityError,
            ) as e:  # naming the option
                if "max_completion_tokens" in str(e) and a.limit == "max_tokens":
                    a.limit = "max_completion_tokens"
                elif option := next((x for x in sorted(self.sends) if x in str(e)), None):
                    self.sends.discard(option)
                else:
                    raise BadInput(f"{a.url} refuses a request for one token", found=self._said(e)) from None
            except _UnreadableAnswer as e:
                raise BadInput(f"{a.url} answers in another form", found=self._said(e),
                               expected="a text, a finish reason and token counts (usage)",
                               next_step="check --url: it ends in the /v1 of a chat server") from None  # fmt: skip
            except (openai.OpenAIError, TimeoutError) as e:
                raise self._silent(a, e) from None

    def _silent(self, a: _Address, error: Exception) -> BadInput:
        return BadInput(
            f"{a.url} does not answer",
            found=self._said(error),
            expected=f"an answer within {self.probe_seconds:g} s",
            next_step="start the server or wait until it is less busy, or check --url (it ends in /v1)",
        )

    async def _probe(self, a: _Address) -> Finished:
        """The answer to a question of one token, asked once."""
        client = a.client.with_options(max_retries=0, timeout=self.probe_limits)
        async with asyncio.timeout(self.probe_seconds):  # the client's own limit is between two bytes
            return await self._chat(_Address(a.url, client, a.limit), _PROBE, 1)

    async def _chat(self, a: _Address, request: Request, max_tokens: int) -> Finished:
        """One answer.

        Raises:
            BadInput: the key or the model's name is refused (401, 403, 404).
            openai.OpenAIError: no answer, or one that cannot be read.
        """
        d = request.decoding
        options: dict[str, Any] = {"seed": request.seed, "logprobs": True, **NEUTRAL}
        options |= {"top_k": d.top_k, "min_p": d.min_p}
        try:
            answer = await a.client.chat.completions.create(
                model=self.model,
                messages=self.chat.messages(bytes(request.prompt).decode()),  # type: ignore[arg-type]  # plain dicts
                temperature=d.temperature,
                top_p=d.top_p,
                extra_body={a.limit: max_tokens, **({"chat_template_kwargs": t} if (t := self.chat.template) else {})}
                | {k: v for k, v in options.items() if k in self.sends},
            )
            end = _parsed(request, answer)
            if request.cell not in ("", "judge"):  # a question of one token; of a judge the verdict alone counts
                self._told(a, answer, end, max_tokens)
            return end
        except (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError) as e:
            raise BadInput(
                f"{a.url} refuses the key or the model {self.model}",
                found=self._said(e),
                next_step="set the variable that --key-variable names, or check --served-model and --url",
            ) from None
        except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError) as e:
            # any JSON comes
            raise _UnreadableAnswer(f"the answer cannot be read: {type(e).__name__}: {e}") from None

    def _told(self, a: _Address, answer: Any, end: Finished, max_tokens: int) -> None:
        """Note, once an address, what it does to responses that their text does not show."""
        message, found = answer.choices[0].message, list[str]()
        if end.finish_reason == "length" and end.response_tokens < max_tokens:
            found.append("ends responses at a limit of its own, below --max-tokens")
        if getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None):
            found.append("keeps reasoning apart, which is neither graded nor on record: serve it without its parser")
        for note in (f"{a.url} {what}" for what in found):
            if note not in self.notes:
                self._note(note)

    async def _ask(self, a: _Address, request: Request) -> Finished:
        """One answer within `timeout`, which may have what the context leaves; the server alone can count the prompt.

        Raises:
            BadInput, openai.OpenAIError: as `_chat`; TimeoutError.
        """
        most = request.decoding.max_tokens
        async with asyncio.timeout(self.options.timeout):
            try:
                return await self._chat(a, request, self.room.get(request.prompt, most))
            except openai.APIStatusError as e:
                if e.status_code not in _OF_THE_REQUEST or self.context == _UNLIMITED:
                    raise
                left = self.context - (await self._chat(a, request, 1)).prompt_tokens
                if not 0 < left < most:
                    raise
                self.room[request.prompt] = left
                return await self._chat(a, request, left)

    async def _end(self, request: Request) -> Finished:
        """How a request ended: asked at one address after the other, while the fault is the address's.

        Raises:
            BadInput: every address refuses the key or the model now. RunFailed: no address has answered for `patience`
                seconds.
        """
        suspect = False
        while True:
            a = await self._free()
            a.in_flight += 1
            try:
                if a.down and not await self._answers(a):
                    self._rest(a)
                    continue
                a.down = a.refuses = False
                end = await self._ask(a, request)
                a.down, a.silent_since = False, 0.0
                return end
            except BadInput as e:  # a proxy refuses, too, while its server starts again
                if time.monotonic() < a.rests_until:
                    continue
                if await self._answers(a):
                    if suspect:  # of this message alone
                        return failed(request, str(e.found))
                    suspect = True
                    continue
                if all(b.refuses for b in self.addresses):
                    raise
                a.last = str(e.found)
                self._rest(a)
            except (openai.OpenAIError, TimeoutError) as e:
                status = getattr(e, "status_code", 0)
                message = self._said(e) if status or str(e) else f"no answer within {self.options.timeout:g} s"
                if status in _OF_THE_REQUEST:
                    return failed(request, message)
                if time.monotonic() < a.rests_until:  # another request had no answer from it
                    continue
                a.last = message
                if status == 429 or not await self._answers(a):
                    self._rest(a)
                elif suspect:
                    return failed(request, f"after two rounds of attempts: {message}")
                else:
                    suspect = True
            finally:
                a.in_flight -= 1

    async def _free(self) -> _Address:
        """The emptiest address with a place; one that is down is tried with one request.

        Raises:
            RunFailed: no address has answered for `patience` seconds.
        """
        while True:
            now = time.monotonic()
            free = [
                a
                for a in self.addresses
                if now >= a.rests_until and a.in_flight < (1 if a.down else self.options.concurrency)
            ]
            if free:
                return min(free, key=lambda a: a.in_flight)
            if all(a.down and not a.in_flight for a in self.addresses):  # what is in flight may still come
                silent = now - max(a.silent_since for a in self.addresses)
                if silent > self.options.patience:
                    reasons = "; ".join(f"{a.url}: {a.last}" for a in self.addresses)
                    raise RunFailed(f"no address has answered for {silent:.0f} s", found=reasons)
            await asyncio.sleep(0.1)

    def _rest(self, a: _Address) -> None:
        now = time.monotonic()
        if not a.silent_since:
            a.silent_since = now
            self._note(f"{a.url} does not answer: {a.last}")
        a.down, a.rests_until = True, now + REST_SECONDS

    async def _answers(self, a: _Address) -> bool:
        """Whether an address answers a question of one token; where it refuses the key or the model that is kept."""
        a.refuses = False
        try:
            await self._probe(a)
        except BadInput as e:
            a.last, a.refuses = str(e.found), True
            return False
        except (openai.OpenAIError, TimeoutError):
            return False
        return True

    def encode(self, message: str) -> list[int]:
        return list(message.encode("utf-8", "replace"))

    def submit(self, request: Request) -> None:
        task = self.runner.get_loop().create_task(self._end(request))
        task.add_done_callback(lambda t: t.cancelled() or t.exception())  # several may fail; one is raised
        self.running.add(task)

    def poll(self) -> list[Finished]:
        ended, self.running = self.runner.run(asyncio.wait(self.running, return_when=asyncio.FIRST_COMPLETED))
        broken = {task for task in ended if task.exception()}
        if complete := ended - broken:
            self.running |= broken  # raised by the next call: the answers are recorded first
            return [task.result() for task in complete]
        raise next(e for task in broken if (e := task.exception()))

    def close(self) -> None:
        for a in self.addresses:
            self.runner.run(a.client.close())
        self.runner.close()  # what is in flight is given up


def _parsed(request: Request, answer: Any) -> Finished:
    """What an answer says; whatever error that raises, it is none."""
    choice = answer.choices[0]
    # lone surrogates are JSON and no text: they could not be written down
    text = (choice.message.content or "").encode("utf-8", "replace").decode()
    prompt_tokens, tokens = int(answer.usage.prompt_tokens), int(answer.usage.completion_tokens)
    if min(tokens, prompt_tokens) < 0:
        raise ValueError("fewer than no tokens")
    if choice.finish_reason not in ("stop", "length"):
        error = f"the endpoint ended the response with {str(choice.finish_reason)[:40]!r}"
        return Finished(request, "", "error", prompt_tokens, 0, None, error)
    if not tokens and not text:  # an immediate end is one, too
        raise ValueError("no token")
    logprobs = choice.logprobs and [float(x.logprob) for x in choice.logprobs.content or ()]
    total = math.fsum(logprobs) if logprobs else math.nan  # in nats
    logprob_sum = round(total, 6) if math.isfinite(total) else None
    return Finished(request, text, choice.finish_reason, prompt_tokens, tokens, logprob_sum)
