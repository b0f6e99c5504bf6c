"""S2T without its condition on the advantage: rare tokens of wrong responses are silenced by the same rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from stapo_training.selection.selectors import Selection, TokenStats, alone, quantile


def both_signs(stats: TokenStats, *, tau_p: float, q: float, pool: Callable[[Any], Any] = alone) -> Selection:
    """Silence the share `q` of lowest entropy among the rare tokens of right and of wrong responses."""
    rare_N = stats.response_N & (stats.logprob_N < math.log(tau_p))
    threshold = quantile(pool(stats.entropy_N[rare_N]), q)
    silenced_N = rare_N & (stats.entropy_N.double() < threshold)
    return Selection(stats.response_N & ~silenced_N, rare_N, threshold)
