r"""Expressions of answers as trees: a recursive-descent parser for the LaTeX and plain text that models write.

A tree is a tuple: ("num", value, unit of its last decimal place or None), ("sym", name), ("inf",) and
(operation, operands...). Bounded: at most 800 tokens and 40 levels, each token is read once.
"""

from __future__ import annotations

from fractions import Fraction

from stapo_eval.grading.rules.operands import DEEPEST, Operands
from stapo_eval.grading.rules.tokens import Meaningless, Token
from stapo_eval.grading.rules.trees import Tree, has_letters, literal, whole

_STARTS = {"num", "sym", "fn", "open", "macro", "inf"}
_ORDINALS = {"st", "nd", "rd", "th"}


class Parser(Operands):
    """Reads one expression from tokens.

    Args:
        tight: "1/2x" is 1/(2x), as some write it; otherwise (1/2)x.
    """

    def __init__(self, tokens: list[Token], *, tight: bool = False):
        super().__init__(tokens)
        self.tight = tight

    def whole_input(self) -> Tree:
        """The expression that all tokens form.

        Raises:
            Unreadable: they form none, or something is left over.
        """
        tree = self.stacked()
        if self.peek() is not None:
            raise Meaningless(f"left over: {self.peek()}")
        return tree

    def stacked(self) -> Tree:
        """A sum, or two of them in the old notation {a \\choose b} and {a \\over b}."""
        tree = self.sum()
        if self.is_next("macro", "choose") or self.is_next("macro", "over"):
            tree = ("binom" if self.take().value == "choose" else "/", tree, self.sum())
        return tree

    def sum(self) -> Tree:
        self.depth += 1
        if self.depth > DEEPEST:
            raise Meaningless("too deep")
        tree = self.signed()
        while self.is_next("op", "+") or self.is_next("op", "-"):
            minus = self.take().value == "-"
            right = self.signed()
            tree = ("+", tree, ("neg", right) if minus else right)
        self.depth -= 1
        return tree

    def signed(self) -> Tree:
        minus = False
        while self.is_next("op", "+") or self.is_next("op", "-"):
            minus ^= self.take().value == "-"
        tree = self.product()
        return ("neg", tree) if minus else tree

    def product(self) -> Tree:
        tree = self.power()
        while True:
            if self.is_next("op", "*"):
                self.take()
                tree = ("*", tree, self.unary())
            elif self.is_next("op", "cross"):
                self.take()
                right = self.unary()
                tree = ("cross" if has_letters(tree) and has_letters(right) else "*", tree, right)
            elif self.is_next("op", "/"):
                self.take()
                tree = ("/", tree, self.implicit() if self.tight else self.unary())
            elif self.starts_factor():
                tree = self.beside(tree)
            else:
                return tree

    def unary(self) -> Tree:
        if self.is_next("op", "-"):
            self.take()
            return ("neg", self.power())
        return self.power()

    def implicit(self) -> Tree:
        tree = self.unary()
        while self.starts_factor():
            tree = self.beside(tree)
        return tree

    def starts_factor(self) -> bool:
        t = self.peek()
        if t is not None and t.value in ("choose", "over"):
            return False
        return t is not None and (t.kind in _STARTS or (t.kind == "bar" and not self.bars))

    def beside(self, left: Tree) -> Tree:
        """A factor that stands next to `left`: a product, or the fraction of a mixed number."""
        t = self.peek()
        before = self.tokens[self.at - 1]
        n = whole(left)
        if before.kind == "num" and t is not None and t.kind == "num":
            if n is None or not t.gap or not (slash := self.peek(1)) or slash.value != "/":
                raise Meaningless("two numbers side by side")
            over = whole(literal(self.take().value))
            self.take()
            under = whole(literal(self.take().value)) if self.is_next("num") else None
            if over is None or under is None or not 0 < over < under:
                raise Meaningless("not a mixed number")
            return ("num", n + Fraction(over, under), None)
        if t is not None and t.kind == "num" and before.value != "(":
            power = self.peek(1)
            if power is None or power.value != "^":  # unlike "2^{3} 3^{2}"
                raise Meaningless("a number behind a factor")
        right = self.power()
        if n is not None and before.kind == "num" and t is not None and t.value == "frac" and right[0] == "/":
            over, under = whole(right[1]), whole(right[2])
            if over is not None and under is not None and 0 < over < under:
                return ("num", n + Fraction(over, under), None)
        return ("*", left, right)

    def power(self) -> Tree:
        tree = self.primary()
        while (t := self.peek()) is not None:
            if t == Token("op", "^", t.gap, t.font):
                self.take()
                exponent = self.exponent()
                tree = tree if exponent is None else ("^", tree, exponent)
            elif t.kind == "op" and t.value == "!":
                self.take()
                tree = ("fact2" if self.is_next("op", "!") else "fact", tree)
                if tree[0] == "fact2":
                    self.take()
                if self.is_next("op", "!"):
                    raise Meaningless("a factorial of a factorial has brackets")
            elif t.kind == "deg":
                self.take()
                tree = ("deg", tree)
            elif t.kind == "pct":
                self.take()
                tree = ("/", tree, ("num", Fraction(100), None))
            elif t.kind == "word" and t.value in _ORDINALS and tree[0] == "num":
                self.take()
            else:
                return tree
        return tree

    def exponent(self) -> Tree | None:
        """What follows ^; None for the ending of an ordinal number (5^{th})."""
        t = self.peek()
        if t is None:
            raise Meaningless("no exponent")
        if t.kind == "word" and t.value in _ORDINALS:
            self.take()
            return None
        if t == Token("open", "{", t.gap, t.font):
            inner = self.peek(1)
            if inner and inner.kind == "word" and inner.value in _ORDINALS:
                self.at += 2
                self.expect("close", "{")
                return None
            return self.group("{")
        if t.kind == "op" and t.value in "+-":
            self.take()
            tree = self.exponent() or ("num", Fraction(1), None)
            return ("neg", tree) if t.value == "-" else tree
        return self.primary()

    def group(self, bracket: str) -> Tree:
        self.expect("open", bracket)
        outside, self.bars = self.bars, 0
        tree = self.stacked()
        self.bars = outside
        self.expect("close", bracket)
        return tree
