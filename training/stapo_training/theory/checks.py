"""Every statement against the numbers of every case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from stapo_training.selection.objectives import clipped_surrogate
from stapo_training.theory import formulas
from stapo_training.theory.cases import Batch
from stapo_training.theory.formulas import entropy, norm_factor, softmax, target_logprob, weight
from stapo_training.theory.report import STATEMENTS, TheoryRow

LOW, HIGH = 0.2, 0.28
"""The clip range of JustRL and STAPO."""
TAU_P = 0.002
STEP = 1e-4
_SMALLEST = 1e-250
"""Squares of numbers below its root leave float64's normal range; a smaller reference value does not divide."""


def relative(claimed_N: torch.Tensor, found_N: torch.Tensor) -> torch.Tensor:
    """|claimed - found| / |found| (N,), 0 where both are the same and for values that float64 cannot square."""
    return (claimed_N - found_N).abs() / found_N.abs().clamp(min=_SMALLEST)


class Targets:
    """The N target tokens of a batch: log p, 1 - p, the distribution's entropy, the norm's factor and weight w.

    `single` is the batch's one distribution (1, V).
    """

    def __init__(self, b: Batch):
        d, k_N1 = softmax(b.logits_NV), b.target_N.unsqueeze(-1)
        self.single = softmax(b.logits_NV[:1])
        self.logprob_N = d.logprob_NV.gather(-1, k_N1).squeeze(-1)
        self.gap_N = d.complement_NV.gather(-1, k_N1).squeeze(-1)
        self.entropy_N, self.factor_N = d.entropy_N, norm_factor(d, b.target_N)
        self.old_N = self.logprob_N - b.ratio_N.log()
        self.weight_N = weight(self.logprob_N, self.old_N, b.advantage_N, LOW, HIGH)
        self.surprise_N = self.logprob_N + self.entropy_N

    def numbers(self, **more: torch.Tensor) -> dict[str, torch.Tensor]:
        """What a record says of a case."""
        return {"p": self.logprob_N.exp(), "1-p": self.gap_N, "H": self.entropy_N, **more}


@dataclass
class Tally:
    """What the cases of one statement came to: how many, how many failed, the worst of them."""

    statement: TheoryRow
    cases: int = 0
    failures: int = 0
    largest: float = 0.0
    where: str = ""
    numbers: dict[str, float] = field(default_factory=dict)

    def add(
        self, violation_N: torch.Tensor, where: Callable[[int], str], numbers_N: dict[str, torch.Tensor] | None = None
    ) -> None:
        """Count N violations (0 or less: none); `numbers_N` are kept of the worst one.

        Raises:
            ValueError: for a violation that is not a number, which would count as none.
        """
        if violation_N.numel() == 0:
            return
        if violation_N.isnan().any():
            raise ValueError(
                f"{self.statement.statement}: not a number, {where(int(violation_N.isnan().nonzero()[0]))}"
            )
        self.cases += violation_N.numel()
        self.failures += int((violation_N > self.statement.tolerance).sum())
        row = int(violation_N.argmax())
        if float(violation_N[row]) > self.largest:
            self.largest, self.where = float(violation_N[row]), where(row)
            self.numbers = {k: float(v[row]) for k, v in (numbers_N or {}).items()}

    def row(self) -> TheoryRow:
        """The record's row; numbers to four digits, a violation to two (below that it is rounding)."""
        found = {
            "cases": self.cases,
            "failures": self.failures,
            "largest": float(f"{self.largest:.2g}"),
            "where": self.where,
            "numbers": {k: float(f"{v:.4g}") for k, v in self.numbers.items()},
            "verdict": "not run" if not self.cases else "fails" if self.failures else "holds",
        }
        return self.statement.model_copy(update=found)


class Point(NamedTuple):
    """One side of a pair: logprob is a token's (0 for a mean over a distribution's tokens), factor its squared norm."""

    vocabulary: int
    logprob: float
    entropy: float
    factor: float
    where: str


