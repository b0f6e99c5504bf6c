"""Loggers beside the run's own metrics.jsonl (`trainer.logger`): checked before anything starts, kept in its folder."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from stapo_results.errors import BadInput

_PACKAGES = {"console": None, "file": None, "tensorboard": "tensorboard", "trackio": "trackio", "wandb": "wandb"}


def check(names: str | Sequence[str], environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The loggers of `trainer.logger`, each of which can run here.

    Raises:
        BadInput: for a name that is not offered, a package that is not installed, or wandb without an account.
    """
    chosen = (names,) if isinstance(names, str) else tuple(names)
    for name in chosen:
        if name not in _PACKAGES:
            raise BadInput(
                "trainer.logger names an unknown logger",
                found=name,
                expected=", ".join(_PACKAGES),
                next_step="trainer.logger=[console,tensorboard]",
            )
        package = _PACKAGES[name]
        if package and importlib.util.find_spec(package) is None:
            next_step = f"python -m pip install {package}"
            raise BadInput(f"trainer.logger={name} needs a package", found=f"no module {package}", next_step=next_step)
    netrc = Path(environment.get("HOME", "~")).expanduser() / ".netrc"
    offline = environment.get("WANDB_MODE") in ("offline", "disabled", "dryrun")
    if "wandb" in chosen and not (offline or environment.get("WANDB_API_KEY") or netrc.exists()):
        raise BadInput(
            "trainer.logger=wandb has no account and would wait for a password",
            found="neither WANDB_API_KEY, nor WANDB_MODE=offline, nor ~/.netrc",
            expected="one of them",
            next_step="WANDB_MODE=offline before the command, or: wandb login",
        )
    return chosen


def locations(out: Path, attempt: int) -> dict[str, str]:
    """Environment variables by which veRL's loggers and their packages write into the run's folder `out`.

    veRL's file logger empties its file when it opens it, so each attempt (0, 1, ...) of a run gets one of its own.
    """
    return {
        "VERL_FILE_LOGGER_PATH": str(out / f"verl-metrics-{attempt}.jsonl"),
        "TENSORBOARD_DIR": str(out / "tensorboard"),
        "TRACKIO_DIR": str(out / "trackio"),
        "WANDB_DIR": str(out),
    }
