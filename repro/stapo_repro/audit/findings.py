"""The form of a result: a check with its counts, its lines for a reader, and what departs from expectation."""

from __future__ import annotations

from dataclasses import dataclass, field

Number = int | float | str | bool | None
Numbers = dict[str, Number | list[Number] | dict[str, Number]]


@dataclass(frozen=True)
class Finding:
    """One departure.

    Attributes:
        kind: a fixed word for programs, such as "impossible".
        where: cell, row, column or claim.
        numbers: what was computed.
        fact: the same in words.
        reasons: innocent reasons that would explain it.
    """

    kind: str
    where: str
    numbers: Numbers
    fact: str
    reasons: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Grid:
    """A small table; the first column is text, the others are numbers."""

    header: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Check:
    """One kind of check over the whole table. `summary` is said even where there is no finding."""

    id: str
    title: str
    summary: list[str]
    numbers: Numbers
    findings: list[Finding] = field(default_factory=list)
    grid: Grid | None = None


@dataclass(frozen=True)
class Audit:
    """All checks of one table."""

    schema_version: int
    source: str
    inputs_sha256: str
    checks: list[Check]


def rounded(value: float) -> float:
    """Eight decimals: two machines may differ beyond them."""
    return round(value, 8) + 0.0


def join(items: list[str], word: str = "and") -> str:
    """ "a", "a and b", "a, b and c" """
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {word} {items[-1]}"
