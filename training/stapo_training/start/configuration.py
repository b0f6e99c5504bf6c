"""From a command line to a run's configuration: Hydra's composition, errors that name what is allowed, the run's label.

A record's label is `run.method`. It is the overlay's name, with every selector value appended that the command line
changed: `method=stapo actor_rollout_ref.selector.q=0.5` is recorded as `stapo-q0.5`, so two runs whose selectors differ
never share a label. `run.method=NAME` chooses another.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stapo_results import provenance
from stapo_results.errors import BadInput, meant, message_of, near_name
from stapo_results.schema import SETTINGS
from stapo_training import reward
from stapo_training.selection import own
from stapo_training.start import resolvers

CONFIG_MODULE = "stapo_training.configs"
GROUPS = ("method", "size", "hardware", "task")
PLACES = ("run.base", "run.data", "run.out")
"""Where a run reads and writes, which is not what it is."""

_SELECTOR = "actor_rollout_ref.selector."
_OVERLAY = (".yaml", ".yml")
_LABEL_NAMES = {"tau_p": "tau"} | dict.fromkeys(("name", "policy", "scope", "among"), "")  # their values say it all
_REMOVED = {f"{_SELECTOR}form": "leave it out: every mask is exact and known before its mini-batch is trained"}
"""Keys of earlier versions, and what to do without them."""

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

_READ = ("run.", "trainer.", "data.", "algorithm.", "alarms.", "actor_rollout_ref.")
"""Blocks whose keys have all one reader."""

# keys that veRL leaves open in parts that are switched off
_VERL_OPTIONAL = {"reward.reward_model.rollout.name", "critic.strategy"}


def choices(group: str) -> list[str]:
    """The overlays that exist for a configuration group: 1.7b before 8b before 14b."""
    names = [p.stem for p in (Path(__file__).parents[1] / "configs" / group).glob("*.yaml")]
    # text and numbers alternate, beginning with text
    parts = {n: re.split(r"(\d+(?:\.\d+)?)", n) for n in names}
    return sorted(names, key=lambda n: [float(p) if i % 2 else p for i, p in enumerate(parts[n])])


def key_of(override: str) -> str:
    """The key of a Hydra override: `+a.b=1` -> `a.b`."""
    return override.lstrip("+~").partition("=")[0]


def in_full(override: str) -> str:
    """A group's value by its name (`method=STAPO` means stapo), folders and files as absolute paths: Ray's processes
    may have another working folder.

    Raises:
        BadInput: for an unknown group value, naming what is allowed.
    """
    key, _, value = override.partition("=")  # with Hydra's + or ++, which stay
    is_overlay = key == "method" and value.endswith(_OVERLAY)
    if key in GROUPS and not is_overlay:
        return f"{key}={meant(key, value, choices(key), f'stapo-train run {key}=...')}"
    is_file = is_overlay or (key == f"{_SELECTOR}name" and own.is_file(value))
    is_file = is_file or (key_of(override) == "reward.custom_reward_function.path" and value.endswith(".py"))
    is_path = (key_of(override) in PLACES or is_file) and value
    return f"{key}={Path(os.path.expanduser(value)).resolve()}" if is_path else override


def _own_method(override: str) -> list[str]:
    """`method=FILE.yaml` as the overrides that the file means, over JustRL; any other override as it is.

    The label is the file's name unless it sets run.method; a selector FILE.py:FUNCTION in it is beside it.

    Raises:
        BadInput: there is no such file, or it is no mapping.
    """
    key, _, value = override.partition("=")
    if key != "method" or not value.endswith(_OVERLAY):
        return [override]
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    path = Path(value)
    if not path.is_file():
        raise BadInput("no such overlay of a method", found=str(path), next_step="stapo-train methods lists the names")
    try:
        overlay: Any = OmegaConf.to_container(OmegaConf.load(path))
        if not isinstance(overlay, dict) or "defaults" in overlay:
            raise TypeError("no mapping" if not isinstance(overlay, dict) else "a list of defaults")
    except (OSError, YAMLError, OmegaConfBaseException, TypeError) as e:
        raise BadInput(f"{path}: this is no overlay of a method", found=message_of(e),
                       expected="a YAML file such as those of configs/method, without a list of defaults",
                       next_step="docs/mask.md shows one") from None  # fmt: skip
    values = {"run.method": path.stem} | dict(_leaves(overlay))
    if values["run.method"] in (taken := [*choices("method"), "base"]):
        raise BadInput(
            f"{path}: a new method needs a new name",
            found=values["run.method"],
            expected=f"none of {', '.join(taken)}",
            next_step="rename the file, or set run.method in it",
        )
    name = str(values.get(f"{_SELECTOR}name", ""))
    if own.is_file(name):
        values[f"{_SELECTOR}name"] = str(path.parent.resolve() / name)
    return ["method=justrl", *(f"{k}={_quoted(v)}" for k, v in values.items())]


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _quoted(value: Any) -> str:
    """A value in the grammar of Hydra's overrides."""
    from hydra.core.override_parser.types import Quote, QuotedString

    if isinstance(value, str):
        return QuotedString(value, Quote.single).with_quotes()
    if isinstance(value, list):
        return "[" + ",".join(map(_quoted, value)) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value)


