"""Token ids as text that is fit to be shown: white space has a mark, and nothing steers a page or a line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer

from stapo_repro.templating import visible
from stapo_results.errors import RecordError

_MARKS = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥"})
_OTHER_SPACE = re.compile(r"[^\S \n\t]")
LONGEST = 24  # characters of a token in a figure


class Vocabulary:
    """A tokenizer's vocabulary as text. A token that is a part of a character is shown as U+FFFD."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}

    @classmethod
    def read(cls, path: Path) -> Vocabulary:
        """Raises: RecordError when there is no such file, or it is no tokenizer."""
        next_step = "copy the model's tokenizer.json there: its ids cannot be read without it"
        if not path.is_file():
            raise RecordError("the token log has no tokenizer", found=f"no {path}", next_step=next_step)
        try:
            return cls(Tokenizer.from_file(str(path)))
        except Exception as e:  # noqa: BLE001  the library raises no narrower class
            raise RecordError(f"{path}: not a tokenizer", found=str(e)[:200], next_step=next_step) from None

    def one(self, token: int) -> str:
        """The token alone; an id without a token as its number."""
        if token not in self._known:
            known = token >= 0 and self._tokenizer.id_to_token(token) is not None
            self._known[token] = (
                self._tokenizer.decode([token], skip_special_tokens=False) if known else f"⟨id {token}⟩"
            )
        return self._known[token]

    def several(self, tokens: Sequence[int]) -> str:
        """Consecutive tokens. A character that begins or ends outside of them is U+FFFD."""
        if any(self.one(t) == f"⟨id {t}⟩" for t in tokens):
            return "".join(map(self.one, tokens))
        return self._tokenizer.decode(list(tokens), skip_special_tokens=False)


def marked(text: str) -> str:
    """A text on one line with a mark for all white space: ␣ a space, ⏎ a line's end, ⇥ a tab, others their code."""
    shown = _OTHER_SPACE.sub(lambda m: f"⟨U+{ord(m[0]):04X}⟩", visible(text))
    return shown.translate(_MARKS) or "(empty)"


@cache
def _charmap(font: str) -> frozenset[int]:
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(font).get_charmap())


def drawable(text: str, font: str) -> str:
    """`marked`, with what the font cannot draw as its code point, and cut after LONGEST characters."""
    have = _charmap(font)
    out = "".join(c if ord(c) in have else f"⟨U+{ord(c):04X}⟩" for c in marked(text))
    return out if len(out) <= LONGEST else out[: LONGEST - 1] + "…"
