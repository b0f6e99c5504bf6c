"""A veRL mini-batch as a selector needs it: its masks, numbers gathered over ranks, statistics recorded in passing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from stapo_results.errors import RunFailed
from stapo_training.methods import SelectorConfig
from stapo_training.selection.selectors import INFINITY, Selection, rare_in_correct
from stapo_training.selection.token_stats import TokenStats, spans, token_keys
from stapo_training.token_log.writer import TokenLogConfig
from stapo_training.verl_ext.logits import PackedLogits

Batch = Any
"""A TensorDict of veRL's: jagged tensors, one row a sequence, and settings. Its own type says nothing of either."""
Outputs = dict[str, Any]
"""What veRL's training pass returns: `loss` and `metrics`, lists over micro-batches."""
Decide = Callable[[TokenStats, torch.Tensor], torch.Tensor]
"""(the statistics of a micro-batch's M tokens, their index in the mini-batch) -> the tokens to keep, (M,)."""
ROW = "selector_row"
"""The key under which micro-batches carry their sequences' rows in the mini-batch."""
TOP = 5
"""Most probable tokens that a row of the token log names."""


def gather(values_M: torch.Tensor, group: Any) -> torch.Tensor:
    """The concatenation over the group's ranks, in rank order, of vectors of different lengths."""
    ranks = dist.get_world_size(group)
    if ranks == 1:
        return values_M
    length = torch.tensor([values_M.numel()], device=values_M.device)
    lengths = [torch.zeros_like(length) for _ in range(ranks)]
    dist.all_gather(lengths, length, group=group)
    longest = max(1, *(int(n) for n in lengths))
    padded = values_M.new_zeros(longest)
    padded[: values_M.numel()] = values_M
    parts = [torch.empty_like(padded) for _ in range(ranks)]
    dist.all_gather(parts, padded, group=group)
    return torch.cat([p[: int(n)] for p, n in zip(parts, lengths, strict=True)])


def set_values(data: Batch, field: str, values_N: torch.Tensor) -> None:
    """Replace a jagged field by flat values over its tokens."""
    old = data[field]
    # not nested_tensor_from_jagged: without known lengths, padding it pads to the sum of the lengths
    rows = values_N.to(old.dtype).to(old.device).split(old.offsets().diff().tolist())
    data[field] = torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


