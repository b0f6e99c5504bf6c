r"""A cursor over tokens, and the operands that hold no expression of their own: numbers and names."""

from __future__ import annotations

from fractions import Fraction

from stapo_eval.grading.rules.text.tokens import Meaningless, Token, Unreadable, spells
from stapo_eval.grading.rules.values.trees import Tree, literal

_OWN_OPERATIONS = {"star", "ast", "bullet", "odot", "oplus"}
_REPEATED = {"accent:overline", "accent:bar", "accent:dot"}


class Operands:
    """Reads tokens one after the other.

    Attributes:
        at: the place of the next token.
    """

    def __init__(self, tokens: list[Token]):
        self.tokens, self.at = list(tokens), 0

    def peek(self, ahead: int = 0) -> Token | None:
        at = self.at + ahead
        return self.tokens[at] if at < len(self.tokens) else None

    def is_next(self, kind: str, value: str | None = None, ahead: int = 0) -> bool:
        t = self.peek(ahead)
        return t is not None and t.kind == kind and (value is None or t.value == value)

    def reads(self, *values: str) -> bool:
        """Whether the next tokens have these values."""
        return spells(self.tokens[self.at : self.at + len(values)], *values)

    def take(self) -> Token:
        t = self.peek()
        if t is None:
            raise Meaningless("unexpected end")
        self.at += 1
        return t

    def skip(self, kind: str, value: str | None = None) -> bool:
        """Take the next token where it is this one; returns whether it was."""
        found = self.is_next(kind, value)
        self.at += found
        return found

    def expect(self, kind: str, value: str) -> None:
        if not self.skip(kind, value):
            raise Meaningless(f"no {value}")

    def raw_group(self) -> str:
        """The text of a brace group or of the next token, for names."""
        t = self.take()
        if not t.matches("open", "{"):
            return t.value or t.kind
        depth, parts = 1, []
        while depth:
            t = self.take()
            depth += (t.kind == "open") - (t.kind == "close")
            if depth:
                parts.append(t.value or t.kind)
        return "".join(parts)

    def number(self, t: Token) -> Tree:
        """A number; of one with a line over its last digits the repeating decimal that it is."""
        following = self.peek()
        if following and following.kind == "macro" and following.value in _REPEATED:
            self.take()
            digits = self.raw_group()
            if "." not in t.value or "e" in t.value.lower() or not digits.isdecimal():
                raise Meaningless("a line over digits")
            places = len(t.value.partition(".")[2])
            tail = Fraction(int(digits), (10 ** len(digits) - 1) * 10**places)
            return ("num", Fraction(t.value) + tail, None)
        if self.is_next("op", "_"):
            raise Unreadable("a base inside an expression")
        return literal(t.value)

    def symbol(self, name: str) -> Tree:
        """A name with its subscripts and primes, and with the number that it is a function of."""
        if name in _OWN_OPERATIONS and self.at > 1 and self.tokens[self.at - 2].kind in ("sym", "num", "close"):
            raise Meaningless("an operation of the answer's own")  # a \\star b is not b \\star a
        subscript = primes = ""
        while True:
            if self.skip("op", "_"):
                subscript += "_" + self.raw_group()
            elif self.skip("prime"):
                primes += "'"
            elif (t := self.peek()) and t.kind == "num" and not t.gap and not subscript and t.value.isdecimal():
                subscript += "_" + self.take().value  # C1 is C_1
            elif self.is_next("op", "^") and self.is_next("prime", ahead=1):
                self.take()
            elif self.is_next("op", "^") and self.is_next("prime", ahead=2) and self.reads("^", "{"):
                self.take()
                primes += "'" * self.raw_group().count("'")
            else:
                break
        name = self.bound(name) + subscript + primes
        bracket, argument = self.peek(), self.peek(1)
        called = self.is_next("open", "(") and self.is_next("num", ahead=1) and self.is_next("close", ahead=2)
        if called and bracket and argument and not bracket.gap and name not in ("pi", "e", "i"):
            # I(0) is the value of a function: as a product it would make anything beside it vanish
            self.at += 3
            name = f"{name}({Fraction(argument.value)})"
        return ("sym", name)

    def bound(self, name: str) -> str:
        """The name of an angle or a derivative with the letters that it is of, which are no factors."""
        if name in ("partial", "nabla") and self.is_next("sym"):
            return f"{name} {self.take().value}"
        if name not in ("angle", "triangle"):
            return name
        letters = ""
        while (t := self.peek()) and t.kind == "sym" and t.value.isupper():
            letters += self.take().value
        return f"{name} {min(letters, letters[::-1]) if name == 'angle' else letters}"

    def derivative(self) -> Tree | None:
        """dy/dx as a name of its own, since its d is no factor; None, with nothing taken, for any other fraction."""
        began = self.at
        if self.is_differential():
            over = self.raw_group()
            if self.is_differential() and (behind := self.peek(2)):
                under = self.raw_group()
                if behind.kind in ("sym", "macro") and not set("+-*/") & set(over + under):
                    # a dot over a name is its derivative by time
                    return ("sym", f"accent:dot:{over[1:]}" if under == "dt" else f"{over}/{under}")
        self.at = began
        return None

    def is_differential(self) -> bool:
        return self.reads("{", "d") and self.is_next("sym", ahead=1)
