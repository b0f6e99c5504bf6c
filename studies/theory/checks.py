"""The statements of statements.yaml against numbers of many distributions: random ones from a seed, and extremes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import resources
from typing import Literal

import torch
import yaml
from pydantic import BaseModel, ConfigDict

from stapo_results import terminal
from stapo_training.selection.objectives import clipped_surrogate
from studies.theory import formulas
from studies.theory.formulas import entropy, softmax, target_logprob, weight

VOCABULARIES = (2, 3, 5, 32, 1_000, 32_000, 151_936)
"""The last is the output width of the paper's models."""
RATIOS = (0.5, 1.0, 1.25, 1.5)
"""rho: below, inside and above the clip range of 0.8 to 1.28."""
ADVANTAGES = (2.47, -0.94, 0.35, -2.47, 0.0)
"""Values of the paper's appendix (eight responses), and 0."""
LOW, HIGH = 0.2, 0.28
"""The clip range of JustRL and STAPO."""
TAU_P = 0.002
STEP = 1e-4
_LARGE = 10_000
"""From this vocabulary on one draw of each family: a row of logits takes milliseconds there."""
_ZERO = -1e5
"""A logit whose probability is 0 in float64."""
_SMALLEST = 1e-250
"""Squares of numbers below its root leave float64's normal range; a smaller reference value does not divide."""

Generator = torch.Generator
Point = tuple[float, float, float, str]
"""One side of a pair: log p (0 for a mean over a distribution's tokens), entropy, squared norm / |w|^2, the case."""


