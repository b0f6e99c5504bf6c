"""What veRL would wait for without end: a lost node, weights that do not arrive, a response that is lost.

Ray tells a caller that an actor died; veRL's trainer waits for a queue that only the dead actor filled. A sender of
weights waits for a receiver that has failed (veRL 0.9.1, `bucketed_weight_transfer`: recv without a time limit), and
the trainer for the sender.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import OutOfMemoryError, RayActorError, RayError
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from stapo_results.errors import RunFailed, StapoError, message_of

_EVERY_SECONDS = 5.0
_NOTICED_SECONDS = 75.0
"""Ray calls a node dead after five health checks: 15 s where its host answers, a minute where the host is gone."""


class _Watch:
    """A thread that asks Ray for its nodes, and wakes the main thread when one that was there is gone."""

    def __init__(self) -> None:
        self.before, self.lost, self.over = _alive(), list[str](), threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def look(self) -> list[str]:
        """The nodes that are gone, by address."""
        if not self.lost:
            now = _alive()
            self.lost = [f"{address} (node {name[:12]})" for name, address in self.before.items() if name not in now]
        return self.lost

    def wait(self) -> list[str]:
        """As `look`, once Ray has had the time to notice."""
        deadline = time.monotonic() + _NOTICED_SECONDS
        while len(self.before) > 1 and not self.look() and time.monotonic() < deadline:
            time.sleep(1)
        return self.lost

    def _run(self) -> None:
        while not self.over.wait(_EVERY_SECONDS):
            if self.look():  # again and again: a callback may swallow what the signal raises
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)


def _alive() -> dict[str, str]:
    """Node id -> the address by which its other nodes know it."""
    return {n["NodeID"]: n["NodeManagerAddress"] for n in ray.nodes() if n["Alive"]}


@contextmanager
def watched(command: str) -> Iterator[None]:
    """Raises RunFailed in this, the main thread, where a node or a process of the run is lost; `command` resumes it."""

    def wake(*_: Any) -> None:
        raise KeyboardInterrupt  # the one exception that gets out of Ray's waits

    watch, handler = _Watch(), signal.signal(signal.SIGUSR1, wake)
    watch.thread.start()
    try:
        yield
    except KeyboardInterrupt:
        if watch.lost:
            raise _failed(watch.lost, "gone from Ray's list of nodes", command) from None
        raise
    except OutOfMemoryError as e:
        raise RunFailed(
            "the machine's memory ran short, and Ray ended a process of the run",
            found=str(getattr(e, "cause", e)).partition("\n")[0],  # from an actor's own call a traceback comes first
            expected="less in use than Ray's RAY_memory_usage_threshold, 0.95 of the memory by default",
            next_step="end what else runs here, then go on from the last checkpoint: "
            f"{command}   or begin anew with a lower data.max_response_length, or run.cpu_dtype=bfloat16",
        ) from e
    except Exception as e:  # of a lost node many kinds are made: an actor's death, a closed connection of gloo's
        is_ours = isinstance(e, StapoError) and not isinstance(e.__cause__, RayError)
        if not is_ours and (watch.wait() or isinstance(e, RayActorError)):
            raise _failed(watch.lost, message_of(e), command, killed=not getattr(e, "actor_init_failed", False)) from e
        raise
    finally:
        watch.over.set()
        watch.thread.join()
        signal.signal(signal.SIGUSR1, handler)


def _failed(nodes: list[str], found: str, command: str, killed: bool = True) -> RunFailed:
    """`killed`: no exception of its own ended the process."""
    return RunFailed(
        "a node of the cluster was lost" if nodes else "a process of the run died",
        found=f"{', '.join(nodes)}: {found}" if nodes else found,
        expected="every node and process alive to the end",
        next_step=(
            "start the node again (ray start --address=...)"
            if nodes
            else "look above and in the kernel's log for what ended it, often too little memory"
            if killed
            else "correct what it says"
        )
        + f", then go on from the last checkpoint: {command}",
    )


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


class OrderedReplayBuffer(ReplayBuffer):
    """veRL's buffer; of the groups that are there, the order of arrival decides nothing.

    limit_s: seconds of `run.rollout_limit_s`. problems: the problem of each prompt id (`SeededAgentLoopManager`).
    """

    limit_s: float
    problems: dict[str, str]
    _last: tuple[tuple[int, ...], float] = (), 0.0
    """How many prompts wait, run and are done and how many responses there are, and since when."""

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        """veRL's, which waits for ever for a response that is lost.

        Raises:
            RunFailed: nothing has come for `limit_s` seconds.
        """
        self._last = (), 0.0
        batch = super().sample(*args, **kwargs)
        self.problems.clear()
        return batch

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        keys = {"pending": self.pending_keys, "running": self.running_keys, "finished": self.finished_keys,
                "failed": self.failure_keys, "responses": self.partitions}  # fmt: skip
        counts = {name: len(of_partition[partition_id]) for name, of_partition in keys.items()}
        now = time.monotonic()
        if self._last[0] != tuple(counts.values()):
            self._last = tuple(counts.values()), now
        if now - self._last[1] > self.limit_s:
            waiting = sorted(self.pending_keys[partition_id] | self.running_keys[partition_id])
            raise RunFailed(
                f"no response has come for {self.limit_s:g} s",
                found=", ".join(f"{name} {n}" for name, n in counts.items())
                + f"; waiting for {', '.join(str(self.problems.get(uid, uid)) for uid in waiting[:3]) or 'no prompt'}",
                expected="a response within run.rollout_limit_s",
                next_step="look above for an error of the rollout or the reward; the same command resumes from the "
                "last checkpoint, with run.rollout_limit_s=N where responses only take longer",
            )
        return super()._wait_for_next_poll(partition_id, last_debug_time)

    def _select_prompt_uids(self, partition_id: str, sampleable_keys: set[str], batch_size: int) -> Any:
        """Of more groups than are needed the first that were asked for; veRL takes them from a set, in any order."""
        _, *snapshots = super()._select_prompt_uids(partition_id, sampleable_keys, batch_size)
        return sorted(sampleable_keys)[:batch_size], *snapshots

    def _materialize_batch(
        self, partition_id: str, selected_prompt_uids: list[str], partition_snapshot: dict[str, dict]
    ) -> Any:
        """veRL's, then sorted by (prompt id, sample, part)."""
        batch = super()._materialize_batch(partition_id, selected_prompt_uids, partition_snapshot)
        order = sorted(range(len(batch.keys)), key=lambda i: _key_order(batch.keys[i]))
        batch.keys, batch.tags = [batch.keys[i] for i in order], [batch.tags[i] for i in order]
        return batch


def _key_order(key: str) -> tuple[str, int, int]:
    uid, session, index = key.rsplit("_", 2)
    return uid, int(session), int(index)
