"""Text from records made fit to be shown: nothing in it steers the page, reorders its line or is invisible."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable

# C0 and C1 controls, line and paragraph separators, and what steers the direction of text or has no width; a response
# with them would not show what a grader read
_UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)


def visible(text: str) -> str:
    """The same text with control characters, marks of direction and lone surrogates written as their code point."""
    return _UNSEEN.sub(lambda m: f"⟨U+{ord(m[0]):04X}⟩", text.replace("\r\n", "\n"))


def shortened(text: str, head: int, tail: int) -> tuple[str, int, str]:
    """(beginning, number of characters left out, end); all of a text that fits stands in the beginning."""
    left_out = len(text) - head - tail
    if left_out <= 0:
        return text, 0, ""
    return text[:head], left_out, text[-tail:] if tail else ""


def anchors(ids: Iterable[str], prefix: str) -> dict[str, str]:
    """id -> a name for a link's target: letters, digits, ".", "-" and "_", different for different ids."""
    slugs = {i: re.sub(r"[^A-Za-z0-9.\-]+", "_", i) for i in ids}
    count = Counter(slugs.values())
    return {
        i: f"{prefix}-{s}" + (f"-{hashlib.sha256(i.encode()).hexdigest()[:8]}" if count[s] > 1 else "")
        for i, s in slugs.items()
    }
