"""The current folder may hold anybody's modules: no child process of the suite has it on its search path.

The console scripts do not have it either. `python -c` and `python -m` put it first, and with them multiprocessing's
servers, vLLM's engine, and vLLM's look at a model; Ray puts its driver's folder first in every worker.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ray.job_config import JobConfig

_NAME = "PYTHONSAFEPATH"
VARIABLES = {_NAME: "1"}


@contextmanager
def for_children() -> Iterator[None]:
    """What starts in this, and what that starts, does not have the current folder on its search path."""
    before = os.environ.get(_NAME)
    os.environ |= VARIABLES
    try:
        yield
    finally:
        if before is None:
            del os.environ[_NAME]
        else:
            os.environ[_NAME] = before


def ray_job() -> JobConfig:
    """The `job_config` of `ray.init`. A `runtime_env` beside it replaces its own and needs VARIABLES in `env_vars`.

    Workers run this process's Python: a node's own is that of the environment in which `ray start` was called.
    """
    from ray.job_config import JobConfig

    class Job(JobConfig):
        def _runtime_env_has_working_dir(self) -> bool:
            return True  # only to a job that has none Ray adds its driver's folder

    return Job(runtime_env={"env_vars": VARIABLES, "py_executable": sys.executable})
