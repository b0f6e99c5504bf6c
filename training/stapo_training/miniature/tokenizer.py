"""The miniature's tokenizer: a hand-written list of pieces with a byte fallback, so that any text encodes.

A Unigram model over 531 pieces: every digit is one token, the words of problem, instruction and solution are
one token each or less, every printable ASCII character is a piece, and all else falls back to its UTF-8 bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stapo_training.miniature.worlds import CLOSING, CLOSINGS, MODULUS, OPENING, OPENINGS, SPURIOUS, USEFUL

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

IM_START, IM_END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
SPECIAL = (END_OF_TEXT, IM_START, IM_END)

# Whole phrases of the fixed text are one piece: each prompt token costs time in every training and evaluation step.
PHRASES = (
    "user\n",
    "assistant\n",
    "system\n",
    "\n\n",
    "What is ",
    "Compute ",
    "Add ",
    "Find ",
    "Evaluate ",
    " + ",
    " modulo ",
    "Please reason",
    " Please reason",
    " step by step",
    ", and put",
    " your final answer",
    " within",
    " \\boxed{",
    "\\boxed{",
    "}.",
    " The answer is",
)

STEPS = (*(f" +{n}" for n in range(1, 10)), *(f"={n}" for n in range(MODULUS)))
WORDS = (*STEPS, OPENING, *OPENINGS, *USEFUL, *SPURIOUS, *CLOSING, *CLOSINGS)

# Qwen's format without tools and thinking: an optional system turn, then user and assistant in turn.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# Scores of the Unigram model. A piece costs 1, so the segmentation with the fewest pieces wins. A byte piece costs
# more than spelling out its own name does, or else the literal text "<0x41>" would be read as the byte 0x41.
_PIECE, _BYTE = -1.0, -100.0


def pieces() -> list[tuple[str, float]]:
    """All (piece, score) in id order: special tokens, bytes, ASCII, phrases, words."""
    ascii_pieces = [chr(c) for c in (9, 10, *range(32, 127))]
    return (
        [(t, _BYTE) for t in SPECIAL]
        + [(f"<0x{b:02X}>", _BYTE) for b in range(256)]
        + [(c, _PIECE) for c in (*ascii_pieces, *PHRASES, *WORDS)]
    )


def core_tokenizer() -> Tokenizer:
    """Pieces, byte fallback and special tokens; needs the library tokenizers alone."""
    from tokenizers import AddedToken, Tokenizer, decoders
    from tokenizers.models import Unigram

    # A character outside the vocabulary becomes its bytes; the unknown id is never emitted, because all 256 exist.
    core = Tokenizer(Unigram(pieces(), unk_id=0, byte_fallback=True))
    core.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])  # pyright: ignore[reportAttributeAccessIssue]
    core.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    return core


def build_tokenizer(max_length: int = 8192) -> PreTrainedTokenizerFast:
    """The tokenizer with its chat template; pad and end of text are `<|endoftext|>`, a turn ends with `<|im_end|>`.

    Args:
        max_length: what the tokenizer states as its longest input, in tokens.
    """
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core_tokenizer(),
        eos_token=IM_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[IM_START],
        clean_up_tokenization_spaces=False,
        model_max_length=max_length,
        padding_side="left",
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def chat_text(content: str) -> str:
    """The text of a conversation with one user turn, up to where the assistant begins to write."""
    return f"{IM_START}user\n{content}{IM_END}\n{IM_START}assistant\n"
