"""The committed sample is drawn again from the committed logs; a reading that is none is refused."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from stapo_repro.tokens.log import load
from stapo_results import store, token_log
from stapo_results.errors import BadInput
from studies.command import RECORDS
from studies.labels import sheet
from studies.labels.readers import LabelledToken, LabelRecord, different

RUNS = ("stapo-s0", "justrl-s0", "stapo-random-s0", "entropy20-s0")


def test_the_committed_sample_comes_again() -> None:
    record = store.read_json(RECORDS / "labels/labels.json", LabelRecord)
    folders = [RECORDS / "real/train" / name for name in RUNS]
    logs = [(load(f), token_log.read(f)) for f in folders]
    tokens, drawn = sheet.drawn_of(logs, 150, defaultdict(str))  # type: ignore[arg-type]
    assert {k: drawn[k] for k in ("there", "drawn")} == {k: record.drawn[k] for k in ("there", "drawn")}
    place = ("id", "run", "step", "prompt_id", "sample", "position", "token", "weight")
    assert [[t[k] for k in place] for t in tokens] == [[getattr(t, k) for k in place] for t in record.tokens]
    assert len(different(record.tokens)) == 278


def test_joining(tmp_path: Path) -> None:
    token = {
        "id": "001", "weight": 1.0, "masks": {}, "run": "r", "step": 1, "prompt_id": "p", "sample": 0, "position": 2,
        "probability": 1e-3, "entropy": 0.1, "before": "a", "token": "b", "after": "c",
    }  # fmt: skip
    (tmp_path / sheet.SHEET).write_text("x")
    (tmp_path / sheet.KEY).write_text(json.dumps({"drawn": {"drawn": {}, "there": {}}, "tokens": [token]}))
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_text('{"id": "001", "label": "harmful"}\n')
    bad.write_text('{"id": "001", "label": "bad"}\n')
    sheet.join(tmp_path, (good, good), tmp_path / "labels.json")
    (joined,) = store.read_json(tmp_path / "labels.json", LabelRecord).tokens
    assert joined == LabelledToken.model_validate(token | {"labels": ("harmful", "harmful")})
    with pytest.raises(BadInput, match="not a reading"):
        sheet.join(tmp_path, (good, bad), tmp_path / "other.json")
