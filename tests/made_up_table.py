"""A small printed table without a fault, what a test changes in it, and one check of an audit."""

from __future__ import annotations

import json
from pathlib import Path

from stapo_repro.audit.findings import Audit, Check


def check(a: Audit, name: str) -> Check:
    return next(c for c in a.checks if c.id == name)


def made_up() -> dict:
    """Two benchmarks of 20 x 4 and 50 x 1, two groups, without a fault."""
    return {
        "schema_version": 1,
        "source": "made up",
        "proposed": "new",
        "columns": [
            {"id": "quiz", "rows": [20], "samples": 4},
            {"id": "exam", "rows": [50], "samples": 1},
            {"id": "mean", "mean_of": ["quiz", "exam"]},
        ],
        "rows": [
            {"group": "A", "method": "old", "values": {"quiz": "41.25", "exam": "38.00", "mean": "39.62"}, "best": []},
            {"group": "A", "method": "new", "values": {"quiz": "46.25", "exam": "42.00", "mean": "44.12"},
             "best": ["quiz", "exam", "mean"]},
            {"group": "B", "method": "old", "values": {"quiz": "53.75", "exam": "60.00", "mean": "56.88"},
             "best": ["exam"]},
            {"group": "B", "method": "new", "values": {"quiz": "58.75", "exam": "58.00", "mean": "58.38"},
             "best": ["quiz", "mean"]},
        ],
    }  # fmt: skip


def write(path: Path, data: object) -> Path:
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def changed(*keys: str | int, value: object) -> dict:
    data = made_up()
    at: object = data
    for key in keys[:-1]:
        at = at[key]
    at[keys[-1]] = value
    return data
