"""The claims name methods of the registry, fields that a training records, and ranges; a page by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import token_logs as logs

from stapo_repro.tokens.log import load
from stapo_results.schema import StepMetrics
from stapo_results.store import read
from stapo_training.methods import methods
from studies.command import RECORDS, TABLES
from studies.real import page

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


def test_statements_by_hand(tmp_path: Path) -> None:
    plus, seven = logs.ids("+")[0], logs.ids("7")[0]
    silenced = [{"token": plus if i == 2 else seven, "collision": 0.9} for i in range(4)]
    kept = [{"token": plus, "collision": 0.2 if i else 0.1, "entropy": 1.0, "silenced": False} for i in range(4)]
    rare = [logs.row(prompt_id=f"p{i % 4}", **of) for i, of in enumerate([*silenced, *kept])]
    common = {"rare": False, "silenced": False}
    others = [logs.row(**common, logprob=math.log(0.5), entropy=1.0, collision=0.3)] * 2
    others += [logs.row(**common, logprob=math.log(0.9), entropy=0.2, collision=0.82)] * 6
    said = page.statements(load(logs.write(tmp_path, rare, others, mode="on")))
    # norms: sqrt(1 - 2 p + sum of squares), with p = exp(-7) of rare tokens
    assert said[0][2:] == ["4 of 16 tokens, 25.0000 %", "does not hold"]
    assert said[1][2].startswith("1.378 against 1.083; of frequent tokens 0.548 and 0.141; ")
    assert [line[3] for line in said[1:4]] == ["holds", "does not hold", "holds"]
    assert said[3][2] == "it rises at 0.0 %, 0.0 %, 100.0 %, 100.0 % of the four"
    assert said[4][2].startswith("75.0 % (")
    assert [line[3] for line in said[4:]] == ["holds", "undecided"]


def test_the_committed_page_is_of_the_committed_probes() -> None:
    files: dict[Path, bytes] = {}
    page.add(files)
    assert files[TABLES / "real.md"] == (TABLES / "real.md").read_bytes()
