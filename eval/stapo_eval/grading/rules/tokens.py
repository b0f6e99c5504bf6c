r"""Tokens of a cleaned answer: numbers, names, words, operators, brackets. Linear in the text; nothing is evaluated."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stapo_eval.grading.rules.vocabulary import (
    ACCENTS,
    ALIASES,
    CLOSING,
    CURRENCY,
    FUNCTIONS,
    GREEK,
    LIBRARY,
    MACROS,
    MATH_FONTS,
    OPENING,
    OPERATORS,
    ORDINALS,
    PLAIN,
    PLAIN_UNITS,
    RELATIONS,
    SAME_LETTER,
    SHORT_WORDS,
    TEXT_FONTS,
    VECTORS,
)

LONGEST = 2000  # characters that are read; longer answers are compared as text
_MOST = 800


class Unreadable(ValueError):
    """The text is not in the language that this grader reads."""


class Meaningless(Unreadable):
    """The text says nothing that could be the answer: nobody else needs to be asked."""


@dataclass(frozen=True, slots=True)
class Token:
    r"""kind: num, sym, fn, word, op, rel, sep, open, close, bar, cup, minus_set, pm, deg, pct, cur, inf, colon, prime,
    macro, amp, row. `gap`: white space stands before it. `font`: it stood inside \text{} or its like."""

    kind: str
    value: str
    gap: bool = False
    font: bool = False


_OPEN_BRACE = re.compile(r"\s*\{")
_BLACKBOARD = re.compile(r"\s*\{?\s*([A-Z])\s*\}?")
_DECIMALS = re.compile(r"\.\d+")
_LEXEME = re.compile(
    r"(?P<space>\s+)|(?P<num>\d[\d\ue000]*(?:\.\d*)?(?:[eE][+-]?\d{1,4}(?![\d.]))?|\.\d+(?:[eE][+-]?\d{1,4}(?!\d))?)"
    r"|\\(?P<macro>[A-Za-z]+)\*?|(?P<row>\\\\)|(?P<esc>\\.)|(?P<letters>[^\W\d_]+)|(?P<dots>\.{2,})|(?P<other>.)",
    re.S,
)
_PLAIN_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?![\d,])")
_ROMAN = re.compile(r"[IVX]{2,}")  # statements I, II and III
_VOWEL = re.compile(r"[aeiouyAEIOUY]")


def is_word(letters: str) -> bool:
    """Whether a run of letters is a word and not a product of variables: four letters or more, a vowel, and not in
    the order of the alphabet, which is how products are written."""
    lower = letters.lower()
    if lower in SHORT_WORDS:
        return True
    return len(letters) >= 4 and bool(_VOWEL.search(letters)) and list(lower) != sorted(lower)


def _run(letters: str, gap: bool, font: bool) -> list[Token]:
    """Tokens of a run of letters: a known name, a word, or variables side by side."""
    if not letters.isascii():
        return [Token("word", letters, gap, font)]
    if font and len(letters) > 1 and letters not in FUNCTIONS and letters not in PLAIN:
        return [Token("word", letters, gap, True)]
    if letters in FUNCTIONS or letters in ALIASES:
        return [Token("fn", ALIASES.get(letters, letters), gap)]
    if letters in PLAIN:
        kind, value = PLAIN[letters]
        return [Token(kind, value, gap, font)] if kind != "skip" else []
    if letters in GREEK:
        return [Token("sym", SAME_LETTER.get(letters, letters), gap)]
    if letters in PLAIN_UNITS or is_word(letters) or _ROMAN.fullmatch(letters):
        return [Token("word", letters, gap, font)]
    out: list[Token] = []
    at = 0
    while at < len(letters):
        for size in (6, 5, 4, 3, 2):
            part = letters[at : at + size]
            if len(part) == size and (part in FUNCTIONS or part in ("pi", "sqrt")):
                kind, value = PLAIN.get(part, ("fn", part))
                out.append(Token(kind, value, gap and at == 0))
                at += size
                break
        else:
            out.append(Token("sym", letters[at], gap and at == 0, font))
            at += 1
    return out


class _Reader:
    def __init__(self, text: str, merge: bool):
        self.text, self.merge = text, merge
        self.tokens: list[Token] = []
        self.depth = 0  # of brackets that may hold a list
        self.fonts: list[int] = []  # brace depths at which a text font ends
        self.braces = 0
        self.vectors = any(mark in text for mark in VECTORS)  # whose \\times depends on the order

    def add(self, kind: str, value: str, gap: bool) -> None:
        self.tokens.append(Token(kind, value, gap, bool(self.fonts)))

    def brace(self, opening: bool, gap: bool) -> None:
        if opening:
            self.braces += 1
        else:
            if self.fonts and self.fonts[-1] == self.braces:
                self.fonts.pop()
                self.braces -= 1
                return
            self.braces -= 1
        self.add("open" if opening else "close", "{", gap)

    def bracket(self, kind: str, value: str, gap: bool) -> None:
        self.depth += 1 if kind == "open" else -1
        self.add(kind, value, gap)

    def macro(self, name: str, gap: bool, end: int) -> int:
        """Add what a command means; returns where reading goes on."""
        if name in TEXT_FONTS or name in MATH_FONTS:
            m = _OPEN_BRACE.match(self.text, end)
            if not m:
                return end
            self.braces += 1
            if name in MATH_FONTS or (name == "mathrm" and re.match(r"[eid]\}", self.text[m.end() : m.end() + 2])):
                self.braces -= 1
                self.brace(True, gap)
            else:
                self.fonts.append(self.braces)
            return m.end()
        if name == "mathbb" and (m := _BLACKBOARD.match(self.text, end)):
            self.add("sym", "bb" + m[1], gap)
            return m.end()
        if name in ("cup", "bigcup"):
            self.add("cup", "", gap)
        elif name in ("setminus", "backslash"):
            self.add("minus_set", "", gap)
        elif name in ("pm", "mp"):
            self.add("pm", name, gap)
        elif name == "deg":
            self.add("deg", "", gap)
        elif name == "infty":
            self.add("inf", "", gap)
        elif name in ("emptyset", "varnothing"):
            self.add("open", "set", gap)
            self.add("close", "set", gap)
        elif name in ("wedge", "land", "vee", "lor"):
            self.add("sep", "and" if name in ("wedge", "land") else "or", gap)
        elif name in CURRENCY:
            self.add("cur", CURRENCY[name], gap)
        elif name in ("ldots", "dots", "cdots"):
            self.add("dots", "", gap)
        elif name in ("Vert", "vert", "mid"):
            self.add("bar", "|", gap)
        elif name in OPENING:
            kind = OPENING[name]
            self.add("bar", "|", gap) if kind in ("|", "||") else self.bracket("open", kind, gap)
        elif name in CLOSING:
            kind = CLOSING[name]
            self.add("bar", "|", gap) if kind in ("|", "||") else self.bracket("close", kind, gap)
        elif name in OPERATORS:
            self.add("op", "cross" if name == "times" and self.vectors else OPERATORS[name], gap)
        elif name in RELATIONS:
            self.add("rel", RELATIONS[name], gap)
        elif name in FUNCTIONS or name in ALIASES:
            self.add("fn", ALIASES.get(name, name), gap)
        elif name == "pi":
            self.add("sym", "pi", gap)
        elif name in ("imath", "jmath"):
            self.add("sym", name[0], gap)
        elif name == "prime":
            self.add("prime", "'", gap)
        elif name in ACCENTS:
            self.add("macro", "accent:" + name, gap)
        elif name in GREEK:
            self.add("sym", SAME_LETTER.get(name, name), gap)
        elif name in MACROS:
            self.add("macro", name, gap)
        else:
            # what math-verify may read; no other command belongs into an answer
            raise Unreadable(name) if name in LIBRARY else Meaningless(f"\\{name}")
        return end

    def other(self, c: str, gap: bool) -> None:
        if c in "{}":
            self.brace(c == "{", gap)
        elif c in "([":
            self.bracket("open", c, gap)
        elif c in ")]":
            self.bracket("close", CLOSING[c], gap)
        elif c in "+-*/^_!":
            self.add("op", c, gap)
        elif c in "=<>":
            last = self.tokens[-1] if self.tokens else None
            if c == "=" and last and last.kind == "rel" and last.value in "<>" and not gap:
                self.tokens[-1] = Token("rel", last.value + "=", last.gap)
            elif c == "=" and last and last == Token("op", "!", last.gap) and not gap:
                self.tokens[-1] = Token("rel", "!=", last.gap)
            else:
                self.add("rel", c, gap)
        elif c in ",;\ue000":
            self.add("sep", ",", gap)
        elif c == "|":
            self.add("bar", "|", gap)
        elif c == ":":
            self.add("colon", ":", gap)
        elif c == "'":
            self.add("prime", "'", gap)
        elif c == "%":
            self.add("pct", "%", gap)
        elif c == "&":
            self.add("amp", "&", gap)
        elif c != ".":  # a full stop inside a text ("p.m.") means nothing
            raise Meaningless(repr(c))

    def behind_number(self, gap: bool) -> bool:
        """Whether the ending of an ordinal number may stand here: 5th, 5^{th}."""
        last = [t for t in self.tokens[-3:] if t.value not in ("^", "{")]
        return bool(last) and last[-1].kind == "num" and (not gap or last[-1] is not self.tokens[-1])

    def read(self) -> list[Token]:
        at, gap = 0, False
        while at < len(self.text):
            m = _LEXEME.match(self.text, at)
            assert m is not None  # the last alternative takes anything
            kind, end = m.lastgroup, m.end()
            if kind == "space":
                gap, at = True, end
                continue
            if kind == "num":
                if self.merge and self.depth == 0 and (t := _PLAIN_THOUSANDS.match(self.text, at)):
                    rest = _DECIMALS.match(self.text, t.end())
                    end = rest.end() if rest else t.end()
                value = re.sub("[,\ue000]", "", self.text[at:end])
                self.add("num", value, gap)
            elif kind == "macro":
                end = self.macro(m["macro"], gap, end)
            elif kind == "row":
                self.add("row", "", gap)
            elif kind == "esc":
                c = m["esc"]
                if c in OPENING:
                    self.bracket("open", OPENING[c], gap)
                elif c in CLOSING:
                    self.bracket("close", CLOSING[c], gap)
                elif c in (r"\%", r"\&", r"\_", r"\#"):
                    self.other(c[1], gap)
                elif c == r"\|":
                    self.add("bar", "|", gap)
                else:
                    raise Meaningless(c)
            elif kind == "letters" and m["letters"] in ORDINALS and self.behind_number(gap):
                self.add("word", m["letters"], gap)
            elif kind == "letters":
                self.tokens += _run(m["letters"], gap, bool(self.fonts))
            elif kind == "dots":
                self.add("dots", "", gap)
            else:
                self.other(m["other"], gap)
            at, gap = end, False
            if len(self.tokens) > _MOST:
                raise Meaningless("too long")
        return self.tokens


def tokenize(cleaned: str, *, merge: bool = True) -> list[Token]:
    """Tokens of a cleaned text (see `text.clean`).

    Args:
        merge: digits in groups of three at commas, outside brackets, are one number and no list.

    Raises:
        Unreadable: for a command, character or length that answers do not have.
    """
    if len(cleaned) > LONGEST:
        raise Meaningless("too long")
    return _Reader(cleaned, merge).read()
