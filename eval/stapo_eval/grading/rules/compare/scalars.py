"""Are two values, ratios or times of day the same? True, False, or None for "cannot tell"."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

from stapo_eval.grading.rules.forms.types import Ratio, Scalar
from stapo_eval.grading.rules.text.units import Unit
from stapo_eval.grading.rules.values import evaluate, identity
from stapo_eval.grading.rules.values.trees import Tree, exact, substituted, symbols

_HUNDRED = exact(100)
_CONSTANT = re.compile(r"c(?:_\d)?", re.I)
VARIABLES = frozenset(("r", "s", "t", "u", "v", "w", "x", "y", "z", "theta"))
"""Letters by which a derivative may be taken."""


@dataclass(frozen=True)
class Terms:
    """What a benchmark says about comparing: the unit of its golds, an absolute tolerance, ordered lists."""

    unit: Unit | None = None
    percent: bool = False
    tolerance: Fraction | None = None
    ordered: bool = False


def is_quotient(gold: Ratio, answer: Scalar) -> bool | None:
    """Whether a value is the fraction that a ratio of two bare values is."""
    over, under = gold.parts
    if not isinstance(over, Scalar) or not isinstance(under, Scalar) or over.unit or under.unit:
        return None
    return identity.equal(("/", over.tree, under.tree), answer.tree)


def ratios(gold: Ratio, answer: Ratio) -> bool | None:
    """Whether two ratios are proportional, or two times of day the same."""
    g = [x for x in gold.parts if isinstance(x, Scalar)]
    a = [x for x in answer.parts if isinstance(x, Scalar)]
    if len(gold.parts) != len(answer.parts):
        return False
    if len(g) < len(gold.parts) or len(a) < len(answer.parts):
        return None
    if not all(_same_words(x.unit, y.unit) for x, y in zip(g, a, strict=True)):
        return False
    if len(g) == 2 and _may_be_minutes(g[1].tree) and _may_be_minutes(a[1].tree):
        return both([_values(x.tree, y.tree, Terms()) for x, y in zip(g, a, strict=True)])  # 3:30 is not 1:10
    return both(
        [
            identity.equal(("*", g[i].tree, a[j].tree), ("*", g[j].tree, a[i].tree))
            for i in range(len(g))
            for j in range(i)
        ]
    )


def _same_words(gold: Unit | None, answer: Unit | None) -> bool:
    """Whether what stands behind the parts of a ratio or a time agrees: units, "a.m.", "in favour of A"."""
    if gold is None:
        return answer is None or not answer.words or answer.words in (("am",), ("pm",))
    return answer is None or (gold.agrees(answer) and gold.size == answer.size)


def _may_be_minutes(tree: Tree) -> bool:
    return tree[0] == "num" and tree[1].denominator == 1 and (10 <= tree[1] < 60 or tree[1] == 0)


def _is_infinite(tree: Tree) -> int:
    return 1 if tree == ("inf",) else -1 if tree == ("neg", ("inf",)) else 0


def _in_case_of(gold: Tree, answer: Tree) -> Tree | None:
    """The answer with its constants of integration, c or C_1, in the gold's case; None where they may be others.

    A curve in x or t is linear in them, beside a part without them. What shows that it is one, and no formula of
    quantities, is that they are numbered, or a factor of one: C e^x + x, and neither C x + x^2 nor x + C.
    """
    names = {n for n in symbols(gold) if _CONSTANT.fullmatch(n)}
    others: dict[str, Tree] = {n.swapcase(): ("sym", n) for n in names}
    variable = symbols(gold) - names
    if not names or len(variable) != 1 or not variable <= {"x", "t"} or symbols(answer) != variable | set(others):
        return None
    if not all("_" in n for n in names) and not _has_curve_beside(gold, names, variable):
        return None
    values = [substituted(gold, dict.fromkeys(names, exact(k))) for k in range(3)]
    points = [substituted(values[1], dict.fromkeys(variable, exact(k))) for k in (1, 2, 3)]
    if identity.equal(values[0], exact(0)) is not False or not _even(values) or _even(points) is not False:
        return None
    return substituted(answer, others)


def _has_curve_beside(tree: Tree, constants: set[str], variable: frozenset[str]) -> bool:
    """Whether a constant has a factor that is a function of the variable, an exponential or a negative power."""
    parts = [t for t in tree[1:] if isinstance(t, tuple)]
    if tree[0] in ("*", "/") and len(parts) == 2:
        for one, other in (parts, parts[::-1]):
            if symbols(one) & constants and _is_curve(other, variable):
                return True
    return any(_has_curve_beside(t, constants, variable) for t in parts)


def _is_curve(tree: Tree, variable: frozenset[str]) -> bool:
    if tree[0] == "fn" and symbols(tree) & variable:
        return True
    if tree[0] == "^" and (symbols(tree[2]) & variable or (tree[2][0] == "neg" and symbols(tree[1]) & variable)):
        return True
    return any(_is_curve(t, variable) for t in tree[1:] if isinstance(t, tuple))


def _even(trees: list[Tree]) -> bool | None:
    """Whether the second of three values is in the middle of the others."""
    return identity.equal(("+", trees[0], trees[2]), ("*", exact(2), trees[1]))


def _values(gold: Tree, answer: Tree, terms: Terms) -> bool | None:
    if _is_infinite(gold) or _is_infinite(answer):
        return _is_infinite(gold) == _is_infinite(answer)
    result = identity.equal(gold, answer)
    if result is False and (written := _in_case_of(gold, answer)):
        return identity.equal(gold, written)
    if result is False and not symbols(gold) | symbols(answer):
        if identity.rounds_to(answer, gold) or identity.rounds_to(gold, answer):
            return True
        if terms.tolerance is not None:
            return identity.within(gold, answer, terms.tolerance)
    return result


def scalars(gold: Scalar, answer: Scalar, terms: Terms) -> bool | None:
    """Whether two values agree with their units and percent signs."""
    unit = gold.unit or terms.unit
    percent = gold.percent or terms.percent
    g, a = gold.tree, answer.tree
    if unit is not None and answer.unit is not None and not answer.unit.generic and not unit.generic:
        if not unit.agrees(answer.unit):
            return False
        if unit.size != answer.unit.size:
            g, a = ("*", g, exact(unit.size)), ("*", a, exact(answer.unit.size))
    result = _values(g, a, terms)
    if result is False and _degrees(gold.unit) != _degrees(answer.unit) and None in (unit, answer.unit):
        g, a = (("deg", x.tree) if _degrees(x.unit) else x.tree for x in (gold, answer))
        return _values(g, a, terms)
    if result is False and percent != answer.percent:
        return _values(("/", g, _HUNDRED), a, terms) if percent else _values(g, ("/", a, _HUNDRED), terms)
    if result and answer.percent and not percent and _below_one(g):
        return False  # a bare 0.15 is a share: 0.15 % is another one
    return result


def _degrees(unit: Unit | None) -> bool:
    return unit is not None and unit.dimensions == frozenset({("angle", 1)})


def _below_one(tree: Tree) -> bool:
    x = evaluate.constant(tree)
    return isinstance(x, Fraction) and 0 < abs(x) < 1


A = TypeVar("A")
B = TypeVar("B")


def both(results: Sequence[bool | None]) -> bool | None:
    """All of them, in three-valued logic."""
    return False if False in results else None if None in results else True


def assigned(golds: Sequence[A], answers: Sequence[B], same: Callable[[A, B], bool | None]) -> bool | None:
    """Whether a one-to-one assignment exists (augmenting paths). None: it hangs on pairs that `same` left open."""
    if len(golds) != len(answers):
        return False
    table = [[same(g, a) for a in answers] for g in golds]
    if _assigns(table, sure=True):
        return True
    return None if any(x is None for row in table for x in row) and _assigns(table, sure=False) else False


def _assigns(table: list[list[bool | None]], *, sure: bool) -> bool:
    owner: dict[int, int] = {}

    def place(row: int, seen: set[int]) -> bool:
        for column, same in enumerate(table[row]):
            if (same or (same is None and not sure)) and column not in seen:
                seen.add(column)
                if column not in owner or place(owner[column], seen):
                    owner[column] = row
                    return True
        return False

    return all(place(row, set()) for row in range(len(table)))
