"""Labels of runs with another tau_p or q, as the trainer writes them: `stapo-tau0.0002`, `stapo-random-q0.5`."""

from __future__ import annotations

import re
from dataclasses import dataclass

TAU_P, Q = 0.002, 0.75  # the paper's values (Section "Experiments", table of hyperparameters)
_NUMBER = r"\d+(?:\.\d+)?(?:e-?\d+)?"
_LABEL = re.compile(rf"(stapo|stapo-high-entropy|stapo-random)(?:-tau({_NUMBER}))?(?:-q({_NUMBER}))?")


@dataclass(frozen=True)
class Variant:
    """A selector with its two values: which of the rare tokens are silenced, how rare they are, how many of them."""

    strategy: str
    tau_p: float
    q: float


def variant(label: str) -> Variant | None:
    """What a label that names tau_p or q stands for; None for any other label, the plain methods among them."""
    found = _LABEL.fullmatch(label)
    if not found or not (found[2] or found[3]):
        return None
    return Variant(found[1], float(found[2] or TAU_P), float(found[3] or Q))
