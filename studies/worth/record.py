"""The record of a token's worth: what the page reads, without torch."""

from __future__ import annotations

from typing import Literal, get_args

from stapo_results.schema import Record

Kind = Literal["silenced", "kept", "ordinary, low entropy", "ordinary, high entropy"]
KINDS: tuple[Kind, ...] = get_args(Kind)
WORTH = "worth.jsonl"


class TokenWorth(Record):
    """One token of a right response.

    Attributes:
        kind: silenced by S2T, rare and kept, or not rare, with an entropy below or above the mini-batch's threshold.
        planted: "useful" or "spurious" in a world of the testbed.
        of: continuations with the token, and as many without it; how many of each were right, and how many were cut.
    """

    prompt_id: str
    sample: int
    position: int
    kind: Kind
    planted: Literal["", "useful", "spurious"] = ""
    probability: float
    entropy: float
    advantage: float
    of: int
    right_with: int
    right_without: int
    cut_with: int
    cut_without: int