class TheoryRow(BaseModel):
    """One statement over all its cases: the largest violation, as `measure` says, and the case that has it.

    statements.yaml says what place, reading, claim, measure, tolerance and needs are. failures: cases whose violation
    exceeds `tolerance`.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    statement: str
    place: str
    reading: str
    claim: str
    measure: str
    tolerance: float = 1e-9
    cases: int = 0
    failures: int = 0
    largest: float = 0.0
    where: str = ""
    numbers: dict[str, float] = {}
    verdict: Literal["holds", "fails", "not run"] = "not run"
    needs: str = ""

    def add(
        self,
        violation_N: torch.Tensor,
        where: Callable[[int], str],
        numbers_N: dict[str, torch.Tensor] | None = None,
        *,
        of_it_N: torch.Tensor | None = None,
    ) -> None:
        """Count N violations (0 or less: none); `numbers_N` are kept of the worst one.

        Args:
            of_it_N: the cases that the statement speaks of; all by default.

        Raises:
            ValueError: for a violation that is not a number, which would count as none.
        """
        rows = torch.arange(len(violation_N)) if of_it_N is None else of_it_N.nonzero().flatten()
        violation_R = violation_N[rows]
        if violation_R.isnan().any():
            at = where(int(rows[violation_R.isnan()][0]))
            raise ValueError(f"{self.statement}: not a number, {at}")
        self.cases += len(rows)
        self.failures += int((violation_R > self.tolerance).sum())
        if len(rows) and float(violation_R.max()) > self.largest:
            row = int(rows[violation_R.argmax()])
            self.largest, self.where = float(violation_N[row]), where(row)
            self.numbers = {k: float(v[row]) for k, v in (numbers_N or {}).items()}

    def closed(self) -> TheoryRow:
        """The row with its verdict; numbers to four digits, a violation to two (below that it is rounding)."""
        found = {
            "largest": float(f"{self.largest:.2g}"),
            "numbers": {k: float(f"{v:.4g}") for k, v in self.numbers.items()},
            "verdict": "not run" if not self.cases else "fails" if self.failures else "holds",
        }
        return self.model_copy(update=found)


_YAML = resources.files("studies.theory").joinpath("statements.yaml").read_text(encoding="utf-8")
STATEMENTS = {key: TheoryRow(statement=key, **entry) for key, entry in yaml.safe_load(_YAML).items()}
"""What is checked, in the order of the tables: rows without cases."""


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


class Cases:
    """N cases of one distribution over V tokens: each has a target token, a ratio rho and an advantage.

    single: the distribution (1, V); factor_V: the squared norm / |w|^2 by target. Of the targets (N,): log p, 1 - p,
    the entropy, the factor, the weight w under the two-sided clip, and log p + H.
    """

    def __init__(self, family: str, logits_V: torch.Tensor, targets: list[tuple[str, int]], pairs: list[tuple]):
        self.family, self.vocabulary, self.names = family, len(logits_V), [name for name, _ in targets]
        self.logits_1V, self.target_N = logits_V[None], torch.tensor([k for _, k in targets])
        self.ratio_N, self.advantage_N = torch.tensor(pairs, dtype=torch.float64).T.contiguous()
        self.single = softmax(self.logits_1V)
        self.factor_V = formulas.norm_factor(self.single)[0]
        self.logprob_N = self.single.logprob_NV[0, self.target_N]
        self.gap_N = self.single.complement_NV[0, self.target_N]
        self.entropy_N, self.factor_N = self.single.entropy_N.expand(len(targets)), self.factor_V[self.target_N]
        self.old_N = self.logprob_N - self.ratio_N.log()
        self.weight_N = weight(self.logprob_N, self.old_N, self.advantage_N, LOW, HIGH)
        self.surprise_N = self.logprob_N + self.entropy_N

    def whole(self, row: int = 0) -> str:
        """The distribution in words."""
        return f"{self.family}, V = {self.vocabulary:,}"

    def where(self, row: int) -> str:
        """The case in words."""
        return f"{self.whole()}, {self.names[row]} token"

    def numbers(self, **more: torch.Tensor) -> dict[str, torch.Tensor]:
        """What a record says of a case."""
        return {"p": self.logprob_N.exp(), "1-p": self.gap_N, "H": self.entropy_N, **more}


def _targets(logits_V: torch.Tensor, g: Generator) -> dict[str, int]:
    order = logits_V.argsort(descending=True, stable=True)
    order = order[: int((logits_V > _ZERO).sum())]  # a token of probability 0 is never sampled
    sampled = int(torch.multinomial(torch.softmax(logits_V, -1), 1, generator=g))
    places = (0, 1, len(order) // 2, -1)
    return dict(zip(TARGETS, [*(int(order[i]) for i in places), sampled], strict=True))


def batches(vocabulary: int, seed: int, draws: int) -> Iterator[Cases]:
    """Every family at one vocabulary size, `draws` times: each target with two pairs of ratio and advantage.

    The pairs go round, so that all of them occur; the same arguments give the same numbers.
    """
    g = Generator().manual_seed(seed * 1_000_003 + vocabulary)
    pairs = [(r, a) for a in ADVANTAGES for r in RATIOS]
    turn = 0
    for _ in range(draws):
        for family, make in FAMILIES.items():
            logits_V = make(vocabulary, g)
            targets = [(name, k) for name, k in _targets(logits_V, g).items() for _ in range(2)]
            yield Cases(family, logits_V, targets, [pairs[(turn + i) % len(pairs)] for i in range(len(targets))])
            turn += len(targets) + 1


def relative(claimed_N: torch.Tensor, found_N: torch.Tensor) -> torch.Tensor:
    """|claimed - found| / |found| (N,), 0 where both are the same and for values that float64 cannot square."""
    return (claimed_N - found_N).abs() / found_N.abs().clamp(min=_SMALLEST)


class StatementChecks:
    """All statements over the cases that were added."""

    def __init__(self, seed: int):
        self.statements = {key: statement.model_copy() for key, statement in STATEMENTS.items()}
        self.generator = Generator().manual_seed(seed)
        self.points: dict[str, dict[int, list[Point]]] = {"norm_falls_with_entropy": {}, "taxonomy_norm": {}}

    def add(self, c: Cases) -> None:
        """Check cases against everything but the statements about pairs and two-valued distributions."""
        self._decomposition(c)
        self._bounds(c)
        self._entropy(c)
        rare_N = c.logprob_N.exp() < TAU_P
        self.statements["taxonomy_rare"].add(c.surprise_N, c.where, c.numbers(), of_it_N=rare_N)
        self.statements["taxonomy_common"].add(-c.surprise_N, c.where, c.numbers(), of_it_N=~rare_N)
        rare = self.points["norm_falls_with_entropy"].setdefault(c.vocabulary, [])
        for i in rare_N.nonzero().flatten().tolist():
            rare.append((float(c.logprob_N[i]), float(c.entropy_N[i]), float(c.factor_N[i]), c.where(i)))
        p_V = c.single.probability_NV[0]
        common_V = p_V >= TAU_P
        if common_V.any():
            mean = float((p_V * c.factor_V)[common_V].sum() / p_V[common_V].sum())
            common = self.points["taxonomy_norm"].setdefault(c.vocabulary, [])
            common.append((0.0, float(c.single.entropy_N), mean, c.whole()))

    def _decomposition(self, c: Cases) -> None:
        a_NV = c.logits_1V.repeat(len(c.target_N), 1).requires_grad_()
        logprob_N = target_logprob(a_NV, c.target_N)
        loss_N = clipped_surrogate(logprob_N, logprob_N.detach() - c.ratio_N.log(), c.advantage_N, LOW, HIGH)
        found_N = torch.autograd.grad(loss_N.sum(), a_NV)[0].square().sum(-1)
        one_epsilon_N = weight(c.logprob_N, c.old_N, c.advantage_N, LOW, LOW)
        for key, w_N in (("decomposition", c.weight_N), ("decomposition_one_epsilon", one_epsilon_N)):
            claimed_N = w_N.square() * c.factor_N
            numbers = c.numbers(claimed=claimed_N, found=found_N)
            self.statements[key].add(relative(claimed_N, found_N), c.where, numbers)

    def _bounds(self, c: Cases) -> None:
        w2_N = c.weight_N.square()
        norm2_N = w2_N * c.factor_N
        lower_N = w2_N * formulas.lower_factor(c.gap_N, c.entropy_N)
        upper_N = w2_N * formulas.upper_factor(c.gap_N, c.entropy_N, c.vocabulary)
        for key, bound_N, excess_N in (
            ("lower_bound", lower_N, lower_N - norm2_N),
            ("upper_bound", upper_N, norm2_N - upper_N),
        ):
            numbers = c.numbers(bound=bound_N, squared_norm=norm2_N)
            self.statements[key].add(excess_N / norm2_N.clamp(min=_SMALLEST), c.where, numbers)

    def _entropy(self, c: Cases) -> None:
        logits_1V = c.logits_1V
        a_1V = logits_1V.clone().requires_grad_()
        (slope_1V,) = torch.autograd.grad(entropy(a_1V).sum(), a_1V)
        advantage_1V = torch.randn(logits_1V.shape, generator=self.generator, dtype=torch.float64)
        terms_1V = formulas.lemma_terms(c.single, advantage_1V)
        step_1V = formulas.natural_step(c.single, advantage_1V)
        moved_1V, claimed = slope_1V * step_1V, terms_1V.sum(-1)
        information_1V = c.single.logprob_NV.abs() + c.single.entropy_N.unsqueeze(-1)
        parts_1V = c.single.probability_NV * information_1V * step_1V.abs()
        size = parts_1V.sum(-1).clamp(min=_SMALLEST)  # of what the terms are differences of
        by_steps = (entropy(logits_1V + STEP * step_1V) - entropy(logits_1V - STEP * step_1V)) / (2 * STEP)
        for key, found in (("entropy_total", moved_1V.sum(-1)), ("entropy_steps", by_steps)):
            numbers = {"H": c.single.entropy_N, "claimed": claimed, "found": found}
            self.statements[key].add((claimed - found).abs() / size, c.whole, numbers)
        self.statements["entropy_token"].add((terms_1V - moved_1V).abs().amax(-1) / size, c.whole)

        p_N = c.logprob_N.exp()
        spoken_of_N = (p_N > _SMALLEST) & (c.surprise_N.abs() > 1e-9)
        claimed_N = -p_N * c.surprise_N
        found_N = slope_1V[0, c.target_N] / p_N.clamp(min=_SMALLEST)
        numbers = c.numbers(claimed=claimed_N, found=found_N)
        self.statements["entropy_sampled"].add(relative(claimed_N, found_N), c.where, numbers, of_it_N=spoken_of_N)

    def two_levels(self, vocabulary: int) -> None:
        """The upper bound on a grid of two-valued distributions: any number of tokens, any share of the mass."""
        counts = torch.unique(torch.logspace(0, torch.tensor(vocabulary - 1).log10().item(), 60).round())
        edge = torch.logspace(-12, -1, 45, dtype=torch.float64)
        masses = torch.cat([edge, torch.linspace(0.1, 0.9, 81, dtype=torch.float64), 1 - edge.flip(0)])
        grid = torch.cartesian_prod(counts.double(), masses)
        entropy_M, collision_M, impurity_M = formulas.two_level(vocabulary, grid[:, 0], grid[:, 1])
        self.statements["upper_bound_two_levels"].add(
            (formulas.c_v(vocabulary) * entropy_M.square() - impurity_M) / impurity_M,
            lambda i: f"{grid[i, 0]:.0f} tokens with {grid[i, 1]:.3g} of the mass, V = {vocabulary:,}",
            {"H": entropy_M, "sum of pi^2": collision_M},
        )

    def _pairs(self, key: str, unit: Callable[[float, float], float]) -> None:
        """Every two points of one vocabulary size, the first with the lower entropy and no higher probability: claimed
        is that its squared norm is not smaller. `unit` of both norms is what a shortfall is measured in."""
        for _, points in sorted(self.points[key].items()):
            pairs = [(a, b) for a in points for b in points if a[1] < b[1] - 1e-9 and a[0] <= b[0]]
            shortfall = torch.tensor([(b[2] - a[2]) / unit(a[2], b[2]) for a, b in pairs], dtype=torch.float64)
            sides = torch.tensor([(a[1], b[1], a[2], b[2]) for a, b in pairs], dtype=torch.float64).reshape(-1, 4)
            self.statements[key].add(
                shortfall,
                lambda i: f"{pairs[i][0][3]}; against {pairs[i][1][3]}",  # noqa: B023  called at once
                dict(zip(("H", "H of the other", "norm^2", "its norm^2"), sides.T, strict=True)),
            )

    def rows(self) -> list[TheoryRow]:
        """Every statement's row, in the order of `statements.yaml`."""
        self._pairs("norm_falls_with_entropy", lambda own, other: own)
        self._pairs("taxonomy_norm", lambda own, other: max(other, _SMALLEST))
        return [t.closed() for t in self.statements.values()]


def check(seed: int, draws: int, vocabularies: tuple[int, ...] = VOCABULARIES) -> list[TheoryRow]:
    """Every statement over the cases of `batches`."""
    checks = StatementChecks(seed)
    for done, vocabulary in enumerate(vocabularies, 1):
        for cases in batches(vocabulary, seed, draws if vocabulary < _LARGE else 1):
            checks.add(cases)
        checks.two_levels(vocabulary)
        terminal.report_progress("theory", done, len(vocabularies))
    return checks.rows()
