"""Labelled rare tokens: the sheet that hides the mask, agreement and shares worked out by hand, wrong readings."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from stapo_repro.cli import _command
from stapo_repro.collect import collect
from stapo_repro.paper import checkout
from stapo_repro.tokens import labelling, planted, readings
from stapo_repro.tokens.logged_run import LoggedRun, load
from stapo_results.errors import BadInput, RecordError

LOG = checkout() / "results" / "records" / "miniature" / "train" / "stapo-s0"
HARMFUL, NEUTRAL, USEFUL = readings.LABELS


@pytest.fixture(scope="module")
def run() -> LoggedRun:
    return load(LOG)


def token(number: int, both: tuple[readings.Label, readings.Label], weight: float = 1.0, **masks: float):
    known = dict.fromkeys(labelling.MASKS, 0.0) | {getattr(planted, k.upper()): v for k, v in masks.items()}
    where = {"run": "r", "step": 1, "prompt_id": str(number), "sample": 0, "position": 0}
    text = {"before": "", "token": "x", "after": "", "labels": both}
    return readings.LabelledToken(
        id=str(number), weight=weight, masks=known, probability=0.001, entropy=0.1, **where, **text
    )


def test_kappa_by_hand():
    # 50 tokens: equal in 20 + 15; the first reading calls 25 harmful, the second 30: chance .5 x .6 + .5 x .4 = .5
    both = [(HARMFUL, HARMFUL)] * 20 + [(HARMFUL, NEUTRAL)] * 5 + [(NEUTRAL, HARMFUL)] * 10 + [(NEUTRAL, NEUTRAL)] * 15
    found = readings.score([token(i, pair, full=1.0) for i, pair in enumerate(both)])
    assert found.agreement.value == pytest.approx(0.7)
    assert found.kappa.value == pytest.approx(0.4)
    assert found.kappa.low is not None and found.kappa.high is not None  # noqa: PT018  for the type checker
    # SE of an unweighted kappa (Fleiss, Cohen and Everitt 1969) is about .13 here
    assert found.kappa.high - found.kappa.low == pytest.approx(4 * 0.127, rel=0.15)
    assert found.table[NEUTRAL, HARMFUL] == 10


def test_shares_by_mask_by_hand():
    # two silenced tokens that stand for 3 each, one kept one that stands for 2; the random mask takes three quarters
    scored = readings.score([
        token(1, (HARMFUL, HARMFUL), 3.0, s2t=1, high=0, random=0.75, full=1),
        token(2, (HARMFUL, NEUTRAL), 3.0, s2t=1, high=1, random=0.75, full=1),
        token(3, (USEFUL, USEFUL), 2.0, s2t=0, high=1, random=0.75, full=1),
    ])  # fmt: skip
    found, differences = scored.shares, scored.differences
    assert [found[planted.S2T][x].value for x in readings.LABELS] == pytest.approx([0.75, 0.25, 0.0])
    # (3 + 1.5) / 8, 1.5 / 8, 2 / 8, whichever it takes of them
    assert [found[planted.FULL][x].value for x in readings.LABELS] == pytest.approx([0.5625, 0.1875, 0.25])
    assert [found[planted.HIGH][x].value for x in readings.LABELS] == pytest.approx([0.3, 0.3, 0.4])
    assert [found[readings.KEPT][x].value for x in readings.LABELS] == [0.0, 0.0, 1.0]
    assert [differences[readings.KEPT][x].value for x in readings.LABELS] == pytest.approx([0.75, 0.25, -1.0])
    # the first reader calls both silenced ones harmful, the second one of them
    assert [[alone[x].value for x in readings.LABELS] for alone in scored.alone] == [[1.0, 0.0, -1.0], [0.5, 0.5, -1.0]]


def test_the_sheet_hides_what_the_key_knows(run: LoggedRun):
    sheet, key, drawn = labelling.draw([run], 40, 3)
    assert set(sheet[0].model_dump()) == {"id", "problem", "before", "token", "after"}
    assert [s.id for s in sheet] == [k.id for k in key] == [f"{i:03d}" for i in range(1, len(sheet) + 1)]
    silenced = [k.masks[planted.S2T] == 1.0 for k in key]
    assert drawn.drawn == {"silenced": sum(silenced), "kept": len(key) - sum(silenced)}
    assert drawn.there == {"silenced": int(run.silenced.sum()), "kept": int(run.kept.sum())}
    # mixed: the order says nothing (a run of 40 of one kind would)
    assert 0 < sum(silenced[:20]) < 20
    # each part stands for all of its kind
    for part, which in (("silenced", True), ("kept", False)):
        assert sum(k.weight for k, s in zip(key, silenced, strict=True) if s == which) == pytest.approx(
            drawn.there[part]
        )
    # and every token is the one that the log has there
    rows = {(run.table["prompt_id"][i].as_py(), int(run.rows["sample"][i]), int(run.rows["position"][i])): i
            for i in np.flatnonzero(run.rows["rare"])}  # fmt: skip
    for s, k in zip(sheet, key, strict=True):
        i = rows[k.prompt_id, k.sample, k.position]
        assert s.token == run.vocabulary.one(int(run.rows["token"][i]))
        assert bool(run.silenced[i]) == (k.masks[planted.S2T] == 1.0)
    assert labelling.draw([run], 40, 3)[:2] == (sheet, key)
    assert labelling.draw([run], 40, 4)[1] != key


def test_a_token_is_found_in_its_whole_response(run: LoggedRun):
    i = int(np.flatnonzero(run.silenced)[0])
    row = run.records(np.array([i]))[0]
    ids = [*row["before"], row["token"], *row["after"]]
    text, place = run.vocabulary.several(ids), len(row["before"])
    texts = {(row["prompt_id"], row["sample"]): text}
    before, after = labelling._around(run, i, texts, (row["prompt_id"], row["sample"]), place)
    assert before + run.vocabulary.one(row["token"]) + after == text
    assert before == run.vocabulary.several(row["before"])
    assert labelling._around(run, i, texts, (row["prompt_id"], row["sample"]), len(ids)) == (text, "")
    for name, position in (((row["prompt_id"], row["sample"]), place + 1), (("other", 0), place)):
        with pytest.raises(RecordError, match="not those of the log"):
            labelling._around(run, i, texts, name, position)


def test_from_a_log_to_the_shares_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = ["--out", str(tmp_path)]
    assert _command(["label", str(LOG), "--each", "10", *out]) == 0
    sheet = [json.loads(line) for line in (tmp_path / "sheet.jsonl").read_text().splitlines()]
    with pytest.raises(BadInput, match="below their problems"):
        _command(["label", str(LOG), "--samples", "samples.jsonl", *out])
    with pytest.raises(BadInput, match="sheet already"):
        _command(["label", str(LOG), *out])
    files = []
    for n in (1, 2):
        file = tmp_path / f"reading-{n}.jsonl"
        labels = [NEUTRAL if i % (3 * n) else HARMFUL for i in range(len(sheet))]
        file.write_text(
            "".join(json.dumps({"id": s["id"], "label": x}) + "\n" for s, x in zip(sheet, labels, strict=True))
        )
        files.append(str(file))
    assert _command(["label", "--readings", *files, *out]) == 0
    # of 20 tokens the first calls 1, 4, 7, ... harmful (7), the second 1, 7, 13, 19 (4), all of which the first does
    page = readings.page_block(tmp_path).splitlines()
    rows = [[c.strip() for c in line.strip("| ").split("|")] for line in page]
    assert [r[1:] for r in rows if r[0] in readings.LABELS] == [["4", "3", "0"], ["0", "13", "0"], ["0", "0", "0"]]
    assert page[0] == "Drawn: 10 of 284 that S2T silences and 10 of 137 that S2T keeps."
    # every token of the record in the characters that its sheet has around it
    record = json.loads((tmp_path / "labels.json").read_text())
    for s, t in zip(sheet, record["tokens"], strict=True):
        assert (t["id"], t["token"]) == (s["id"], s["token"])
        assert s["before"].endswith(t["before"])
        assert s["after"].startswith(t["after"])
        assert max(len(t["before"]), len(t["after"])) <= 60
    # at most four of a kind and eight on which they differ; here three
    cases = [r[-1] for r in rows if "<b>" in r[0]][1:]
    assert cases.count("harmful / neutral") == 3
    assert max(cases.count(HARMFUL), cases.count(NEUTRAL)) <= 8
    assert "| S2T |" in capsys.readouterr().out
    # collected it says the same
    (written,) = collect(tmp_path, tmp_path / "records")
    assert readings.page_block(written.parent).splitlines() == page
    with pytest.raises(BadInput, match="two readings"):
        _command(["label", "--readings", files[0], *out])


@pytest.mark.parametrize(("lines", "said"), [
    (["001"], "missing: 002"), (["001", "002", "002"], "twice: 002"), (["001", "002", "009"], "not on the sheet: 009"),
])  # fmt: skip
def test_a_reading_of_something_else_is_refused(tmp_path: Path, lines: list[str], said: str):
    sheet = [labelling.Shown(id=i, problem="", before="", token="x", after="") for i in ("001", "002")]
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps({"id": i, "label": NEUTRAL}) + "\n" for i in lines))
    with pytest.raises(RecordError) as e:
        readings.read_labels(file, sheet)
    assert said in str(e.value)


def test_a_sheet_in_another_order_is_refused(run: LoggedRun):
    sheet, key, _ = labelling.draw([run], 5, 3)
    labels = dict.fromkeys((s.id for s in sheet), NEUTRAL)
    for wrong in (sheet[::-1], sheet[:-1]):
        with pytest.raises(RecordError, match="do not go together") as e:
            readings.joined(wrong, key, labels, labels)
        assert str(e.value.found).endswith(f" beside {(key[0] if len(wrong) == len(key) else key[-1]).id}")


def test_another_label_is_refused(tmp_path: Path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"id": "001", "label": "bad"}\n')
    with pytest.raises(RecordError):
        readings.read_labels(file, [labelling.Shown(id="001", problem="", before="", token="x", after="")])
