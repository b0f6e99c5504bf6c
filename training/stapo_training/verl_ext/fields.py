"""Which fields of a sample veRL's workers are sent: it fetches, copies and cuts what is not a tensor value by value."""

from __future__ import annotations

from typing import Any

from verl.utils.transferqueue_utils import kv_batch_meta2batch_meta

UNREAD = {
    *("raw_prompt", "uid", "index", "data_source", "reward_model", "ability", "tools_kwargs", "interaction_kwargs"),
    *("agent_name", "global_steps", "extra_fields", "num_turns", "mm_processor_kwargs"),
}
"""What the agent loop, the reward and the trainer alone read of a sample."""


def for_workers(batch: Any, processor: Any) -> Any:
    """The KVBatchMeta without the fields that no worker reads.

    processor: the model's of images; None for a model of text.
    """
    batch.fields = None  # veRL may have stored fields since
    stored = kv_batch_meta2batch_meta(batch).field_names
    unread = UNREAD | ({"multi_modal_inputs"} if processor is None else set())
    batch.fields = [f for f in stored if f not in unread and not f.startswith("stapo_")]
    return batch
