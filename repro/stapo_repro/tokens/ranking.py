"""Which tokens are silenced and kept, by how often."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stapo_repro.tokens.material import Material


@dataclass(frozen=True)
class Ranked:
    """The rare tokens of one part.

    Attributes:
        part: what the part is called, such as "silenced".
        counts: text -> occurrences, most frequent first; equal ones by text. Ids with one text count together.
    """

    part: str
    counts: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.counts.values())


def ranked(material: Material) -> tuple[Ranked, Ranked]:
    """(silenced, kept) rare tokens of the logged rows."""
    first, second = material.words
    return Ranked(first, _counts(material, material.taken)), Ranked(second, _counts(material, material.kept))


def _counts(material: Material, which: np.ndarray) -> dict[str, int]:
    ids, counts = np.unique(material.rows["token"][which], return_counts=True)
    by_text: dict[str, int] = {}
    for token, count in zip(ids.tolist(), counts.tolist(), strict=True):
        text = material.texts.one(token)
        by_text[text] = by_text.get(text, 0) + count
    return dict(sorted(by_text.items(), key=lambda item: (-item[1], item[0])))
