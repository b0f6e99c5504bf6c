"""veRL's replay buffer made independent of the order in which responses arrive, and with a limit to its patience."""

from __future__ import annotations

import time
from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from stapo_results.errors import RunFailed


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
        found = super().sample(*args, **kwargs)
        self.problems.clear()
        return found

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        keys = {"pending": self.pending_keys, "running": self.running_keys, "finished": self.finished_keys,
                "failed": self.failure_keys, "responses": self.partitions}  # fmt: skip
        counts = {name: len(found[partition_id]) for name, found in keys.items()}
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
