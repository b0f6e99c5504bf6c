"""The testbed's claims as data, the rule that judges them, and what the seeds run could have found.

The claims and the rule stand in results/paper/claims_testbed.json, written before the runs that judge them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from stapo_repro.paper import transcribed
from stapo_repro.testbed.evidence import FACTOR, Evidence, Measure, Quantity, no_spread, quantity, rounded, two_sided_p
from stapo_repro.testbed.plan import SEEDS, Part
from stapo_results.statistics import holm
from stapo_results.statistics.comparison import ALPHA
from stapo_results.statistics.power import detectable, runs_for_equivalence, runs_needed, tost_p

Verdict = Literal["holds", "equivalent", "opposite", "not distinguishable", "not run"]
VERDICTS: dict[Verdict, str] = {
    "holds": "Holds",
    "equivalent": "Equivalent",
    "opposite": "Opposite",
    "not distinguishable": "Not distinguishable",
    "not run": "Not run",
}


class Claim(BaseModel):
    """One claim: a quantity, `first` minus `second`, and where it should lie.

    Numbers are in the measure's printed unit. For precision an arm stands for its mask, on the tokens of JustRL.

    Attributes:
        check: of the instrument: it follows from how the worlds were built, and was near known before the runs.
        smallest: the smallest difference from `reference` that matters.
        margin: of an equivalence.
        inside, ends: of an optimum: the arms of a q inside (0, 1), and those of q = 0 and 1.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    number: str
    id: str = Field(pattern=r"^[a-z0-9-]+$")
    kind: Literal["difference", "equivalence", "optimum"]
    place: str
    claim: str
    world: Literal["paper", "mixed", "inverted"]
    part: Part
    measure: Measure
    first: str
    second: str
    direction: Literal["above", "below", "within"]
    reference: float
    smallest: float = Field(gt=0)
    margin: float | None = Field(default=None, gt=0)
    inside: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    check: bool = False
    contradicted_by: str


