"""The distributions, targets and weights that the statements are checked on: random ones from a seed, and extremes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

VOCABULARIES = (2, 3, 5, 32, 1_000, 32_000, 151_936)
"""The last is the output width of the paper's models."""
RATIOS = (0.5, 1.0, 1.25, 1.5)
"""rho: below, inside and above the clip range of 0.8 to 1.28."""
ADVANTAGES = (2.47, -0.94, 0.35, -2.47, 0.0)
"""Values of the paper's appendix (eight responses), and 0."""
_ZERO = -1e5
"""A logit whose probability is 0 in float64."""

Generator = torch.Generator


def _gaussian(vocabulary: int, g: Generator, *, spread: float) -> torch.Tensor:
    return spread * torch.randn(vocabulary, generator=g, dtype=torch.float64)


def _extreme(vocabulary: int, g: Generator) -> torch.Tensor:
    return 2e4 * torch.rand(vocabulary, generator=g, dtype=torch.float64) - 1e4


def _spike(vocabulary: int, g: Generator, *, lead: float) -> torch.Tensor:
    """One logit above a noisy floor, such that the rest together has about e^-lead of its probability."""
    logits = _gaussian(vocabulary, g, spread=1.0) - torch.tensor(float(vocabulary)).log()
    logits[int(torch.randint(vocabulary, (1,), generator=g))] = lead
    return logits


def _two_spikes(vocabulary: int, g: Generator) -> torch.Tensor:
    logits = _spike(vocabulary, g, lead=3.0)
    logits[(int(logits.argmax()) + 1) % vocabulary] = 2.5
    return logits


def _heavy_tail(vocabulary: int, g: Generator) -> torch.Tensor:
    """Zipf's law: probabilities proportional to 1 / rank."""
    return -torch.arange(1, vocabulary + 1, dtype=torch.float64).log()


def _few_alive(vocabulary: int, g: Generator) -> torch.Tensor:
    """All but a few tokens have probability 0, as after top-k."""
    logits = torch.full((vocabulary,), _ZERO, dtype=torch.float64)
    alive = max(2, min(20, vocabulary // 2))
    logits[torch.randperm(vocabulary, generator=g)[:alive]] = _gaussian(alive, g, spread=1.0)
    return logits


def _uniform(vocabulary: int, g: Generator) -> torch.Tensor:
    return torch.zeros(vocabulary, dtype=torch.float64)


FAMILIES: dict[str, Callable[[int, Generator], torch.Tensor]] = {
    "uniform": _uniform,
    "almost uniform": partial(_gaussian, spread=0.01),
    "normal logits, 1": partial(_gaussian, spread=1.0),
    "normal logits, 3": partial(_gaussian, spread=3.0),
    "normal logits, 30": partial(_gaussian, spread=30.0),
    "logits within 1e4": _extreme,
    "heavy tail": _heavy_tail,
    "two spikes": _two_spikes,
    "spike over a wide floor": partial(_spike, lead=0.5),
    "spike": partial(_spike, lead=6.0),
    "p -> 1": partial(_spike, lead=20.0),
    "p -> 1, below rounding": partial(_spike, lead=60.0),
    "one-hot": partial(_spike, lead=1e4),
    "few alive": _few_alive,
}
TARGETS = ("most probable", "second", "median", "rarest", "sampled")


@dataclass(frozen=True)
class Batch:
    """N cases of one distribution: each row has a target token, a ratio rho and an advantage; logits (N, V) float64."""

    family: str
    logits_NV: torch.Tensor
    target_N: torch.Tensor
    target_names: tuple[str, ...]
    ratio_N: torch.Tensor
    advantage_N: torch.Tensor

    @property
    def vocabulary(self) -> int:
        return self.logits_NV.shape[-1]

    def whole(self, row: int = 0) -> str:
        """The distribution in words."""
        return f"{self.family}, V = {self.vocabulary:,}"

    def where(self, row: int) -> str:
        """The case in words."""
        return f"{self.whole()}, {self.target_names[row]} token"


def _targets(logits_V: torch.Tensor, g: Generator) -> dict[str, int]:
    order = logits_V.argsort(descending=True, stable=True)
    order = order[: int((logits_V > _ZERO).sum())]  # a token of probability 0 is never sampled
    sampled = int(torch.multinomial(torch.softmax(logits_V, -1), 1, generator=g))
    places = (0, 1, len(order) // 2, -1)
    return dict(zip(TARGETS, [*(int(order[i]) for i in places), sampled], strict=True))


def batches(vocabulary: int, seed: int, draws: int) -> Iterator[Batch]:
    """Every family at one vocabulary size, `draws` times: each target with two pairs of ratio and advantage.

    The pairs go round, so that all of them occur; the same arguments give the same numbers.
    """
    g = Generator().manual_seed(seed * 1_000_003 + vocabulary)
    pairs = [(r, a) for a in ADVANTAGES for r in RATIOS]
    turn = 0
    for _ in range(draws):
        for family, make in FAMILIES.items():
            logits_V = make(vocabulary, g)
            found = _targets(logits_V, g)
            rows = [(name, k) for name, k in found.items() for _ in range(2)]
            chosen = [pairs[(turn + i) % len(pairs)] for i in range(len(rows))]
            turn += len(rows) + 1
            yield Batch(
                family,
                logits_V.expand(len(rows), -1),
                torch.tensor([k for _, k in rows]),
                tuple(name for name, _ in rows),
                torch.tensor([r for r, _ in chosen], dtype=torch.float64),
                torch.tensor([a for _, a in chosen], dtype=torch.float64),
            )
