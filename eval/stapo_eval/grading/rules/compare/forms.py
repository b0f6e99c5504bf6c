"""Are two forms the same answer? True, False, or None where this grader cannot tell.

The gold answer comes first: where it says less than the answer (no unit, no name), what the answer adds is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from functools import reduce

from stapo_eval.grading.rules.compare.scalars import VARIABLES, Terms, assigned, both, is_quotient, ratios, scalars
from stapo_eval.grading.rules.forms.relations import FLIPPED, flipped, is_range
from stapo_eval.grading.rules.forms.types import (
    MOST_ITEMS,
    Based,
    Collection,
    Form,
    Matrix,
    Ratio,
    Relation,
    Scalar,
    Sequence,
    Words,
)
from stapo_eval.grading.rules.values import identity
from stapo_eval.grading.rules.values.trees import Tree, exact, substituted, symbols

# dy/dx, a dot over y, y'
_DERIVATIVE = re.compile(r"d(\S+)/d(\S+)|accent:d?dot:(\S+)|([^']+)'+")
_MARK = re.compile(r"\^[sdSD]")
_VARIABLE = re.compile(
    r"[A-Za-z](?:_\w+)?'*|alpha|beta|gamma|delta|epsilon|theta|lambda|mu|nu|xi|rho|sigma|tau|phi|psi|omega"
)


def same(gold: Form, answer: Form, terms: Terms) -> bool | None:
    """Whether the answer is the gold."""
    if isinstance(gold, Relation) or isinstance(answer, Relation):
        return _relations(gold, answer, terms)
    if isinstance(gold, Scalar) and isinstance(answer, Scalar):
        return scalars(gold, answer, terms)
    if isinstance(gold, Collection) or isinstance(answer, Collection):
        return _collections(gold, answer, terms)
    if isinstance(gold, Sequence) and isinstance(answer, Sequence):
        return _sequences(gold, answer, terms)
    if isinstance(gold, Matrix) or isinstance(answer, Matrix):
        return _matrices(gold, answer, terms)
    if isinstance(gold, Ratio) and isinstance(answer, Ratio):
        return ratios(gold, answer)
    if (isinstance(gold, Words) and isinstance(answer, Words)) or (
        isinstance(gold, Based) and isinstance(answer, Based)
    ):
        return gold == answer
    for one, other in ((gold, answer), (answer, gold)):
        if isinstance(one, Ratio) and isinstance(other, Scalar) and len(one.parts) == 2:
            return is_quotient(one, other)
    return False


def _each(golds: Iterable[Form], answers: Iterable[Form], terms: Terms) -> bool | None:
    """Whether items agree one by one, in their order; there are as many of both."""
    return both([same(g, a, terms) for g, a in zip(golds, answers, strict=True)])


def _sequences(gold: Sequence, answer: Sequence, terms: Terms) -> bool | None:
    if len(gold.items) != len(answer.items):
        return False
    if gold.source and answer.source and gold.source.names[1] and answer.source.names[1]:
        return _two_relations(gold.source, answer.source, terms)  # a < b, b > a
    if _other_variable(gold, answer):
        return False
    # brackets say whether the ends of an interval belong to it; longer lists are vectors, however they are bracketed
    if len(gold.items) == 2 and (gold.left, gold.right) != (answer.left, answer.right):
        return False
    return _each(gold.items, answer.items, terms)


def _matrices(gold: Form, answer: Form, terms: Terms) -> bool | None:
    """Two matrices, or a matrix of one row or column and a vector."""
    if isinstance(gold, Matrix) and isinstance(answer, Matrix):
        alike = gold.determinant == answer.determinant and list(map(len, gold.rows)) == list(map(len, answer.rows))
    else:
        matrix, vector = (gold, answer) if isinstance(gold, Matrix) else (answer, gold)
        round_brackets = isinstance(vector, Sequence) and (vector.left, vector.right) == ("(", ")")
        alike = round_brackets and isinstance(matrix, Matrix) and 1 in (len(matrix.rows), len(matrix.rows[0]))
    golds, answers = _cells(gold), _cells(answer)
    return _each(golds, answers, terms) if alike and len(golds) == len(answers) else False


def _cells(form: Form) -> tuple[Form, ...]:
    if isinstance(form, Matrix):
        return tuple(cell for row in form.rows for cell in row)
    return form.items if isinstance(form, Sequence) else ()


def _other_variable(gold: Sequence | Collection, answer: Sequence | Collection) -> bool:
    """Whether inequalities speak of different variables."""
    g, a = gold.variable, answer.variable
    return g != a and bool(_VARIABLE.fullmatch(g) and _VARIABLE.fullmatch(a))


def _collections(gold: Form, answer: Form, terms: Terms) -> bool | None:
    for one, other in ((gold, answer), (answer, gold)):
        if isinstance(one, Sequence) and isinstance(other, Collection) and not other.braces and not other.union:
            # "2, 3" for the point (2, 3); the ends of a half-open interval need their brackets
            if (one.left, one.right) != ("(", ")") or len(one.items) != len(other.items):
                return False
            if other is gold and len(one.items) == 2 and not all(isinstance(x, Relation) for x in other.items):
                return False  # a point or an interval for two values without names
            items = tuple(map(_unnamed, other.items))
            return _each(one.items, items, terms) if one is gold else _each(items, one.items, terms)
    if isinstance(answer, Collection) and answer.commas and answer.items[0] == Words(("yes",)):
        value = _unnamed(answer.items[-1])  # "Yes, n = 4"
        if len(answer.items) == 2 and isinstance(gold, Scalar) and isinstance(value, Scalar) and not value.percent:
            return scalars(gold, value, terms)
    golds, answers = members(gold), members(answer)
    if not isinstance(gold, Collection) and isinstance(answer, Collection) and answer.either:
        return both([same(gold, x, terms) for x in answer.items])  # one answer in several ways: "3/4 or 0.75"
    if isinstance(gold, Collection) and isinstance(answer, Collection):
        if _other_variable(gold, answer):
            return False
        if (gold.either or gold.union) != (answer.either or answer.union) and any(map(is_range, golds + answers)):
            return False  # x < 2 or y > 3
    braced = any(isinstance(x, Collection) and x.braces for x in (gold, answer))
    if braced:
        golds, answers = _distinct(golds, terms), _distinct(answers, terms)
    if max(len(golds), len(answers)) > MOST_ITEMS:
        return None
    if (terms.ordered and not braced) or _names_one_side(golds, answers):
        return _each(golds, answers, terms) if len(golds) == len(answers) else False
    return assigned(golds, answers, lambda g, a: same(g, a, terms))


def _names_one_side(golds: list[Form], answers: list[Form]) -> bool:
    """Whether one side gives values of different names and the other bare values, which then count in their order.

    x_1 and x_2 are the same name: they number the items of a list.
    """
    named, bare = sorted((golds, answers), key=lambda items: not any(isinstance(x, Relation) for x in items))
    if any(isinstance(x, Relation) for x in bare) or not all(isinstance(x, Relation) for x in named):
        return False
    return len({x.names[0].partition("_")[0] for x in named if isinstance(x, Relation)}) > 1


def members(form: Form) -> list[Form]:
    """Items of a collection, else the form; unions within unions are one, and points in braces are points."""
    if not isinstance(form, Collection):
        return [form]
    out: list[Form] = []
    for x in form.items:
        flat = isinstance(x, Collection) and (form.union or not (form.braces or x.braces or x.union))
        out += members(x) if flat else [x]
    return out


def _distinct(items: list[Form], terms: Terms) -> list[Form]:
    kept: list[Form] = []
    for x in items:
        if not any(same(y, x, terms) for y in kept):
            kept.append(x)
    return kept


def _unnamed(form: Form) -> Form:
    """What a relation says its left side is: the last side of x = ... = 5; other forms as they are."""
    if isinstance(form, Relation) and set(form.operators) == {"="} and form.names[0]:
        # a bare value behind x^s is what the power is
        return form if _MARK.search(form.names[0]) and not _variables(form.sides[-1]) else form.sides[-1]
    return form


def _relations(gold: Form, answer: Form, terms: Terms) -> bool | None:
    if isinstance(gold, Relation) and isinstance(answer, Relation):
        return _two_relations(gold, answer, terms)
    bare_gold, bare_answer = _unnamed(gold), _unnamed(answer)
    if isinstance(gold, Collection) or isinstance(answer, Collection):
        if not isinstance(bare_gold, Relation) and not isinstance(bare_answer, Relation):
            return _collections(bare_gold, bare_answer, terms)
        return _collections(gold, answer, terms)
    if isinstance(answer, Relation) and set(answer.operators) == {"="} and not any(map(_variables, answer.sides)):
        # "2^{10} = 1024": a computed chain, whose sides all have to be the gold
        return both([same(gold, side, terms) for side in answer.sides])
    if isinstance(bare_gold, Relation) or isinstance(bare_answer, Relation):
        return False
    return same(bare_gold, bare_answer, terms)


def _variables(form: Form) -> bool:
    return not isinstance(form, Scalar) or bool(symbols(form.tree))


def _two_relations(gold: Relation, answer: Relation, terms: Terms) -> bool | None:
    if set(gold.operators) == set(answer.operators) == {"="}:
        if len(_equated(gold)) > 1 and _equated(answer) and _equated(gold) - _equated(answer):
            return False  # x = y = 1 says more than x = 1
        if gold.names[0] and answer.names[0]:
            if gold.names[0] == answer.names[0]:
                result = same(gold.sides[-1], answer.sides[-1], terms)
                if result:
                    return True
            elif renamed := _renamed(gold, answer):
                return same(renamed, answer.sides[-1], terms)
        return _equations(gold, answer)
    if gold.operators == answer.operators and len(gold.sides) == len(answer.sides) == 2:
        difference_g, difference_a = _difference(gold), _difference(answer)
        if difference_g is None or difference_a is None:
            return None
        return identity.proportional(difference_g, difference_a, positive=True)
    if len(answer.operators) == 1 and FLIPPED.get(answer.operators[0]) == gold.operators[0]:
        return _two_relations(gold, flipped(answer), terms)
    return False


def _equated(r: Relation) -> set[str]:
    """The variables that a chain of equations sets equal to its last side."""
    return {name for name in r.names[:-1] if _VARIABLE.fullmatch(name)}


def _renamed(gold: Relation, answer: Relation) -> Form | None:
    """The gold's right side in the answer's variable, where both define the same function: f(n) = ..., f(x) = ..."""
    g, a = gold.names[0], answer.names[0]
    if len(g) != 4 or len(a) != 4 or g[0] != a[0] or g[1] + g[3] != "()" or a[1] + a[3] != "()":
        return None
    side = gold.sides[-1]
    if not isinstance(side, Scalar) or symbols(side.tree) - {g[2]} & {a[2]}:
        return None
    return replace(side, tree=substituted(side.tree, {g[2]: ("sym", a[2])}))


def _difference(r: Relation) -> Tree | None:
    a, b = r.sides[0], r.sides[-1]
    return ("+", a.tree, ("neg", b.tree)) if isinstance(a, Scalar) and isinstance(b, Scalar) else None


def _equations(gold: Relation, answer: Relation) -> bool | None:
    g, a = _difference(gold), _difference(answer)
    if g is None or a is None:
        return False
    if symbols(g) != symbols(a) or not symbols(g):
        return False
    rates = [m for m in map(_DERIVATIVE.fullmatch, symbols(g)) if m]
    if not rates:
        return identity.proportional(g, a)
    # of y' and a dot nothing says by which letter; neither that nor an unknown may be in a factor
    own = {name for m in rates for name in (m[0], *m.groups())}
    given = sorted(symbols(g) - own - (frozenset() if all(m[2] for m in rates) else VARIABLES))
    points: list[dict[str, Fraction]] = [dict.fromkeys(given, Fraction(1))]
    for k in range(8):  # with all signs of three letters
        points.append({n: (-1) ** (k >> i % 3) * identity.coordinate(n, k, "positive") for i, n in enumerate(given)})
    points.append({n: points[1][n] * points[2][n] for n in given})
    at = [tuple(substituted(t, {n: exact(x) for n, x in p.items()}) for t in (g, a)) for p in points]
    # of monomials f(p q) f(1) = f(p) f(q), and only these are nowhere zero, where no given letter is
    (g_1, a_1), (g_p, a_p), (g_q, a_q), (g_pq, a_pq) = at[0], at[1], at[2], at[-1]
    factor = identity.equal(_product(a_pq, a_1, g_p, g_q), _product(g_pq, g_1, a_p, a_q))
    return both([*(identity.proportional(*trees) for trees in at), factor])


def _product(*trees: Tree) -> Tree:
    return reduce(lambda x, y: ("*", x, y), trees)
