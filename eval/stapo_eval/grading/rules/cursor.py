"""A cursor over tokens that the parser of expressions moves."""

from __future__ import annotations

from stapo_eval.grading.rules.tokens import Meaningless, Token


class Cursor:
    """A place in a list of tokens."""

    def __init__(self, tokens: list[Token]):
        self.tokens, self.at = list(tokens), 0

    def peek(self, ahead: int = 0) -> Token | None:
        at = self.at + ahead
        return self.tokens[at] if at < len(self.tokens) else None

    def is_next(self, kind: str, value: str | None = None) -> bool:
        t = self.peek()
        return t is not None and t.kind == kind and (value is None or t.value == value)

    def take(self) -> Token:
        t = self.peek()
        if t is None:
            raise Meaningless("unexpected end")
        self.at += 1
        return t

    def expect(self, kind: str, value: str) -> None:
        if not self.is_next(kind, value):
            raise Meaningless(f"no {value}")
        self.at += 1

    def raw_group(self) -> str:
        """The text of a brace group or of the next token, for names."""
        t = self.take()
        if t != Token("open", "{", t.gap, t.font):
            return t.value or t.kind
        depth, parts = 1, []
        while depth:
            t = self.take()
            depth += (t.kind == "open") - (t.kind == "close")
            if depth:
                parts.append(t.value or t.kind)
        return "".join(parts)
