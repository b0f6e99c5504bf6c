"""The paper's transcribed main table in the form of the audit."""

from __future__ import annotations

import re

from stapo_repro import labels
from stapo_repro.audit.schema import AuditTable, Column, Row
from stapo_repro.paper import PaperTable
from stapo_results.benchmarks import registry
from stapo_results.schema import SETTINGS

# The paper prints no row counts. The registry's come first; others that are published under the same name:
OTHER_ROWS = {
    "amc23": [83],  # AMC 2022 and 2023 together
    "olympiadbench": [675, 581],  # the official English text-only part; a filtered part
}


def group(size: str, setting: str) -> str:
    return f"{size}/{setting}"


def from_paper(paper: PaperTable) -> AuditTable:
    """The same printed strings and marks; a group is a model size at one decoding setting."""
    known = registry()
    columns = [
        Column(id=b, rows=[known[b].rows, *OTHER_ROWS.get(b, [])], samples=paper.samples_per_problem[b])
        for b in labels.PAPER_BENCHMARKS
    ]
    columns.append(Column(id=labels.AVERAGE, mean_of=list(labels.PAPER_BENCHMARKS)))
    order = [(size, setting) for size in labels.PAPER_SIZES for setting in SETTINGS]
    rows = sorted(paper.rows, key=lambda r: (order.index((r.size, r.setting)), list(labels.METHODS).index(r.method)))
    names = {group(z, s): f"{labels.PAPER_SIZES[z]} T={SETTINGS[s][0]}" for z, s in order}
    names |= {c.id: labels.benchmark_label(c.id) for c in columns} | labels.METHODS
    version = re.search(r"v\d+\b", paper.source)
    return AuditTable(
        schema_version=1,
        source=paper.source,
        version=version[0] if version else None,
        proposed="stapo",
        columns=columns,
        rows=[Row(group=group(r.size, r.setting), method=r.method, values=r.values, best=r.best) for r in rows],
        labels=names,
    )
