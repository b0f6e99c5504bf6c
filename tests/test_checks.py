"""The collector of checks: every check is made, and all that stands in the way is said at once."""

from __future__ import annotations

import pytest

from stapo_results.checks import Checks
from stapo_results.errors import BadInput


def refuse(what: str) -> int:
    raise BadInput(what, next_step="correct it")


@pytest.mark.parametrize("names", ["a", "abc"])
def test_every_check_is_made_and_all_problems_are_said_at_once(names: str) -> None:
    checks = Checks()
    for name in names:
        assert checks.attempt(name, refuse, f"{name} is wrong") is None
    assert checks.attempt("d", int, "7") == 7
    with pytest.raises(BadInput) as e:
        checks.refuse()
    assert all(f"{name} is wrong" in str(e.value) for name in names)
    assert (e.value is checks.problems[0]) == (names == "a")
    assert [c.name for c in checks.made] == [*names, "d"]
