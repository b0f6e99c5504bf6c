"""veRL's replay buffer made independent of the order in which responses arrive."""

from __future__ import annotations

from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer


class OrderedReplayBuffer(ReplayBuffer):
    """veRL's buffer; of the groups that are there, the order of arrival decides nothing."""

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
