"""The whole audit: where its inputs come from, and all checks in their order."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pydantic import BaseModel

from stapo_repro import paper
from stapo_repro.audit import averages, claim_checks, gains, granularity, grim, marks
from stapo_repro.audit.claims import PaperClaims
from stapo_repro.audit.claims import load as load_claims
from stapo_repro.audit.findings import Audit
from stapo_repro.audit.paper_form import from_paper
from stapo_repro.audit.schema import AuditTable, parse_json, validated


def load_table(path: Path | None) -> AuditTable:
    """A table of one's own, or the paper's; a file in the paper's form (results/paper/main_table.json) is taken too.

    Raises:
        BadInput: the file is not there or does not validate.
    """
    if path is None:
        return from_paper(paper.load())
    data = parse_json(path)
    if isinstance(data, dict) and "samples_per_problem" in data:
        return from_paper(validated(path, data, paper.PaperTable))
    return validated(path, data, AuditTable)


def audit(table: AuditTable, claims: PaperClaims | None = None) -> Audit:
    """All checks of one table. A pure function of both arguments."""
    checks = [
        grim.check_row_counts(table), grim.check(table), granularity.check(table), averages.check(table),
        marks.check(table), *gains.check(table),
    ]  # fmt: skip
    if claims is not None:
        checks.append(claim_checks.check(table, claims))
    return Audit(1, table.source, _hash(table, claims), checks)


def _hash(*inputs: BaseModel | None) -> str:
    text = "\n".join(i.model_dump_json() for i in inputs if i is not None)
    return hashlib.sha256(text.encode()).hexdigest()


def load_and_audit(table: Path | None = None, claims: Path | None = None) -> Audit:
    """The audit of the files that were named; of the paper's table and claims where none was.

    Raises:
        BadInput: a file is not there or does not validate.
    """
    value = load_table(table)
    if claims is None and table is None:
        claims = paper.folder() / "claims.json"
    return audit(value, load_claims(claims, value) if claims else None)
