"""Child processes that do not outlive the process that started them."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys


def end_with_parent() -> None:
    """End this process with the one that forked it (Linux), whatever ends that one: by a signal, in C calls too."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def vllm_plugin() -> None:
    """`end_with_parent` in vLLM's own processes: what it calls in each of them (entry point `vllm.general_plugins`)."""
    if asker := multiprocessing.parent_process():  # not the command itself: it may outlive the shell
        end_with_parent()
        if not asker.is_alive():
            os._exit(1)
