"""A plugin of vLLM's, loaded in each of its processes: weights that can be loaded again on a CPU.

vLLM's CPU layers repack a weight for oneDNN and leave an empty tensor in its place, into which the trainer's next
transfer cannot be loaded (vllm 0.24.0, `layers/utils.py`). Without oneDNN they multiply by the weight itself.
"""

from __future__ import annotations

import os

SWITCH = "STAPO_RELOADABLE_WEIGHTS"
"""The environment variable that hardware=cpu-vllm sets: evaluation keeps oneDNN, which is faster."""


def register() -> None:
    """What vLLM calls (entry point `vllm.general_plugins`)."""
    if not os.environ.get(SWITCH):
        return
    from vllm import _custom_ops  # type: ignore[import-not-found]
    from vllm.platforms import current_platform  # type: ignore[import-not-found]

    if current_platform.is_cpu():
        _custom_ops._supports_onednn = False
