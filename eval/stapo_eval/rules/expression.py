r"""Expressions of answers as trees: a recursive-descent parser for the LaTeX and plain text that models write.

A tree is a tuple: ("num", value, unit of its last decimal place or None), ("sym", name), ("inf",) and
(operation, operands...). Bounded: at most 800 tokens and 40 levels, each token is read once.
"""

from __future__ import annotations

from fractions import Fraction

from stapo_eval.rules.cursor import Cursor, Tree, literal, whole
from stapo_eval.rules.tokens import Meaningless, Token, Unreadable

_DEEPEST = 40
_STARTS = {"num", "sym", "fn", "open", "macro", "inf"}
_INVERSE = {"sin": "arcsin", "cos": "arccos", "tan": "arctan", "sinh": "arsinh", "cosh": "arcosh", "tanh": "artanh",
            "cot": "arccot"}  # fmt: skip
_ORDINALS = {"st", "nd", "rd", "th"}


class Parser(Cursor):
    """Reads one expression from tokens.

    Args:
        tight: "1/2x" is 1/(2x), as some write it; otherwise (1/2)x.
    """

    def __init__(self, tokens: list[Token], *, tight: bool = False):
        super().__init__(tokens)
        self.tight = tight
        self.depth = self.bars = 0

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
        if self.depth > _DEEPEST:
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

    def argument(self) -> Tree:
        """An argument of a command: a group, or the next digit or symbol."""
        t = self.peek()
        if t is None:
            raise Meaningless("no argument")
        if t.kind == "open":
            return self.group(t.value)
        if t.kind == "num":
            self.take()
            if len(t.value) > 1 and t.value.isdecimal():
                self.at -= 1
                self.tokens[self.at] = Token("num", t.value[1:])
                return literal(t.value[0])
            return literal(t.value)
        return self.primary()

    def primary(self) -> Tree:
        t = self.take()
        self.depth += 1
        if self.depth > _DEEPEST:
            raise Meaningless("too deep")
        try:
            if t.kind == "num":
                return self.number(t)
            if t.kind == "sym":
                return self.symbol(t.value)
            if t.kind == "inf":
                return ("inf",)
            if t.kind == "fn":
                return self.function(t.value)
            if t.kind == "macro":
                return self.macro(t.value)
            if t.kind == "open" and t.value in ("(", "[", "{", "floor", "ceil"):
                self.at -= 1
                inner = self.group(t.value)
                return (t.value, inner) if t.value in ("floor", "ceil") else inner
            if t.kind == "bar":
                self.bars += 1
                inner = self.sum()
                self.bars -= 1
                self.expect("bar", "|")
                return ("abs", inner)
        finally:
            self.depth -= 1
        raise Meaningless(f"unexpected {t.value or t.kind}")

    def number(self, t: Token) -> Tree:
        following = self.peek()
        if (
            following
            and following.kind == "macro"
            and following.value in ("accent:overline", "accent:bar", "accent:dot")
        ):
            self.take()
            name = self.raw_group()
            if "." in t.value and "e" not in t.value.lower() and name.isdecimal():
                places = len(t.value.partition(".")[2])
                tail = Fraction(int(name), (10 ** len(name) - 1) * 10**places)
                return ("num", Fraction(t.value) + tail, None)
            raise Meaningless("a line over digits")
        if self.is_next("op", "_"):
            raise Unreadable("a base inside an expression")
        return literal(t.value)

    def symbol(self, name: str) -> Tree:
        subscript = primes = ""
        while True:
            if self.is_next("op", "_"):
                self.take()
                subscript += "_" + self.raw_group()
            elif self.is_next("prime"):
                self.take()
                primes += "'"
            elif (t := self.peek()) and t.kind == "num" and not t.gap and not subscript and t.value.isdecimal():
                subscript += "_" + self.take().value  # C1 is C_1
            elif self.is_next("op", "^") and (t := self.peek(1)) and t.kind == "prime":
                self.take()
            elif self.is_next("op", "^") and (u := self.peek(2)) and u.kind == "prime" and self.peek(1).value == "{":  # type: ignore[union-attr]
                self.take()
                primes += "'" * self.raw_group().count("'")
            else:
                break
        name += subscript + primes
        a, b, c = self.peek(), self.peek(1), self.peek(2)
        called = a and b and c and (a.kind, a.value, b.kind, c.kind) == ("open", "(", "num", "close") and not a.gap
        if called and b and name not in ("pi", "e", "i"):
            # I(0) is the value of a function: as a product it would make anything beside it vanish
            self.at += 3
            return ("sym", f"{name}({Fraction(b.value)})")
        return ("sym", name)

    def function(self, name: str) -> Tree:
        base = exponent = None
        while True:
            if self.is_next("op", "_") and name == "log" and base is None:
                self.take()
                t = self.peek()
                base = literal(self.take().value) if t and t.kind == "num" else self.argument()
            elif self.is_next("op", "^") and exponent is None:
                self.take()
                exponent = self.exponent()
            else:
                break
        if name in ("gcd", "lcm", "max", "min", "binomial"):
            raise Unreadable(name)
        t = self.peek()
        argument = self.primary() if t is not None and t.kind in ("open", "bar") else self.bare_argument()
        if exponent == ("neg", ("num", Fraction(1), None)) and name in _INVERSE:
            name, exponent = _INVERSE[name], None
        if name in ("abs", "floor", "ceil"):
            tree: Tree = (name, argument)
        elif name == "factorial":
            tree = ("fact", argument)
        elif name == "cbrt":
            tree = ("root", ("num", Fraction(3), None), argument)
        elif name == "exp":
            tree = ("^", ("sym", "e"), argument)
        elif base is not None:
            tree = ("log", base, argument)
        else:
            tree = ("fn", name, argument)
        return tree if exponent is None else ("^", tree, exponent)

    def bare_argument(self) -> Tree:
        """The argument of a function without brackets: factors side by side, up to the next function or operator."""
        minus = self.is_next("op", "-")
        if minus:
            self.take()
        tree = self.power()
        while (
            (t := self.peek())
            and t.kind in ("num", "sym", "macro")
            and not (t.kind == "num" and whole(tree) is not None)
        ):
            tree = ("*", tree, self.power())
        return ("neg", tree) if minus else tree

    def macro(self, name: str) -> Tree:
        if name == "frac":
            over = self.argument()
            return ("/", over, self.argument())
        if name == "binom":
            above = self.argument()
            return ("binom", above, self.argument())
        if name == "sqrt":
            index: Tree = ("num", Fraction(2), None)
            if self.is_next("open", "["):
                index = self.group("[")
            t = self.peek()
            inner = literal(self.take().value) if t is not None and t.kind == "num" else self.argument()
            return ("root", index, inner)
        if name.startswith("accent:"):
            return self.symbol(name + ":" + self.raw_group())
        raise Unreadable(name)
