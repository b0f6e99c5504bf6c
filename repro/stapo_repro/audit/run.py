"""The whole audit: where its inputs come from, and all checks in their order."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from stapo_repro import labels, paper
from stapo_repro.audit import claim_checks, grim, table_checks
from stapo_repro.audit.findings import Audit
from stapo_repro.audit.schema import AuditTable, Column, GainQuantity, PaperClaims, Row
from stapo_results.benchmarks import registry
from stapo_results.errors import BadInput, RecordError
from stapo_results.schema import SETTINGS
from stapo_results.store import read_json

M = TypeVar("M", bound=BaseModel)
# The paper prints no row counts. The registry's come first; others that are published under the same name:
OTHER_ROWS = {
    "amc23": [83],  # AMC 2022 and 2023 together
    "olympiadbench": [675, 581],  # the official English text-only part; a filtered part
}


def from_paper(printed: paper.PaperTable) -> AuditTable:
    """The paper's strings and marks; a group is a model size at one decoding setting."""
    known = registry()
    columns = [
        Column(id=b, rows=[known[b].rows, *OTHER_ROWS.get(b, [])], samples=printed.samples_per_problem[b])
        for b in labels.PAPER_BENCHMARKS
    ]
    columns.append(Column(id=labels.AVERAGE, mean_of=list(labels.PAPER_BENCHMARKS)))
    order = [(size, setting) for size in labels.PAPER_SIZES for setting in SETTINGS]
    rows = sorted(printed.rows, key=lambda r: (order.index((r.size, r.setting)), list(labels.METHODS).index(r.method)))
    names = {f"{z}/{s}": f"{labels.PAPER_SIZES[z]} T={SETTINGS[s][0]}" for z, s in order}
    version = re.search(r"v\d+\b", printed.source)
    return AuditTable(
        schema_version=1,
        source=printed.source,
        version=version[0] if version else None,
        proposed="stapo",
        columns=columns,
        rows=[Row(group=f"{r.size}/{r.setting}", method=r.method, values=r.values, best=r.best) for r in rows],
        labels=names | {c.id: labels.benchmark_label(c.id) for c in columns} | labels.METHODS,
    )


def _read(path: Path, model: type[M]) -> M:
    try:
        return read_json(path, model)
    except RecordError as e:
        raise BadInput(
            e.what, found=e.found or path, expected="the form of the file that docs/statistics.md shows",
            next_step='correct the file; printed values are strings, as in "7.60": trailing zeros count',
        ) from None  # fmt: skip


def load_table(path: Path | None) -> AuditTable:
    """A table of one's own, or the paper's. Raises BadInput: the file is not there or does not validate."""
    return from_paper(paper.load()) if path is None else _read(path, AuditTable)


def load_claims(path: Path, table: AuditTable) -> PaperClaims:
    """The claims of a file, whose gains name what the table has.

    Raises:
        BadInput: the file is not there, does not validate, or names a column, method or group that the table lacks.
    """
    claims = _read(path, PaperClaims)
    for c in claims.claims:
        if not isinstance(q := c.quantity, GainQuantity):
            continue
        for what, names, known in (
            ("column", [q.column], [x.id for x in table.columns]),
            ("method", [q.method, *q.baselines], table.methods),
            ("group", q.groups, table.groups),
        ):
            if unknown := [n for n in names if n not in known]:
                raise BadInput(
                    f"{path}: the claim {c.id} names a {what} that the table does not have",
                    found=unknown[0],
                    expected=" | ".join(known),
                    next_step="correct the name, or give the table that the claims are about with --table",
                )
    return claims


def audit(table: AuditTable, claims: PaperClaims | None = None) -> Audit:
    """All checks of one table. A pure function of both arguments."""
    checks = [
        grim.check_row_counts(table), grim.check(table), grim.check_granularity(table),
        table_checks.check_averages(table), table_checks.check_marks(table), *table_checks.check_gains(table),
        *([claim_checks.check(table, claims)] if claims is not None else []),
    ]  # fmt: skip
    inputs = "\n".join(i.model_dump_json() for i in (table, claims) if i is not None)
    return Audit(table.source, hashlib.sha256(inputs.encode()).hexdigest(), checks)


def load_and_audit(table: Path | None = None, claims: Path | None = None) -> Audit:
    """The audit of the files that were named; of the paper's table and claims where none was.

    Raises:
        BadInput: a file is not there or does not validate.
    """
    value = load_table(table)
    if claims is None and table is None:
        claims = paper.folder() / "claims.json"
    return audit(value, load_claims(claims, value) if claims else None)
