"""Sizes by name: the miniature's (0.38 million parameters, one for each world of the testbed) and the small model's."""

from __future__ import annotations

MINI = "mini"
SMALL = "smollm2-135m"
"""A pretrained model of 135 million parameters (`stapo-train fetch`)."""


def is_miniature_size(size: str) -> bool:
    """ "mini" is that of the world `paper`; "mini-mixed", "mini-inverted" and so on are those of the others."""
    return size == MINI or size.startswith(f"{MINI}-")


def of_world(world: str) -> str:
    return MINI if world == "paper" else f"{MINI}-{world}"


def has_base(size: str) -> bool:
    """Whether `stapo-train base` makes this size's model and data; those of the others come from elsewhere."""
    return size == SMALL or is_miniature_size(size)
