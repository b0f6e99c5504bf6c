"""The testbed's claims as data, the rule that judges them, and what the seeds run could have found.

The claims and the rule are in claims.json, written before the runs that judge them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from stapo_repro.statistics import ALPHA
from stapo_repro.text import as_written, rounded
from stapo_results.statistics import holm
from stapo_results.store import read_json
from studies.power import detectable, runs_for_equivalence, runs_needed, tost_p
from studies.testbed.evidence import MEASURES, Evidence, Quantity, no_spread, p_value, quantity
from studies.testbed.plan import PILOTS, SEEDS, SIZES, Part

Verdict = Literal["holds", "equivalent", "opposite", "not distinguishable", "not run"]


class Claim(BaseModel):
    """One claim: a quantity, `first` minus `second`, and where it should lie.

    Numbers are in the measure's printed unit. For precision an arm means its mask, on the tokens of JustRL.

    Attributes:
        check: of the instrument: it follows from how the worlds were built, and was near known before the runs.
        smallest: the smallest difference from `reference` that matters.
        margin: of an equivalence.
        inside, ends: of an optimum: the arms of a q inside (0, 1), and those of q = 0 and 1.
        family: the claims that Holm's correction takes together; a family is closed when it is written.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    number: str
    id: str = Field(pattern=r"^[a-z0-9-]+$")
    kind: Literal["difference", "equivalence", "optimum"]
    place: str
    claim: str
    world: str = Field(pattern=f"^({'|'.join(SIZES)})$")
    part: Part
    measure: str = Field(pattern=f"^({'|'.join(MEASURES)})$")
    first: str
    second: str
    direction: Literal["above", "below", "within"]
    reference: float
    smallest: float = Field(gt=0)
    margin: float | None = Field(default=None, gt=0)
    inside: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    check: bool = False
    family: str = ""
    contradicted_by: str


class Claims(BaseModel):
    """The file of claims. afterwards: what a reader should know of them that was written after the runs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1]
    source: str
    rule: str
    afterwards: list[str]
    claims: list[Claim]


@dataclass(frozen=True)
class Judged:
    """A claim with its quantity and verdict.

    Attributes:
        p: of the claim's test; `p_holm` after Holm's correction over its family, and `verdict_holm` by it.
        detectable: the smallest true difference from the reference that these seeds find with 80 % power at 5 %.
        pilot: the quantity in the pilot, for the spread between its seeds; of an optimum that of the pair named first.
        needed: seeds for 80 % power at the claim's smallest difference with that spread, two-sided at 5 % / claims
            (Bonferroni for Holm); None without a spread, or where it takes more than 10,000.
    """

    claim: Claim
    quantity: Quantity
    verdict: Verdict
    p: float | None
    p_holm: float | None
    verdict_holm: Verdict
    detectable: float | None
    pilot: Quantity
    needed: int | None


def judging(claims: Sequence[Claim], arm: str, seed: int) -> bool:
    """Whether a long training judges: its seed was kept for that, and a claim names its arm."""
    return seed in SEEDS["long"] and any(arm in (c.first, c.second) for c in claims if c.part == "long")


def verdict_of(claim: Claim, e: Evidence) -> tuple[Quantity, Verdict, float | None]:
    """(quantity, verdict, p) by the rule of the file, before Holm's correction."""
    if claim.kind == "optimum":
        return _optimum(claim, e)
    q = _difference(claim, e, claim.first, claim.second)
    n = as_written(q.number)
    if q.status != "run" or not n.has_interval:
        return q, "not run", None
    if claim.margin is not None:
        beyond = p_value(replace(q.number, mean=abs(q.number.mean) - claim.margin))
        if (n.low > claim.margin or n.high < -claim.margin) and beyond < ALPHA:
            return q, "opposite", rounded(beyond)
        p = max(tost_p(q.number, claim.margin), 2.0 ** -len(q.seeds) if no_spread(q.number) else 0.0)
        return q, "equivalent" if p < ALPHA else "not distinguishable", rounded(p)
    if n.low <= claim.reference <= n.high or q.p >= ALPHA:
        return q, "not distinguishable", q.p
    above = n.low > claim.reference
    return q, "holds" if above == (claim.direction == "above") else "opposite", q.p


