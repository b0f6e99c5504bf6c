"""Checks before expensive work: every one is made, then all that stands in the way is said at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from stapo_results.errors import BadInput

T = TypeVar("T")


@dataclass(frozen=True)
class Check:
    """One check: what was looked at, and what was found or why it refuses."""

    name: str
    found: Any = None
    problem: BadInput | None = None


@dataclass
class Checks:
    """Collects checks in order."""

    made: list[Check] = field(default_factory=list)

    def attempt(self, name: str, check: Callable[..., T], *args: Any) -> T | None:
        """The check's value, or None with its refusal kept."""
        try:
            value = check(*args)
        except BadInput as e:
            self.made.append(Check(name, problem=e))
            return None
        self.made.append(Check(name, found=value))
        return value

    @property
    def problems(self) -> list[BadInput]:
        return [c.problem for c in self.made if c.problem is not None]

    def refuse(self) -> None:
        """Raises BadInput with everything that stands in the way."""
        problems = self.problems
        if len(problems) == 1:
            raise problems[0]
        if problems:
            listed = "\n\n".join(f"{i}. {p}" for i, p in enumerate(problems, 1))
            raise BadInput(f"{len(problems)} things stand in the way; nothing was started\n\n{listed}")
