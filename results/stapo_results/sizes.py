"""Sizes by name: the miniature's (0.38 million parameters, one for each world of the testbed)."""

from __future__ import annotations

MINI = "mini"


def is_miniature_size(size: str) -> bool:
    """ "mini" is that of the world `paper`; "mini-mixed", "mini-inverted" and so on are those of the others."""
    return size == MINI or size.startswith(f"{MINI}-")


def of_world(world: str) -> str:
    return MINI if world == "paper" else f"{MINI}-{world}"
