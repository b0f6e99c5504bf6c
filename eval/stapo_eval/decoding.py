"""What is asked of the model and how it answers: the evaluation prompt and the paper's decoding settings."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stapo_results.answers import INSTRUCTION
from stapo_results.errors import BadInput
from stapo_results.schema import MAX_TOKENS, SETTINGS

NEUTRAL: dict[str, float] = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
                             "frequency_penalty": 0.0}  # fmt: skip
"""What a setting leaves switched off. An endpoint is told so, or a model's own defaults would count there."""
_OTHERS = {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0, "no_repeat_ngram_size": 0,
           "typical_p": 1, "epsilon_cutoff": 0, "eta_cutoff": 0}  # fmt: skip
"""What no setting has, and the value that switches it off."""


@dataclass(frozen=True)
class Decoding:
    """temperature 0 is greedy; max_tokens counts the response with its stop token; top_k -1 and min_p 0 are off."""

    temperature: float
    top_p: float
    max_tokens: int
    top_k: int = -1
    min_p: float = 0.0


def _name(t: float, p: float, k: float, least: float) -> str:
    """The setting of a decoding: one of SETTINGS, else the shortest form, as t0.6-p0.95-k20-m0.1."""
    name = f"t{t:g}-p{p:g}" + (f"-k{k:.0f}" if k > 0 else "") + (f"-m{least:g}" if least > 0 else "")
    papers = {f"t{t:g}-p{p:g}": setting for setting, (t, p) in SETTINGS.items()}
    return papers.get(name, name)


def _decoding_of(name: str, max_tokens: int) -> Decoding | None:
    """The decoding of a setting's name, of which t0 is greedy; None where it has another name, or is none."""
    if name == "t0" or name in SETTINGS:
        return Decoding(*SETTINGS.get(name, (0.0, 1.0)), max_tokens)
    number = r"(\d+(?:\.\d+)?)"
    m = re.fullmatch(rf"t{number}-p{number}(?:-k([1-9]\d*))?(?:-m{number})?", name)
    if not m:
        return None
    t, p, k, least = float(m[1]), float(m[2]), int(m[3] or -1), float(m[4] or 0)
    return Decoding(t, p, max_tokens, k, least) if t > 0 < p <= 1 >= least and name == _name(t, p, k, least) else None


def card_setting(folder: Path) -> str:
    """The name of what a model's generation_config.json recommends, as t0.6-p0.95-k20; what it leaves out is off.

    Raises:
        BadInput: it recommends nothing, or what no setting has.
    """
    path, cure = folder / "generation_config.json", "name the setting by its numbers, as t0.6-p0.95-k20"
    try:
        card = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        known = {k: float(card[k]) for k in ("temperature", "top_p", "top_k", "min_p", *_OTHERS)
                 if card.get(k) is not None}  # fmt: skip
    except (ValueError, TypeError, AttributeError) as e:
        raise BadInput(f"--settings card: {path.name} cannot be read", found=e, next_step=cure) from None
    greedy = card.get("do_sample") is False or known.get("temperature") == 0
    if not greedy and "temperature" not in known:
        raise BadInput("--settings card: the model recommends no temperature", found=path, next_step=cure)
    numbers = (known.get("temperature", 1), known.get("top_p", 1), known.get("top_k", 0), known.get("min_p", 0))
    name = "t0" if greedy else _name(*numbers)
    for other, off in _OTHERS.items():
        if known.get(other, off) != off:
            without = f"--settings {name} is the recommendation without it"
            raise BadInput(f"--settings card: {other} is not supported", found=known[other], next_step=without)
    return name


def parse_settings(text: str, max_tokens: int = MAX_TOKENS, card: str = "t0") -> dict[str, Decoding]:
    """`both`, or names of decoding settings joined by commas, with their decodings.

    Args:
        card: what the name "card" stands for.

    Raises:
        BadInput: for a setting that does not exist.
    """
    names = list(SETTINGS) if text == "both" else [s.strip() for s in text.split(",") if s.strip()]
    names = [card if name == "card" else name for name in names]
    decodings = {n: decoding for n in names if (decoding := _decoding_of(n, max_tokens))}
    if not decodings or len(decodings) < len(set(names)):
        raise BadInput(
            "unknown decoding setting",
            found=", ".join(n for n in names if n not in decodings) or text,
            expected=f"both, {', '.join(SETTINGS)}, t0, card, or another in its shortest form, as t0.6-p0.95-k20-m0.1",
            next_step="leave out --settings for both",
        )
    return decodings


def prompt(problem: str) -> str:
    """The user's message for one problem: one space before the instruction, as in JustRL's evaluation script."""
    return f"{problem} {INSTRUCTION}"


@dataclass(frozen=True)
class Chat:
    """What goes with a user's message: a system message, and arguments of the chat template. The paper has neither."""

    system: str = ""
    template: Mapping[str, Any] = field(default_factory=dict)

    def messages(self, message: str) -> list[dict[str, str]]:
        before = [{"role": "system", "content": self.system}] if self.system else []
        return [*before, {"role": "user", "content": message}]

    @property
    def recorded(self) -> dict[str, Any]:
        """Its parts that are not empty."""
        return {k: v for k, v in (("system", self.system), ("template", dict(self.template))) if v}


def encode_chat(tokenizer: Any, message: str, chat: Chat | None = None) -> list[int]:
    """Token ids of one user message in the model's chat template, ready for the answer."""
    chat = chat or Chat()
    text = tokenizer.apply_chat_template(
        chat.messages(message), tokenize=False, add_generation_prompt=True, **chat.template
    )
    return list(tokenizer(text, add_special_tokens=False).input_ids)
