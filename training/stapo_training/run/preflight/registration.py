"""What veRL says of a run: its own validation, and whether a fresh worker's process has everything of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout
from typing import IO, Any

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

    with asked(config) if ask_worker else nullcontext() as answer:
        # veRL warns of every engine that is not installed; the one that is needed is asked for by name
        warnings.filterwarnings("ignore", message=".* engine is not available")
        from stapo_training.verl_ext import run as verl_run  # imports veRL: tens of seconds

        try:
            with redirect_stdout(sys.stderr):  # veRL prints notices
                verl_run.validate(config)
        except (AssertionError, ValueError, TypeError, NotImplementedError, HydraException) as e:
            raise BadInput(
                "veRL refuses the configuration",
                found=str(e) or type(e).__name__,
                next_step="correct the value it names; stapo-train run ... --config-only shows every key",
            ) from e
        return answer() if answer else {}


def worker_environment(config: Any, own: Mapping[str, str]) -> dict[str, str]:
    """The environment of a Ray worker on a freshly started node.

    The launcher sets some variables in its own process; only those that `runtime_env` names reach another node.
    """
    given = config.ray_kwargs.ray_init.runtime_env.get("env_vars") or {}
    return {k: v for k, v in own.items() if not k.startswith(_OURS)} | {k: str(v) for k, v in given.items()}


@contextmanager
def asked(config: Any) -> Iterator[Callable[[], dict[str, str]]]:
    """Asks on entry; the value is a function that waits for the answer. The process does not outlive the block.

    The function returns what is registered under which class, and raises BadInput naming the part that is missing.
    """
    from omegaconf import OmegaConf

    with ExitStack() as files:
        # files, not pipes: nobody has to read while the process writes
        question, stdout, stderr = (files.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3))
        json.dump({"config": OmegaConf.to_container(config, resolve=True)}, question)
        question.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "stapo_training.verl_ext.registered"],
            env=worker_environment(config, os.environ),
            stdin=question,
            stdout=stdout,
            stderr=stderr,
        )
        try:
            yield lambda: _answer(process, stdout, stderr)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def _answer(process: subprocess.Popen, stdout: IO[str], stderr: IO[str]) -> dict[str, str]:
    try:
        process.wait(_SECONDS)
    except subprocess.TimeoutExpired:
        raise BadInput(
            "a worker's process did not finish its imports",
            found=f"still importing after {_SECONDS} s",
            expected="seconds; a minute on a slow shared file system",
            next_step="python -X importtime -c 'import stapo_training.verl_ext.trainer' shows what takes so long",
        ) from None
    stdout.seek(0)
    lines = stdout.read().splitlines()
    answer = json.loads(lines[-1]) if lines else {}
    if "found" in answer:
        return answer["found"]
    stderr.seek(0)
    last = (stderr.read().strip().splitlines() or ["no output"])[-1]
    raise BadInput(
        f"not registered in a worker's process: {answer.get('lacking', 'veRL itself does not start')}",
        found=answer.get("error", last),
        expected="the configured name, importable with ray_kwargs.ray_init.runtime_env.env_vars",
        next_step=_HINTS.get(answer.get("lacking", ""), "install this suite on every node: pip install -e '.[train]'"),
    )
