"""How long GPUs take for an update and for sampling: one formula for the trainer's dry run and for the planner.

Arithmetic from a model's size and a number of tokens. Nothing here was measured; what is assumed stands in capitals.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Card:
    """A GPU: dense bf16 TFLOP/s, memory bandwidth in TB/s, memory in GiB as nvidia-smi shows it, where that stands."""

    tflops: float
    terabytes: float
    gib: float
    source: str


CARDS = {
    "A100": Card(312, 2.04, 80.0, "NVIDIA's datasheet, A100 SXM 80 GB"),
    "H20": Card(148, 4.0, 95.6, "NVIDIA's H20 as its resellers list it (148 TFLOP/s, 4.0 TB/s, 96 GB)"),
    "H100": Card(989, 3.35, 79.6, "NVIDIA's datasheet, H100 SXM"),
    "H200": Card(989, 4.8, 140.4, "NVIDIA's datasheet, H200 SXM"),
    "B200": Card(2250, 8.0, 179.1, "NVIDIA's datasheet, B200 SXM"),
}
EFFICIENCY = 0.4  # share of the TFLOP/s that training reaches
BANDWIDTH = 0.5  # share of the TB/s that decoding reaches
PROMPT = 150  # tokens of a problem with its instruction
SHARE = 1 / 8  # mean response as a share of the limit


def card_named(name: str) -> str | None:
    """The key of CARDS in a card's full name: "NVIDIA H20" -> "H20"."""
    found = [card for card in CARDS if re.search(rf"\b{card}\b", name)]
    return found[0] if found else None


@dataclass(frozen=True)
class Update:
    """The FLOPs of a rollout step but for its sampling.

    A token costs 6 P (8 P with gradient checkpointing), 2 P for the old log-probabilities, 2 P for a reference model,
    2 P where a selector takes its statistics in a pass of its own.

    Attributes:
        parameters: P, of the model.
        sequences: prompts x responses of a step; mean: tokens of a response.
    """

    parameters: int
    sequences: int
    mean: float
    checkpointing: bool = True
    reference: bool = False
    own_pass: bool = False

    @property
    def passes(self) -> int:
        """Multiples of P a token."""
        return (8 if self.checkpointing else 6) + 2 + 2 * self.reference + 2 * self.own_pass

    @property
    def tokens(self) -> float:
        return self.sequences * (PROMPT + self.mean)

    def seconds(self, card: Card, gpus: int) -> float:
        return self.passes * self.parameters * self.tokens / (gpus * card.tflops * 1e12 * EFFICIENCY)

    def words(self, card: str, gpus: int) -> str:
        """The sum as a sentence."""
        return (
            f"training {self.seconds(CARDS[card], gpus):.0f} s = {self.passes} x P x {self.tokens / 1e6:.1f}e6 tokens "
            f"at {EFFICIENCY:.0%} of {CARDS[card].tflops:g} TFLOP/s x {gpus} {card}"
        )


@dataclass(frozen=True)
class Sampling:
    """The bytes that decoding reads: the weights once a token of the sequences side by side, every token the cache of
    those before it.

    A replica's sequences wait in one queue: its places are full until the queue is empty, and then the longest response
    decides.

    Attributes:
        parameters, kv_bytes: of the model, and of a token in its cache.
        sequences: of all replicas together; mean, limit: tokens of a response.
        tensor_parallel: GPUs of a replica; width: bytes of a weight; places: sequences side by side in a replica.
    """

    parameters: int
    kv_bytes: int
    sequences: int
    mean: float
    limit: int
    tensor_parallel: int = 1
    width: int = 2
    places: int = 256

    def weight_reads(self, gpus: int) -> float:
        """How often a replica reads its weights."""
        each = self.sequences * self.tensor_parallel / gpus
        return self.limit + max(0.0, each / self.places - 1) * self.mean

    def seconds(self, card: Card, gpus: int) -> float:
        each = self.sequences * self.tensor_parallel / gpus
        weights = self.weight_reads(gpus) * self.width * self.parameters / self.tensor_parallel
        cache = each * self.mean * (PROMPT + self.mean / 2) * self.kv_bytes / self.tensor_parallel
        return (weights + cache) / (card.terabytes * 1e12 * BANDWIDTH)

    def words(self, card: str, gpus: int) -> str:
        """The sum as a sentence."""
        seconds = self.seconds(CARDS[card], gpus)
        return (
            f"generation {seconds:.0f} s = {self.sequences * self.mean / seconds:.0f} tokens/s: weights read "
            f"{self.weight_reads(gpus):.0f} times, and the cache, at {BANDWIDTH:.0%} of {CARDS[card].terabytes:g} TB/s"
        )
