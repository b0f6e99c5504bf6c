r"""Tokens of a cleaned answer: numbers, names, words, operators, brackets. Linear in the text; nothing is evaluated."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stapo_eval.grading.rules.text import vocabulary

LONGEST = 2000  # characters that are read; longer answers are compared as text
_MOST = 800


class Unreadable(ValueError):
    """The text is not in the language that this grader reads."""


class Meaningless(Unreadable):
    """The text says nothing that could be the answer: nobody else needs to be asked."""


@dataclass(frozen=True, slots=True)
class Token:
    r"""kind: num, sym, fn, word, op, rel, sep, open, close, bar, cup, minus_set, pm, deg, pct, cur, inf, colon, prime,
    macro, amp, row, dots. `gap`: white space stands before it. `font`: it stood inside \text{} or its like."""

    kind: str
    value: str
    gap: bool = False
    font: bool = False

    def matches(self, kind: str, value: str) -> bool:
        return self.kind == kind and self.value == value


def spells(tokens: list[Token], *values: str) -> bool:
    """Whether a list of tokens begins with these values."""
    return tuple(t.value for t in tokens[: len(values)]) == values


_OPEN_BRACE = re.compile(r"\s*\{")
_BLACKBOARD = re.compile(r"\s*\{?\s*([A-Z])\s*\}?")
_MATH_LETTER = re.compile(r"[eid]\}")
_LEXEME = re.compile(
    r"(?P<space>\s+)|(?P<num>\d[\d\ue000]*(?:\.(?!\.)\d*)?(?:[eE][+-]?\d{1,4}(?![\d.]))?|\.\d+(?:[eE][+-]?\d{1,4}(?!\d))?)"
    r"|\\(?P<command>[A-Za-z]+)\*?|(?P<letters>[^\W\d_]+)|(?P<dots>\.{2,})|(?P<sign>\\\\|\\.|.)",
    re.S,
)
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d+)?")
_ROMAN = re.compile(r"[IVX]{2,}")  # statements I, II and III
_GLUED = {*vocabulary.FUNCTIONS, "pi", "sqrt"}  # names that are found within a run of letters: "xsiny"
_VOWEL = re.compile(r"[aeiouyAEIOUY]")


def _is_word(letters: str) -> bool:
    """Whether a run of letters is a word and not a product of variables: four letters or more, a vowel, and not in
    the order of the alphabet, which is how products are written."""
    lower = letters.lower()
    if lower in vocabulary.SHORT_WORDS:
        return True
    return len(letters) >= 4 and bool(_VOWEL.search(letters)) and list(lower) != sorted(lower)


def _run(letters: str, gap: bool, font: bool) -> list[Token]:
    """Tokens of a run of letters: a known name, a word, or variables side by side."""
    if not letters.isascii():
        return [Token("word", letters, gap, font)]
    if font and len(letters) > 1 and letters not in vocabulary.FUNCTIONS and letters not in vocabulary.PLAIN:
        return [Token("word", letters, gap, True)]
    if letters in vocabulary.FUNCTIONS or letters in vocabulary.ALIASES:
        return [Token("fn", vocabulary.ALIASES.get(letters, letters), gap)]
    if letters in vocabulary.PLAIN:
        kind, value = vocabulary.PLAIN[letters]
        return [Token(kind, value, gap, font)] if kind != "skip" else []
    if letters in vocabulary.GREEK:
        return [Token("sym", vocabulary.GREEK[letters], gap)]
    if letters in vocabulary.PLAIN_UNITS or _is_word(letters) or _ROMAN.fullmatch(letters):
        return [Token("word", letters, gap, font)]
    out: list[Token] = []
    at = 0
    while at < len(letters):
        first = gap and at == 0
        name = next((part for n in (6, 5, 4, 3, 2) if (part := letters[at : at + n]) in _GLUED), "")
        if name:
            kind, value = vocabulary.PLAIN.get(name, ("fn", name))
            out.append(Token(kind, value, first))
        else:
            out.append(Token("sym", letters[at], first, font))
        at += len(name) or 1
    return out


class _Tokenizer:
    def __init__(self, text: str, merge: bool):
        self.text, self.merge = text, merge
        self.tokens: list[Token] = []
        self.depth = 0  # of brackets that may hold a list
        self.fonts: list[int] = []  # brace depths at which a text font ends
        self.braces = 0
        self.vectors = any(mark in text for mark in vocabulary.VECTORS)  # whose \\times depends on the order

    def tokenize(self) -> list[Token]:
        at, gap = 0, False
        while at < len(self.text):
            m = _LEXEME.match(self.text, at)
            assert m is not None  # the last alternative takes anything
            kind, at = m.lastgroup, m.end()
            if kind == "space":
                gap = True
                continue
            if kind == "num":
                at = self.number(m, gap)
            elif kind == "command":
                at = self.command(m["command"], gap, at)
            elif kind == "dots":
                self.add("dots", "", gap)
            elif kind == "sign":
                self.sign(m["sign"], gap)
            elif m["letters"] in vocabulary.ORDINALS and self.behind_number(gap):
                self.add("word", m["letters"], gap)
            else:
                self.tokens += _run(m["letters"], gap, bool(self.fonts))
            gap = False
            if len(self.tokens) > _MOST:
                raise Meaningless("too long")
        return self.tokens

    def add(self, kind: str, value: str, gap: bool) -> None:
        if value != "{":
            self.depth += (kind == "open") - (kind == "close")
        self.tokens.append(Token(kind, value, gap, bool(self.fonts)))

    def number(self, m: re.Match[str], gap: bool) -> int:
        """Add a number; returns where reading goes on."""
        if self.merge and self.depth == 0:
            m = _THOUSANDS.match(self.text, m.start()) or m
        self.add("num", m[0].replace(",", "").replace("\ue000", ""), gap)
        return m.end()

    def command(self, name: str, gap: bool, end: int) -> int:
        """Add what a command means; returns where reading goes on."""
        if name in vocabulary.TEXT_FONTS or name in vocabulary.MATH_FONTS:
            m = _OPEN_BRACE.match(self.text, end)
            if not m:
                return end
            if name in vocabulary.MATH_FONTS or (name == "mathrm" and _MATH_LETTER.match(self.text, m.end())):
                self.brace(True, gap)
            else:
                self.braces += 1
                self.fonts.append(self.braces)
            return m.end()
        if name == "mathbb" and (m := _BLACKBOARD.match(self.text, end)):
            self.add("sym", "bb" + m[1], gap)
            return m.end()
        if name in ("emptyset", "varnothing"):
            self.add("open", "set", gap)
            self.add("close", "set", gap)
        elif name == "times" and self.vectors:
            self.add("op", "cross", gap)
        elif name in vocabulary.SIGNS:
            self.add(*vocabulary.SIGNS[name], gap)
        else:
            # what math-verify may read; no other command belongs into an answer
            raise Unreadable(name) if name in vocabulary.LIBRARY else Meaningless(f"\\{name}")
        return end

    def brace(self, opening: bool, gap: bool) -> None:
        ends_font = not opening and bool(self.fonts) and self.fonts[-1] == self.braces
        self.braces += 1 if opening else -1
        if ends_font:
            self.fonts.pop()
        else:
            self.add("open" if opening else "close", "{", gap)

    def sign(self, sign: str, gap: bool) -> None:
        last = self.tokens[-1] if self.tokens else None
        if sign in ("{", "}"):
            self.brace(sign == "{", gap)
        elif sign == "=" and not gap and last and last.kind == "rel" and last.value in "<>":
            self.tokens[-1] = Token("rel", last.value + "=", last.gap)
        elif sign == "=" and not gap and last and last == Token("op", "!", last.gap):
            self.tokens[-1] = Token("rel", "!=", last.gap)
        elif sign in vocabulary.SIGNS:
            self.add(*vocabulary.SIGNS[sign], gap)
        elif sign != ".":  # a full stop inside a text ("p.m.") means nothing
            raise Meaningless(repr(sign))

    def behind_number(self, gap: bool) -> bool:
        """Whether the ending of an ordinal number may stand here: 5th, 5^{th}."""
        last = [t for t in self.tokens[-3:] if t.value not in ("^", "{")]
        return bool(last) and last[-1].kind == "num" and (not gap or last[-1] is not self.tokens[-1])


def tokenize(cleaned: str, *, merge: bool = True) -> list[Token]:
    """Tokens of a cleaned text (see `cleaning.clean`).

    Args:
        merge: digits in groups of three at commas, outside brackets, are one number and no list.

    Raises:
        Unreadable: for a command, character or length that answers do not have.
    """
    if len(cleaned) > LONGEST:
        raise Meaningless("too long")
    return _Tokenizer(cleaned, merge).tokenize()