def _difference(claim: Claim, e: Evidence, first: str, second: str) -> Quantity:
    return quantity(e, claim.world, claim.measure, [(1.0, first), (-1.0, second)], claim.reference)


def _side(q: Quantity, above: bool) -> float:
    """The two-sided p where the difference lies on this side of 0, else 1."""
    return q.p if (as_written(q.number).mean > 0) == above else 1.0


def _optimum(claim: Claim, e: Evidence) -> tuple[Quantity, Verdict, float | None]:
    """The best arm inside minus the better end, by their means; the verdict and its p look at all pairs.

    p is the smaller of the two that the rule names: of "no q inside is above both ends" and of "no end is above every
    q inside".
    """
    pairs = {(i, end): _difference(claim, e, i, end) for i in claim.inside for end in claim.ends}
    missing = list(dict.fromkeys(x for q in pairs.values() for x in q.missing))
    if missing or any(q.status != "run" or not q.number.has_interval for q in pairs.values()):
        run = any(q.status != "not run" for q in pairs.values())
        return Quantity("incomplete" if run else "not run", missing=missing), "not run", None
    inside = min(max(_side(pairs[i, end], above=True) for end in claim.ends) for i in claim.inside)
    ends = min(max(_side(pairs[i, end], above=False) for i in claim.inside) for end in claim.ends)
    p_holds, p_opposite = min(1.0, inside * len(claim.inside)), min(1.0, ends * len(claim.ends))
    verdict: Verdict = "holds" if p_holds < ALPHA else "opposite" if p_opposite < ALPHA else "not distinguishable"
    worse = [min((pairs[i, end] for end in claim.ends), key=lambda q: q.number.mean) for i in claim.inside]
    return max(worse, key=lambda q: q.number.mean), verdict, min(p_holds, p_opposite)


def judge(claims: Claims, parts: Mapping[Part, Evidence]) -> list[Judged]:
    """All claims in the file's order."""
    found = [verdict_of(c, parts[c.part]) for c in claims.claims]
    families: dict[str, list[float]] = {}
    for c, (_, _, p) in zip(claims.claims, found, strict=True):
        # what is not run counts as a test all the same: what is run later must not change what was found before
        families.setdefault(c.family, []).append(1.0 if p is None else p)
    adjusted = {family: iter(holm(of)) for family, of in families.items()}
    judged = []
    for c, (q, verdict, p) in zip(claims.claims, found, strict=True):
        p_holm = next(adjusted[c.family])
        least = None
        if q.number.se > 0 and p is not None and c.kind == "difference":
            least = rounded(detectable(q.number.se, q.number.df))
        after: Verdict = verdict if p is None or p_holm < ALPHA else "not distinguishable"
        other = parts.get(PILOTS[c.part]) if c.part in PILOTS else None
        pilot = Quantity("not run") if other is None else _difference(c, other, c.first, c.second)
        fewest, size = (runs_needed, c.smallest) if c.margin is None else (runs_for_equivalence, c.margin)
        alpha = ALPHA / len(families[c.family])
        needed = fewest(size, pilot.sd, alpha=alpha) if pilot.number.has_interval else None
        of_test = (None, None) if p is None else (rounded(p), rounded(p_holm))
        judged.append(Judged(c, q, verdict, *of_test, after, least, pilot, needed))
    return judged


def load() -> Claims:
    """The study's claims. Raises: RecordError: the file does not validate."""
    return read_json(Path(__file__).with_name("claims.json"), Claims)


def lost_over_all(judged: Sequence[Judged]) -> list[tuple[str, float]]:
    """(number, p by Holm over all claims) of claims that lose their verdict where there are no families. As in a
    family, what is not run counts as a test."""
    over_all = holm([1.0 if j.p is None else j.p for j in judged])
    pairs = zip(judged, over_all, strict=True)
    return [(j.claim.number, p) for j, p in pairs if j.p_holm is not None and j.p_holm < ALPHA <= p]
