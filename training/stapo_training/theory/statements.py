"""The statements that are checked: what is claimed, where the paper has it, what a violation is measured in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from stapo_results.schema import TheoryRow


@dataclass(frozen=True)
class Statement:
    """A claim in the project's words.

    place: label in the paper's source. reading: as printed, as derived (what the paper's own derivation gives), read
    for pairs, in float32, beyond its assumptions (one is dropped, to see whether it is needed), or ours (a repair).
    measure: what a violation is. tolerance: what still counts as rounding. needs: what a statement that fails would
    need.
    """

    key: str
    place: str
    reading: str
    claim: str
    measure: str
    tolerance: float
    needs: str = ""


_RELATIVE = "|claimed - found| / found"
_PARTS = "|claimed - found| / sum of pi (|log pi| + H) |A - E[A]|"
_STATEMENTS = (
    Statement(
        "decomposition",
        "lem:grad_norm_decomp",
        "as printed",
        "squared gradient norm in the logits = w^2 (1 - 2p + sum of pi^2); found by autograd of the clipped surrogate",
        _RELATIVE,
        1e-9,
    ),
    Statement(
        "decomposition_float32",
        "lem:grad_norm_decomp",
        "in float32",
        "the printed form, computed from float32 statistics",
        _RELATIVE,
        1e-3,
        "p away from 1: the form (1 - p)^2 + sum over the others of pi^2 has no such loss",
    ),
    Statement(
        "decomposition_one_epsilon",
        "lem:grad_norm_decomp",
        "as printed",
        "the same with the lemma's single epsilon (0.2) for the objective with clip-higher (0.2, 0.28)",
        _RELATIVE,
        1e-9,
        "two epsilons, as the theorem prints them",
    ),
    Statement(
        "decomposition_kl",
        "lem:grad_norm_decomp",
        "beyond its assumptions",
        "the same for GRPO's objective (Eq. grpo_loss) with its KL term, w as printed",
        _RELATIVE,
        1e-9,
        "no KL term, or the weight of the next row",
    ),
    Statement(
        "decomposition_kl_weight",
        "lem:grad_norm_decomp",
        "ours",
        "with the KL term (k3) and the weight w + beta (pi_ref / pi - 1)",
        _RELATIVE,
        1e-9,
    ),
    Statement(
        "decomposition_temperature",
        "lem:grad_norm_decomp",
        "beyond its assumptions",
        "the same in the model's own logits at temperature 0.7",
        _RELATIVE,
        1e-9,
        "a sampling temperature of 1, as in the paper's training, or a factor 1 / temperature^2",
    ),
    Statement(
        "lower_bound",
        "prop:grad_bounds",
        "as printed",
        "w^2 (1 - 2p + e^-H) <= squared gradient norm",
        "excess / squared norm",
        1e-9,
    ),
    Statement(
        "upper_bound",
        "prop:grad_bounds",
        "as printed",
        "squared gradient norm <= w^2 (2 - 2p - C_V H^2), C_V = (V - 1) / (V (ln V)^2)",
        "excess / squared norm",
        1e-9,
    ),
    Statement(
        "upper_bound_two_levels",
        "app:grad_bounds_proof",
        "as printed",
        "C_V H^2 <= 1 - sum of pi^2 where pi has two distinct values, all that the proof leaves to exclude",
        "excess / (1 - sum of pi^2)",
        1e-9,
    ),
    Statement(
        "norm_falls_with_entropy",
        "subsec:eg_coupling_analysis",
        "read for pairs",
        "of two tokens with p < tau_p the one with lower entropy and no higher p has the larger norm",
        "shortfall / squared norm",
        1e-9,
        "to be read as a tendency: the two bounds leave room for the other order",
    ),
    Statement(
        "mean_norm",
        "lem:grad_norm_decomp",
        "ours",
        "the mean squared norm over tokens drawn from pi is w^2 (1 - sum of pi^2)",
        _RELATIVE,
        1e-9,
    ),
    Statement(
        "taxonomy_norm",
        "tab:token_analysis",
        "read for pairs",
        "p >= tau_p: the squared norm, in the mean over tokens drawn from pi, is larger at the lower entropy",
        "shortfall / the other's mean",
        1e-9,
        "to compare tokens of one probability: where entropy is low, the token drawn is likely and its norm is small",
    ),
    Statement(
        "entropy_total",
        "lemma:entropy_pg_general",
        "as derived",
        "summed over the vocabulary, the right side is the entropy's derivative along a natural gradient step",
        _PARTS,
        1e-9,
    ),
    Statement(
        "entropy_token",
        "lemma:entropy_pg_general",
        "as derived",
        "one token's term is what moves through that token's logit in such a step",
        _PARTS,
        1e-9,
    ),
    Statement(
        "entropy_steps",
        "lemma:entropy_pg_general",
        "as derived",
        "the same derivative from real steps of +- 1e-4",
        _PARTS,
        1e-5,
    ),
    Statement(
        "entropy_sampled",
        "lemma:entropy_pg_general",
        "as printed",
        "the term is the change by the step that the sampled token causes (E[A] = 0)",
        _RELATIVE,
        1e-9,
        "a factor 1 / pi(y): the term is the token's share in the expected step",
    ),
    Statement(
        "entropy_sign",
        "lemma:entropy_pg_general",
        "beyond its assumptions",
        "a plain gradient step of the sampled token alone changes the entropy in the term's direction",
        "change in the other direction / sum of its parts' sizes",
        1e-9,
        "p < e^-H (next row), or a natural gradient step",
    ),
    Statement(
        "entropy_sign_rare",
        "lemma:entropy_pg_general",
        "ours",
        "the same for tokens with p < e^-H",
        "change in the other direction / sum of its parts' sizes",
        1e-9,
    ),
    Statement(
        "taxonomy_rare",
        "tab:token_analysis",
        "as printed",
        "A > 0 and p < tau_p: the entropy rises (by the lemma's sign, E[A] = 0)",
        "log p + H, nats",
        1e-9,
        "p < e^-H, which p < tau_p = 0.002 gives as long as H < 6.21 nats",
    ),
    Statement(
        "taxonomy_common",
        "tab:token_analysis",
        "as printed",
        "A > 0 and p >= tau_p: the entropy falls (by the lemma's sign, E[A] = 0)",
        "-(log p + H), nats",
        1e-9,
        "p > e^-H: the entropy turns at e^-H, not at a fixed probability",
    ),
)
STATEMENTS = {s.key: s for s in _STATEMENTS}


@dataclass
class Tally:
    """What the cases of one statement came to: how many, how many failed, the worst of them."""

    statement: Statement
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
            raise ValueError(f"{self.statement.key}: not a number, {where(int(violation_N.isnan().nonzero()[0]))}")
        self.cases += violation_N.numel()
        self.failures += int((violation_N > self.statement.tolerance).sum())
        row = int(violation_N.argmax())
        if float(violation_N[row]) > self.largest:
            self.largest, self.where = float(violation_N[row]), where(row)
            self.numbers = {k: float(v[row]) for k, v in (numbers_N or {}).items()}

    def row(self) -> TheoryRow:
        """The record's row; numbers to four digits, a violation to two (below that it is rounding)."""
        s = self.statement
        return TheoryRow(
            statement=s.key,
            place=s.place,
            reading=s.reading,
            claim=s.claim,
            measure=s.measure,
            tolerance=s.tolerance,
            cases=self.cases,
            failures=self.failures,
            largest=float(f"{self.largest:.2g}"),
            where=self.where,
            numbers={k: float(f"{v:.4g}") for k, v in self.numbers.items()},
            verdict="not run" if not self.cases else "fails" if self.failures else "holds",
            needs=s.needs,
        )
