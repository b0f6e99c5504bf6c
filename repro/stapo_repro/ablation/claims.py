"""The paper's qualitative claims as data, and the rule that judges them by the ablation's records.

The rule and the claims stand in results/paper/claims_ablation.json, written before any run of the ablation.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from stapo_repro.ablation.by_seed import AccuracyTerm, Measure, Number, SeedResults, accuracy, measure
from stapo_repro.paper import transcribed

Verdict = Literal["holds", "opposite", "not distinguishable", "not run"]
VERDICTS: dict[Verdict, str] = {
    "holds": "Holds in miniature",
    "opposite": "Opposite in miniature",
    "not distinguishable": "Not distinguishable",
    "not run": "Not run",
}
NARROWING = "t1.0-t0.7"


class Claim(BaseModel):
    """One claim: a quantity (`first` minus `second`, or minus `reference`) and the side of 0 on which it should lie.

    `setting` is that of an accuracy; "t1.0-t0.7" is the difference at temperature 1.0 less the difference at 0.7.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(pattern=r"^[a-z0-9-]+$")
    place: str
    claim: str
    measure: Literal["accuracy"] | Measure
    setting: Literal["t1.0", "t0.7", "t1.0-t0.7"] | None = None
    first: str
    second: str | None = None
    reference: float = 0.0
    direction: Literal["above", "below"]

    def quantity(self, results: SeedResults) -> Number:
        """The claim's quantity over the ablation's seeds."""
        if self.measure == "accuracy":
            assert self.setting is not None  # of an accuracy both are given
            assert self.second is not None
            settings = [(1.0, self.setting)] if self.setting != NARROWING else [(1.0, "t1.0"), (-1.0, "t0.7")]
            pair = ((1.0, self.first), (-1.0, self.second))
            terms: list[AccuracyTerm] = [(a * b, m, t) for a, t in settings for b, m in pair]
            return accuracy(results, terms, results.benchmarks)
        terms_of_measure = [(1.0, self.first)] + ([(-1.0, self.second)] if self.second else [])
        return measure(results, terms_of_measure, self.measure, reference=self.reference)


class Claims(BaseModel):
    """The file of claims."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1]
    source: str
    rule: str
    claims: list[Claim]
    not_tested: list[str]


@dataclass(frozen=True)
class JudgedClaim:
    """A claim with its quantity and verdict."""

    claim: Claim
    number: Number
    verdict: Verdict


def verdict(number: Number, direction: Literal["above", "below"]) -> Verdict:
    """holds: the interval lies wholly on the claimed side of 0. opposite: wholly on the other side. not
    distinguishable: it holds 0. not run: a planned seed is missing, whatever the others say."""
    if number.status != "run" or number.low is None or number.high is None:
        return "not run"
    if number.low > 0:
        return "holds" if direction == "above" else "opposite"
    if number.high < 0:
        return "holds" if direction == "below" else "opposite"
    return "not distinguishable"


def judge(claims: Claims, results: SeedResults) -> list[JudgedClaim]:
    """All claims in the file's order."""
    numbers = [(c, c.quantity(results)) for c in claims.claims]
    return [JudgedClaim(c, number, verdict(number, c.direction)) for c, number in numbers]


def load(path: Path | None = None) -> Claims:
    """The claims of the checkout.

    Raises:
        RecordError: the file is not there or does not validate.
    """
    return transcribed("claims_ablation.json", Claims, path)
