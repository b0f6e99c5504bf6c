"""What a step's tokens say, read from veRL's TransferQueue while the step is still in it."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
import transfer_queue as tq
from verl.utils.model import get_generation_config

from stapo_results.stop_tokens import stop_token_ids
from stapo_training.folder import step_metrics
from stapo_training.reward import MISJUDGED


def token_numbers(
    batch: Any, limit: int, stops: Collection[int], planted: Mapping[str, Sequence[int]], old_policy: bool = True
) -> dict[str, float]:
    """Of a step's own sequences: the old policy's token entropies, the truncated share, what the reward misjudged,
    the share of the prompts without variance.

    Args:
        batch: the step's KVBatchMeta; padding sequences are left out.
        limit: the longest response in tokens (data.max_response_length).
        stops: token ids that end a response.
        planted: kind -> ids of planted words; `KIND_rate` is how many of them a response has on average.
        old_policy: False where no old-log-prob pass ran (rollout_correction.bypass_mode) and so no entropy exists.
    """
    keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
    fields = ["responses", "response_mask", "rm_scores", "extra_fields", *(["entropy"] if old_policy else [])]
    data: Any = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=fields)
    numbers = {}
    if old_policy:
        mask_N = data["response_mask"].values().bool()
        numbers = step_metrics.entropy_distribution(data["entropy"].values()[mask_N].float().numpy())
    ends_B = data["responses"].offsets()
    lengths_B, last_token_B = ends_B.diff(), data["responses"].values()[ends_B[1:] - 1]
    share = step_metrics.truncated_share(lengths_B.numpy(), last_token_B.numpy(), limit, stops)
    rewards = [extra.get("reward_extra_info", {}) for extra in data.pop("extra_fields").tolist()]
    # another reward function than ours says nothing of boxes
    misjudged = {name: float(sum(r[name] for r in rewards)) for name in MISJUDGED if all(name in r for r in rewards)}
    tokens_N, count = data["responses"].values(), len(lengths_B)
    rates = {
        f"{kind}_rate": torch.isin(tokens_N, torch.tensor(list(ids))).sum().item() / count
        for kind, ids in planted.items()
        if ids
    }
    scores = zip(keys, data["rm_scores"].unbind(), strict=True)
    flat = zero_variance_share([(key.rsplit("_", 2)[0], float(s.sum())) for key, s in scores])
    return numbers | misjudged | rates | {"truncated_share": share, "zero_variance_share": flat}


def zero_variance_share(rewards: Iterable[tuple[str, float]]) -> float:
    """Share of the prompts without a gradient: several responses, all of one reward (of one alone it is the advantage).

    Args:
        rewards: (prompt, reward) of each response.
    """
    groups = defaultdict[str, list[float]](list)
    for prompt, reward in rewards:
        groups[prompt].append(reward)
    return sum(len(g) > 1 and len(set(g)) == 1 for g in groups.values()) / len(groups)


@functools.cache  # a vocabulary takes long to read, and veRL makes an agent loop for every sample
def stop_tokens(tokenizer: Any, model: str) -> list[int]:
    """The token ids at which the rollout of this model stops, in training as in validation and evaluation."""
    config = get_generation_config(model)
    return stop_token_ids(tokenizer, config.eos_token_id if config is not None else None)