class StatementChecks:
    """Tallies of all statements over the batches that were added."""

    def __init__(self, seed: int):
        self.tallies = {key: Tally(s) for key, s in STATEMENTS.items()}
        self.generator = torch.Generator().manual_seed(seed)
        self.rare: list[Point] = []
        self.common: list[Point] = []

    def add(self, b: Batch) -> None:
        """Check one batch against everything but the statements about pairs and two-valued distributions."""
        t = Targets(b)
        self._decomposition(b, t)
        self._bounds(b, t)
        self._entropy(b, t)
        rare_N = t.logprob_N.exp() < TAU_P
        self._some("taxonomy_rare", t.surprise_N, rare_N, b, t.numbers())
        self._some("taxonomy_common", -t.surprise_N, ~rare_N, b, t.numbers())
        for i in rare_N.nonzero().flatten().tolist():
            logp, h, factor = (float(x[i]) for x in (t.logprob_N, t.entropy_N, t.factor_N))
            self.rare.append(Point(b.vocabulary, logp, h, factor, b.where(i)))
        p_V, factor_V = t.single.probability_NV[0], formulas.norm_factors(t.single)[0]
        common_V = p_V >= TAU_P
        if common_V.any():
            mean = float((p_V * factor_V)[common_V].sum() / p_V[common_V].sum())
            self.common.append(Point(b.vocabulary, 0.0, float(t.single.entropy_N), mean, b.whole()))

    def _decomposition(self, b: Batch, t: Targets) -> None:
        a_NV = b.logits_NV.clone().requires_grad_()
        logprob_N = target_logprob(a_NV, b.target_N)
        loss_N = clipped_surrogate(logprob_N, logprob_N.detach() - b.ratio_N.log(), b.advantage_N, LOW, HIGH)
        found_N = torch.autograd.grad(loss_N.sum(), a_NV)[0].square().sum(-1)
        one_epsilon_N = weight(t.logprob_N, t.old_N, b.advantage_N, LOW, LOW)
        for key, w_N in (("decomposition", t.weight_N), ("decomposition_one_epsilon", one_epsilon_N)):
            claimed_N = w_N.square() * t.factor_N
            numbers = t.numbers(claimed=claimed_N, found=found_N)
            self.tallies[key].add(relative(claimed_N, found_N), b.where, numbers)

    def _bounds(self, b: Batch, t: Targets) -> None:
        w2_N = t.weight_N.square()
        norm2_N = w2_N * t.factor_N
        lower_N = w2_N * formulas.lower_factor(t.gap_N, t.entropy_N)
        upper_N = w2_N * formulas.upper_factor(t.gap_N, t.entropy_N, b.vocabulary)
        for key, bound_N, excess_N in (
            ("lower_bound", lower_N, lower_N - norm2_N),
            ("upper_bound", upper_N, norm2_N - upper_N),
        ):
            numbers = t.numbers(bound=bound_N, squared_norm=norm2_N)
            self.tallies[key].add(excess_N / norm2_N.clamp(min=_SMALLEST), b.where, numbers)

    def _entropy(self, b: Batch, t: Targets) -> None:
        logits_1V = b.logits_NV[:1]
        a_1V = logits_1V.clone().requires_grad_()
        (slope_1V,) = torch.autograd.grad(entropy(a_1V).sum(), a_1V)
        advantage_1V = torch.randn(logits_1V.shape, generator=self.generator, dtype=torch.float64)
        terms_1V = formulas.lemma_terms(t.single, advantage_1V)
        step_1V = formulas.natural_step(t.single, advantage_1V)
        moved_1V, claimed = slope_1V * step_1V, terms_1V.sum(-1)
        information_1V = t.single.logprob_NV.abs() + t.single.entropy_N.unsqueeze(-1)
        parts_1V = t.single.probability_NV * information_1V * step_1V.abs()
        size = parts_1V.sum(-1).clamp(min=_SMALLEST)  # of what the terms are differences of
        by_steps = (entropy(logits_1V + STEP * step_1V) - entropy(logits_1V - STEP * step_1V)) / (2 * STEP)
        for key, found in (("entropy_total", moved_1V.sum(-1)), ("entropy_steps", by_steps)):
            numbers = {"H": t.single.entropy_N, "claimed": claimed, "found": found}
            self.tallies[key].add((claimed - found).abs() / size, b.whole, numbers)
        self.tallies["entropy_token"].add((terms_1V - moved_1V).abs().amax(-1) / size, b.whole)

        p_N = t.logprob_N.exp()
        spoken_of_N = (p_N > _SMALLEST) & (t.surprise_N.abs() > 1e-9)
        claimed_N = -p_N * t.surprise_N
        found_N = slope_1V[0, b.target_N] / p_N.clamp(min=_SMALLEST)
        numbers = t.numbers(claimed=claimed_N, found=found_N)
        self._some("entropy_sampled", relative(claimed_N, found_N), spoken_of_N, b, numbers)

    def _some(self, key: str, violation_N: torch.Tensor, of_it_N: torch.Tensor, b: Batch, numbers_N: dict) -> None:
        """Count only the cases that a statement speaks of."""
        rows = of_it_N.nonzero().flatten()
        chosen = {k: v[rows] for k, v in numbers_N.items()}
        self.tallies[key].add(violation_N[rows], lambda i: b.where(int(rows[i])), chosen)

    def two_levels(self, vocabulary: int) -> None:
        """The upper bound on a grid of two-valued distributions: any number of tokens, any share of the mass."""
        counts = torch.unique(torch.logspace(0, torch.tensor(vocabulary - 1).log10().item(), 60).round())
        edge = torch.logspace(-12, -1, 45, dtype=torch.float64)
        masses = torch.cat([edge, torch.linspace(0.1, 0.9, 81, dtype=torch.float64), 1 - edge.flip(0)])
        grid = torch.cartesian_prod(counts.double(), masses)
        entropy_M, collision_M, impurity_M = formulas.two_level(vocabulary, grid[:, 0], grid[:, 1])
        self.tallies["upper_bound_two_levels"].add(
            (formulas.c_v(vocabulary) * entropy_M.square() - impurity_M) / impurity_M,
            lambda i: f"{grid[i, 0]:.0f} tokens with {grid[i, 1]:.3g} of the mass, V = {vocabulary:,}",
            {"H": entropy_M, "sum of pi^2": collision_M},
        )

    def _pairs(self, key: str, points: list[Point], unit: Callable[[Point, Point], float]) -> None:
        """Every two points of one vocabulary size, the first with the lower entropy and no higher probability: claimed
        is that its squared norm is not smaller. `unit` is what a shortfall is measured in."""
        for vocabulary in sorted({r.vocabulary for r in points}):
            own = [r for r in points if r.vocabulary == vocabulary]
            pairs = [(a, b) for a in own for b in own if a.entropy < b.entropy - 1e-9 and a.logprob <= b.logprob]
            sides = torch.tensor([(a.entropy, b.entropy, a.factor, b.factor) for a, b in pairs]).double().reshape(-1, 4)
            shortfall = torch.tensor([(b.factor - a.factor) / unit(a, b) for a, b in pairs], dtype=torch.float64)
            self.tallies[key].add(
                shortfall,
                lambda i: f"{pairs[i][0].where}; against {pairs[i][1].where}",  # noqa: B023  called at once
                dict(zip(("H", "H of the other", "norm^2", "its norm^2"), sides.T, strict=True)),
            )

    def rows(self) -> list[TheoryRow]:
        """Every statement's row, in the order of `statements`."""
        self._pairs("norm_falls_with_entropy", self.rare, lambda a, b: a.factor)
        self._pairs("taxonomy_norm", self.common, lambda a, b: max(b.factor, _SMALLEST))
        return [t.row() for t in self.tallies.values()]
