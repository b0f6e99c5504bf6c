"""Labelled rare tokens: agreement and shares worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stapo_repro.paper import checkout
from stapo_results import store
from stapo_results.errors import RecordError
from studies import masks
from studies.labels import readers

RECORDS = checkout() / "results" / "records" / "labels"
HARMFUL, NEUTRAL, USEFUL = readers.LABELS


def token(number: int, both: tuple[readers.Label, readers.Label], weight: float = 1.0, **chances: float):
    known = dict.fromkeys(masks.METHODS, 0.0) | {getattr(masks, k.upper()): v for k, v in chances.items()}
    where = {"run": "r", "step": 1, "prompt_id": str(number), "sample": 0, "position": 0}
    text = {"before": "", "token": "x", "after": "", "labels": both}
    return readers.LabelledToken(
        id=str(number), weight=weight, masks=known, probability=0.001, entropy=0.1, **where, **text
    )


def test_kappa_by_hand():
    # 50 tokens: equal in 20 + 15; the first reading calls 25 harmful, the second 30: chance .5 x .6 + .5 x .4 = .5
    both = [(HARMFUL, HARMFUL)] * 20 + [(HARMFUL, NEUTRAL)] * 5 + [(NEUTRAL, HARMFUL)] * 10 + [(NEUTRAL, NEUTRAL)] * 15
    agreement, kappa, _ = readers.score([token(i, pair, full=1.0) for i, pair in enumerate(both)])
    assert agreement.mean == pytest.approx(0.7)
    assert kappa.mean == pytest.approx(0.4)
    # SE of an unweighted kappa (Fleiss, Cohen and Everitt 1969) is about .13 here
    assert kappa.high - kappa.low == pytest.approx(4 * 0.127, rel=0.15)


def test_shares_by_mask_by_hand():
    # two silenced tokens that stand for 3 each, one kept one that stands for 2
    _, _, rows = readers.score([
        token(1, (HARMFUL, HARMFUL), 3.0, s2t=1, high=0, full=1),
        token(2, (HARMFUL, NEUTRAL), 3.0, s2t=1, high=1, full=1),
        token(3, (USEFUL, USEFUL), 2.0, s2t=0, high=1, full=1),
    ])  # fmt: skip
    assert {name: [x.mean for x in row] for name, row in rows.items()} == {
        "S2T": pytest.approx([0.75, 0.25, 0.0]),
        "all rare tokens": pytest.approx([0.5625, 0.1875, 0.25]),  # (3 + 1.5) / 8, 1.5 / 8, 2 / 8
        "high entropy": pytest.approx([0.3, 0.3, 0.4]),
        readers.KEPT: [0.0, 0.0, 1.0],
        f"S2T minus {readers.KEPT}": pytest.approx([0.75, 0.25, -1.0]),
        # the first reader calls both silenced ones harmful, the second one of them
        "the first reader alone": [1.0, 0.0, -1.0],
        "the second reader alone": [0.5, 0.5, -1.0],
        "S2T minus high entropy": pytest.approx([0.45, -0.05, -0.4]),
    }


def test_a_token_that_was_drawn_twice_counts_once_in_the_agreement_and_twice_in_the_shares(tmp_path: Path):
    drawn = {"drawn": {"silenced": 2, "kept": 1}, "there": {"silenced": 2, "kept": 1}}
    same = token(1, (HARMFUL, HARMFUL), s2t=1)
    tokens = [same, same.model_copy(update={"id": "again", "run": "other"}), token(2, (USEFUL, NEUTRAL), s2t=1)]
    record = readers.LabelRecord(drawn=drawn, sheet="", readings=("", ""), tokens=tokens)
    store.write_json(tmp_path / "labels.json", record)
    lines = readers.section(tmp_path / "labels.json")
    assert any(line.startswith("2 different tokens") and "50.0 " in line for line in lines)
    assert any(line.startswith("| S2T | 66.7") for line in lines)


def test_another_label_is_refused(tmp_path: Path):
    value = json.loads((RECORDS / readers.FILE).read_text())
    value["tokens"][0]["labels"][0] = "bad"
    (tmp_path / readers.FILE).write_text(json.dumps(value))
    with pytest.raises(RecordError):
        readers.section(tmp_path / readers.FILE)
