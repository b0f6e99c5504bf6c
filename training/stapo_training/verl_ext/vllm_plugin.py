"""A plugin of vLLM's, loaded in each of its processes: what a training's rollout needs of vLLM."""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from typing import Any

from stapo_results.errors import BadInput

RELOADABLE = "STAPO_RELOADABLE_WEIGHTS"
"""The environment variable that hardware=cpu-vllm sets: evaluation keeps oneDNN, which is faster."""
RUN = "STAPO_RUN"
"""The environment variable that tells a training's processes from those of another training on the same machine."""


def own_socket(address: str) -> str:
    """The address of the weight transfer's socket, with the training in its name.

    veRL 0.9.1 tells two trainings by Ray's job id, which is 01000000 in every cluster that a training starts itself:
    side by side, one would load the other's weights.
    """
    run = os.environ.get(RUN)
    return f"{address.removesuffix('.sock')}-{run}.sock" if run else address


NAME = "stapo_rollout"
_GROUP, _ALLOWED = "vllm.general_plugins", "VLLM_PLUGINS"


def check_installed() -> None:
    """Raises BadInput where vLLM would not load this plugin: its processes would wait at another socket."""
    installed = {e.name: e.value for e in entry_points(group=_GROUP)}
    if installed.get(NAME) != f"{__name__}:register":
        raise BadInput("vLLM would not find this suite's plugin", found=", ".join(installed) or "no plugin",
                       expected=NAME, next_step="pip install --no-deps --editable .   (it is of before)")  # fmt: skip
    allowed = os.environ.get(_ALLOWED)
    if allowed is not None and NAME not in allowed.split(","):
        raise BadInput(f"{_ALLOWED} leaves out this suite's plugin", found=allowed, expected=NAME,
                       next_step=f"{_ALLOWED}={allowed},{NAME}, or unset it")  # fmt: skip


def register() -> None:
    """What vLLM calls (entry point `vllm.general_plugins`), perhaps more than once in a process."""
    if os.environ.get(RUN):
        from verl.workers.rollout.vllm_rollout import utils

        Receiver: Any = utils.vLLMColocateWorkerExtension
        if not hasattr(Receiver, "_address_of_verl"):
            Receiver._address_of_verl = Receiver._get_zmq_handle
            Receiver._get_zmq_handle = lambda self: own_socket(self._address_of_verl())
    if os.environ.get(RELOADABLE):
        _keep_weights()


def _keep_weights() -> None:
    """Weights that can be loaded again on a CPU.

    vLLM's CPU layers repack a weight for oneDNN and leave an empty tensor in its place, into which the trainer's next
    transfer cannot be loaded (vllm 0.24.0, `layers/utils.py`). Without oneDNN they multiply by the weight itself.
    """
    from vllm import _custom_ops  # type: ignore[import-not-found]
    from vllm.platforms import current_platform  # type: ignore[import-not-found]

    if current_platform.is_cpu():
        _custom_ops._supports_onednn = False
