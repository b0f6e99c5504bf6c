"""How long GPUs take for a step of training and for sampling: one formula for the trainer's dry run and the planner.

Arithmetic from a model's shape and the lengths of its responses; what is assumed has a name in capitals. One update and
its passes were measured on an H100 (results/records/bench/h100). The one published time of a training, JustRL's, is
without its mean length. tests/test_throughput.py holds the formula against both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from stapo_results.shapes import Shape


@dataclass(frozen=True)
class Card:
    """A GPU: dense bf16 TFLOP/s, memory bandwidth in TB/s, memory in GiB as nvidia-smi shows it."""

    tflops: float
    terabytes: float
    gib: float


CARDS = {
    "A100": Card(312, 2.04, 80.0),  # NVIDIA's datasheet, A100 SXM 80 GB
    "H20": Card(148, 4.0, 95.6),  # NVIDIA's H20 as its resellers list it (148 TFLOP/s, 4.0 TB/s, 96 GB)
    "H100": Card(989, 3.35, 79.6),  # NVIDIA's datasheet, H100 SXM
    "H200": Card(989, 4.8, 140.4),  # NVIDIA's datasheet, H200 SXM
    "B200": Card(2250, 8.0, 179.1),  # NVIDIA's datasheet, B200 SXM
}
EFFICIENCY = 0.5  # share of the TFLOP/s that matrix products and attention reach
BANDWIDTH = 0.65  # share of the TB/s that decoding and the elementwise kernels of training reach
LAUNCH = 3.5e-3  # seconds of a decoding step beside its reading: launches, scheduling, sampling
SEQUENCE = 20e-6  # seconds of a decoding step for each sequence in it: the host's work for it, assumed
STREAM = 0.9  # the same of kernels that only read and write, such as those of the logits: 3.0 of an H100's 3.35
LOGIT_BYTES = {"eager": (168, 109), "compiled": (8, 4)}
"""Bytes moved for each bf16 logit in the training pass with its gradient, and in a forward pass beside it (old
log-probabilities, reference, a selector's own). Eager: measured on an H100, in pieces of 2^26 logits. Compiled:
estimated, two readings forward; one reading and one writing backward."""
TOUCHES = 12  # times that an activation kept for the backward pass is read or written, recomputation included
FORWARD_TOUCHES = 3  # the same in a forward pass beside it: a quarter, as of the FLOPs
OTHER = 16.0  # seconds of a step: weight transfer, sleeping and waking, host, data, writing
UNCERTAINTY = (
    "measured: an update, within 10 %, on one card; not measured: decoding, transfer, several cards, lengths; expect "
    "half to twice this"
)
PROMPT = 150  # tokens of a problem with its instruction
SHARE = 1 / 8  # mean response as a share of the limit
TRUNCATED = 0.03  # share of the responses that reach the limit
VALIDATION = 30 * 32  # samples of a validation: AIME24, 32 a problem


def card_named(name: str) -> str | None:
    """The key of CARDS in a card's full name: "NVIDIA H20" -> "H20"."""
    cards = [card for card in CARDS if re.search(rf"\b{card}\b", name)]
    return cards[0] if cards else None


def multiplied(shape: Shape) -> int:
    """Parameters that a token is multiplied with: all but an input embedding that is not the head too."""
    return shape.layers * shape.layer_parameters + shape.vocab * shape.hidden


@dataclass(frozen=True)
class Lengths:
    """Responses in tokens: a share `truncated` at the limit, the others exponential (mean square: 2 x mean²)."""

    mean: float
    limit: int
    truncated: float = TRUNCATED

    @property
    def mean_square(self) -> float:
        rest = max(0.0, self.mean - self.truncated * self.limit) / (1 - self.truncated)
        return self.truncated * self.limit**2 + (1 - self.truncated) * 2 * rest**2


def lengths_of(limit: int) -> Lengths:
    """What is assumed where nothing is known but the limit."""
    return Lengths(SHARE * limit, limit)


@dataclass(frozen=True)
class Step:
    """A rollout step, with its part of the validations; of an evaluation the sampling alone.

    In the update a token costs 6 P (8 P with gradient checkpointing), 2 P for the old log-probabilities, 2 P for a
    reference model, 2 P where a selector takes its statistics in a pass of its own (of the share `own_pass` of the
    mini-batches); attention costs as many layers x width of the queries x square of the length. Beside FLOPs it moves
    the bytes of what is no matrix product.

    A decoding step reads the weights and the cache of its sequences, and costs `LAUNCH` and `SEQUENCE` beside. A
    replica's sequences wait in one queue: its places are full until the queue is empty, and then the longest response
    decides.

    Attributes:
        sequences: prompts x responses of a step, of all replicas together.
        tensor_parallel: GPUs of a replica; width: bytes of a number; places: sequences side by side in a replica.
        validation: samples of one pass, of the training's lengths; settings: of decoding, the paper's two.
        every: steps a validation, those before the training and after it among them (0 or less: none).
        logits: the form in which their statistics are computed.
    """

    shape: Shape
    sequences: int
    lengths: Lengths
    checkpointing: bool = True
    reference: bool = False
    own_pass: float = 0.0
    tensor_parallel: int = 1
    width: int = 2
    places: int = 256
    validation: int = VALIDATION
    settings: int = 2
    every: float = 5
    logits: Literal["eager", "compiled"] = "compiled"

    @property
    def forwards(self) -> float:
        """Forward passes beside the training pass."""
        return 1 + self.reference + self.own_pass

    @property
    def passes(self) -> float:
        """Multiples of P a token."""
        return (8 if self.checkpointing else 6) + 2 * self.forwards

    def on_one(self, card: Card, tokens: float, squares: float, *, gradient: bool) -> float:
        """Seconds of a pass over sequences on one card, forward alone or with the gradient.

        Args:
            tokens, squares: of all sequences together, their lengths and the squares of these.
        """
        s, multiples, touches = self.shape, 2, FORWARD_TOUCHES
        if gradient:
            multiples, touches = 8 if self.checkpointing else 6, TOUCHES
        products = multiples * (multiplied(s) * tokens + s.layers * s.q * squares) / (card.tflops * EFFICIENCY)
        logits = tokens * s.vocab * LOGIT_BYTES[self.logits][not gradient] / (card.terabytes * STREAM)
        touched = tokens * touches * s.layers * s.saved_bytes_per_token(2) / (card.terabytes * BANDWIDTH)
        return (products + logits + touched) / 1e12

    def update(self, card: Card, gpus: int) -> float:
        """Seconds of everything but sampling."""
        work = self.sequences * (PROMPT + self.lengths.mean), self.sequences * self.lengths.mean_square
        beside = self.forwards * self.on_one(card, *work, gradient=False)
        return (self.on_one(card, *work, gradient=True) + beside) / gpus

    def sampling(self, card: Card, gpus: int) -> float:
        """Seconds of decoding."""
        each, n = self.sequences * self.tensor_parallel / gpus, self.lengths
        steps = n.limit + max(0.0, each / self.places - 1) * n.mean
        weights = steps * self.width * multiplied(self.shape)
        read = each * (PROMPT * n.mean + n.mean_square / 2) * self.shape.kv_bytes_per_token(self.width)
        reading = (weights + read) / self.tensor_parallel / (card.terabytes * 1e12 * BANDWIDTH)
        return reading + steps * LAUNCH + each * n.mean * SEQUENCE

    def parts(self, card: Card, gpus: int) -> dict[str, float]:
        """Seconds of each part, in the order of the step."""
        validating = replace(self, sequences=self.validation).sampling(card, gpus) * self.settings
        return {
            "generation": self.sampling(card, gpus),
            "update and log-probabilities": self.update(card, gpus),
            "other": OTHER,
            "validation": validating / self.every if self.every > 0 else 0.0,
        }

    def seconds(self, card: Card, gpus: int) -> float:
        return sum(self.parts(card, gpus).values())

    def words(self, card: str, gpus: int) -> str:
        """The sum as a sentence."""
        n = self.lengths
        parts = " + ".join(f"{name} {value:.0f} s" for name, value in self.parts(CARDS[card], gpus).items())
        return (
            f"{parts}, at {self.passes} x P a token, mean response {n.mean:,.0f}, {n.truncated:.0%} at "
            f"{n.limit:,}; {UNCERTAINTY}"
        )
