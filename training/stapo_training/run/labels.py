"""The label of a run's method: two runs whose selectors differ never share one.

A record's label is `run.method`. It is the overlay's name, with every selector value appended that the command line
changed: `method=stapo actor_rollout_ref.selector.q=0.5` is recorded as `stapo-q0.5`. `run.method=NAME` chooses another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_SELECTOR = "actor_rollout_ref.selector."
_SHORT = {"tau_p": "tau"}
# name, policy and scope are words that speak for themselves; form, log_agreement and log_entropy change what is logged
# or how fast the same mask is found, never the mask
_WORDS = ("name", "policy", "scope")
_SAME_MASK = ("form", "log_agreement", "log_entropy")


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def changes_selector(overrides: Sequence[str]) -> bool:
    """Whether the command line sets a value of the selector and no label of its own."""
    keys = [_key(o) for o in overrides]
    return "run.method" not in keys and any(k.startswith(_SELECTOR) for k in keys)


def without_selector(overrides: Sequence[str]) -> list[str]:
    """The overrides but those of the selector."""
    return [o for o in overrides if not _key(o).startswith(_SELECTOR)]


def label(method: str, chosen: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """The method's label for the selector `chosen`, where `own` is the overlay's.

    Numbers are written as Python writes them, so that different numbers are different labels.
    """
    parts = []
    for key in chosen:
        if key in _SAME_MASK or chosen[key] == own.get(key):
            continue
        value = chosen[key] if isinstance(chosen[key], str) else repr(chosen[key])
        parts.append(value if key in _WORDS else f"{_SHORT.get(key, key)}{value}")
    return "-".join([method, *parts])
