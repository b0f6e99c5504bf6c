"""Sizes by name: the miniature's (0.38 million parameters, one for each world of the testbed), and real models."""

from __future__ import annotations

from typing import NamedTuple

MINI = "mini"


class WeightsFile(NamedTuple):
    """A GGUF file of the hub: `file` of `repo` at the commit `revision`; `size` in bytes."""

    repo: str
    revision: str
    file: str
    size: int
    sha256: str

    @property
    def title(self) -> str:
        return self.repo.partition("/")[2].removesuffix("-GGUF")


REAL = {
    "qwen2.5-coder-0.5b": WeightsFile(
        "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        "ebb2015119c907b064c512bf053e945850b5875f",
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        491_400_064,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    "qwen2.5-coder-1.5b": WeightsFile(
        "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
        "f86cb2c1fa58255f8052cc32aeede1b7482d4361",
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        1_117_320_768,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
}
"""Real models that two cores bear: `stapo-train fetch` brings them."""


def is_miniature_size(size: str) -> bool:
    """ "mini" is that of the world `paper`; "mini-mixed", "mini-inverted" and so on are those of the others."""
    return size == MINI or size.startswith(f"{MINI}-")


def of_world(world: str) -> str:
    return MINI if world == "paper" else f"{MINI}-{world}"
