"""Single rare tokens with their context: the case tables of the paper's appendix. Pure text, escaped nowhere yet."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stapo_repro.tokens.logged_run import LoggedRun
from stapo_repro.tokens.vocabulary import Vocabulary

TOP = 5
_SHARE = 2 / 3  # of the cases that are shown: silenced ones


@dataclass(frozen=True)
class Case:
    """One token.

    Attributes:
        id: names the row of the log: step, mini-batch, sample, position, prompt.
        part: what was done with it, such as "silenced".
        before, after: the text around it, the prompt included.
        top: the most likely tokens with their probabilities under the policy at the update.
    """

    id: str
    part: str
    step: int
    prompt_id: str
    sample: int
    position: int
    token_id: int
    token: str
    before: str
    after: str
    probability: float
    advantage: float
    entropy: float
    tau_h: float | None
    top: tuple[tuple[str, float], ...]


def percent(share: float, digits: int = 4) -> str:
    """0.0115 %; what that form would show as zero, in powers of ten."""
    if share and 100 * share < 0.5 * 10.0**-digits:
        return f"{100 * share:.1e} %"
    return f"{100 * share:.{digits}f} %"


def case(vocabulary: Vocabulary, row: Mapping[str, Any], part: str) -> Case:
    """A row of the log as text."""
    top = zip(row["top_tokens"][:TOP], row["top_logprobs"][:TOP], strict=True)
    return Case(
        ":".join(str(row[c]) for c in ("step", "mini_batch", "sample", "position", "prompt_id")),
        part,
        row["step"],
        row["prompt_id"],
        row["sample"],
        row["position"],
        row["token"],
        vocabulary.one(row["token"]),
        vocabulary.several(row["before"]),
        vocabulary.several(row["after"]),
        math.exp(row["logprob"]),
        row["advantage"],
        row["entropy"],
        row["tau_h"],
        tuple((vocabulary.one(t), math.exp(p)) for t, p in top),
    )


def by_probability(run: LoggedRun, which: np.ndarray) -> np.ndarray:
    """The indices of these rows, the least probable token first."""
    index, r = np.flatnonzero(which), run.rows
    return index[np.lexsort((r["position"][index], r["sample"][index], r["step"][index], r["logprob"][index]))]


def choose(run: LoggedRun, n: int) -> list[Case]:
    """The n cases that are shown: two thirds silenced, then kept ones, each from the lowest probability up.

    Where one part has too few, the other fills up.
    """
    silenced, kept = by_probability(run, run.silenced), by_probability(run, run.kept)
    many = min(len(silenced), max(math.ceil(_SHARE * n), n - len(kept)))
    parts = zip(run.part_names, (silenced[:many], kept[: n - many]), strict=True)
    return [case(run.vocabulary, row, name) for name, index in parts for row in run.records(index)]
