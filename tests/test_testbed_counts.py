"""The counts that a training's record keeps of its tokens, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import synthetic_records as synthetic
from synthetic_log import Others, Token, with_thresholds, write

from stapo_repro.collect import collect
from stapo_repro.testbed import counts
from stapo_repro.tokens.masks import FULL, HIGH, RANDOM, S2T
from stapo_results.errors import RecordError
from stapo_results.schema import Run
from stapo_results.store import read_json, write_json

# Step 1: rare tokens with entropies 0.1 (spurious) 0.2 0.3 (useful) 0.4 (spurious); a frequent spurious one.
# Step 2: one rare token, useful.
TOKENS = with_thresholds(
    [
        Token("a", junk=True, entropy=0.1),
        Token("b", entropy=0.2),
        Token("b", useful=True, entropy=0.3),
        Token("a", junk=True, entropy=0.4),
        Token("a", junk=True, rare=False, entropy=0.05),
        Token("b", useful=True, entropy=0.9, step=2),
    ],
    0.75,
)
NONE = (0.0, 0.0, 0.0)


def counted(folder, tokens, others=(), **more) -> counts.PlantedCounts:
    write(folder, tokens, others, **more)
    found = counts.of_run(folder, "abc")
    assert found is not None
    return found


def test_classes_of_rare_and_silenced_tokens_by_hand(tmp_path):
    found = counted(tmp_path, TOKENS, [Others(correct=14)])
    assert (found.run_id, found.selector, found.steps) == ("abc", S2T, [1, 2])
    assert [c.tokens for c in found.rare] == [[(2.0, 1.0, 1.0), (0.0, 1.0, 0.0)]]
    # quantiles of 0.1 0.2 0.3 0.4: 0.325 at 0.75, 0.175 at 0.25; a token alone is kept; floor(0.75 x 4) = 3 of 4
    assert {(m.mask, m.tau_p, m.q): m.tokens for m in found.masks} == {
        (S2T, 0.002, 0.75): [(1.0, 1.0, 1.0), NONE],
        (HIGH, 0.002, 0.75): [(1.0, 1.0, 1.0), NONE],
        (FULL, 0.002, 1.0): found.rare[0].tokens,
        (RANDOM, 0.002, 0.75): [(1.5, 0.75, 0.75), NONE],
    }
    # of all: 3 silenced, 1 of them spurious, as are 2 rare ones; 1 of 2 rare useful ones
    assert found.of_mask(S2T) == {"tokens": 3.0, "precision": 1 / 3, "recall": 1 / 2, "useful_silenced": 1 / 2}


def test_a_record_is_read_for_the_log_and_refused_where_it_contradicts_itself(tmp_path):
    found = counted(tmp_path / "log", TOKENS)
    write_json(tmp_path / "record" / counts.FILE, found)
    assert counts.of_run(tmp_path / "record") == found
    assert counts.of_run(tmp_path) is None
    with pytest.raises(RecordError):  # of another run
        counts.of_run(tmp_path / "record", "xyz")
    write(tmp_path / "left", TOKENS, left_out=3)
    with pytest.raises(RecordError):
        counts.of_run(tmp_path / "left")
    masks = found.model_dump()["masks"]
    more = {**masks[0], "tokens": [(2.0, 1.5, 0.0), NONE]}  # of 2 spurious and 1 useful
    for wrong in ([more], [masks[0] | {"tau_p": 0.1}], [masks[0] | {"tokens": [NONE]}]):
        with pytest.raises(ValueError, match=r"silenced|entries"):
            counts.PlantedCounts.model_validate(found.model_dump() | {"masks": wrong})


def test_a_log_of_another_tau_p_has_no_counts(tmp_path):
    write(tmp_path, [replace(t, rare=t.rare and t.entropy < 0.3) for t in TOKENS], tau_p=0.0002)
    found = counts.of_run(tmp_path)
    assert found is not None
    assert (found.rare, found.masks, found.of_mask(S2T)) == ([], [], {})


def test_collected_records_of_a_testbed_have_counts_and_no_token_log(tmp_path):
    run = tmp_path / "run"
    folder = synthetic.training_run(run / "train", "stapo", steps=1)
    write(folder, [Token("a", junk=True), Token("b", useful=True)])
    own, config = read_json(folder / "run.json", Run), {"experiment": "testbed", "quick": False}
    write_json(run / "run.json", own.model_copy(update={"kind": "repro", "config": config}))
    collect(run, tmp_path / "out")
    assert not list((tmp_path / "out").rglob("*.parquet"))
    found = counts.of_run(tmp_path / "out" / "train" / "stapo-s0")
    assert found is not None
    assert found == counts.of_run(folder, "synthetic")
    assert found.rare[0].tokens == [(1.0, 1.0, 0.0)]
