"""The responses of a file, with their advantages. Everything is checked here, before a model is loaded.

A line is {"prompt" | "messages", "response" | "response_tokens", "correct" | "reward" | "advantage", ...}.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from stapo_results.benchmarks import from_file
from stapo_results.errors import BadInput
from stapo_training.selection.objectives import group_advantage

_PAGE = "docs/tokens.md lists the fields; stapo-eval export --to responses writes those of an evaluation"
MOST_SAMPLES = 2**15
"""Responses of one prompt: the token log's column `sample` is an int16."""


@dataclass
class Response:
    """One response.

    Attributes:
        where: file and line.
        prompt: the text that the model saw, or chat messages that its template is put around.
        template: arguments of that template.
        reward: None where the line gives the advantage itself.
        stopped: the model ended the response itself, so that an end-of-turn token followed the text.
        tokens: the response's ids where the line has them; otherwise `text` is tokenised.
    """

    where: str
    prompt_id: str
    sample: int
    prompt: str | list[dict[str, str]]
    text: str
    reward: float | None
    stopped: bool = True
    tokens: list[int] | None = None
    advantage: float = 0.0
    template: Mapping[str, Any] = field(default_factory=dict)


Text = Annotated[str, Field(min_length=0)]
"""With a limit pydantic looks at the characters: JSON can spell half a character, which no tokenizer takes."""


class ResponseLine(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, allow_inf_nan=False)


class Message(ResponseLine):
    role: Text
    content: Text


class Plain(ResponseLine):
    """The fields of a line."""

    prompt: Text | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    response: Text | None = None
    response_tokens: list[Annotated[int, Field(ge=0)]] | None = None
    finish_reason: Literal["stop", "length"] | None = None
    correct: bool | None = None
    reward: float | None = None
    advantage: float | None = None
    prompt_id: Text | int | None = None
    sample: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _complete(self) -> Plain:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("one of prompt (text as the model saw it) and messages (a chat) is needed")
        if wrong := {"tokenize", "add_generation_prompt", "chat_template"} & (self.chat_template_kwargs or {}).keys():
            raise ValueError(f"chat_template_kwargs has {', '.join(sorted(wrong))}, which is not the template's own")
        if self.response is None and self.response_tokens is None:
            raise ValueError("response (text) or response_tokens (ids) is needed")
        if self.advantage is None and self.reward is None and self.correct is None:
            raise ValueError("advantage, reward or correct is needed: S2T looks at responses with a positive advantage")
        return self


def read(data: Path, group: int = 0) -> list[Response]:
    """The responses of a file in its order, with their advantages.

    Args:
        group: samples of a prompt that are a group of their own, by their numbers. The groups pass as in a training:
            the first of each prompt, then the second of each. If 0, all samples of a prompt are one group.

    Raises:
        BadInput: naming file and line.
    """
    expected = "a file of responses, .jsonl or .parquet"
    if not data.is_file():
        raise BadInput("--data is no file", found=data, expected=expected, next_step="give the file")
    lines = from_file(data).rows
    if not lines:
        raise BadInput(f"{data} holds no response", expected=expected, next_step=_PAGE)
    rows = _lines(data, lines)
    _check(rows)
    if group:
        place = {p: i for i, p in enumerate(dict.fromkeys(r.prompt_id for r in rows))}
        rows.sort(key=lambda r: (r.sample // group, place[r.prompt_id]))
    set_advantages(rows, group)
    return rows


def _lines(data: Path, lines: Sequence[Mapping[str, Any]]) -> list[Response]:
    rows, next_sample = [], defaultdict(int)
    for number, line in enumerate(lines, 1):
        where = f"{data}:{number}"
        try:
            x = Plain.model_validate(line)
        except ValidationError as e:
            first = e.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise BadInput(
                f"{where}: not a response",
                found=f"{place}: {first['msg']}" if place else first["msg"].removeprefix("Value error, "),
                expected=f"the fields {', '.join(Plain.model_fields)}",
                next_step=f"correct the line; {_PAGE}",
            ) from None
        prompt = [m.model_dump() for m in x.messages or ()] if x.prompt is None else x.prompt
        template = {} if x.prompt is not None else x.chat_template_kwargs or {}
        identity = [prompt, template] if template else prompt
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
        prompt_id = f"prompt-{digest}" if x.prompt_id is None else str(x.prompt_id)
        sample = next_sample[prompt_id] if x.sample is None else x.sample
        next_sample[prompt_id] += 1
        reward = (1.0 if x.correct else -1.0) if x.reward is None else x.reward
        rows.append(
            Response(
                where,
                prompt_id,
                sample,
                prompt,
                x.response or "",
                reward if x.advantage is None else None,
                stopped=x.finish_reason in (None, "stop"),
                tokens=x.response_tokens,
                advantage=x.advantage or 0.0,
                template=template,
            )
        )
    return rows


def _check(rows: Sequence[Response]) -> None:
    """Raises BadInput unless lines agree on who gives advantages, on each prompt, and name each sample once."""
    firsts: dict[str, Response] = {}
    seen: dict[tuple[str, int], str] = {}
    for r in rows:
        first = firsts.setdefault(r.prompt_id, r)
        place = seen.setdefault((r.prompt_id, r.sample), r.where)
        if (r.reward is None) != (rows[0].reward is None):
            what, found = "some lines have an advantage and some have none", f"otherwise at {rows[0].where}"
            expected, next_step = "an advantage on every line, or on none", "complete the lines, or split the file"
        elif (first.prompt, first.template) != (r.prompt, r.template):
            what, found = f"the prompt_id {r.prompt_id} has two prompts", f"another prompt at {first.where}"
            expected = "one prompt an id: its responses are a group"
            next_step = "give each prompt its own prompt_id, or leave prompt_id out"
        elif place != r.where or r.sample >= MOST_SAMPLES:
            what = "a duplicate sample, or its number is too large"
            found = f"sample {r.sample:,} of {r.prompt_id}, first at {place}"
            expected = f"each sample of a prompt once, 0 to {MOST_SAMPLES - 1:,}"
            next_step = "leave out one of the lines, or the field sample"
        else:
            continue
        raise BadInput(f"{r.where}: {what}", found=found, expected=expected, next_step=next_step)


def set_advantages(rows: Sequence[Response], group: int = 0) -> None:
    """Set the advantages from the rewards of each group of responses (`read`), as GRPO does.

    A group of one response, or whose rewards are all equal, tells nothing: 0. Advantages that lines give stay.
    """
    groups: dict[tuple[str, int], list[Response]] = defaultdict(list)
    for r in rows:
        groups[r.prompt_id, r.sample // (group or MOST_SAMPLES)].append(r)
    for members in groups.values():
        rewards = [r.reward for r in members if r.reward is not None]
        # rounding in the mean of equal rewards, divided by 1e-6, would be an advantage
        if len(set(rewards)) > 1:
            values = group_advantage(torch.tensor(rewards, dtype=torch.float64)).tolist()
            for r, value in zip(members, values, strict=True):
                r.advantage = value
