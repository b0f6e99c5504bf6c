r"""Operands of expressions: numbers, names, brackets, functions and commands (see `expression`)."""

from __future__ import annotations

from abc import abstractmethod
from fractions import Fraction

from stapo_eval.grading.rules.cursor import Cursor
from stapo_eval.grading.rules.tokens import Meaningless, Token, Unreadable
from stapo_eval.grading.rules.trees import Tree, literal, whole

DEEPEST = 40
OPERATIONS = {"star", "ast", "bullet", "odot", "oplus"}
_INVERSE = {"sin": "arcsin", "cos": "arccos", "tan": "arctan", "sinh": "arsinh", "cosh": "arcosh", "tanh": "artanh",
            "cot": "arccot"}  # fmt: skip


class Operands(Cursor):
    """Reads one operand; what operators make of operands is its subclass's."""

    depth = 0  # of brackets
    bars = 0  # open bars of absolute values

    @abstractmethod
    def sum(self) -> Tree:
        """Terms with plus and minus signs."""

    @abstractmethod
    def power(self) -> Tree:
        """An operand with its exponents."""

    @abstractmethod
    def exponent(self) -> Tree | None:
        """What follows ^."""

    @abstractmethod
    def group(self, bracket: str) -> Tree:
        """What stands between brackets."""

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
        if self.depth > DEEPEST:
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
        if name in OPERATIONS and self.at > 1 and self.tokens[self.at - 2].kind in ("sym", "num", "close"):
            raise Meaningless("an operation of the answer's own")  # a \\star b is not b \\star a
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
        name = self.bound(name) + subscript + primes
        a, b, c = self.peek(), self.peek(1), self.peek(2)
        called = a and b and c and (a.kind, a.value, b.kind, c.kind) == ("open", "(", "num", "close") and not a.gap
        if called and b and name not in ("pi", "e", "i"):
            # I(0) is the value of a function: as a product it would make anything beside it vanish
            self.at += 3
            return ("sym", f"{name}({Fraction(b.value)})")
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
        first, second = self.peek(), self.peek(1)
        if first and second and (first.value, second.value, second.kind) == ("{", "d", "sym"):
            over = self.raw_group()
            first, second, third = self.peek(), self.peek(1), self.peek(2)
            if first and second and third and (first.value, second.value, second.kind) == ("{", "d", "sym"):
                under = self.raw_group()
                if third.kind in ("sym", "macro") and not set("+-*/") & set(over + under):
                    return ("sym", f"{over}/{under}")
        self.at = began
        return None

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
            if derivative := self.derivative():
                return derivative
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
