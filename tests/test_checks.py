"""The collector of checks: every check is made, and all that stands in the way is said at once."""

from __future__ import annotations

import pytest

from stapo_results.checks import Checks
from stapo_results.errors import BadInput


def refuse(what: str) -> int:
    raise BadInput(what, next_step="correct it")


def test_one_problem_is_raised_as_it_is() -> None:
    checks = Checks()
    assert checks.attempt("first", refuse, "first is wrong") is None
    checks.attempt("second", int, "7")
    with pytest.raises(BadInput) as e:
        checks.refuse()
    assert e.value is checks.problems[0]
    assert e.value.what == "first is wrong"


def test_all_problems_are_said_at_once_and_later_checks_are_made() -> None:
    checks = Checks()
    for name in ("a", "b", "c"):
        checks.attempt(name, refuse, f"{name} is wrong")
    checks.attempt("d", int, "7")
    with pytest.raises(BadInput) as e:
        checks.refuse()
    assert all(f"{name} is wrong" in str(e.value) for name in "abc")
    assert [c.name for c in checks.made] == ["a", "b", "c", "d"]
