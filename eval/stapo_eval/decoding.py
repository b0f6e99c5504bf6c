"""What is asked of the model and how it answers: the evaluation prompt and the paper's decoding settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stapo_results.errors import BadInput
from stapo_results.schema import SETTINGS

# JustRL's evaluation script, which the paper's setting follows: one space between problem and instruction
INSTRUCTION = r"Please reason step by step, and put your final answer within \boxed{}."
MAX_TOKENS = 20_480

# Tokens that end a turn or a text in the families that the suite meets; those that a vocabulary lacks are skipped.
_END_TOKENS = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>")


@dataclass(frozen=True)
class Decoding:
    """temperature 0 is greedy; max_tokens counts the response with its stop token."""

    temperature: float
    top_p: float
    max_tokens: int


def parse_settings(text: str) -> dict[str, tuple[float, float]]:
    """`both`, or names of decoding settings joined by commas, as name -> (temperature, top_p).

    Raises:
        BadInput: for a setting that does not exist.
    """
    names = list(SETTINGS) if text == "both" else [s.strip() for s in text.split(",") if s.strip()]
    unknown = [n for n in names if n not in SETTINGS]
    if unknown or not names:
        raise BadInput(
            "unknown decoding setting",
            found=", ".join(unknown) or text,
            expected="both, " + ", ".join(SETTINGS),
            next_step="leave out --settings for both",
        )
    return {n: SETTINGS[n] for n in dict.fromkeys(names)}


def prompt(problem: str) -> str:
    """The user's message for one problem."""
    return f"{problem} {INSTRUCTION}"


def encode_chat(tokenizer: Any, message: str) -> list[int]:
    """Token ids of one user message in the model's chat template, ready for the answer."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": message}], tokenize=False, add_generation_prompt=True
    )
    return list(tokenizer(text, add_special_tokens=False).input_ids)


def stop_token_ids(tokenizer: Any, generation_eos: int | list[int] | None) -> list[int]:
    """Sorted ids that end a response: the model's own and the end tokens that its vocabulary has.

    Base models end in <|endoftext|> even where their chat template would end in another token.
    """
    ids = set(generation_eos if isinstance(generation_eos, list) else [generation_eos])
    ids.add(tokenizer.eos_token_id)
    vocabulary = tokenizer.get_vocab()
    ids.update(vocabulary[t] for t in _END_TOKENS if t in vocabulary)
    ids.discard(None)
    if not ids:
        raise BadInput(
            "the model has no token that ends a response", next_step="set eos_token_id in generation_config.json"
        )
    return sorted(i for i in ids if i is not None)
