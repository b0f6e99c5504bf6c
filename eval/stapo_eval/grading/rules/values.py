"""Are two values, ratios or times of day the same? See `compare`."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from stapo_eval.grading.rules import evaluate, identity
from stapo_eval.grading.rules.forms import Ratio, Scalar
from stapo_eval.grading.rules.logic import both
from stapo_eval.grading.rules.trees import Tree, symbols
from stapo_eval.grading.rules.units import Unit

_HUNDRED = ("num", Fraction(100), None)


@dataclass(frozen=True)
class Terms:
    """What a benchmark says about comparing: the unit of its golds, an absolute tolerance, ordered lists."""

    unit: Unit | None = None
    percent: bool = False
    tolerance: Fraction | None = None
    ordered: bool = False


def quotient(r: Ratio) -> Tree | None:
    """The fraction that a ratio of two bare values is."""
    a, b = r.parts
    if any(isinstance(x, Scalar) and x.unit for x in r.parts):
        return None
    return ("/", a.tree, b.tree) if isinstance(a, Scalar) and isinstance(b, Scalar) else None


def ratios(gold: Ratio, answer: Ratio) -> bool | None:
    """Whether two ratios are proportional, or two times of day the same."""
    g, a = gold.parts, answer.parts
    if len(g) != len(a):
        return False
    if not all(isinstance(x, Scalar) for x in g + a):
        return None
    for x, y in zip(g, a, strict=True):
        if not _same_words(x.unit, y.unit):  # type: ignore[union-attr]
            return False
    trees_g, trees_a = [x.tree for x in g], [x.tree for x in a]  # type: ignore[union-attr]
    if len(g) == 2 and _may_be_minutes(trees_g[1]) and _may_be_minutes(trees_a[1]):
        return both([_values(x, y, Terms()) for x, y in zip(trees_g, trees_a, strict=True)])  # 3:30 is not 1:10
    return both(
        [
            identity.equal(("*", trees_g[i], trees_a[j]), ("*", trees_g[j], trees_a[i]))
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


def _values(gold: Tree, answer: Tree, terms: Terms) -> bool | None:
    if _is_infinite(gold) or _is_infinite(answer):
        return _is_infinite(gold) == _is_infinite(answer)
    result = identity.equal(gold, answer)
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
            g, a = ("*", g, ("num", unit.size, None)), ("*", a, ("num", answer.unit.size, None))
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
