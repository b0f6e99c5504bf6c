r"""Inequalities joined by "and", "or" or commas: what they leave of the real line."""

from __future__ import annotations

from fractions import Fraction

from stapo_eval.grading.rules.evaluate import Real, Value, constant, inexact
from stapo_eval.grading.rules.forms import EMPTY, MOST_ITEMS, REALS, Collection, Form, Relation, Scalar, Sequence
from stapo_eval.grading.rules.tokens import Meaningless

_ORDERS = {"<", ">", "<=", ">=", "!="}


def is_range(form: Form) -> bool:
    """Whether an inequality says it: x < 5 (read as an interval), x + y < 5."""
    if isinstance(form, Relation):
        return bool(_ORDERS & set(form.operators))
    return isinstance(form, Sequence | Collection) and bool(form.variable)


def conjoined(forms: tuple[Form, ...], between: list[str]) -> Form | None:
    """Inequalities with what stands between them; None where there is none among the items.

    "And" between ranges of one variable is their intersection, "or" their union. A comma is "and", or between ranges
    that have nothing in common "or".

    Raises:
        Meaningless: "and" and "or" without brackets.
    """
    if not any(map(is_range, forms)):
        return None
    joints = set(between) - {","} or {","}
    if len(joints) > 1:
        raise Meaningless("and beside or")
    joint = joints.pop()
    variables = {f.variable for f in forms if isinstance(f, Sequence | Collection) and is_range(f)}
    if len(variables) > 1 or not all(isinstance(f, Sequence | Collection) and is_range(f) for f in forms):
        return Collection(forms, either=joint == "or")
    variable = variables.pop()
    union = Collection(tuple(x for f in forms for x in _intervals(f)), union=True, variable=variable)
    if joint == "or":
        return union
    found = _intersection(forms)
    if found is None:
        return Collection(forms)
    if not found:
        return union if joint == "," else EMPTY
    one = found[0]
    if len(found) == 1:
        return Sequence(one.left, one.right, one.items, variable=variable)
    return Collection(tuple(found), union=True, variable=variable)


def _intervals(form: Form) -> tuple[Sequence, ...]:
    if isinstance(form, Collection):
        return tuple(x for f in form.items for x in _intervals(f))
    return (form,) if isinstance(form, Sequence) else ()


def _intersection(forms: tuple[Form, ...]) -> list[Sequence] | None:
    """The intervals that all of the forms have in common; None where an end has no value."""
    left = [REALS]
    for f in forms:
        crossed = [_common(x, y) for x in left for y in _intervals(f)]
        if len(crossed) > MOST_ITEMS:
            raise Meaningless("too many ranges")
        if None in crossed:
            return None
        left = [x for x in crossed if isinstance(x, Sequence)]
    return left


def _common(x: Sequence, y: Sequence) -> Sequence | bool | None:
    """What two intervals have in common: an interval, False for nothing, None where it cannot be told."""
    ends = [_end(item) for item in (*x.items, *y.items)]
    if any(e is None for e in ends):
        return None
    a, b, c, d = map(inexact, ends)
    low = max((a, x.left == "(", x), (c, y.left == "(", y), key=lambda t: t[:2])  # an open end leaves less
    high = min((b, x.right == "]", x), (d, y.right == "]", y), key=lambda t: t[:2])
    if low[0] > high[0] or (low[0] == high[0] and (low[1] or not high[1])):
        return False
    return Sequence(low[2].left, high[2].right, (low[2].items[0], high[2].items[1]))


def _end(item: Form) -> Value | None:
    """The value of an interval's end; None where it has none, or a complex one."""
    if not isinstance(item, Scalar) or item.unit or item.percent:
        return None
    if item.tree in (("inf",), ("neg", ("inf",))):
        return Real("inf") if item.tree == ("inf",) else Real("-inf")
    x = constant(item.tree)
    return x if isinstance(x, Fraction | Real) else None
