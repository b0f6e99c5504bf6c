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


def kept_in(out: Path, name: str) -> str:
    """The same function in the copy of its file that a run keeps in its folder."""
    return f"{out / 'selector' / file_of(name).name}:{name.rpartition(':')[2]}"


def label(name: str) -> str:
    """What stands for a selector in a run's label: of a file its name."""
    return file_of(name).stem if is_own(name) else name


@cache
def load(name: str) -> Callable[..., Any]:
    """The function that `FILE.py:FUNCTION` names.

    Raises:
        ValueError: there is no such file, it does not load, or nothing callable of that name is in it.
    """
    path, function = file_of(name), name.rpartition(":")[2]
    if not path.is_file():
        raise ValueError(f"selector {name}: there is no file {path}")
    try:
        found = runpy.run_path(str(path)).get(function)
    except Exception as e:  # whatever the file does
        raise ValueError(f"selector {name}: {path} does not load: {type(e).__name__}: {e}") from e
    if not callable(found):
        raise ValueError(f"selector {name}: {path} has no function {function}")
    return found
