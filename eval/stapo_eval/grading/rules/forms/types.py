r"""The forms of answers: a number with a unit, a list, a tuple, a set, an interval, a matrix, a relation, a text."""

from __future__ import annotations

from dataclasses import dataclass, field

from stapo_eval.grading.rules.text.units import Unit
from stapo_eval.grading.rules.values.trees import Tree

MOST_ITEMS = 64


@dataclass(frozen=True)
class Scalar:
    """A value; `percent`: the number stands before a percent sign."""

    tree: Tree
    unit: Unit | None = None
    percent: bool = False


@dataclass(frozen=True)
class Words:
    """A text answer in lower case, without articles."""

    words: tuple[str, ...]


@dataclass(frozen=True)
class Sequence:
    """An ordered list in brackets: a point, a vector, an interval.

    variable, source: what an inequality says is in the interval, and that inequality.
    """

    left: str
    right: str
    items: tuple[Form, ...]
    variable: str = field(default="", compare=False)
    source: Relation | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Collection:
    """Items whose order does not count. braces: a set, in which a repeated item counts once. union: of sets. either:
    they stand between "or"s. commas: between nothing else. variable: what inequalities say is in the union."""

    items: tuple[Form, ...]
    braces: bool = False
    union: bool = False
    either: bool = False
    commas: bool = field(default=False, compare=False)
    variable: str = field(default="", compare=False)


@dataclass(frozen=True)
class Relation:
    """sides[0] operators[0] sides[1] ...; `names[i]` is the i-th side's text where it is only a name."""

    operators: tuple[str, ...]
    sides: tuple[Form, ...]
    names: tuple[str, ...]


@dataclass(frozen=True)
class Matrix:
    rows: tuple[tuple[Form, ...], ...]
    determinant: bool = False


@dataclass(frozen=True)
class Based:
    """A number written in a base."""

    digits: str
    base: int


@dataclass(frozen=True)
class Ratio:
    parts: tuple[Form, ...]


Form = Scalar | Words | Sequence | Collection | Relation | Matrix | Based | Ratio
INFINITY = Scalar(("inf",))
REALS = Sequence("(", ")", (Scalar(("neg", ("inf",))), INFINITY))
EMPTY = Collection((), braces=True)
