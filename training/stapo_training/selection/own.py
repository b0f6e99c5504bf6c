"""A selector of somebody's own: a function in a file, named `FILE.py:FUNCTION` in the configuration.

The function is one like those of `selectors`: `(stats, *, pool, threshold=None, ...) -> Selection`. Keyword arguments
that are fields of `methods.SelectorConfig` get their values from there; others need a default.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any


def is_own(name: str) -> bool:
    return ":" in name


def file_of(name: str) -> Path:
    return Path(name.rpartition(":")[0])


@cache
def load(name: str) -> Callable[..., Any]:
    """The function that `FILE.py:FUNCTION` names.

    Raises:
        ValueError: there is no such file, or nothing callable of that name in it.
    """
    path, function = file_of(name), name.rpartition(":")[2]
    if not path.is_file():
        raise ValueError(f"selector {name}: there is no file {path}")
    found = runpy.run_path(str(path)).get(function)
    if not callable(found):
        raise ValueError(f"selector {name}: {path} has no function {function}")
    return found
