"""The lines that a data file of a probe may have, apart from those of an evaluation (`schema.Sample`)."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

SAMPLES = 2**15
"""Responses of one prompt: the token log's column `sample` is an int16."""


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
    sample: Annotated[int, Field(ge=0, lt=SAMPLES)] | None = None

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
