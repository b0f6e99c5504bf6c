"""The OpenAI chat protocol as far as an evaluation needs it: one request, one answer, and which errors mean what."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from stapo_eval.decoding import Decoding
from stapo_results.errors import BadInput
from stapo_results.schema import FinishReason

Clean = Callable[[str], str]
_TRY_AGAIN = {408, 409, 425, 429}
_LONGEST_RETRY_AFTER = 300.0
_UNLIMITED = 1 << 30


class Refused(Exception):
    """The endpoint will never answer this request: its own fault, not the endpoint's."""


class Transient(Exception):
    """No answer this time. `reached`: whether the server had the request; `wait`: seconds that it asked for."""

    def __init__(self, message: str, *, reached: bool, wait: float = 0.0):
        super().__init__(message)
        self.reached, self.wait = reached, wait


@dataclass(frozen=True)
class Answer:
    text: str
    reason: FinishReason
    tokens: int
    prompt_tokens: int
    logprob_sum: float | None
    error: str = ""


@dataclass(frozen=True)
class Served:
    """What an address was found to serve: the model's name, its context in tokens, what it accepts."""

    model: str
    context: int
    logprobs: bool
    seeds: bool


def body(model: str, message: str, decoding: Decoding, seed: int | None, logprobs: bool) -> dict[str, Any]:
    """The request for one response."""
    out: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": message}],
        "temperature": decoding.temperature,
        "top_p": decoding.top_p,
        "max_tokens": decoding.max_tokens,
    }
    if seed is not None:
        out["seed"] = seed
    if logprobs:
        out["logprobs"] = True
    return out


def probe(model: str, seed: int | None, logprobs: bool) -> dict[str, Any]:
    """A request for one token."""
    return body(model, "1+1=", Decoding(1.0, 1.0, 1), seed, logprobs)


def _post(client: httpx.Client, url: str, request: dict[str, Any]) -> httpx.Response:
    try:
        return client.post(f"{url}/chat/completions", json=request)
    except (httpx.ConnectError, httpx.ConnectTimeout) as e:
        raise Transient(f"{type(e).__name__}: {e}", reached=False) from None
    except httpx.HTTPError as e:  # a reset or a time-out after the request was sent
        raise Transient(f"{type(e).__name__}: {e}", reached=True) from None


def ask(client: httpx.Client, url: str, request: dict[str, Any], clean: Clean) -> Answer:
    """One answer.

    Raises:
        Refused: the request does not suit the model (status 400, 413, 422).
        Transient: the endpoint may answer another time: unreachable, overloaded, failing, or talking nonsense.
        BadInput: the key or the model's name is refused (401, 403, 404).
    """
    response = _post(client, url, request)
    if response.status_code == 400 and "max_tokens" in request and _names_length(response.text):
        # prompt and longest response together exceed the context; without a limit the server takes what is left,
        # which is less than the limit was
        response = _post(client, url, {k: v for k, v in request.items() if k != "max_tokens"})
    status = response.status_code
    if status == 200:
        return _parse(response)
    said = f"status {status}: {clean(response.text)}"
    if status in (401, 403, 404):
        raise _denied(url, status, said, request["model"])
    if status in _TRY_AGAIN or status >= 500:
        raise Transient(said, reached=True, wait=_retry_after(response))
    raise Refused(said)


def _names_length(text: str) -> bool:
    lower = text.lower()
    return "max_tokens" in lower or "max_completion_tokens" in lower or "context length" in lower


def _retry_after(response: httpx.Response) -> float:
    try:
        return min(_LONGEST_RETRY_AFTER, max(0.0, float(response.headers.get("retry-after", "0"))))
    except ValueError:  # a date: our own wait will do
        return 0.0


def _parse(response: httpx.Response) -> Answer:
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
        raise Transient(f"the answer cannot be read: {type(e).__name__}: {e}", reached=True) from None
    # lone surrogates are JSON and no text: they could not be written down
    text = text.encode("utf-8", "replace").decode("utf-8")
    if said in ("stop", "length"):
        return Answer(text, said, tokens, prompt_tokens, logprob_sum)
    return Answer("", "error", 0, prompt_tokens, None, f"the endpoint ended the response with {str(said)[:40]!r}")


def _sum(logprobs: Any) -> float | None:
    """The response's log-probability in nats, if the endpoint gave one for every token."""
    entries = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not entries:
        return None
    total = math.fsum(float(x["logprob"]) for x in entries)
    return round(total, 6) if math.isfinite(total) else None


def _denied(url: str, status: int, said: str, model: str) -> BadInput:
    if status == 404:
        return BadInput(
            f"{url} does not serve the model {model}",
            found=said,
            next_step="check --served-model and that --url ends in /v1",
        )
    return BadInput(f"{url} refuses the key", found=said, next_step="set the variable that --key-variable names")


def check(client: httpx.Client, url: str, model: str, clean: Clean) -> Served:
    """Ask an address what it serves, and for one token of it, before a run depends on it.

    Args:
        model: the name that is wanted there; "" for the only one.

    Raises:
        BadInput: unreachable, another model, a refused key, or answers without token counts.
    """
    names, contexts = _models(client, url, model, clean)
    if not model and len(names) != 1:
        raise BadInput(
            f"{url} serves {len(names)} models",
            found=", ".join(names[:10]) or "none",
            next_step="name one: --served-model NAME",
        )
    if model and names and model not in names:
        raise BadInput(
            f"{url} does not serve the model {model}",
            found=", ".join(names[:10]),
            next_step="name one of these: --served-model NAME",
        )
    name = model or names[0]
    seed: int | None = 0
    logprobs = True
    while True:
        try:
            answer = ask(client, url, probe(name, seed, logprobs), clean)
        except Refused as e:
            # servers that do not know an option name it
            if logprobs and "logprobs" in str(e):
                logprobs = False
            elif seed is not None and "seed" in str(e):
                seed = None
            else:
                raise BadInput(f"{url} refuses a request for one token", found=e) from None
        except Transient as e:
            raise BadInput(
                f"{url} does not answer", found=e, next_step="start the server, or check the address (it ends in /v1)"
            ) from None
        else:
            given = logprobs and answer.logprob_sum is not None
            return Served(name, contexts.get(name, _UNLIMITED), given, seed is not None)


def _models(client: httpx.Client, url: str, model: str, clean: Clean) -> tuple[list[str], dict[str, int]]:
    """Names that an address lists and their contexts; nothing where it has no list and a name is given."""
    try:
        response = client.get(f"{url}/models", timeout=30.0)
    except httpx.HTTPError as e:
        raise BadInput(
            f"{url} cannot be reached", found=f"{type(e).__name__}: {e}", next_step="start the server, or check --url"
        ) from None
    if response.status_code in (401, 403) or (response.status_code == 404 and not model):
        raise _denied(url, response.status_code, f"status {response.status_code}: {clean(response.text)}", model or "?")
    try:
        rows = response.json()["data"] if response.status_code == 200 else []
        names = [str(r["id"]) for r in rows]
        contexts = {str(r["id"]): int(r["max_model_len"]) for r in rows if r.get("max_model_len")}
    except (ValueError, LookupError, TypeError, AttributeError):
        names, contexts = [], {}
    return names, contexts
