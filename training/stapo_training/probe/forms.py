"""The three forms of a file of responses. Everything is checked here, before a model is loaded.

evaluation  samples.jsonl of `stapo-eval run` with verdicts.jsonl beside it (see `evaluation`)
plain       {"prompt" | "messages", "response" | "response_tokens", "correct" | "reward" | "advantage", ...}
dump        veRL's trainer.rollout_data_dir: {"input", "output", "score", "step"}

The first line decides which form a file has.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from stapo_results.benchmarks.sources import from_file
from stapo_results.errors import BadInput
from stapo_training.probe import evaluation
from stapo_training.probe.responses import Response, Responses, check_signals, with_advantages

_PAGE = "docs/tokens.md lists the fields of each form"


def _unicode(text: str) -> str:
    """JSON can spell half a character, which no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError as e:
        raise ValueError(f"no Unicode text: half a character at {e.start}") from None
    return text


Text = Annotated[str, AfterValidator(_unicode)]


class Line(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, allow_inf_nan=False)


class Message(Line):
    role: Text
    content: Text


class Plain(Line):
    """A line of the plain form."""

    prompt: Text | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    response: Text | None = None
    response_tokens: list[Annotated[int, Field(ge=0)]] | None = None
    finish_reason: str | None = None
    correct: bool | None = None
    reward: float | None = None
    advantage: float | None = None
    prompt_id: Text | int | None = None
    sample: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _complete(self) -> Plain:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("one of prompt (text as the model saw it) and messages (a chat) is needed")
        if self.response is None and self.response_tokens is None:
            raise ValueError("response (text) or response_tokens (ids) is needed")
        return self

    @property
    def signal(self) -> tuple[str, float]:
        """What the advantage is made from, and the number; see `responses.Response`."""
        if self.advantage is not None:
            return "advantage", self.advantage
        if self.reward is not None:
            return "reward", self.reward
        return ("none", 1.0) if self.correct is None else ("correct", 1.0 if self.correct else -1.0)


class Dump(Line):
    """A line of veRL's dump, as its trainers write it (`_write_generations` in veRL 0.9.1)."""

    input: Text
    output: Text
    score: float
    step: int = 0


def read(data: Path, *, data_dir: Path | None = None, all_positive: bool = False) -> Responses:
    """The responses of a file with their advantages.

    Args:
        data_dir: the benchmarks' files, for the evaluation form.
        all_positive: lines without advantage, reward and verdict get the advantage 1.

    Raises:
        BadInput: naming file and line.
    """
    if not data.is_file():
        samples = data / "samples.jsonl"
        raise BadInput(
            "--data is a folder" if data.is_dir() else "--data: no such file",
            found=data,
            expected="a file of responses, .jsonl or .parquet",
            next_step=f"--data {samples}" if samples.is_file() else "check the path",
        )
    lines = from_file(data).rows
    if not lines:
        raise BadInput(f"{data} holds no response", next_step=_PAGE)
    if {"cell", "problem_id"} <= lines[0].keys():
        found = evaluation.read(data, data_dir)
    elif {"input", "output"} <= lines[0].keys():
        found = Responses("dump", _dump(data, lines), {})
    else:
        found = Responses("plain", _plain(data, lines), {})
    check_signals(found.rows, all_positive)
    return replace(found, rows=with_advantages(found.rows))


def _parsed(model: type[Line], data: Path, number: int, line: Mapping[str, Any]) -> Any:
    try:
        return model.model_validate(line)
    except ValidationError as e:
        first = e.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise BadInput(
            f"{data}:{number}: not a response",
            found=f"{field}: {first['msg']}" if field else first["msg"].removeprefix("Value error, "),
            expected=f"the fields {', '.join(model.model_fields)}",
            next_step=f"correct the line; {_PAGE}",
        ) from None


def _plain(data: Path, lines: Sequence[Mapping[str, Any]]) -> list[Response]:
    rows, prompts, next_sample = [], {}, defaultdict(int)
    for number, line in enumerate(lines, 1):
        x: Plain = _parsed(Plain, data, number, line)
        prompt = x.prompt if x.messages is None else [m.model_dump() for m in x.messages]
        assert prompt is not None
        name = f"prompt-{_digest(prompt)}" if x.prompt_id is None else str(x.prompt_id)
        where = f"{data}:{number}"
        first = prompts.setdefault(name, (where, prompt))
        if first[1] != prompt:
            raise BadInput(
                f"{where}: the prompt_id {name} stands at two prompts",
                found=f"another prompt at {first[0]}",
                expected="one prompt an id: its responses are a group",
                next_step="give each prompt its own prompt_id, or leave prompt_id out",
            )
        sample = next_sample[name] if x.sample is None else x.sample
        next_sample[name] += 1
        stopped = x.finish_reason in (None, "stop")
        tokens = None if x.response_tokens is None else tuple(x.response_tokens)
        rows.append(Response(where, name, sample, prompt, x.response or "", x.signal, stopped, tokens=tokens))
    return rows


def _dump(data: Path, lines: Sequence[Mapping[str, Any]]) -> list[Response]:
    """A group is a prompt's responses of one step: a later step's were drawn from another policy."""
    rows, next_sample = [], defaultdict(int)
    for number, line in enumerate(lines, 1):
        x: Dump = _parsed(Dump, data, number, line)
        name = f"step{x.step}-{_digest(x.input)}"
        signal = ("reward", x.score)
        rows.append(Response(f"{data}:{number}", name, next_sample[name], x.input, x.output, signal, stripped=True))
        next_sample[name] += 1
    return rows


def _digest(prompt: object) -> str:
    return hashlib.sha256(json.dumps(prompt, sort_keys=True).encode()).hexdigest()[:12]
