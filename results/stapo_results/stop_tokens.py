"""The tokens that end a response: one rule for training, validation and evaluation."""

from __future__ import annotations

from typing import Any

from stapo_results.errors import BadInput

# Tokens that end a turn or a text in the families that the suite meets; those that a vocabulary lacks are skipped.
_END_TOKENS = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>")


def stop_token_ids(tokenizer: Any, generation_eos: int | list[int] | None) -> list[int]:
    """Sorted ids that end a response: the model's own and the end tokens that its vocabulary has.

    Base models end in <|endoftext|> even where their chat template would end in another token.

    Args:
        tokenizer: a transformers tokenizer.
        generation_eos: `eos_token_id` of the model's generation_config.json.

    Raises:
        BadInput: when there is none.
    """
    eos = generation_eos if isinstance(generation_eos, list) else [generation_eos]
    vocabulary = tokenizer.get_vocab()
    ids = {*eos, tokenizer.eos_token_id, *map(vocabulary.get, _END_TOKENS)} - {None}
    if not ids:
        raise BadInput(
            "the model has no token that ends a response", next_step="set eos_token_id in generation_config.json"
        )
    return sorted(ids)
