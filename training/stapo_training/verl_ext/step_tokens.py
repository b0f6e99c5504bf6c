"""What a step's tokens say, read from veRL's TransferQueue while the step is still in it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import transfer_queue as tq
from verl.utils.model import get_generation_config

from stapo_training.run.watch import step_metrics


def token_numbers(batch: Any, limit: int, stops: Collection[int], old_policy: bool = True) -> dict[str, float]:
    """Distribution of the old policy's token entropies, and the truncated share, of a step's own sequences.

    Args:
        batch: the step's KVBatchMeta; padding sequences are left out.
        limit: the longest response in tokens (data.max_response_length).
        stops: token ids that end a response.
        old_policy: False where no old-log-prob pass ran (rollout_correction.bypass_mode) and so no entropy exists.
    """
    own = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
    fields = ["responses", "response_mask", *(["entropy"] if old_policy else [])]
    data: Any = tq.kv_batch_get(keys=own, partition_id=batch.partition_id, select_fields=fields)
    numbers = {}
    if old_policy:
        mask_N = data["response_mask"].values().bool()
        numbers = step_metrics.entropy_distribution(data["entropy"].values()[mask_N].float().numpy())
    ends_B = data["responses"].offsets()
    lengths_B, last_token_B = ends_B.diff(), data["responses"].values()[ends_B[1:] - 1]
    share = step_metrics.truncated_share(lengths_B.numpy(), last_token_B.numpy(), limit, stops)
    return numbers | {"truncated_share": share}


def stop_tokens(model: str) -> tuple[int, ...]:
    """The token ids that end a response of this model, as veRL reads them: generation_config.json, else config.json."""
    config = get_generation_config(model)
    ids = config.eos_token_id if config is not None else None
    return (ids,) if isinstance(ids, int) else tuple(ids or ())
