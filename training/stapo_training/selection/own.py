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
    """A selector's part of a run's label: the last part of its file or module, and its function."""
    place, _, function = name.rpartition(":")
    return f"{Path(place.removesuffix('.py')).name.rpartition('.')[2]}-{function}" if is_own(name) else name


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


def problem(select: Callable[..., Any]) -> str:
    """What is wrong with a selector's answers to two mini-batches of four tokens, in words; "" where nothing is.

    In the second nothing is rare, nor has an advantage above 0.

    Args:
        select: the function with its parameters bound, as a training calls it.
    """
    import torch  # here: what a method is can be read without it

    from stapo_training.selection.selectors import Selection, alone
    from stapo_training.selection.token_stats import TokenStats

    logprob_N, entropy_N = torch.tensor([-9.0, -0.1, -8.0, -7.0]), torch.tensor([0.1, 0.2, 3.0, 1.0])
    advantage_N, key_N = torch.tensor([1.0, -1.0, 1.0, 1.0]), torch.tensor([0.1, 0.6, 0.4, 0.9], dtype=torch.float64)
    response_N = torch.tensor([True, True, True, False])
    some, none = (logprob_N, advantage_N), (0 * logprob_N - 0.1, -advantage_N.abs())
    for what, (logprob_N, advantage_N) in (("", some), (" of which none is rare", none)):
        stats = TokenStats(logprob_N, entropy_N, advantage_N, response_N, key_N, advantage_N > 0)
        try:
            found = select(stats, pool=alone)
        except Exception as e:  # noqa: BLE001  whatever it does
            return f"on a mini-batch of four tokens{what} {type(e).__name__}: {e}"
        if not isinstance(found, Selection):
            return f"it returns {type(found).__name__}, not Selection(keep_N, candidate_N, threshold)"
        for name in ("keep_N", "candidate_N"):
            mask_N = getattr(found, name)
            if not isinstance(mask_N, torch.Tensor) or (mask_N.dtype, mask_N.shape) != (torch.bool, response_N.shape):
                return f"{name} is no bool tensor with one value a token"
            if (mask_N & ~response_N).any():
                return f"{name} has a token that is no response token: & stats.response_N"
        if not isinstance(found.threshold, int | float):
            return f"threshold is no number: {found.threshold!r}"
    return ""
