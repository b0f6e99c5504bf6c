"""From a command line to a run's configuration: Hydra's composition with errors that name what is allowed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from stapo_results import provenance
from stapo_results.errors import BadInput
from stapo_training.run import labels, resolvers
from stapo_training.run.preflight.differences import GROUPS

CONFIG_MODULE = "stapo_training.configs"


def choices(group: str) -> list[str]:
    """The overlays that exist for a configuration group: 1.7b before 8b before 14b."""
    names = [p.stem for p in (Path(__file__).parents[1] / "configs" / group).glob("*.yaml")]
    # text and numbers alternate, beginning with text
    parts = {n: re.split(r"(\d+(?:\.\d+)?)", n) for n in names}
    return sorted(names, key=lambda n: [float(p) if i % 2 else p for i, p in enumerate(parts[n])])


def absolute(override: str) -> str:
    """Folders of this run as absolute paths: Ray's processes need not stand where the command was typed."""
    key, _, value = override.partition("=")
    return f"{key}={Path(value).resolve()}" if key in ("run.base", "run.data", "run.out") and value else override


def last_choices(overrides: list[str]) -> list[str]:
    """Of two choices for one group the last, so that `tox -e train-8b -- hardware=64gpu` can replace tox's own."""
    last = {key: o for o in overrides if (key := o.partition("=")[0]) in GROUPS}
    return [*last.values(), *(o for o in overrides if o.partition("=")[0] not in GROUPS)]


def compose(overrides: list[str]) -> Any:
    """The resolved Hydra configuration of a run.

    Args:
        overrides: Hydra's: `method=stapo`, `run.seed=1`, `actor_rollout_ref.actor.optim.lr=1e-6`.

    Raises:
        BadInput: for an unknown group value, an unknown key or a missing value, naming what is allowed.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    resolvers.register()
    overrides = [absolute(o) for o in last_choices(overrides)]
    for o in overrides:
        key, _, value = o.partition("=")
        if key in GROUPS and value not in choices(key):
            raise BadInput(
                f"unknown {key}",
                found=value,
                expected=" | ".join(choices(key)),
                next_step=f"choose one: stapo-train run {key}=...",
            )
    try:
        with initialize_config_module(CONFIG_MODULE, version_base=None):
            config = hydra_compose("stapo", overrides=overrides)
            if labels.changes_selector(overrides):
                own = hydra_compose("stapo", overrides=labels.without_selector(overrides))
                config.run.method = labels.label(
                    config.run.method, config.actor_rollout_ref.selector, own.actor_rollout_ref.selector
                )
        OmegaConf.resolve(config)
        missing = sorted(OmegaConf.missing_keys(config) - _VERL_OPTIONAL, key=lambda k: (not k.startswith("run."), k))
    except (HydraException, OmegaConfBaseException) as e:
        if own := resolvers.own_error(e):
            raise own from None
        raise BadInput(
            f"the configuration does not compose: {str(e).splitlines()[0]}",
            found=" ".join(provenance.redact_command(overrides)),
            expected="KEY=VALUE with a key that exists (+KEY=VALUE adds one)",
            next_step="correct the key; without it, stapo-train run ... --config-only shows every key",
        ) from None
    if missing:
        raise BadInput("values are missing", found=", ".join(missing), next_step=f"add {missing[0]}=... to the command")
    _check_numbers(config)
    return config


_COUNTS = (
    "run.steps",
    "data.train_batch_size",
    "data.max_prompt_length",
    "data.max_response_length",
    "actor_rollout_ref.actor.ppo_mini_batch_size",
    "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.rollout.tensor_model_parallel_size",
    "trainer.nnodes",
    "trainer.n_gpus_per_node",
)
"""Whole numbers from 1 on: what every check reckons with."""


def _check_numbers(config: Any) -> None:
    from omegaconf import OmegaConf

    for key, least in [*((k, 1) for k in _COUNTS), ("run.seed", 0), ("trainer.save_freq", -1)]:
        value = OmegaConf.select(config, key)
        if type(value) is not int or value < least:
            raise BadInput(
                f"{key} is not a whole number from {least} on",
                found=repr(value),
                expected=f"{least} or more",
                next_step=f"correct {key}=... in the command",
            )


# keys that veRL leaves open in parts that are switched off
_VERL_OPTIONAL = {"reward.reward_model.rollout.name", "critic.strategy"}