def last_choices(overrides: Sequence[str]) -> list[str]:
    """Of two choices for one group the last, so that `tox -e train-8b -- hardware=64gpu` can replace tox's own."""
    last = {key: o for o in overrides if (key := o.partition("=")[0]) in GROUPS}
    return [*last.values(), *(o for o in overrides if o.partition("=")[0] not in GROUPS)]


def compose(overrides: Sequence[str]) -> Any:
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
    given = [in_full(o) for o in last_choices(overrides)]
    overrides = [part for o in given for part in _own_method(o)]
    if gone := [key for o in overrides if (key := key_of(o)) in _REMOVED]:
        raise BadInput(f"{gone[0]} is a key of an earlier version", next_step=_REMOVED[gone[0]])
    try:
        with initialize_config_module(CONFIG_MODULE, version_base=None):
            config = hydra_compose("stapo", overrides=overrides)
            keys = [key_of(o) for o in given]
            if "run.method" not in keys and any(k.startswith(_SELECTOR) for k in keys):
                plain = [p for o in given if not key_of(o).startswith(_SELECTOR) for p in _own_method(o)]
                before = hydra_compose("stapo", overrides=plain).actor_rollout_ref.selector
                config.run.method = label(config.run.method, config.actor_rollout_ref.selector, before)
        OmegaConf.resolve(config)
        rewards = config.reward.custom_reward_function
        ours = rewards.path == reward.PATH or reward.VERIFIER in map(key_of, overrides)
        # another function is not given the verifier of base.yaml
        rewards.reward_kwargs = {k: v for k, v in (rewards.reward_kwargs or {}).items() if ours or k != "verifier"}
        missing = sorted(OmegaConf.missing_keys(config) - _VERL_OPTIONAL)
        # the other keys follow from those of the run
        missing = [k for k in missing if k.startswith("run.")] or missing
    except (HydraException, OmegaConfBaseException) as e:
        if own_error := resolvers.own_error(e):
            raise own_error from None
        text, shown = message_of(e), provenance.redact_command(overrides)
        for whole, part in zip(overrides, shown, strict=True):
            text = text.replace(whole, part)
        raise BadInput(
            "the configuration does not compose",
            found=f"{text}\n{' '.join(shown)}",
            expected="KEY=VALUE with a key that exists (+KEY=VALUE adds one)",
            next_step=f"{_near_key(str(e), overrides)}without it, stapo-train run ... --config-only shows every key",
        ) from None
    if missing:
        raise BadInput("values are missing", found=", ".join(missing), next_step=f"add {missing[0]}=... to the command")
    _check_numbers(config)
    return config


