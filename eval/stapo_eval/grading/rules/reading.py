r"""From a cleaned text to the form of the answer (see `forms`). Nothing is evaluated here."""

from __future__ import annotations

from stapo_eval.grading.rules.forms import (
    EMPTY,
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
from stapo_eval.grading.rules.names import ANYTHING, all_but, as_interval, name_of, spread_name
from stapo_eval.grading.rules.quantity import quantity
from stapo_eval.grading.rules.ranges import conjoined
from stapo_eval.grading.rules.split import (
    depths_of,
    environment,
    french,
    has_signs,
    is_domain,
    is_interval,
    resolved,
    sign_variants,
    split,
)
from stapo_eval.grading.rules.tokens import LONGEST, Meaningless, Token, Unreadable, tokenize

_LEADS = {
    "the", "answer", "is", "final", "equals", "approximately", "about", "value", "so", "thus", "are", "solution",
    "solutions", "hence",
}  # fmt: skip
_DEEPEST = 40
_ORDERS = {"<", ">", "<=", ">=", "!="}
_QUANTIFIERS = {"all", "every", "any", "each", "some"}


def _without_scope(tokens: list[Token]) -> list[Token]:
    """Tokens up to "for all x" or "where k is an integer", which say what a letter stands for."""
    for i, t in enumerate(tokens[1:-1], 1):
        following = tokens[i + 1].value.lower()
        if t.kind == "word" and (t.value == "where" or (t.value == "for" and following in _QUANTIFIERS)):
            return tokens[:i]
    return tokens


class _Builder:
    def __init__(self, tight: bool):
        self.tight = tight
        self.depth = 0  # of items within items

    def answer(self, tokens: list[Token]) -> Form:
        """A whole answer: one item or a list without brackets."""
        tokens = _without_scope(tokens)
        while tokens and tokens[0].kind in ("sep", "colon"):
            tokens = tokens[1:]
        while tokens and tokens[-1].kind in ("sep", "colon"):
            tokens = tokens[:-1]
        while len(tokens) > 1 and tokens[0].kind == "word" and tokens[0].value.lower() in _LEADS:
            rest = [t for t in tokens if t.kind != "word"]
            if not rest:
                break
            tokens = tokens[2:] if tokens[1].kind == "colon" else tokens[1:]
        return self.items(tokens, braces=False)

    def items(self, tokens: list[Token], *, braces: bool) -> Form:
        parts, between = split(tokens, "sep")
        if braces:
            parts = [p for part in parts for p in split(part, "row")[0]]
        parts = [p for p in parts if p]
        if len(parts) > MOST_ITEMS:
            raise Meaningless("too many items")
        parts = [p for p in parts if not is_domain(p)] or parts
        expanded = [variant for p in parts for variant in sign_variants(p)]
        forms = tuple(self.item(p) for p in expanded)
        if braces:
            return Collection(forms, braces=True)
        if len(forms) == 1:
            return forms[0]
        if not forms:
            raise Meaningless("nothing")
        return conjoined(forms, between) or Collection(spread_name(forms), either=set(between) == {"or"})

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
        if len(parts) > 1:
            return Ratio(tuple(self.item(p) for p in parts))
        return self.bracketed(tokens) or quantity(tokens, tight=self.tight)

    def without(self, whole_set: Form, taken: Form) -> Form:
        """The real line without some points, as a union of intervals."""
        if whole_set != REALS or not isinstance(taken, Collection) or len(taken.items) != 1:
            raise Unreadable("set difference")
        return all_but(taken.items[0])

    def bracketed(self, tokens: list[Token]) -> Form | None:
        """A tuple, interval, set or matrix, where brackets enclose all of the tokens; else None."""
        if [t.value for t in tokens] == ["bbR"]:
            return REALS
        if len(tokens) < 2:
            return None
        if tokens[0].kind == "macro" and tokens[0].value == "begin":
            return self.matrix(tokens)
        if tokens[0].kind == "sym" and is_interval(tokens[1:], half=True):
            return self.bracketed(tokens[1:])  # "t(0,4]" names the variable of the interval
        enclosed = tokens[0].kind == "open" and tokens[-1].kind == "close"
        if not enclosed or any(d == 0 for d in depths_of(tokens)[1:-1]):
            return None
        left, right, inner = tokens[0].value, tokens[-1].value, tokens[1:-1]
        if left == "set":
            return self.set_of(inner)
        if left == "{":
            return self.answer(inner) if inner else None
        return self.tuple_of(left, right, inner) if left in ("(", "[", "<") else None

    def set_of(self, inner: list[Token]) -> Form:
        """What stands between braces: items, or a variable and the condition for it, {x : a < x < b}."""
        for i, t in enumerate(inner[:6]):
            if t.kind == "colon" and i and inner[0].kind == "sym" and any(u.kind == "rel" for u in inner[i:]):
                return self.items(inner[i + 1 :], braces=False)
        return self.items(inner, braces=True) if inner else EMPTY

    def tuple_of(self, left: str, right: str, inner: list[Token]) -> Form | None:
        """What stands between round, square or angle brackets; None for a value in brackets."""
        parts, _ = split(inner, "sep")
        if len(parts) == 1:
            if inner and inner[0].value == "begin":
                return self.bracketed(inner)
            if left == "[":
                return Sequence("[", "]", (self.item(inner),))
            one = self.item(inner) if left == "(" and not has_signs(inner) else None
            return None if isinstance(one, Scalar) else one
        if not all(parts) or len(parts) > MOST_ITEMS:
            raise Meaningless("no tuple")
        items = tuple(map(self.item, parts))
        rows = [x.items for x in items if isinstance(x, Sequence) and (x.left, x.right) == ("[", "]")]
        if left == right == "[" and len(rows) == len(items) and len(set(map(len, rows))) == 1:
            return Matrix(tuple(rows))  # [[1, 2], [3, 4]]
        return Sequence("(" if left == "<" else left, {"(": ")", "[": "]", "<": ")"}[right], items)

    def matrix(self, tokens: list[Token]) -> Form | None:
        name, at = environment(tokens, 1)
        if tokens[-1].kind != "close" or tokens[-1].value != "{":
            return None
        end = next((i for i in range(len(tokens) - 1, -1, -1) if tokens[i].value == "end"), None)
        if end is None:
            raise Meaningless("no end")
        if name == "array" and tokens[at].kind == "open":  # its column letters
            while tokens[at].kind != "close":
                at += 1
            at += 1
        rows, _ = split(tokens[at:end], "row")
        cells = [split(r, "amp")[0] for r in rows if r]
        if name not in ("matrix", "pmatrix", "bmatrix", "vmatrix", "Bmatrix", "Vmatrix", "array", "smallmatrix"):
            if name in ("aligned", "cases", "align", "gathered", "align*") and all(len(r) == 1 for r in cells):
                return Collection(tuple(self.item(r[0]) for r in cells))
            raise Unreadable(name)
        if sum(map(len, cells)) > MOST_ITEMS or len(set(map(len, cells))) != 1:
            raise Meaningless("not a matrix")
        return Matrix(tuple(tuple(self.item(c) for c in row) for row in cells), name in ("vmatrix", "Vmatrix"))

    def relation(self, sides: list[list[Token]], operators: list[str]) -> Form:
        if not sides[-1] and operators[-1] in _ORDERS:
            raise Meaningless("an inequality without a bound")
        if any(not s for s in sides[1:]) or "~" in operators:
            raise Unreadable("relation")
        if "mod" in operators:
            if operators.index("mod") != len(operators) - 1:
                raise Meaningless("residue")
            return Sequence("mod", "mod", (self.item(sides[-2]), self.item(sides[-1])))
        unnamed = not sides[0] and operators[0] in _ORDERS
        if unnamed:  # "\\ge 7" is a range, of what it does not say
            sides = [[Token("word", ANYTHING)], *sides[1:]]
        elif not sides[0]:
            sides, operators = sides[1:], operators[1:]
            if not operators:
                return self.item(sides[0])
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
        names = tuple(name_of(s) for s in sides)
        # a left side in words only names what the right side is
        forms: list[Form] = []
        for side, name in zip(sides, names, strict=True):
            try:
                forms.append(self.item(side))
            except Unreadable:
                if not name:
                    raise
                forms.append(Words((name,)))
        return as_interval(Relation(tuple(operators), tuple(forms), names))


def read(cleaned: str, *, merge: bool = True, tight: bool = False) -> Form:
    """The form of a cleaned answer.

    Args:
        merge: see `tokens.tokenize`.
        tight: see `expression.Parser`.

    Raises:
        Unreadable: it has none that this grader knows.
    """
    if len(cleaned) > LONGEST:
        raise Meaningless("too long")
    tokens = resolved(tokenize(cleaned, merge=merge))
    if not tokens:
        raise Meaningless("nothing")
    try:
        return _Builder(tight).answer(french(tokens))
    except RecursionError:
        raise Meaningless("too deep") from None
