r"""From a cleaned text to the form of the answer (see `types`). Of values only the ends of ranges are looked at."""

from __future__ import annotations

from stapo_eval.grading.rules.forms.quantity import quantity
from stapo_eval.grading.rules.forms.relations import ANYTHING, ORDERS, all_but, as_range, conjoined, name_of
from stapo_eval.grading.rules.forms.split import depths_of, french, is_half_open, resolved, sign_variants, split
from stapo_eval.grading.rules.forms.types import (
    MOST_ITEMS,
    REALS,
    Collection,
    Form,
    Matrix,
    Ratio,
    Relation,
    Scalar,
    Sequence,
    Words,
)
from stapo_eval.grading.rules.text.tokens import Meaningless, Token, Unreadable, tokenize
from stapo_eval.grading.rules.text.vocabulary import words

_LEADS = words("the answer is final equals approximately about value so thus are solution solutions hence")
# what may name a value before a colon; other words may change it ("dozen: 12", "upper bound: 12")
_NAMES = words("""
    area volume perimeter circumference length width height radius diameter distance time speed cost price age mass
    value sum product total probability answer result number ways of the
""")
_QUANTIFIERS = words("all every any each some")
_MATRICES = words("matrix pmatrix bmatrix vmatrix Bmatrix Vmatrix array smallmatrix")
_ROWS = words("aligned cases align gathered align*")  # environments that only set equations under one another
_CLOSING = {"(": ")", "[": "]", "<": ")"}
_DEEPEST = 40


def read(cleaned: str, *, merge: bool = True, tight: bool = False) -> Form:
    """The form of a cleaned answer.

    Args:
        merge: see `tokens.tokenize`.
        tight: see `expression.Parser`.

    Raises:
        Unreadable: it has none that this grader knows.
    """
    tokens = resolved(tokenize(cleaned, merge=merge))
    if not tokens:
        raise Meaningless("nothing")
    try:
        return _Reader(tight).answer(french(tokens))
    except RecursionError:
        raise Meaningless("too deep") from None


def _without_scope(tokens: list[Token]) -> list[Token]:
    """Tokens up to "for all x" or "where k is an integer", which say what a letter stands for."""
    for i, t in enumerate(tokens[1:-1], 1):
        following = tokens[i + 1].value.lower()
        if t.kind == "word" and (t.value == "where" or (t.value == "for" and following in _QUANTIFIERS)):
            return tokens[:i]
    return tokens


def _without_lead(tokens: list[Token]) -> list[Token]:
    """Tokens without "The final answer is:" before them."""
    while len(tokens) > 1 and tokens[0].kind == "word" and tokens[0].value.lower() in _LEADS:
        if all(t.kind == "word" for t in tokens):
            break
        tokens = tokens[2:] if tokens[1].kind == "colon" else tokens[1:]
    return tokens


def _is_domain(tokens: list[Token]) -> bool:
    """ "k in Z" behind an answer says what a letter runs over."""
    return len(tokens) == 3 and tokens[1].matches("rel", "in") and tokens[2].value[:2] == "bb"