class Recorder:
    """A mini-batch's N response tokens: what the batch says of them, and the current policy's statistics.

    The statistics are filled micro-batch by micro-batch, as these pass through the model (`record`), or at once
    (`fill`). With a token log also what its rows and counts need.

    Attributes:
        judged: the statistics by which the selector judges, where they are known before the training pass; None: those
            that pass.
        filled: whether the statistics are complete.
        collision_N: with a log, the sums of squared probabilities. top_id_NK, top_logprob_NK: the most probable tokens
            where a row is written.
    """

    def __init__(self, data: Batch, selector: SelectorConfig, log: TokenLogConfig | None, device: Any):
        mask = data["response_mask"]
        self.selector, self.log = selector, log
        self.offsets = mask.offsets().to(device)
        self.response_N = mask.values().bool().to(device)
        self.advantage_N = data["advantages"].values().float().to(device)
        ids = data["input_ids"]
        self.key_N: torch.Tensor | None = None
        if selector.needs_keys:
            self.key_N = token_keys(ids.values(), ids.offsets(), mask.offsets(), selector.seed).to(device)
        self.logprob_N = torch.full_like(self.advantage_N, float("nan"))  # TokenStats.problem finds an unseen token
        self.entropy_N = torch.zeros_like(self.advantage_N)
        self.filled = False
        self.judged: TokenStats | None = None
        if log is not None:
            watch = torch.tensor(log.watch, dtype=torch.long, device=device)
            self.watched_N = torch.isin(data["responses"].values().to(device), watch)
            count = len(self.advantage_N)
            self.collision_N = torch.full((count,), float("nan"), device=device)
            self.top_id_NK = torch.zeros(count, TOP, dtype=torch.long, device=device)
            self.top_logprob_NK = torch.full((count, TOP), float("nan"), device=device)

    def index(self, rows_B: torch.Tensor) -> torch.Tensor:
        """The places among the N tokens of the response tokens of some rows."""
        return spans(self.offsets[rows_B], self.offsets[rows_B + 1] - self.offsets[rows_B])

    def stats(self) -> TokenStats:
        """The current policy's statistics so far; the same memory."""
        return TokenStats(self.logprob_N, self.entropy_N, self.advantage_N, self.response_N, self.key_N)

    def old_stats(self, data: Batch) -> TokenStats | None:
        """The old policy's, as the old-log-prob pass left them; None where it left no entropy.

        Raises:
            RunFailed: it left none, and the selector judges by them.
        """
        if data.get("entropy") is None:
            if self.selector.policy == "old" and self.selector.selects:
                raise RunFailed(
                    "selector.policy=old needs the old policy's entropies, and the batch has none",
                    found=sorted(map(str, data.keys())),
                    expected="the field entropy of veRL's old-log-prob pass",
                    next_step="switch algorithm.rollout_correction.bypass_mode off, or set selector.policy=current",
                )
            return None
        logprob_N, entropy_N = (data[k].values().float().to(self.offsets.device) for k in ("old_log_probs", "entropy"))
        return TokenStats(logprob_N, entropy_N, self.advantage_N, self.response_N, self.key_N)

    def fill(self, logprob_N: torch.Tensor, entropy_N: torch.Tensor) -> None:
        """Set the statistics of all tokens."""
        self.logprob_N[:], self.entropy_N[:] = logprob_N.float(), entropy_N.float()
        self.filled = True

    def record(self, index_M: torch.Tensor, logprob_M: torch.Tensor, logits: PackedLogits) -> TokenStats:
        """Record the M tokens of a micro-batch that passes: log-probabilities, entropies, and what is to be
        logged.

        Returns:
            Their statistics.
        """
        self.logprob_N[index_M] = logprob_M
        every_M = self.response_N[index_M]
        if self.log is None:
            self.entropy_N[index_M[every_M]] = logits.entropy(every_M)
            return self.stats().take(index_M)
        entropy, collision = logits.entropy_and_collision(every_M)
        self.entropy_N[index_M[every_M]], self.collision_N[index_M[every_M]] = entropy, collision
        found = self.stats().take(index_M)
        wanted_M = self._logged(found if self.judged is None else self.judged.take(index_M), index_M)
        if wanted_M.any():
            at = index_M[wanted_M]
            self.top_id_NK[at], self.top_logprob_NK[at] = logits.most_probable(wanted_M, TOP)
        return found

    def _logged(self, judged: TokenStats, index_M: torch.Tensor) -> torch.Tensor:
        """The tokens of a micro-batch that get a row in the token log."""
        assert self.log is not None
        if self.log.mode == "full":
            return judged.response_N
        watched_M = self.watched_N[index_M] & judged.response_N & (judged.advantage_N > 0)
        return rare_in_correct(judged, self.selector.tau_p) | watched_M


class SelectionParts:
    """The selections of parts of a mini-batch's N tokens, put together."""

    def __init__(self, response_N: torch.Tensor):
        self._keep_N, self._candidate_N = torch.zeros_like(response_N), torch.zeros_like(response_N)
        self._thresholds: list[float] = []

    def add(self, index_M: torch.Tensor, own: Selection) -> None:
        """Take the selection of the tokens at some places."""
        self._keep_N[index_M], self._candidate_N[index_M] = own.keep_N, own.candidate_N
        self._thresholds.append(own.threshold)

    def joined(self, group: Any) -> Selection:
        """All of them as one selection; its threshold is the mean of theirs over all ranks."""
        finite = [t for t in self._thresholds if abs(t) != INFINITY]
        all_P = gather(torch.tensor(finite, dtype=torch.float64, device=self._keep_N.device), group)
        return Selection(self._keep_N, self._candidate_N, float(all_P.mean()) if len(all_P) else INFINITY)
