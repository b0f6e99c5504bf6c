"""Where S2T (Silencing Spurious Tokens) is decided: statistics -> mask, for one mini-batch before it is trained.

Algorithm 1 of STAPO (2602.15620) selects over a mini-batch before its gradient, so its statistics come first: from the
old-log-prob pass where that is the current policy's, else from a forward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from stapo_results.errors import RunFailed
from stapo_training.methods import SelectorConfig
from stapo_training.selection.selectors import INFINITY, Selection
from stapo_training.selection.token_stats import TokenStats
from stapo_training.verl_ext.mini_batch import RankTokens, gather

Pass = Callable[[], tuple[torch.Tensor, torch.Tensor]]
"""A forward pass: log-probabilities and entropies (N,) of the current policy."""


class MiniBatchSelection:
    """Selects among the tokens of one mini-batch, over all ranks. `where` names step and mini-batch in errors."""

    def __init__(self, tokens: RankTokens, selector: SelectorConfig, group: Any, where: str):
        self.tokens, self.selector, self.group = tokens, selector, group
        self.where = f"{where} on rank {dist.get_rank(group)}"

    def select(self, statistics_pass: Pass, *, old_is_current: bool) -> tuple[TokenStats, Selection, dict[str, float]]:
        """The statistics that the selector judges by, its decision, and what is logged of it.

        Raises:
            RunFailed: statistics are not finite or not there, or no token is kept.
        """
        old, policy = self.tokens.old, self.selector.policy
        if policy == "old" and old is None:
            raise RunFailed(
                "selector.policy=old needs the old policy's entropies, and the batch has none",
                expected="the field entropy of veRL's old-log-prob pass",
                next_step="switch algorithm.rollout_correction.bypass_mode off, or set selector.policy=current",
            )
        stats = (
            old if old is not None and (policy == "old" or old_is_current) else self.tokens.stats(*statistics_pass())
        )
        self._check(stats)
        chosen = self._selection(stats)
        return stats, chosen, self._counts(stats, chosen)

    def _selection(self, stats: TokenStats) -> Selection:
        """Over all ranks, or, with scope `response`, of each response by itself; its threshold then is their mean."""
        if self.selector.scope != "response":
            return self.selector.select(stats, pool=lambda v: gather(v, self.group))
        keep_N, candidate_N = torch.zeros_like(stats.response_N), torch.zeros_like(stats.response_N)
        thresholds = []
        for part in torch.arange(len(keep_N), device=keep_N.device).split(self.tokens.offsets.diff().tolist()):
            response = self.selector.select(stats.take(part))
            keep_N[part], candidate_N[part] = response.keep_N, response.candidate_N
            thresholds.append(response.threshold)
        finite = torch.tensor([t for t in thresholds if abs(t) != INFINITY], dtype=torch.float64, device=keep_N.device)
        every_P = gather(finite, self.group)
        return Selection(keep_N, candidate_N, float(every_P.mean()) if len(every_P) else INFINITY)

    def _total(self, values_N: torch.Tensor) -> float:
        """The sum over all tokens of all ranks."""
        total = values_N.sum().double()
        dist.all_reduce(total, group=self.group)
        return float(total)

    def _check(self, stats: TokenStats) -> None:
        """Raise on all ranks when one has a value that is not finite: alone it would leave the others waiting."""
        problem = stats.problem(self.where)
        if self._total(torch.tensor([problem is not None], device=stats.logprob_N.device)):
            raise problem or RunFailed(
                f"{self.where}: another rank has statistics that are not finite", next_step="see that rank's error"
            )

    def _counts(self, stats: TokenStats, chosen: Selection) -> dict[str, float]:
        """Sums over ranks. A threshold that is not finite (no candidate, q = 0 or 1) is left out of the means."""
        tokens, kept = self._total(stats.response_N), self._total(chosen.keep_N)
        if not kept:
            raise RunFailed(
                f"{self.where}: no token is kept, so that the loss has nothing to divide by",
                found=f"0 of {tokens:.0f} response tokens",
                expected="at least one",
                next_step="lower selector.q or selector.tau_p",
            )
        logged = {"tokens": tokens, "kept_tokens": kept, "silenced_tokens": tokens - kept}
        logged["candidate_tokens"] = self._total(chosen.candidate_N)
        if abs(chosen.threshold) != INFINITY:
            logged["threshold"] = chosen.threshold
        logged["current_entropy"] = self._total(stats.entropy_N.double()[stats.response_N]) / tokens
        return logged