class _Reader:
    def __init__(self, tight: bool):
        self.tight = tight
        self.depth = 0  # of items within items
        self.several = False  # whether the item is one of a list

    def answer(self, tokens: list[Token]) -> Form:
        """A whole answer: one item or a list without brackets."""
        tokens = _without_scope(tokens)
        while tokens and tokens[0].kind in ("sep", "colon"):
            tokens = tokens[1:]
        while tokens and tokens[-1].kind in ("sep", "colon"):
            tokens = tokens[:-1]
        return self.list_of(_without_lead(tokens))

    def list_of(self, tokens: list[Token]) -> Form:
        parts, between = split(tokens, "sep")
        forms = self.items(parts)
        if len(forms) == 1:
            return forms[0]
        if not forms:
            raise Meaningless("nothing")
        return conjoined(forms, between) or Collection(
            forms, either=set(between) == {"or"}, commas=set(between) == {","}
        )

    def items(self, parts: list[list[Token]]) -> tuple[Form, ...]:
        """The forms of the parts of a list; a part with a plus-minus sign is several."""
        parts = [p for p in parts if p]
        if len(parts) > MOST_ITEMS:
            raise Meaningless("too many items")
        parts = [p for p in parts if not _is_domain(p)] or parts
        expanded = [variant for p in parts for variant in sign_variants(p)]
        self.several = len(parts) > 1
        return tuple(self.item(p) for p in expanded)

    def item(self, tokens: list[Token]) -> Form:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise Meaningless("too deep")
        try:
            return self.one_item(tokens)
        finally:
            self.depth -= 1

    def one_item(self, tokens: list[Token]) -> Form:
        sides, operators = split(tokens, "rel")
        if operators:
            return self.relation(sides, operators)
        parts, _ = split(tokens, "cup")
        if len(parts) > 1:
            return Collection(tuple(self.item(p) for p in parts), union=True)
        parts, _ = split(tokens, "minus_set")
        if len(parts) == 2:
            return self.without(self.item(parts[0]), self.item(parts[1]))
        parts, _ = split(tokens, "colon")
        if len(parts) == 2 and self.is_name(parts[0]):
            return self.relation(parts, ["="])  # "Area: 12"
        if len(parts) > 1:
            return Ratio(tuple(self.item(p) for p in parts))
        return self.bracketed(tokens) or quantity(tokens, tight=self.tight)

    def is_name(self, tokens: list[Token]) -> bool:
        """Whether what stands before a colon only names a value: "Area of ABC"; of several values "Ann"."""
        named = [t.value for t in tokens if t.kind == "word"]
        if self.several and len(named) == len(tokens) == 1 and named[0].istitle():
            return True
        return bool(named) and bool(name_of(tokens)) and {w.lower() for w in named} <= _NAMES

    def without(self, whole_set: Form, taken: Form) -> Form:
        """The real line without a point, as a union of intervals."""
        if whole_set != REALS or not isinstance(taken, Collection) or len(taken.items) != 1:
            raise Unreadable("set difference")
        return all_but(taken.items[0])

    def bracketed(self, tokens: list[Token]) -> Form | None:
        """A tuple, interval, set or matrix, where brackets enclose all of the tokens; else None."""
        if len(tokens) < 2:
            return REALS if tokens and tokens[0].value == "bbR" else None
        if tokens[0].matches("macro", "begin"):
            return self.matrix(tokens)
        if tokens[0].kind == "sym" and is_half_open(tokens[1:]):
            return self.bracketed(tokens[1:])  # "t(0,4]" names the variable of the interval
        enclosed = tokens[0].kind == "open" and tokens[-1].kind == "close"
        if not enclosed or 0 in depths_of(tokens)[1:-1]:
            return None
        left, right, inner = tokens[0].value, tokens[-1].value, tokens[1:-1]
        if left == "set":
            return self.set_of(inner)
        return self.tuple_of(left, right, inner) if left in ("(", "[", "<") else None

    def set_of(self, inner: list[Token]) -> Form:
        """What stands between braces: items, or a variable and the condition for it, {x : a < x < b}."""
        for i, t in enumerate(inner[:6]):
            if t.kind == "colon" and i and inner[0].kind == "sym" and any(u.kind == "rel" for u in inner[i:]):
                return self.list_of(inner[i + 1 :])
        return Collection(
            self.items([p for part in split(inner, "sep")[0] for p in split(part, "row")[0]]), braces=True
        )

    def tuple_of(self, left: str, right: str, inner: list[Token]) -> Form | None:
        """What stands between round, square or angle brackets; None for a value in brackets."""
        parts, _ = split(inner, "sep")
        if len(parts) == 1:
            if inner and inner[0].value == "begin":
                return self.bracketed(inner)
            if left == "[":
                return Sequence("[", "]", (self.item(inner),))
            signs = any(t.kind == "pm" for t in inner)
            one = self.item(inner) if left == "(" and not signs else None
            return None if isinstance(one, Scalar) else one
        if not all(parts) or len(parts) > MOST_ITEMS:
            raise Meaningless("no tuple")
        items = tuple(map(self.item, parts))
        rows = [x.items for x in items if isinstance(x, Sequence) and (x.left, x.right) == ("[", "]")]
        if left == right == "[" and len(rows) == len(items) and len(set(map(len, rows))) == 1:
            return Matrix(tuple(rows))  # [[1, 2], [3, 4]]
        return Sequence("(" if left == "<" else left, _CLOSING[right], items)

    def matrix(self, tokens: list[Token]) -> Form | None:
        if tokens[1].kind != "open":
            raise Meaningless("environment")
        at = next((i for i, t in enumerate(tokens) if t.kind == "close"), len(tokens))
        name = "".join(t.value for t in tokens[2:at])
        at += 1
        end = next((i for i in range(len(tokens) - 1, -1, -1) if tokens[i].value == "end"), None)
        if end is None:
            raise Meaningless("no end")
        if name == "array" and tokens[at].kind == "open":  # its column letters
            while tokens[at].kind != "close":
                at += 1
            at += 1
        rows, _ = split(tokens[at:end], "row")
        cells = [split(r, "amp")[0] for r in rows if r]
        if name in _ROWS and all(len(r) == 1 for r in cells):
            return Collection(tuple(self.item(r[0]) for r in cells))
        if name not in _MATRICES:
            raise Unreadable(name)
        if sum(map(len, cells)) > MOST_ITEMS or len(set(map(len, cells))) != 1:
            raise Meaningless("not a matrix")
        return Matrix(tuple(tuple(self.item(c) for c in row) for row in cells), name in ("vmatrix", "Vmatrix"))

    def relation(self, sides: list[list[Token]], operators: list[str]) -> Form:
        if not sides[-1] and operators[-1] in ORDERS:
            raise Meaningless("an inequality without a bound")
        if any(not s for s in sides[1:]) or "~" in operators:
            raise Unreadable("relation")
        if "mod" in operators:
            return Sequence("mod", "mod", (self.item(sides[-2]), self.item(sides[-1])))
        if not sides[0] and operators[0] in ORDERS:  # "\\ge 7" is a range, of what it does not say
            sides = [[Token("word", ANYTHING)], *sides[1:]]
        elif not sides[0]:
            sides, operators = sides[1:], operators[1:]
        if "to" in operators:
            raise Unreadable("arrow")
        if operators == ["in"]:
            return self.item(sides[1])
        if "approx" in operators:
            exact = operators.index("approx")
            if exact or not name_of(sides[0]):  # what is only about equal adds nothing to what stands before it
                sides, operators = sides[: exact + 1], operators[:exact]
            operators = ["=" if op == "approx" else op for op in operators]
        if not operators:
            return self.item(sides[0])
        names = tuple(map(name_of, sides))
        forms = tuple(self.side(s, name) for s, name in zip(sides, names, strict=True))
        return as_range(Relation(tuple(operators), forms, names))

    def side(self, tokens: list[Token], name: str) -> Form:
        """A side of a relation; one in words only names what the other side is."""
        try:
            return self.item(tokens)
        except Unreadable:
            if not name:
                raise
            return Words((name,))
