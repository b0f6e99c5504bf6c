"""The main table as JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict

from stapo_repro.tables import Table, Value


def to_json(table: Table) -> str:
    """The full data: every value with its interval and the record files that it came from."""
    return json.dumps(asdict(table), ensure_ascii=False, indent=1, allow_nan=False) + "\n"


_COLUMNS = (
    *("section", "size", "method", "source", "benchmark", "setting", "status", "percent", "se", "low", "high"),
    *("se_problems", "se_seeds", "se_sampling", "train_seeds", "minus_paper", "paper_within"),
    *("problems", "rows", "samples", "fewest_samples", "missing", "best", "records", "inputs"),
)


def _beside_paper(v: Value) -> tuple[object, object]:
    if v.paper is None:
        return "", ""
    return v.paper.points, {True: "within", False: "outside", None: "not judged"}[v.paper.within]


def to_csv(table: Table) -> str:
    """Long form, one line a value; the last column has the start of the inputs' SHA-256, or says "synthetic"."""
    inputs = "synthetic" if table.synthetic else table.inputs_sha256[:16]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for section in table.sections:
        for row in section.rows:
            for benchmark, by_setting in row.values.items():
                for setting, v in by_setting.items():
                    key = (section.id, section.size, row.method, row.source, benchmark, setting, v.status)
                    floats = (v.mean, v.se, v.low, v.high, v.se_problems, v.se_seeds, v.se_sampling)
                    numbers = ("" if x is None else x for x in floats)
                    counts = (v.problems, v.rows, v.samples, v.fewest_samples, v.missing) if v.records else ("",) * 5
                    last = (*counts, int(v.best), ";".join(v.records), inputs)
                    writer.writerow((*key, *numbers, ";".join(v.seeds), *_beside_paper(v), *last))
    return out.getvalue()
