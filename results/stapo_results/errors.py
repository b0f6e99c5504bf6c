"""Errors that say what happened, what was found against what was expected, and the next command.

Exit codes of every console command: 0 done, 1 the run failed, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from functools import partial


class StapoError(Exception):
    """Base of the suite's errors. Pickles, because Ray carries exceptions between processes.

    Args:
        what: what happened, one sentence.
        found: the value that was met.
        expected: the value that was wanted.
        next_step: what the reader can type or change now.
    """

    exit_code = 1

    def __init__(self, what: str, *, found: object = None, expected: object = None, next_step: str = ""):
        super().__init__(what)
        self.what, self.found, self.expected, self.next_step = what, found, expected, next_step

    def __str__(self) -> str:
        lines = [self.what]
        if self.found is not None:
            lines.append("  found:    " + str(self.found).replace("\n", "\n            "))
        if self.expected is not None:
            lines.append(f"  expected: {self.expected}")
        if self.next_step:
            lines.append(f"  next:     {self.next_step}")
        return "\n".join(lines)

    def __reduce__(self):
        fields = {"found": self.found, "expected": self.expected, "next_step": self.next_step}
        return partial(type(self), self.what, **fields), ()


def last_lines(text: str) -> str:
    """What is shown of a long text: its last 15 lines."""
    return "\n".join(text.strip().splitlines()[-15:])


def message_of(error: BaseException) -> str:
    """Kind and message of an error, or the last lines of it; one that Ray carried here speaks for its cause."""
    error = cause if isinstance(cause := getattr(error, "cause", None), BaseException) else error
    if isinstance(error, StapoError):
        return error.what + (f" ({error.found})" if error.found is not None else "")
    return last_lines(f"{type(error).__name__}: {error}".removesuffix(": "))


def short_hashes(text: str) -> str:
    """The text with 12 digits of each hash: enough to tell two apart."""
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{20,}\b", r"\1", text)


class RunFailed(StapoError, RuntimeError):
    """The run began and could not be finished."""


class BadInput(StapoError, ValueError):
    """The request cannot be carried out as it is; nothing expensive was started."""

    exit_code = 2


class RecordError(BadInput):
    """A record on disk is broken, of another schema version, or contradicts another one."""


def meant(kind: str, written: str, names: Collection[str], next_step: str) -> str:
    """The name that is meant: case, blanks and hyphens do not count (MATH-500 is math500).

    Raises:
        BadInput: none is, or several are; the nearest one is suggested.
    """
    plain = {n: re.sub(r"[\W_]", "", n.lower()) for n in (written, *names)}
    matches = [n for n in names if n == written] or [n for n in names if plain[n] == plain[written]]
    if len(matches) == 1:
        return matches[0]
    next_step = near_name(written, names) + next_step
    raise BadInput(f"unknown {kind}", found=written, expected=", ".join(names), next_step=next_step)


def near_name(written: str, names: Collection[str]) -> str:
    """ "NAME is near; " of the nearest other name, "" where none is."""
    return "".join(f"{n} is near; " for n in difflib.get_close_matches(written.lower(), names, 1) if n != written)
