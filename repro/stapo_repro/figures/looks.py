"""How a method looks in every figure: its colour, its dashes and its marker, for print in grey. No drawing here."""

from __future__ import annotations

from dataclasses import dataclass

from stapo_repro import labels

Dashes = tuple[float, ...]

_DASHES: dict[str, Dashes] = {
    labels.BASE: (1, 1),
    "grpo": (4, 1.5),
    "entropy20": (1, 1.2),
    "justrl": (6, 1.5, 1, 1.5),
    "stapo": (),
    "justrl-fullmask": (4, 1.5),
    "stapo-high-entropy": (1, 1.2),
    "stapo-random": (3, 1, 1, 1, 1, 1),
    "grpo-nokl": (8, 2),
    "dapo": (5, 1),
    "gspo": (2, 1),
    "sapo": (8, 2, 2, 2),
    "cispo": (5, 2, 1, 2, 1, 2),
    "clip_cov": (3, 3),
    "kl_cov": (1, 3),
}
_MARKERS = {
    labels.BASE: "P", "grpo": "s", "entropy20": "^", "justrl": "D", "stapo": "o", "justrl-fullmask": "s",
    "stapo-high-entropy": "^", "stapo-random": "v", "grpo-nokl": "p", "dapo": "h", "gspo": "<", "sapo": ">",
    "cispo": "d", "clip_cov": "8", "kl_cov": "H",
}  # fmt: skip
OTHER = "#777777"


@dataclass(frozen=True)
class Look:
    colour: str
    dashes: Dashes
    marker: str


def look(method: str) -> Look:
    """The method's look; one that this project does not know is grey."""
    return Look(labels.COLOURS.get(method, OTHER), _DASHES.get(method, (2, 2)), _MARKERS.get(method, "X"))
