"""veRL's replay buffer made independent of the order in which responses arrive."""

from __future__ import annotations

from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer


class OrderedReplayBuffer(ReplayBuffer):
    """veRL's buffer, in which the order of arrival decides nothing."""

    whole_rounds = False
    """Judge no prompt group before all that were asked for have ended. With `algorithm.filter_groups` veRL asks for new
    prompts as soon as some groups are found useless, so that how many it asks for at once depends on the machine."""

    def _sync_metadata_from_transfer_queue(self) -> None:
        super()._sync_metadata_from_transfer_queue()
        if self.whole_rounds:
            for partition in (*self.pending_keys, *self.running_keys):
                if self.pending_keys[partition] or self.running_keys[partition]:
                    self.finished_keys[partition].clear()
                    self.failure_keys[partition].clear()

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
