"""The counts that a training's record keeps of its tokens, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import synthetic_records as synthetic
from synthetic_log import Others, Token, with_thresholds, write

from stapo_repro.collect import collect
from stapo_repro.testbed import counts
from stapo_repro.tokens.masks import FULL, HIGH, RANDOM, S2T
from stapo_results import token_log
from stapo_results.errors import RecordError
from stapo_results.schema import Run
from stapo_results.store import read_json, write_json

# Step 1: rare tokens with entropies 0.1 (spurious) 0.2 0.3 (useful) 0.4 (spurious); a frequent spurious one.
# Step 2: one rare token, useful. Rarer than 0.0002 are the first and the third of step 1.
TOKENS = with_thresholds(
    [
        Token("a", junk=True, entropy=0.1, p=0.0001),
        Token("b", entropy=0.2),
        Token("b", useful=True, entropy=0.3, p=0.0001),
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
    assert (found.run_id, found.selector, found.steps, found.spurious) == ("abc", S2T, [1, 2], [3.0, 0.0])
    rare = {c.tau_p: c.tokens for c in found.rare}
    assert rare == {0.002: [(2.0, 1.0, 1.0), (0.0, 1.0, 0.0)], 0.0002: [(1.0, 1.0, 0.0), NONE]}
    masks = {(m.mask, m.tau_p, m.q): m.tokens for m in found.masks}
    assert len(masks) == 2 * (3 * 3 + 1)
    # quantiles of 0.1 0.2 0.3 0.4: 0.175 at 0.25, 0.25 at 0.5, 0.325 at 0.75; a token alone is kept
    assert masks[S2T, 0.002, 0.25] == [(1.0, 0.0, 0.0), NONE]
    assert masks[S2T, 0.002, 0.5] == [(1.0, 0.0, 1.0), NONE]
    assert masks[S2T, 0.002, 0.75] == found.own == [(1.0, 1.0, 1.0), NONE]
    assert masks[HIGH, 0.002, 0.75] == [(1.0, 1.0, 1.0), NONE]  # above 0.175: 0.2 0.3 0.4
    assert masks[FULL, 0.002, 1.0] == rare[0.002]
    # floor(0.75 x 4) = 3 of 4, floor(0.25 x 4) = 1 of 4; of one token none
    assert masks[RANDOM, 0.002, 0.75] == [(1.5, 0.75, 0.75), NONE]
    assert masks[RANDOM, 0.002, 0.25] == [(0.5, 0.25, 0.25), NONE]
    # 0.1 and 0.3 alone: the median 0.2
    assert masks[S2T, 0.0002, 0.5] == [(1.0, 0.0, 0.0), NONE]


def test_what_a_run_silenced_beyond_rare_tokens_counts_as_other(tmp_path):
    own = [replace(t, silenced=t.junk) for t in TOKENS]
    found = counted(tmp_path, own, [Others(correct=60, silenced=40, wrong=30)], selector="top_entropy", mode="full")
    assert found.own == [(3.0, 0.0, 40.0), NONE]


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
    for wrong in (masks[1:], [*masks, masks[0]], [more, *masks[1:]]):
        with pytest.raises(ValueError, match=r"mask|more"):
            counts.PlantedCounts.model_validate(found.model_dump() | {"masks": wrong})


def test_a_log_of_a_smaller_tau_p_has_no_counts_of_a_larger(tmp_path):
    write(tmp_path, [replace(t, rare=t.rare and t.p < 0.0002) for t in TOKENS])
    log = token_log.read(tmp_path)
    assert log is not None
    narrow = replace(log, header=log.header.model_copy(update={"tau_p": 0.0002}))
    assert [c.tau_p for c in counts.of_log(narrow).rare] == [0.0002]


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
    assert found.rare[1].tokens == [(1.0, 1.0, 0.0)]
