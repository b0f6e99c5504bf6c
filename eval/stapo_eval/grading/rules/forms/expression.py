r"""From tokens to the tree of an expression: a recursive-descent parser for the LaTeX and plain text that models write.

Bounded: at most 800 tokens and 40 levels, each token is read once. See `values.trees` for the trees.
"""

from __future__ import annotations

from fractions import Fraction

from stapo_eval.grading.rules.forms.operands import Operands
from stapo_eval.grading.rules.text.tokens import Meaningless, Token, Unreadable
from stapo_eval.grading.rules.text.vocabulary import ORDINALS, pairs
from stapo_eval.grading.rules.values.trees import Tree, exact, has_letters, literal, whole

_DEEPEST = 40
_STARTS = {"num", "sym", "fn", "open", "macro", "inf"}
_POSTFIX = {"op", "deg", "pct", "word"}  # kinds of what may follow an operand
_BRACKETS = {"(", "[", "{", "floor", "ceil"}
_INVERSE = pairs("sin:arcsin cos:arccos tan:arctan cot:arccot sinh:arsinh cosh:arcosh tanh:artanh")


class Parser(Operands):
    """Reads one expression from tokens.

    Args:
        tight: "1/2x" is 1/(2x), as some write it; otherwise (1/2)x.
    """

    def __init__(self, tokens: list[Token], *, tight: bool = False):
        super().__init__(tokens)
        self.tight = tight
        self.depth = 0  # of brackets
        self.bars = 0  # open bars of absolute values

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
        if self.skip("macro", "choose"):
            return ("binom", tree, self.sum())
        return ("/", tree, self.sum()) if self.skip("macro", "over") else tree

    def sum(self) -> Tree:
        self.deeper()
        tree = self.signed()
        while (minus := self.is_next("op", "-")) or self.is_next("op", "+"):
            self.take()
            right = self.signed()
            tree = ("+", tree, ("neg", right) if minus else right)
        self.depth -= 1
        return tree

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise Meaningless("too deep")

    def signed(self) -> Tree:
        minus = False
        while self.is_next("op", "+") or self.is_next("op", "-"):
            minus ^= self.take().value == "-"
        tree = self.product()
        return ("neg", tree) if minus else tree

    def product(self) -> Tree:
        tree = self.power()
        while self.at < len(self.tokens):
            if self.skip("op", "*"):
                tree = ("*", tree, self.unary())
            elif self.skip("op", "cross"):
                right = self.unary()
                tree = ("cross" if has_letters(tree) and has_letters(right) else "*", tree, right)
            elif self.skip("op", "/"):
                tree = ("/", tree, self.implicit() if self.tight else self.unary())
            elif self.starts_factor():
                tree = self.beside(tree)
            else:
                break
        return tree

    def unary(self) -> Tree:
        return ("neg", self.power()) if self.skip("op", "-") else self.power()

    def implicit(self) -> Tree:
        tree = self.unary()
        while self.starts_factor():
            tree = self.beside(tree)
        return tree

    def starts_factor(self) -> bool:
        t = self.peek()
        if t is None or t.value in ("choose", "over"):
            return False
        return t.kind in _STARTS or (t.kind == "bar" and not self.bars)

    def beside(self, left: Tree) -> Tree:
        """A factor that stands next to `left`: a product, or the fraction of a mixed number."""
        before, t = self.tokens[self.at - 1], self.tokens[self.at]
        n = whole(left) if before.kind == "num" else None
        if before.kind == t.kind == "num":
            if n is None or not t.gap or not (slash := self.peek(1)) or slash.value != "/":
                raise Meaningless("two numbers side by side")
            over = literal(self.take().value)
            self.take()
            under = literal(self.take().value) if self.is_next("num") else None
            if under is None or (mixed := _mixed(n, over, under)) is None:
                raise Meaningless("not a mixed number")
            return mixed
        if t.kind == "num" and before.value != "(":
            power = self.peek(1)
            if power is None or power.value != "^":  # unlike "2^{3} 3^{2}"
                raise Meaningless("a number behind a factor")
        right = self.power()
        if n is not None and t.value == "frac" and right[0] == "/" and (mixed := _mixed(n, *right[1:])):
            return mixed
        return ("*", left, right)

    def power(self) -> Tree:
        tree = self.primary()
        while (t := self.peek()) and t.kind in _POSTFIX:
            if self.skip("op", "^"):
                exponent = self.exponent()
                tree = tree if exponent is None else ("^", tree, exponent)
            elif self.skip("op", "!"):
                tree = ("fact2" if self.skip("op", "!") else "fact", tree)
            elif self.skip("deg"):
                tree = ("deg", tree)
            elif self.skip("pct"):
                tree = ("/", tree, exact(100))
            elif t.kind == "word" and t.value in ORDINALS and tree[0] == "num":
                self.take()
            else:
                break
        return tree

    def exponent(self) -> Tree | None:
        """What follows ^; None for the ending of an ordinal number (5^{th})."""
        t = self.peek()
        if t is None:
            raise Meaningless("no exponent")
        if t.kind == "word" and t.value in ORDINALS:
            self.take()
            return None
        if t.matches("open", "{"):
            inner = self.peek(1)
            if inner and inner.kind == "word" and inner.value in ORDINALS:
                self.at += 2
                self.expect("close", "{")
                return None
            return self.group("{")
        if t.kind == "op" and t.value in "+-":
            self.take()
            tree = self.exponent() or exact(1)
            return ("neg", tree) if t.value == "-" else tree
        return self.primary()

    def group(self, bracket: str) -> Tree:
        """What stands between brackets."""
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
        if t.kind != "num":
            return self.primary()
        if len(t.value) > 1 and t.value.isdecimal():
            self.tokens[self.at] = Token("num", t.value[1:])
            return literal(t.value[0])
        return literal(self.take().value)

    def primary(self) -> Tree:
        """An operand: a number, a name, a function or command with its arguments, or an expression in brackets."""
        t = self.take()
        self.deeper()
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
            if t.kind == "open" and t.value in _BRACKETS:
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

    def function(self, name: str) -> Tree:
        base = exponent = None
        while True:
            if name == "log" and base is None and self.skip("op", "_"):
                base = literal(self.take().value) if self.is_next("num") else self.argument()
            elif exponent is None and self.skip("op", "^"):
                exponent = self.exponent()
            else:
                break
        if name in ("gcd", "lcm", "max", "min", "binomial"):
            raise Unreadable(name)
        argument = self.primary() if self.is_next("open") or self.is_next("bar") else self.bare_argument()
        if exponent == ("neg", exact(1)) and name in _INVERSE:
            name, exponent = _INVERSE[name], None
        if name in ("abs", "floor", "ceil"):
            tree: Tree = (name, argument)
        elif name == "factorial":
            tree = ("fact", argument)
        elif name == "cbrt":
            tree = ("root", exact(3), argument)
        elif name == "exp":
            tree = ("^", ("sym", "e"), argument)
        elif base is not None:
            tree = ("log", base, argument)
        else:
            tree = ("fn", name, argument)
        return tree if exponent is None else ("^", tree, exponent)

    def bare_argument(self) -> Tree:
        """The argument of a function without brackets: factors side by side, up to the next function or operator."""
        minus = self.skip("op", "-")
        tree = self.power()
        while (t := self.peek()) and (t.kind in ("sym", "macro") or (t.kind == "num" and whole(tree) is None)):
            tree = ("*", tree, self.power())
        return ("neg", tree) if minus else tree

    def macro(self, name: str) -> Tree:
        if name == "frac" and (derivative := self.derivative()):
            return derivative
        if name in ("frac", "binom"):
            above = self.argument()
            return ("/" if name == "frac" else name, above, self.argument())
        if name == "sqrt":
            index = self.group("[") if self.is_next("open", "[") else exact(2)
            return ("root", index, literal(self.take().value) if self.is_next("num") else self.argument())
        if name.startswith("accent:"):
            return self.symbol(name + ":" + self.raw_group())
        raise Unreadable(name)


def _mixed(n: int, over: Tree, under: Tree) -> Tree | None:
    """The number that an integer beside a proper fraction is."""
    a, b = whole(over), whole(under)
    return exact(n + Fraction(a, b)) if a is not None and b is not None and 0 < a < b else None
