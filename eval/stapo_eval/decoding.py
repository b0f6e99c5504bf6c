"""What is asked of the model and how it answers: the evaluation prompt and the paper's decoding settings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from stapo_results.answers import INSTRUCTION
from stapo_results.errors import BadInput
from stapo_results.schema import SETTINGS

MAX_TOKENS = 20_480
NEUTRAL: dict[str, float] = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""What a setting leaves switched off. An endpoint is told so, or a model's own defaults would count there."""


@dataclass(frozen=True)
class Decoding:
    """temperature 0 is greedy; max_tokens counts the response with its stop token."""

    temperature: float
    top_p: float
    max_tokens: int


def _values_of(name: str) -> tuple[float, float] | None:
    """(temperature, top-p) of a setting's name. Any other decoding has its shortest form as its name: t0.8-p0.9."""
    m = re.fullmatch(r"t(\d+(?:\.\d+)?)-p(\d+(?:\.\d+)?)", name)
    if not m:
        return SETTINGS.get(name)
    t, p = values = float(m[1]), float(m[2])
    return values if t > 0 < p <= 1 and name == f"t{t:g}-p{p:g}" and values not in SETTINGS.values() else None


def parse_settings(text: str) -> dict[str, tuple[float, float]]:
    """`both`, or names of decoding settings joined by commas, as name -> (temperature, top_p).

    Raises:
        BadInput: for a setting that does not exist.
    """
    names = list(SETTINGS) if text == "both" else [s.strip() for s in text.split(",") if s.strip()]
    found = {n: values for n in names if (values := _values_of(n))}
    if not found or len(found) < len(set(names)):
        raise BadInput(
            "unknown decoding setting",
            found=", ".join(n for n in names if n not in found) or text,
            expected="both, " + ", ".join(SETTINGS) + ", or another in its shortest form, as t0.8-p0.9",
            next_step="leave out --settings for both",
        )
    return found


def prompt(problem: str) -> str:
    """The user's message for one problem: one space before the instruction, as in JustRL's evaluation script."""
    return f"{problem} {INSTRUCTION}"


def encode_chat(tokenizer: Any, message: str) -> list[int]:
    """Token ids of one user message in the model's chat template, ready for the answer."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": message}], tokenize=False, add_generation_prompt=True
    )
    return list(tokenizer(text, add_special_tokens=False).input_ids)
