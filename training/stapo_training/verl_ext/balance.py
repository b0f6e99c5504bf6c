"""Sequences spread over ranks so that no rank waits long for another, and every mini-batch keeps its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions


def balanced_order(lengths: Sequence[int], ranks: int, mini_batch: int) -> list[list[int]]:
    """The sequences of each rank, in the order in which it trains them.

    veRL gives each rank a contiguous part of the batch and takes mini-batch k from the k-th part of every rank's. Its
    own balancing spreads the whole batch, so that a prompt's responses land in different mini-batches. Here each
    mini-batch is spread by itself (equal numbers, balanced work): what is in it stays in it, and its gradient does not
    depend on which rank computes what.

    Args:
        lengths: tokens of every sequence, in the order of the batch; its mini-batches are `mini_batch` long.
    """
    mine: list[list[int]] = [[] for _ in range(ranks)]
    for first in range(0, len(lengths), mini_batch):
        work = calculate_workload(torch.tensor(lengths[first : first + mini_batch], dtype=torch.int64))
        parts: Any = get_seqlen_balanced_partitions(work.tolist(), k_partitions=ranks, equal_size=True)
        for rank, part in enumerate(parts):
            mine[rank] += [first + i for i in part]
    return mine
