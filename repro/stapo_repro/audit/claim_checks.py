"""Whether the printed claims follow from the table, and under which reading."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from stapo_repro.audit.findings import Check, Finding, Grid, join
from stapo_repro.audit.grim import Printed
from stapo_repro.audit.schema import (
    AdvantageQuantity,
    AuditTable,
    BelowQuantity,
    Claim,
    GainQuantity,
    Measure,
    Over,
    PaperClaims,
)
from stapo_repro.audit.table_checks import gain

READINGS: dict[tuple[Measure, Over], str] = {
    ("relative", "strongest"): "relative to the strongest",
    ("points", "strongest"): "points over the strongest",
    ("relative", "each"): "relative, all pairs",
    ("points", "each"): "points, all pairs",
}


@dataclass(frozen=True)
class JudgedGain:
    """A claimed gain under every reading.

    Attributes:
        values: reading -> percent or points.
        fitting: readings whose value, rounded to nearest, is the printed one.
        close: readings that give it for values with more digits than are printed.
    """

    claim: Claim
    quantity: GainQuantity
    values: dict[str, float]
    fitting: list[str]
    close: list[str]
    outcome: Literal["agrees", "reading found", "another version", "differs"]


def judge(table: AuditTable, claim: Claim, q: GainQuantity) -> JudgedGain:
    """Compute a claimed gain under every reading and compare it with what is printed."""
    printed = Printed.of(claim.value or "")  # the schema: a gain has its value
    values: dict[str, float] = {}
    fitting, close = [], []
    for (measure, over), name in READINGS.items():
        found = gain(table, q.method, q.column, q.groups, q.baselines, measure, over)
        if found is None:
            continue
        values[name] = float(found.exact)
        if printed.gives(found.exact):
            fitting.append(name)
        elif found.low <= printed.value <= found.high:
            close.append(name)
    if q.measure and q.over:
        outcome = "agrees" if READINGS[q.measure, q.over] in (*fitting, *close) else "differs"
    else:
        outcome = "reading found" if fitting or close else "differs"
    if outcome == "differs" and table.version is not None and claim.version != table.version:
        outcome = "another version"
    return JudgedGain(claim, q, values, fitting, close, outcome)


def _where(c: Claim) -> str:
    return f"{c.about} ({c.version}, {c.place})"


def _of_gain(j: JudgedGain) -> Finding | None:
    if j.outcome in ("agrees", "another version"):  # versions have a finding of their own
        return None
    value = j.claim.value
    others = "; ".join(f"{name} {value:.2f}" for name, value in j.values.items() if name not in j.fitting)
    if j.outcome == "reading found":
        names = [*j.fitting, *(f"{n} (with more digits than are printed)" for n in j.close)]
        over = f", averaged over {len(j.quantity.groups)} groups" if len(j.quantity.groups) > 1 else ""
        fact = f"{value} is the gain {join(names, 'or')}{over}. Other readings: {others}."
        reasons = ["which reading is meant may be said elsewhere in the text"]
    else:
        fact = f"{value} is printed; the table gives {others}."
        reasons = ["another version of the table is meant", "other baselines or groups are meant", "a slip in typing"]
    return Finding(f"claim: {j.outcome}", _where(j.claim), fact, reasons)


def _versions(judged: list[JudgedGain]) -> list[Finding]:
    """One finding for each quantity that several versions print with different values."""
    same: dict[str, list[JudgedGain]] = {}
    for j in judged:
        same.setdefault(j.quantity.model_dump_json(exclude={"measure", "over"}), []).append(j)
    findings = []
    for group in same.values():
        claims = [j.claim for j in group]
        if len({c.value for c in claims}) < 2 or len({c.version for c in claims}) < 2:
            continue
        listed = ", ".join(f"{c.version} {c.value} {c.unit or ''}".rstrip() for c in claims)
        fact = f"Versions print different values of one quantity: {listed}. A reproduction names the version it means."
        near = {}  # the reading of this table that comes nearest, not that it was meant
        for j in (j for j in group if j.outcome == "another version" and j.values):
            name = min(j.values, key=lambda n: abs(j.values[n] - float(j.claim.value or "nan")))
            near[j.claim.value] = f" Nearest to {j.claim.value} in this table: {name}, {j.values[name]:.2f}."
        reasons = ["the runs, the table or the reading changed between versions"]
        findings.append(Finding("versions", claims[-1].about, fact + "".join(near.values()), reasons))
    return findings


def _below(c: Claim, q: BelowQuantity) -> tuple[str, Finding | None]:
    over, total = [v for v in q.values if Decimal(v) >= Decimal(q.limit)], len(q.values)
    limit = f"{q.limit} {c.unit}" if c.unit else q.limit
    line = f"{total - len(over)} of {total} printed values lie below {limit}."
    if not over:
        return line, None
    fact = f"Of {total} printed values, not below {limit}: {join(over)}."
    reasons = ["the examples were taken from a run with another threshold", "a slip in typing"]
    return line, Finding("limit", _where(c), fact, reasons)


def advantages(group_size: int, *, unbiased: bool) -> list[float]:
    """Advantage of a right answer when 1 to G - 1 of G are right: (1 - mean) / std of the G rewards +1 and -1."""
    out = []
    for right in range(1, group_size):
        mean = (2 * right - group_size) / group_size
        variance = (1 - mean * mean) * (group_size / (group_size - 1) if unbiased else 1)
        out.append((1 - mean) / math.sqrt(variance))
    return out


def _advantages(c: Claim, q: AdvantageQuantity) -> tuple[str, Finding | None]:
    total, known = len(q.values), []
    for unbiased in (True, False):
        values = advantages(q.group_size, unbiased=unbiased)
        known.append(sum(any(f"{a:.{Printed.of(v).decimals}f}" == v for a in values) for v in q.values))
    line = (
        f"{known[0]} of {total} are those of groups of {q.group_size} with rewards +1 and -1 and the unbiased standard "
        f"deviation, {known[1]} with the biased one."
    )
    if total in known:
        return line, None
    fact = f"Neither standard deviation gives all {total} printed advantages in groups of {q.group_size}."
    reasons = ["another group size or other rewards in some examples", "a slip in typing"]
    return line, Finding("advantages", _where(c), fact, reasons)


def check(table: AuditTable, claims: PaperClaims) -> Check:
    """Every claim against the table, or against itself."""
    judged: list[JudgedGain] = []
    lines, untested, inner = [], [], []
    for c in claims.claims:
        q = c.quantity
        if isinstance(q, GainQuantity):
            judged.append(judge(table, c, q))
        elif isinstance(q, BelowQuantity | AdvantageQuantity):
            line, found = _below(c, q) if isinstance(q, BelowQuantity) else _advantages(c, q)
            lines.append(f"{c.about[0].upper()}{c.about[1:]}: {line}")
            inner += [found] if found else []
        else:
            untested.append(f"{c.about} (needs {q.needs})")
    follow, elsewhere = (
        sum(j.outcome in kinds for j in judged) for kinds in (("agrees", "reading found"), ("another version",))
    )
    summary = [f"{follow} of {len(judged)} claimed gains follow from the table's averages.", *lines]
    if elsewhere:
        summary[0] += f" {elsewhere} stand in other versions than the table ({table.version}) and do not."
    if untested:
        summary.append(f"Not to be checked by a table: {'; '.join(untested)}.")
    findings = [*(f for j in judged if (f := _of_gain(j))), *_versions(judged), *inner]
    names = READINGS.values()
    rows = [
        [j.claim.id, str(j.claim.value), *(f"{j.values[n]:.2f}" if n in j.values else "n/a" for n in names), j.outcome]
        for j in judged
    ]
    grid = Grid(["claimed gain", "printed", *names, "outcome"], rows) if rows else None
    return Check("claims", "Claims", summary, findings, grid)
