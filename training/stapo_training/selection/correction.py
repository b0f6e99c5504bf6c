"""Which tokens a guessed mask put on the wrong side, and how little of their sequences has to be run again.

A causal model's token depends on nothing behind it, so a sequence is cut behind its last such token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Correction:
    """R sequences to run again.

    row_R: their rows. tokens_R: how many of their response tokens (from the first) are run. added_N, removed_N: bool
    over all N response tokens; silenced by the guess though they are kept, and the other way round.
    """

    row_R: torch.Tensor
    tokens_R: torch.Tensor
    added_N: torch.Tensor
    removed_N: torch.Tensor


def correction(guessed_keep_N: torch.Tensor, keep_N: torch.Tensor, offsets: torch.Tensor) -> Correction:
    """What turns the gradient of the guessed mask into that of the true one.

    Args:
        guessed_keep_N, keep_N: the two masks, bool, over the response tokens of B sequences one after the other.
        offsets: (B + 1,), where each sequence's response begins.

    Returns:
        The sequences with a wrong token, longest part first (so that micro-batches hold parts of similar length).
    """
    added_N, removed_N = keep_N & ~guessed_keep_N, guessed_keep_N & ~keep_N
    wrong = torch.nonzero(added_N | removed_N).squeeze(-1)
    row_of_wrong = torch.searchsorted(offsets, wrong, right=True) - 1
    tokens_B = torch.zeros(len(offsets) - 1, dtype=torch.long, device=offsets.device)
    tokens_B.scatter_reduce_(0, row_of_wrong, wrong - offsets[row_of_wrong] + 1, "amax")
    rows = torch.nonzero(tokens_B).squeeze(-1)
    rows = rows[tokens_B[rows].argsort(descending=True, stable=True)]
    return Correction(rows, tokens_B[rows], added_N, removed_N)
