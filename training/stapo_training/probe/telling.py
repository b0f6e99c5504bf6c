"""What a probe says: a line a minute while it works, and what it found."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from stapo_results import progress, token_log

_EVERY = 60.0


class Lines:
    """How far a probe is, for the driver at every batch and for people once a minute.

    Args:
        total: responses of the file; before: those that an earlier call has scored.
    """

    def __init__(self, total: int, before: int, say: Callable[[str], None]):
        self.total, self.done, self.new, self.say = total, before, 0, say
        self.began = self.said = time.monotonic()

    def tell(self, responses: int) -> None:
        """Of the mini-batch in hand so many are finished."""
        done, new, now = self.done + responses, self.new + responses, time.monotonic()
        progress.report("probe", done, self.total)
        if now - self.said >= _EVERY and new:
            left = (now - self.began) / new * (self.total - done)
            self.say(f"{done:,} of {self.total:,} responses, about {max(1, round(left / 60))} min left")
            self.said = now

    def finished(self, responses: int) -> None:
        """A mini-batch of so many is on disk."""
        self.done += responses
        self.new += responses
        progress.report("probe", self.done, self.total)


def summary(out: Path) -> str:
    """The log in a few lines, and the next command."""
    log = token_log.read(out)
    assert log is not None
    h = {name: log.histogram[name].to_numpy() for name in ("sign", "rare", "silenced", "tokens")}
    tokens = h["tokens"]
    counts = {
        "response tokens": tokens.sum(),
        "in responses with a positive advantage": tokens[h["sign"] > 0].sum(),
        f"of these with p < {log.facts.tau_p:g} (rare)": tokens[h["rare"]].sum(),
        "of these silenced by S2T": tokens[h["silenced"]].sum(),
    }
    width = max(len(f"{n:,}") for n in counts.values())
    lines = [f"{n:>{width},}  {name}" for name, n in counts.items()]
    if log.facts.left_out:
        lines.append(f"{log.facts.left_out:,} rows were left out by --most-rows; the counts have them")
    if not np.any(h["sign"] > 0):
        lines.append("no response has a positive advantage, so that no token is rare (docs/tokens.md, Advantages)")
    return "\n".join([*lines, f"next: stapo-repro tokens {out}"])
