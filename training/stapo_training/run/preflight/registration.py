"""What veRL says of a run: its own validation, and whether a fresh worker's process has everything of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any

from stapo_results.errors import BadInput

_OURS = ("VERL_", "STAPO_", "TRANSFER_QUEUE_")
_SECONDS = 600
_HINTS = {
    "platform": "runtime_env.env_vars must hold what hardware=cpu sets: VERL_PLATFORM, VERL_USE_EXTERNAL_MODULES",
    "rollout": "install requirements/gpu.txt on every node; without a GPU: hardware=cpu",
    "trainer mode": "trainer.v1.trainer_mode=stapo",
    "reward": "leave reward.custom_reward_function as base.yaml sets it; verifier: fallback | answer_line | strict_box",
    "selector": "choose a method=... overlay",
}


def validate(config: Any, *, ask_worker: bool) -> dict[str, str]:
    """veRL's own validation; with `ask_worker`, what a worker's process has registered (empty otherwise).

    Raises:
        BadInput: when veRL refuses the configuration, or something is not registered.
    """
    from hydra.errors import HydraException

    process = ask(config) if ask_worker else None
    try:
        # veRL warns of every engine that is not installed; the one that is needed is asked for by name
        warnings.filterwarnings("ignore", message=".* engine is not available")
        from stapo_training.verl_ext import run as verl_run  # imports veRL: tens of seconds

        with redirect_stdout(sys.stderr):  # veRL prints notices
            verl_run.validate(config)
        return answer(process) if process else {}
    except (AssertionError, ValueError, TypeError, NotImplementedError, HydraException) as e:
        if isinstance(e, BadInput):
            raise
        raise BadInput(
            "veRL refuses the configuration",
            found=str(e) or type(e).__name__,
            next_step="correct the value it names; stapo-train run ... --config-only shows every key",
        ) from e
    finally:
        if process:
            process.kill()
            process.wait()


def worker_environment(config: Any, own: Mapping[str, str]) -> dict[str, str]:
    """The environment of a Ray worker on a freshly started node.

    The launcher sets some variables in its own process; only those that `runtime_env` names reach another node.
    """
    given = config.ray_kwargs.ray_init.runtime_env.get("env_vars") or {}
    return {k: v for k, v in own.items() if not k.startswith(_OURS)} | {k: str(v) for k, v in given.items()}


def ask(config: Any) -> subprocess.Popen:
    """The process that is asked; it imports while its caller does something else, and the caller ends it."""
    from omegaconf import OmegaConf

    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "stapo_training.verl_ext.registered"],
        env=worker_environment(config, os.environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps({"config": OmegaConf.to_container(config, resolve=True)}))
    process.stdin.flush()
    return process


def answer(process: subprocess.Popen) -> dict[str, str]:
    """What is registered under which class.

    Raises:
        BadInput: naming the part that is missing.
    """
    try:
        out, err = process.communicate(timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        raise BadInput(
            "a worker's process did not finish its imports",
            found=f"still importing after {_SECONDS} s",
            expected="seconds; a minute on a slow shared file system",
            next_step="python -X importtime -c 'import stapo_training.verl_ext.trainer' shows what takes so long",
        ) from None
    said = json.loads(out.splitlines()[-1]) if out else {}
    if "found" in said:
        return said["found"]
    raise BadInput(
        f"not registered in a worker's process: {said.get('lacking', 'veRL itself does not start')}",
        found=said.get("error", (err.strip().splitlines() or ["no output"])[-1]),
        expected="the configured name, importable with ray_kwargs.ray_init.runtime_env.env_vars",
        next_step=_HINTS.get(said.get("lacking", ""), "install this suite on every node: pip install -e '.[train]'"),
    )
