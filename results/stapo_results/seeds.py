"""Seeds by hashing, so that every sample has its own and can be made again alone."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: str | int) -> int:
    """A 63-bit seed from the parts that identify one random draw.

    Args:
        parts: for a sample: run seed, benchmark or training step, problem id, setting, sample index.
            The type is part of the identity: ``1`` and ``"1"`` give different seeds.

    Returns:
        An integer in [0, 2**63), the same on every machine and Python version.
    """
    text = "\x1f".join(f"{type(p).__name__}:{p}" for p in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
