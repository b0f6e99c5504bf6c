"""Where a run's configuration departs: from its overlays by what was typed, from the base by its method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

GROUPS = ("method", "size", "hardware", "task")
# where a run reads and writes is not what it is
_PLACES = ("run.base", "run.data", "run.out")


@dataclass(frozen=True)
class Change:
    """One key: its value now, what it would be otherwise, and veRL's own default; ABSENT where there is no such key."""

    key: str
    now: Any
    before: Any
    verl: Any


ABSENT = "-"


def typed_key(override: str) -> str:
    """The key of a Hydra override: `+a.b=1` -> `a.b`."""
    return override.lstrip("+~").partition("=")[0]


def typed_changes(overrides: Sequence[str], config: Any, compose: Any) -> list[Change]:
    """What the command line changed beside choosing overlays and places.

    Args:
        compose: from overrides to a resolved configuration (`configuration.compose`).
    """
    from omegaconf import OmegaConf

    keys = [k for k in dict.fromkeys(map(typed_key, overrides)) if k not in GROUPS and k not in _PLACES]
    if not keys:
        return []
    plain = compose([o for o in overrides if typed_key(o) in (*GROUPS, *_PLACES)])
    verl = verl_defaults()
    return [
        Change(k, *(OmegaConf.select(c, k, default=ABSENT) for c in (config, plain, verl)))
        for k in keys
    ]  # fmt: skip


def method_changes(overrides: Sequence[str], compose: Any) -> list[Change]:
    """What the method's overlay sets that the base, the size and the hardware do not; no training here has a critic."""
    from omegaconf import OmegaConf

    groups = [o for o in overrides if typed_key(o) in (*GROUPS, *_PLACES)]
    without = [o for o in groups if typed_key(o) != "method"]
    with_method = flat(compose(groups))
    bare = flat(compose([*without, "~method", "run.method=none"]))
    verl = verl_defaults()
    return [
        Change(k, value, bare.get(k, ABSENT), OmegaConf.select(verl, k, default=ABSENT))
        for k, value in with_method.items()
        if bare.get(k, ABSENT) != value and not k.startswith(("run.", "critic.")) and not k.endswith(".experiment_name")
    ]


def verl_defaults() -> Any:
    """veRL's own configuration of a training, unresolved."""
    from hydra import compose, initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer")


def flat(config: Any) -> dict[str, Any]:
    """Every leaf of a configuration by its dotted key; what cannot be resolved stands as its text."""
    from omegaconf import OmegaConf

    leaves: dict[str, Any] = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, dict):
            for k, v in value.items():
                walk(v, f"{path}.{k}" if path else str(k))
        else:
            leaves[path] = value

    walk(OmegaConf.to_container(config, resolve=False), "")
    return leaves
