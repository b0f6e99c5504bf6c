"""Precision and recall against planted words, by hand; the masks against the trainer's selectors; their table."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import synthetic_records as synthetic
from hypothesis import given, settings
from hypothesis import strategies as st
from token_logs import Others, Token, with_thresholds, write_tokens
from tokenizers import Tokenizer, models

from stapo_repro import labels, paper
from stapo_repro.figures.groups import groups
from stapo_repro.figures.style import save, style
from stapo_repro.read import load_training_runs
from stapo_results import token_log
from stapo_results.errors import RecordError
from studies import masks
from studies.masks import FULL, HIGH, RANDOM, S2T
from studies.testbed import planted

# Mini-batch 1: rare tokens with entropies 0.1 0.2 0.3 0.4, the first and the last junk; one frequent junk token.
# Mini-batch 2: one rare token, junk. q = 0.75: tau_h is 0.325 and 0.9, the 0.25-quantile 0.175 and 0.9.
HAND = with_thresholds(
    [
        Token("a", junk=True, entropy=0.1),
        Token("b", entropy=0.2),
        Token("b", entropy=0.3),
        Token("a", junk=True, entropy=0.4),
        Token("a", junk=True, rare=False, entropy=0.05),
        Token("b", junk=True, entropy=0.9, batch=2),
    ],
    0.75,
)


def read(folder, tokens, others=(), **more) -> token_log.TokenLog:
    write_tokens(folder, tokens, others, **more)
    log = token_log.read(folder)
    assert log is not None
    return log


def parts(measured: masks.Measured) -> list[tuple[float, float]]:
    return [(s.part, s.whole) for s in (measured["precision"], measured["recall"], measured["rare_recall"])]


def compared(tokens):
    return masks.compare(tokens, masks.weights(tokens, 0.75))


def test_every_mask_on_the_hand_worked_tokens(tmp_path):
    found, _ = compared(masks.tokens_of(read(tmp_path, HAND, [Others(correct=14), Others(correct=80, batch=2)])))
    assert parts(found[S2T]) == [(1, 3), (1, 4), (1, 3)]  # 0.1, 0.2, 0.3; a token alone is kept
    assert parts(found[FULL]) == [(3, 5), (3, 4), (3, 3)]
    assert parts(found[HIGH]) == [(1, 3), (1, 4), (1, 3)]  # 0.2, 0.3, 0.4
    assert parts(found[RANDOM]) == [(1.5, 3), (1.5, 4), (1.5, 3)]  # floor(3) of 4: 3/4 each; floor(0.75) of 1: none
    assert (found[S2T]["base"].mean, found[S2T]["rare_base"].mean) == (4 / 100, 3 / 5)


def test_s2t_minus_the_random_mask_over_the_draws_of_two_prompts(tmp_path):
    """Draws aa, ab, ba, bb. S2T minus random: 1 - 1, 1/3 - 1/2, 0 - 0."""
    _, differences = compared(masks.tokens_of(read(tmp_path, HAND)))
    d = differences[RANDOM]["precision"]
    np.testing.assert_allclose([d.mean, d.low, d.high], [-1 / 6, -1 / 6, 0], atol=1e-15)
    # recall of S2T 1/4 (a: 1 of 3, b: 0 of 1), of random 1.5/4 (a: 1.5 of 3, b: 0 of 1): -1/6, -1/8, 0
    d = differences[RANDOM]["recall"]
    np.testing.assert_allclose([d.mean, d.low, d.high], [-1 / 8, -1 / 6, 0], atol=1e-15)


def test_frequent_silenced_tokens_come_from_the_counts(tmp_path):
    """20-Entropy: 40 + 20 silenced tokens without a row, 2 junk ones with; wrong responses do not count."""
    tokens = [replace(t, silenced=t.junk and t.batch == 1 and t.rare) for t in HAND]
    tokens.append(Token("c", junk=True, rare=False, advantage=-1.0, silenced=True))
    others = [Others(correct=60, silenced=40, wrong=30), Others(correct=30, silenced=20, batch=2)]
    own = masks.as_trained(masks.tokens_of(read(tmp_path / "s2t", HAND, [Others(correct=94, wrong=50)])))
    assert parts(own) == [(1, 3), (1, 4), (1, 3)]
    assert own["precision"].over == "prompts"
    own = masks.as_trained(masks.tokens_of(read(tmp_path, tokens, others, selector="top_entropy", mode="full")))
    assert parts(own) == [(2, 62), (2, 4), (2, 3)]
    assert (own["precision"].over, own["recall"].over) == ("mini-batches", "prompts")
    # batch 1: 2 of 42, batch 2: 0 of 20
    assert (own["precision"].low, own["precision"].high) == (0.0, pytest.approx(2 / 42))


def test_a_log_that_lacks_rows_is_refused(tmp_path):
    with pytest.raises(RecordError, match="3 rows left out"):
        masks.tokens_of(read(tmp_path / "left", HAND, left_out=3))
    write_tokens(tmp_path / "whole", HAND)
    write_tokens(tmp_path / "short", [t for t in HAND if t.entropy != 0.3])
    _, counts = token_log.shard_files(tmp_path / "short" / "token_log", 1)
    counts.write_bytes(token_log.shard_files(tmp_path / "whole" / "token_log", 1)[1].read_bytes())
    log = token_log.read(tmp_path / "short")
    assert log is not None
    with pytest.raises(RecordError, match="step 1, mini-batch 1: 3 rows of 4 rare tokens"):
        masks.tokens_of(log)


entropies = st.lists(st.integers(0, 6).map(lambda k: k / 8), min_size=1, max_size=12)
some_q = st.sampled_from([0.0, 0.25, 0.5, 0.7, 0.75, 1.0])


@settings(max_examples=25, deadline=None)
@given(st.lists(entropies, min_size=1, max_size=3), some_q)
def test_masks_are_those_of_the_trainers_selectors(groups, q):
    """Ties at the threshold, one candidate, q = 0 and 1: the same tokens as the torch selectors choose."""
    torch = pytest.importorskip("torch")
    from stapo_training.selection import selectors
    from stapo_training.selection.token_stats import TokenStats

    entropy = np.array([e for g in groups for e in g])
    batch = np.repeat(np.arange(len(groups)), [len(g) for g in groups])
    n = len(entropy)
    expected = {S2T: np.empty(n), HIGH: np.empty(n), RANDOM: np.empty(n)}
    for b in range(len(groups)):
        at = batch == b
        m = int(at.sum())
        stats = TokenStats(
            logprob_N=torch.full((m,), -9.0), entropy_N=torch.tensor(entropy[at], dtype=torch.float32),
            advantage_N=torch.ones(m), response_N=torch.ones(m, dtype=torch.bool),
            key_N=torch.arange(m, dtype=torch.float64),
        )  # fmt: skip
        expected[S2T][at] = ~selectors.silence_spurious(stats, tau_p=0.002, q=q).keep_N.numpy()
        expected[HIGH][at] = ~selectors.silence_high_entropy(stats, tau_p=0.002, q=q).keep_N.numpy()
        expected[RANDOM][at] = (~selectors.silence_random(stats, tau_p=0.002, q=q).keep_N.numpy()).sum() / m
    found = masks.weights({"rare": np.ones(n, bool), "batch": batch, "entropy": entropy}, q)
    for name, want in expected.items():
        np.testing.assert_allclose(found[name], want, atol=1e-12, err_msg=name)


STEPS = [*HAND[:-1], replace(HAND[-1], prompt="c", batch=1, step=2)]
OTHERS = [Others(correct=14), Others(correct=80, step=2)]


def records(root: Path) -> Path:
    """JustRL and STAPO with logs, 20-Entropy with frequent silenced tokens and a tokenizer, GRPO without a log."""
    for method in ("grpo", "justrl", "stapo", "entropy20"):
        synthetic.training_run(root, method, steps=2)
    write_tokens(root / "stapo-s0", STEPS, OTHERS)
    none = [replace(t, silenced=False) for t in STEPS]
    write_tokens(root / "justrl-s0", none, OTHERS, selector="keep_all")
    write_tokens(root / "entropy20-s0", none, [replace(o, silenced=10) for o in OTHERS], selector="top_entropy")
    words = {f"w{i}": i for i in range(16) if i not in (4, 5)} | {"<b>|`": 4, "*hmm": 5}
    Tokenizer(models.WordLevel(words, unk_token="w0")).save(str(root / "entropy20-s0" / "token_log" / "tokenizer.json"))
    return root


def test_the_table_of_runs_and_of_masks_on_the_same_tokens(tmp_path):
    lines = planted.table(load_training_runs([records(tmp_path)]))
    assert lines[0] == "SYNTHETIC RECORDS, made up for a test. Planted: &lt;b>\\|\\`, \\*hmm."
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines if line.startswith("| ")]
    assert rows[2] == [
        *("20-Entropy, seed 0: all but the top entropies", "20", "0.00 % † (0.00 to 84.19); 0 of 20"),
        *("0.00 % (0.00 to 84.19); 0 of 4", "0.00 % (0.00 to 84.19); 0 of 3", "4.00 % (60.00 %)"),
    ]  # 1 - sqrt(0.025) = 0.8419: two mini-batches, two prompts
    assert rows[3] == ["JustRL, seed 0: none", "0", "n/a", "0 of 4", "0 of 3", "4.00 % (60.00 %)"]
    assert rows[4][:3] == ["STAPO, seed 0: S2T", "3", "33.33 % (0.00 to 100.00); 1 of 3"]
    assert [r[2].rpartition("; ")[2] for r in rows if r[0] == "random"] == ["1.5 of 3", "1.5 of 3"]
    assert [r[1].split()[0] for r in rows if r[0] == "S2T minus random"] == ["-16.67", "-16.67"]
    assert [line for line in lines if line.startswith("### ")][2] == "### Base model: step 1 of JustRL, seed 0"


def test_runs_without_planted_words_have_no_table_and_two_base_models_no_common_one(tmp_path):
    root = records(tmp_path)
    write_tokens(root / "stapo-s0", STEPS, watch=())  # a log of a real model
    assert "STAPO" not in "".join(planted.table(load_training_runs([root])))
    assert masks.planted_logs(load_training_runs([root / "stapo-s0"])) == []
    write_tokens(root / "stapo-s0", STEPS, watch=(4, 6, 7))
    with pytest.raises(RecordError, match=r"stapo-s0: 3 ids, 4 to 7[\s\S]*2 ids, 4 to 5"):
        masks.planted_logs(load_training_runs([root]))


def test_the_figure_of_planted_words_marks_every_mask(tmp_path):
    for method, selector in (("justrl", "keep_all"), ("stapo", "silence_spurious")):
        synthetic.training_run(tmp_path, method, steps=1)
        words = with_thresholds([Token(str(i), junk=i < 2, entropy=0.1 * i) for i in range(4)], 0.75)
        own = words if method == "stapo" else [replace(t, silenced=False) for t in words]
        write_tokens(tmp_path / f"{method}-s0", own, selector=selector)
    group = groups([], load_training_runs([tmp_path]), paper.load())[labels.MINI]
    with style():
        found = save(planted.figure(group), ())
    # heading, JustRL (silences none), STAPO; heading, four masks; heading, four masks
    found = sorted(int(k) for k in re.findall(r'id="planted-(\d+)"', found.files["svg"].decode()))
    assert found == sorted([2, 4, 5, 6, 7, 9, 10, 11, 12] * 2)
