"""Single rare tokens with their context: the case tables of the paper's appendix. Pure text, escaped nowhere yet."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stapo_repro.tokens.material import Material, taken_rows
from stapo_repro.tokens.texts import marked

TOP = 5
KEY_COLUMNS = ("step", "mini_batch", "sample", "position", "prompt_id")
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

    @staticmethod
    def key(row: Mapping[str, Any]) -> str:
        """The id of a row of the log; it begins with a digit, whatever the prompt is called."""
        return ":".join(str(row[c]) for c in KEY_COLUMNS)

    @property
    def top_text(self) -> str:
        return " · ".join(f"{marked(text)} {percent(p, 2)}" for text, p in self.top)


def percent(share: float, digits: int = 4) -> str:
    """0.0115 %; what that form would show as zero, in powers of ten."""
    if share and 100 * share < 0.5 * 10.0**-digits:
        return f"{100 * share:.1e} %"
    return f"{100 * share:.{digits}f} %"


def case(material: Material, row: Mapping[str, Any], part: str) -> Case:
    """A row of the log as text."""
    texts = material.texts
    top = zip(row["top_tokens"][:TOP], row["top_logprobs"][:TOP], strict=True)
    return Case(
        Case.key(row),
        part,
        row["step"],
        row["prompt_id"],
        row["sample"],
        row["position"],
        row["token"],
        texts.one(row["token"]),
        texts.run(row["before"]),
        texts.run(row["after"]),
        math.exp(row["logprob"]),
        row["advantage"],
        row["entropy"],
        row["tau_h"],
        tuple((texts.one(t), math.exp(p)) for t, p in top),
    )


def choose(material: Material, n: int) -> list[Case]:
    """The n cases that are shown: two thirds silenced, then kept ones, each from the lowest probability up.

    Where one part has too few, the other fills up.
    """
    parts = []
    for name, which in zip(material.words, (material.taken, material.kept), strict=True):
        index = np.flatnonzero(which)
        r = material.rows
        order = np.lexsort((r["position"][index], r["sample"][index], r["step"][index], r["logprob"][index]))
        parts.append((name, index[order]))
    (first, silenced), (second, kept) = parts
    many = min(len(silenced), max(math.ceil(_SHARE * n), n - len(kept)))
    found = [case(material, row, first) for row in taken_rows(material, silenced[:many])]
    return found + [case(material, row, second) for row in taken_rows(material, kept[: n - many])]
