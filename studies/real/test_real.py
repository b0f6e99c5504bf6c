"""The claims name methods of the registry, fields that a training records, and ranges."""

from __future__ import annotations

import json
from pathlib import Path

from stapo_results.schema import StepMetrics
from stapo_results.store import read
from stapo_training.methods import methods
from studies.command import RECORDS

HERE = Path(__file__).parent


def test_claims_name_methods_fields_and_ranges() -> None:
    logged = {
        key for step in read(RECORDS / "miniature/train/stapo-s0/metrics.jsonl", StepMetrics) for key in step.values
    }
    for claim in json.loads((HERE / "claims.json").read_text())["claims"]:
        assert set(claim["methods"]) <= set(methods()), claim["id"]
        assert set(claim["measure"].split(" / ")) <= logged | {"accuracy on math500 at t1.0"}, claim["id"]
        assert claim["low"] < claim["high"], claim["id"]
        assert claim["margin"] > 0, claim["id"]