def _plain(overrides: Sequence[str]) -> dict[str, Any]:
    """Key -> value as it is written, of the configuration that the choices of groups alone make."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from omegaconf import OmegaConf

    with initialize_config_module(CONFIG_MODULE, version_base=None):
        every: Any = OmegaConf.to_container(
            hydra_compose("stapo", overrides=[o for o in overrides if key_of(o) in GROUPS])
        )
    return dict(_leaves(every))


def _near_key(said: str, overrides: Sequence[str]) -> str:
    """ "KEY is near; " of the key that Hydra could not override, "" where it names none or none is near."""
    wrong = re.match(r"Could not override '([^']+)'", said)
    return near_name(wrong[1], [*GROUPS, *_plain(overrides)]) if wrong else ""


def check_overrides(config: Any, overrides: Sequence[str]) -> None:
    """What a command line says beside the configuration that was composed of it, which takes as long once more.

    Raises:
        BadInput: for a value of another kind than the one it replaces, and for an added key that is nearly one that
            exists: veRL takes the text "flase" as true, and reads no key that it does not know.
    """
    from omegaconf import OmegaConf

    overrides = [part for o in last_choices(overrides) for part in _own_method(in_full(o))]
    known = _plain(overrides)
    for key in (key_of(o) for o in overrides):
        before, now = known.get(key), OmegaConf.select(config, key)
        switch, number = isinstance(before, bool), isinstance(before, int | float)
        fits = now in (True, False) if switch else isinstance(now, int | float) and not isinstance(now, bool)
        if number and now not in (None, "auto") and not fits:
            what = "true or false" if switch else "a number"
            raise BadInput(f"{key} takes {what}", found=repr(now), expected=f"such as {str(before).lower()}",
                           next_step=f"correct {key}=... in the command")  # fmt: skip
        added = key not in known and key.startswith(_READ) and not re.search(r"_kwargs|override_", key)
        if added and (near := difflib.get_close_matches(key, known, 1, 0.9)):
            raise BadInput("nothing reads this key", found=key, next_step=f"{near[0]} is near")


def label(method: str, chosen: Mapping[str, Any], overlay: Mapping[str, Any]) -> str:
    """The method's label for the selector `chosen`, where `overlay` is the overlay's.

    Numbers are written as Python writes them, so that different numbers are different labels.
    """
    changed = [k for k in chosen if chosen[k] != overlay.get(k)]
    values = {k: own.label(chosen[k]) if isinstance(chosen[k], str) else repr(chosen[k]) for k in changed}
    return "-".join([method, *(f"{_LABEL_NAMES.get(k, k)}{v}" for k, v in values.items())])


def _check_numbers(config: Any) -> None:
    from omegaconf import OmegaConf

    counts = [*((k, 1) for k in _COUNTS), ("run.seed", 0), ("trainer.save_freq", -1)]
    counts += [("trainer.total_epochs", 1)]
    optional = ("trainer.max_actor_ckpt_to_keep", "run.save_minutes")
    for key, least in [*counts, *((k, 1) for k in optional if OmegaConf.select(config, k) is not None)]:
        value = OmegaConf.select(config, key)
        if type(value) is not int or value < least:
            raise BadInput(
                f"{key} is not a whole number from {least} on",
                found=repr(value),
                expected=f"{least} or more",
                next_step=f"correct {key}=... in the command",
            )
    if config.trainer.total_training_steps != config.run.steps:
        raise BadInput(
            "trainer.total_training_steps is not run.steps, by which disk and time are planned",
            found=config.trainer.total_training_steps,
            expected=config.run.steps,
            next_step="name run.steps=N alone",
        )
    used, names = config.actor_rollout_ref.rollout.val_kwargs, ("temperature", "top_p")
    if (found := {k: used[k] for k in names}) != (first := {k: resolvers.validation(k, _root_=config) for k in names}):
        raise BadInput(
            "rollout.val_kwargs contradict the first of run.validation_settings, whose name the numbers would have",
            found=found,
            expected=first,
            next_step=f"name run.validation_settings=[...] alone: one or more of {', '.join(SETTINGS)}",
        )