class Claims(BaseModel):
    """The file of claims."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1]
    source: str
    rule: str
    claims: list[Claim]


@dataclass(frozen=True)
class Judged:
    """A claim with its quantity and verdict.

    Attributes:
        p: of the claim's test; `p_holm` after Holm's correction over all claims, and `verdict_holm` by it.
        detectable: the smallest true difference from the reference that these seeds find with 80 % power at 5 %.
    """

    claim: Claim
    quantity: Quantity
    verdict: Verdict
    p: float | None
    p_holm: float | None
    verdict_holm: Verdict
    detectable: float | None


@dataclass(frozen=True)
class Power:
    """What a pilot says of one claim: the spread of its paired difference between seeds, and the seeds that it takes.

    Attributes:
        sd: in the measure's unit. needed: None where it is more than 10,000.
        run: the seeds that judge the claim.
    """

    claim: Claim
    pilot_seeds: int
    sd: float | None
    needed: int | None
    run: int


def judging(claims: Sequence[Claim], arm: str, seed: int) -> bool:
    """Whether a long training judges: its seed was kept for that, and a claim names its arm."""
    return seed in SEEDS["long"] and any(arm in (c.first, c.second) for c in claims if c.part == "long")


def verdict_of(claim: Claim, q: Quantity) -> tuple[Verdict, float | None]:
    """(verdict, p) of a difference or an equivalence."""
    if q.status != "run" or q.low is None or q.high is None or q.raw is None:
        return "not run", None
    if claim.margin is not None:
        margin = claim.margin / FACTOR.get(claim.measure, 100.0)
        beyond = two_sided_p(replace(q.raw, mean=abs(q.raw.mean) - margin))
        if (q.low > claim.margin or q.high < -claim.margin) and beyond < ALPHA:
            return "opposite", rounded(beyond)
        p = max(tost_p(q.raw, margin), 2.0 ** -len(q.seeds) if no_spread(q.raw) else 0.0)
        return "equivalent" if p < ALPHA else "not distinguishable", rounded(p)
    if q.low <= claim.reference <= q.high or q.p is None or q.p >= ALPHA:
        return "not distinguishable", q.p
    above = q.low > claim.reference
    return "holds" if above == (claim.direction == "above") else "opposite", q.p


def _quantity(claim: Claim, e: Evidence, first: str, second: str) -> Quantity:
    return quantity(e, claim.world, claim.measure, [(1.0, first), (-1.0, second)], claim.reference)


def _side(q: Quantity, above: bool) -> float:
    """The two-sided p where the difference lies on this side of 0, else 1."""
    return 1.0 if q.p is None or q.mean is None or (q.mean > 0) != above else q.p


def optimum(claim: Claim, e: Evidence) -> tuple[Quantity, Verdict, float | None]:
    """The best arm inside minus the better end, by their means; the verdict and its p look at all pairs.

    p is the smaller of the two that the rule names: of "no q inside is above both ends" and of "no end is above every
    q inside".
    """
    pairs = {(i, end): _quantity(claim, e, i, end) for i in claim.inside for end in claim.ends}
    missing = list(dict.fromkeys(x for q in pairs.values() for x in q.missing))
    if missing or any(q.status != "run" or q.low is None for q in pairs.values()):
        run = any(q.status != "not run" for q in pairs.values())
        return Quantity("incomplete" if run else "not run", missing=missing), "not run", None
    inside = min(max(_side(pairs[i, end], above=True) for end in claim.ends) for i in claim.inside)
    ends = min(max(_side(pairs[i, end], above=False) for i in claim.inside) for end in claim.ends)
    p_holds, p_opposite = min(1.0, inside * len(claim.inside)), min(1.0, ends * len(claim.ends))
    verdict: Verdict = "holds" if p_holds < ALPHA else "opposite" if p_opposite < ALPHA else "not distinguishable"

    def least(arm: str) -> float:
        return min(q.mean or 0.0 for (i, _), q in pairs.items() if i == arm)

    best = max(claim.inside, key=least)
    shown = min((pairs[best, end] for end in claim.ends), key=lambda q: q.mean or 0.0)
    return shown, verdict, min(p_holds, p_opposite)


def judge(claims: Claims, parts: Mapping[Part, Evidence]) -> list[Judged]:
    """All claims in the file's order."""
    found: list[tuple[Claim, Quantity, Verdict, float | None]] = []
    for c in claims.claims:
        e = parts[c.part]
        if c.kind == "optimum":
            found.append((c, *optimum(c, e)))
        else:
            q = _quantity(c, e, c.first, c.second)
            found.append((c, q, *verdict_of(c, q)))
    # what is not run counts as a test all the same: what is run later must not change what was found before
    adjusted = holm([1.0 if p is None else p for *_, p in found])
    return [_judged(*row, adjusted[i]) for i, row in enumerate(found)]


def _judged(claim: Claim, q: Quantity, verdict: Verdict, p: float | None, p_holm: float) -> Judged:
    if p is None:
        return Judged(claim, q, verdict, None, None, verdict, None)
    known = q.raw is not None and q.raw.df == q.raw.df  # NaN where no seed differs from another
    plain = known and claim.kind == "difference"  # of the others the t test of one pair says nothing
    least = detectable(q.raw.se, q.raw.df) * FACTOR.get(claim.measure, 100.0) if plain and q.raw else None
    after: Verdict = verdict if p_holm < ALPHA else "not distinguishable"
    return Judged(claim, q, verdict, rounded(p), rounded(p_holm), after, None if least is None else rounded(least))


def power(claims: Claims, pilot: Mapping[Part, Evidence], judged: Sequence[Judged]) -> list[Power]:
    """Seeds for 80 % power at each claim's smallest difference, two-sided, alpha 5 % / claims (Bonferroni for Holm).

    Args:
        pilot: the records that the spread is taken from, by the part of the claim (a long claim has no pilot).
    """
    alpha, out = ALPHA / len(claims.claims), []
    for c, j in zip(claims.claims, judged, strict=True):
        e = pilot.get(c.part)
        q = _quantity(c, e, c.first, c.second) if e else Quantity("not run")
        sd, needed = q.sd, None
        if sd is not None and c.margin is not None:
            needed = runs_for_equivalence(c.margin, sd, alpha=alpha)
        elif sd is not None:
            needed = runs_needed(c.smallest, sd, alpha=alpha)
        out.append(Power(c, len(q.seeds), sd, needed, len(j.quantity.seeds)))
    return out


def load(path: Path | None = None) -> Claims:
    """The claims of the checkout.

    Raises:
        RecordError: the file is not there or does not validate.
    """
    return transcribed("claims_testbed.json", Claims, path)
