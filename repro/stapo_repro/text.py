"""How numbers and texts are printed, in every table and page: digits, signs, p-values, escaped text, one grid.

Printed numbers are rounded half to even (53.125 prints 53.12, 53.135 prints 53.14), on the decimal value with at most
eight digits, never on the binary one; what rounds to zero has no sign. One place, so that every form prints the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from decimal import ROUND_HALF_EVEN, Decimal
from operator import attrgetter
from typing import Any

from stapo_results.statistics import Number

_TAG = re.compile(r"<(?=[A-Za-z/!?])")
# C0 and C1 controls, line and paragraph separators, and what steers the direction of text or has no width; a response
# with them would not show what a grader read
_UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)


def _eight(value: float) -> float:
    """To eight decimals (beyond that two machines may differ), without the sign of a zero."""
    return round(value, 8) + 0.0


def rounded(value: float) -> float | None:
    """To eight decimals, as a file holds it: None for NaN."""
    return None if math.isnan(value) else _eight(value)


def written(x: object, columns: str) -> dict[str, Any]:
    """What a file holds of something: its attributes by name, "number.se" as "se" and "points=number.mean" as "points";
    numbers are `rounded`."""
    fields = {}
    for name, _, path in (column.rpartition("=") for column in columns.split()):
        value = attrgetter(path)(x)
        if isinstance(value, dict):
            value = {key: rounded(number) for key, number in value.items()}
        fields[name or path.rpartition(".")[2]] = rounded(value) if isinstance(value, float) else value
    return fields


def as_written(n: Number) -> Number:
    """With the digits that a file holds: what is drawn and compared is what is read, and 0.3 - 0.1 is 0.2."""
    ends = {name: _eight(getattr(n, name)) for name in ("mean", "low", "high")}
    return replace(n, **ends)


def code_shown(commit: str, dirty: bool) -> str:
    """The code that made a record: the commit's first twelve digits, and whether it was changed."""
    return commit[:12] + (" with uncommitted changes" if dirty else "")


def shown(value: float | None, digits: int = 2, *, as_it_is: bool = False) -> str:
    """The printed number, to eight decimals first unless it is to be taken as it is; "n/a" for None and NaN."""
    if value is None or math.isnan(value):
        return "n/a"
    printed = Decimal(repr(value if as_it_is else _eight(value))).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_EVEN)
    return str(printed if printed else abs(printed))


def signed(value: float | None, digits: int = 2, *, as_it_is: bool = False) -> str:
    """The printed number with its sign; zero has none."""
    text = shown(value, digits, as_it_is=as_it_is)
    return f"+{text}" if value is not None and value > 0 and Decimal(text) else text


def number_shown(n: Number, digits: int, factor: float = 1, unit: str = "", sign: bool = False) -> str:
    """Such as "34.2 % (29.1 to 39.5)": each value times `factor`, the mean with its sign and its unit."""
    if not n.known:
        return "n/a"
    low, high = (shown(factor * x, digits, as_it_is=True) for x in (n.low, n.high))
    ends = f" ({low} to {high})" if n.has_interval else ""
    return f"{(signed if sign else shown)(factor * n.mean, digits, as_it_is=True)}{unit}{ends}"


def p_shown(p: float | None) -> str:
    """A p-value to three digits; "<0.001" below that."""
    return "<0.001" if p is not None and p < 0.001 else shown(p, 3)


def visible(text: str) -> str:
    """The same text with control characters, marks of direction and lone surrogates written as their code point."""
    return _UNSEEN.sub(lambda m: f"⟨U+{ord(m[0]):04X}⟩", text.replace("\r\n", "\n"))


def escape(text: str) -> str:
    """Text of a record in a Markdown cell or list: it can neither end the cell nor begin a tag, a link or emphasis."""
    flat = re.sub(r"\s+", " ", text).replace("\\", "\\\\")
    return re.sub(r"([|\[\]`*])", r"\\\1", _TAG.sub("&lt;", flat))


def model_text(text: str) -> str:
    """A model's text in a Markdown cell: besides, no entity, formula, emphasis or invisible mark."""
    plain = escape(visible(text).replace("&", "&amp;"))
    return re.sub(r"([$_~])", r"\\\1", plain)


_SPANS = re.compile(
    r"<br><sub>(?P<small>.*?)</sub>|\*\*(?P<bold>.+?)\*\*|\*(?P<italic>(?:\\.|[^*])+)\*|(?P<plain>(?:\\.|[^*\\<]|<(?!br>))+)"
)


def spans(markdown: str) -> list[tuple[str, str]]:
    """A cell or label of a grid as (text, mark) with mark "plain", "bold", "italic" or "small" (a line below)."""
    pieces = ((m[m.lastgroup or 0], m.lastgroup or "plain") for m in _SPANS.finditer(markdown))
    return [(re.sub(r"\\(.)", r"\1", text).replace("&lt;", "<"), mark) for text, mark in pieces]


def grid(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """A Markdown table as lines; all columns but the first `left` ones are centred."""
    align = [*["---"] * left, *[":---:"] * (len(header) - left)]
    return ["| " + " | ".join(line) + " |" for line in (header, align, *rows)]


def small_percent(share: float, digits: int = 4) -> str:
    """0.0115 %; what that form would show as zero, in powers of ten."""
    if share and 100 * share < 0.5 * 10.0**-digits:
        return f"{100 * share:.1e} %"
    return f"{100 * share:.{digits}f} %"
