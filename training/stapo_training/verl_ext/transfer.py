"""The transfer of weights from trainer to rollout, with a limit.

In veRL 0.9.1 a sender waits for ever for a receiver that has failed (`bucketed_weight_transfer`: recv without a time
limit), and the trainer waits for the sender.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import ray

from stapo_results.errors import RunFailed

TIED = "lm_head.weight"
"""The second name of the embedding where the two are tied; it does not travel."""


def wait_for_ranks(pending: Sequence[Any], limit_s: float, step: int) -> list[Any]:
    """What every rank returned once it has sent its weights; `pending` are Ray's references, a rank each.

    Raises:
        RunFailed: naming the ranks that are not done after `limit_s` seconds. A rank's own error is raised at once.
    """
    waiting, deadline = list(pending), time.monotonic() + limit_s
    while waiting:
        done, waiting = ray.wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
        ray.get(done)
        if not done:
            ranks = ", ".join(str(i) for i, reference in enumerate(pending) if reference in waiting)
            raise RunFailed(
                f"step {step}: the weights did not reach the rollout",
                found=f"rank {ranks} of {len(pending)} not done after {limit_s:g} s",
                expected="all ranks within run.weight_transfer_limit_s",
                next_step="look above for an error of the rollout's own; the same command resumes from the last "
                "checkpoint, with run.weight_transfer_limit_s=N where the transfer only takes longer",
            )
    return ray.get(list(pending))
