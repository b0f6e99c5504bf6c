"""Whether the printed claims follow from the table, and under which reading."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from stapo_repro.audit.claims import AdvantageQuantity, BelowQuantity, Claim, GainQuantity, PaperClaims
from stapo_repro.audit.findings import Check, Finding, Grid, Numbers, join, rounded
from stapo_repro.audit.gains import READINGS, gain
from stapo_repro.audit.rounding import NEAREST, Printed, round_to
from stapo_repro.audit.schema import AuditTable


@dataclass(frozen=True)
class Judged:
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
    status: Literal["agrees", "reading found", "another version", "differs"]


def judge(table: AuditTable, claim: Claim, q: GainQuantity) -> Judged:
    """Compute a claimed gain under every reading and compare it with what is printed."""
    assert claim.value is not None  # validated
    printed = Printed.of(claim.value)
    values: dict[str, float] = {}
    fitting, close = [], []
    for (measure, over), name in READINGS.items():
        found = gain(table, q.method, q.column, q.groups, q.baselines, measure, over)
        if found is None:
            continue
        values[name] = rounded(float(found.exact))
        if any(round_to(found.exact, printed.decimals, r) == printed.units for r in NEAREST):
            fitting.append(name)
        elif found.low <= printed.value <= found.high:
            close.append(name)
    if q.measure and q.over:
        status = "agrees" if READINGS[q.measure, q.over] in (*fitting, *close) else "differs"
    else:
        status = "reading found" if fitting or close else "differs"
    if status == "differs" and table.version is not None and claim.version != table.version:
        status = "another version"
    return Judged(claim, q, values, fitting, close, status)


def _where(c: Claim) -> str:
    return f"{c.about} ({c.version}, {c.place})"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _of_gain(j: Judged) -> Finding | None:
    if j.status in ("agrees", "another version"):  # versions have a finding of their own
        return None
    c = j.claim
    others = "; ".join(f"{name} {value:.2f}" for name, value in j.values.items() if name not in j.fitting)
    if j.status == "reading found":
        names = [*j.fitting, *(f"{n} (with more digits than are printed)" for n in j.close)]
        over = f", averaged over {len(j.quantity.groups)} groups" if len(j.quantity.groups) > 1 else ""
        fact = f"{c.value} is the gain {join(names, 'or')}{over}. Other readings: {others}."
        reasons = ["which reading is meant may be said elsewhere in the text"]
    else:
        fact = f"{c.value} is printed; the table gives {others}."
        reasons = [
            "another version of the table is meant",
            "other baselines or groups are meant",
            "a slip in typing",
        ]
    numbers: Numbers = {"printed": c.value, "readings": dict(j.values), "fitting": list(j.fitting)}
    return Finding(f"claim: {j.status}", _where(c), numbers, fact, reasons)


def _versions(judged: list[Judged]) -> list[Finding]:
    """One finding for each quantity that several versions print with different values."""
    same: dict[str, list[Judged]] = {}
    for j in judged:
        same.setdefault(j.quantity.model_dump_json(exclude={"measure", "over"}), []).append(j)
    findings = []
    for group in same.values():
        claims = [j.claim for j in group]
        if len({c.value for c in claims}) < 2 or len({c.version for c in claims}) < 2:
            continue
        listed = ", ".join(f"{c.version} {c.value} {c.unit or ''}".rstrip() for c in claims)
        fact = f"Versions print different values of one quantity: {listed}. A reproduction names the version it means."
        numbers: Numbers = {"values": {c.version: c.value for c in claims}}
        reasons = ["the runs, the table or the reading changed between versions"]
        findings.append(Finding("versions", claims[-1].about, numbers, fact + _nearest(group), reasons))
    return findings


def _nearest(group: list[Judged]) -> str:
    """For values of other versions: the reading of this table that comes nearest; not that it was meant."""
    near: dict[str, str] = {}
    for j in group:
        if j.status == "another version" and j.values:
            printed = float(j.claim.value or "nan")
            name = min(j.values, key=lambda n: abs(j.values[n] - printed))
            near[str(j.claim.value)] = f" Nearest to {j.claim.value} in this table: {name}, {j.values[name]:.2f}."
    return "".join(near.values())


def _below(c: Claim, q: BelowQuantity) -> tuple[str, list[Finding]]:
    over = [v for v in q.values if Decimal(v) >= Decimal(q.limit)]
    unit = f" {c.unit}" if c.unit else ""
    below = f"{len(q.values) - len(over)} of {len(q.values)}"
    line = f"{_sentence(c.about)}: {below} printed values lie below {q.limit}{unit}."
    if not over:
        return line, []
    fact = f"Of {len(q.values)} printed values, not below {q.limit}{unit}: {join(over)}."
    numbers: Numbers = {"limit": q.limit, "values": len(q.values), "not_below": list(over)}
    reasons = ["the examples were taken from a run with another threshold", "a slip in typing"]
    return line, [Finding("limit", _where(c), numbers, fact, reasons)]


def advantages(group_size: int, *, unbiased: bool) -> list[float]:
    """Advantage of a right answer when 1 to G - 1 of G are right: (1 - mean) / std of the G rewards +1 and -1."""
    out = []
    for right in range(1, group_size):
        mean = (2 * right - group_size) / group_size
        variance = (1 - mean * mean) * (group_size / (group_size - 1) if unbiased else 1)
        out.append((1 - mean) / math.sqrt(variance))
    return out


def _advantages(c: Claim, q: AdvantageQuantity) -> tuple[str, list[Finding]]:
    def known(unbiased: bool) -> int:
        values = advantages(q.group_size, unbiased=unbiased)
        return sum(any(f"{a:.{Printed.of(v).decimals}f}" == v for a in values) for v in q.values)

    total, unbiased, biased = len(q.values), known(True), known(False)
    line = (
        f"{_sentence(c.about)}: {unbiased} of {total} are those of groups of {q.group_size} with rewards +1 and -1 "
        f"and the unbiased standard deviation, {biased} with the biased one."
    )
    if total in (unbiased, biased):
        return line, []
    fact = f"Neither standard deviation gives all {total} printed advantages in groups of {q.group_size}."
    numbers: Numbers = {"values": total, "unbiased": unbiased, "biased": biased}
    reasons = ["another group size or other rewards in some examples", "a slip in typing"]
    return line, [Finding("advantages", _where(c), numbers, fact, reasons)]


def _grid(judged: list[Judged]) -> Grid | None:
    header = ["claimed gain", "printed", *READINGS.values(), "outcome"]
    rows = []
    for j in judged:
        values = [f"{j.values[n]:.2f}" if n in j.values else "n/a" for n in READINGS.values()]
        rows.append([j.claim.id, str(j.claim.value), *values, j.status])
    return Grid(header, rows) if rows else None


def check(table: AuditTable, claims: PaperClaims) -> Check:
    """Every claim against the table, or against itself."""
    judged: list[Judged] = []
    lines, untested, inner = [], [], []
    for c in claims.claims:
        q = c.quantity
        if isinstance(q, GainQuantity):
            judged.append(judge(table, c, q))
        elif isinstance(q, BelowQuantity | AdvantageQuantity):
            line, found = _below(c, q) if isinstance(q, BelowQuantity) else _advantages(c, q)
            lines.append(line)
            inner += found
        else:
            untested.append(f"{c.about} (needs {q.needs})")
    agree = sum(j.status in ("agrees", "reading found") for j in judged)
    summary = [f"{agree} of {len(judged)} claimed gains follow from the table's averages.", *lines]
    if elsewhere := [j for j in judged if j.status == "another version"]:
        summary[0] += f" {len(elsewhere)} stand in other versions than the table ({table.version}) and do not."
    if untested:
        summary.append(f"Not to be checked by a table: {'; '.join(untested)}.")
    findings = [*(f for j in judged if (f := _of_gain(j))), *_versions(judged), *inner]
    numbers: Numbers = {j.claim.id: {"printed": j.claim.value, "outcome": j.status, **j.values} for j in judged}
    return Check("claims", "Claims", summary, numbers, findings, _grid(judged))
