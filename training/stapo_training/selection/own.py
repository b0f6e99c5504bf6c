"""A user-defined selector, `FILE.py:FUNCTION` or `package.module:FUNCTION`: a function like those of `selectors`.

`(stats, *, pool, ...) -> Selection`; other keyword arguments get their values from the fields of
`methods.SelectorConfig`, or have a default. A run trains a copy of the file: relative imports in it do not work.
"""

from __future__ import annotations

import importlib.util
import runpy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any


def is_own(name: str) -> bool:
    return ":" in name


def is_file(name: str) -> bool:
    return ".py:" in name


def file_of(name: str) -> Path:
    """The function's file, also of a module (which is not imported); the name itself where there is none."""
    place = name.rpartition(":")[0]
    spec = None if is_file(name) else importlib.util.find_spec(place)
    return Path(spec.origin if spec and spec.origin else place)


def kept_in(out: Path, name: str) -> str:
    """The same function in the copy of its file that a run keeps in its folder."""
    return f"{out / 'selector' / file_of(name).name}:{name.rpartition(':')[2]}"


def label(name: str) -> str:
    """A selector's part of a run's label: the last part of its file or module."""
    return Path(name.rpartition(":")[0].removesuffix(".py")).name.rpartition(".")[2] if is_own(name) else name


@cache
def load(name: str) -> Callable[..., Any]:
    """The function.

    Raises:
        ValueError: there is no such file or module, it does not load, or nothing callable of that name is in it.
    """
    try:
        names = runpy.run_path(str(file_of(name)))
    except Exception as e:  # whatever the file does
        raise ValueError(f"selector {name} does not load: {type(e).__name__}: {e}") from e
    if not callable(function := names.get(name.rpartition(":")[2])):
        known = [k for k, v in names.items() if callable(v) and getattr(v, "__module__", "") == names["__name__"]]
        raise ValueError(f"selector {name} is no function of its file, which has {', '.join(known) or 'none'}")
    return function
