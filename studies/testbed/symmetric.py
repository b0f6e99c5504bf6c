"""S2T on both signs: STAPO's mask, and in wrong responses the mirrored rule with a quantile of its own."""

from __future__ import annotations

from stapo_training.selection.selectors import Pool, Selection, alone, silence_spurious, silence_spurious_wrong
from stapo_training.selection.token_stats import TokenStats


def both_signs(stats: TokenStats, *, tau_p: float, q: float, pool: Pool = alone) -> Selection:
    """The threshold is that of right responses."""
    right, wrong = (rule(stats, tau_p=tau_p, q=q, pool=pool) for rule in (silence_spurious, silence_spurious_wrong))
    return Selection(right.keep_N & wrong.keep_N, right.candidate_N | wrong.candidate_N, right.threshold)
