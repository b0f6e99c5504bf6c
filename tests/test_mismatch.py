"""Are S2T's tokens those on which sampler and trainer disagree: overlaps and correlations worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import token_logs as logs
import torch
from hypothesis import given
from hypothesis import strategies as st

from stapo_repro.read import TrainingRun
from stapo_repro.tokens import mismatch_page, page
from stapo_repro.tokens.logged_run import load
from stapo_repro.tokens.mismatch import Mismatch, measured
from stapo_results.statistics.ranks import rank_correlation
from stapo_training.verl_ext.token_log_buffer import largest


def rare(entropy: float, mismatch: float, prompt: str, flagged: bool = False, **more: object) -> dict[str, object]:
    """A rare token; below 0.5 nats S2T silences it."""
    own = {"sampler_logprob": -7.0 - mismatch, "mismatched": flagged, "prompt_id": prompt, "entropy": entropy}
    return logs.row(**own | {"silenced": entropy < 0.5} | more)


def found(folder: Path, rows: list[dict[str, object]], frequent: int, flagged: int) -> Mismatch:
    """Of these rows and of `frequent` tokens with A > 0 and no row, some of them flagged."""
    more = [logs.row(logprob=-0.1, rare=False, silenced=False, mismatched=i < flagged) for i in range(frequent)]
    result = measured(load(logs.write(folder, rows, more)))
    assert result is not None
    return result


ROWS = [rare(0.1, 0.4, "a", True), rare(0.2, 0.1, "a"), rare(0.3, 0.3, "b", True), rare(0.9, 0.2, "b")]


def test_overlaps_by_hand(tmp_path: Path) -> None:
    """S2T: 0.1, 0.2, 0.3 nats. Of three flagged tokens two are S2T's; the three largest of the rare: 0.4, 0.3, 0.2."""
    m = found(tmp_path, ROWS, frequent=26, flagged=1)
    assert [(o.share.part, o.share.whole) for o in (m.correct, m.rare)] == [(2, 3), (2, 3)]
    assert (m.correct.chance, m.rare.chance) == (pytest.approx(3 / 30), 3 / 4)
    assert (m.correct.least, m.rare.least) == (0, 2 / 3)  # three and three of four share two
    # draws of prompts aa, ab, ba, bb: a has 1 of 2, b 1 of 1
    assert (m.correct.share.low, m.correct.share.high) == (0.5, 1.0)
    # entropies 1 2 3 4 against mismatches 4 1 3 2: 1 - 6 (9 + 1 + 0 + 4) / (4 x 15); all are equally probable
    assert m.entropy.value == pytest.approx(-0.4)
    assert m.probability.value is None
    assert (m.median, m.largest) == (pytest.approx(0.25), pytest.approx(0.4))


def test_equal_mismatches_count_in_part_and_mini_batches_apart(tmp_path: Path) -> None:
    """Mini-batch 1: one of two equal ones is among the largest. Mini-batch 2: S2T would silence its only token."""
    rows = [rare(0.1, 0.2, "a"), rare(0.9, 0.2, "a"), rare(0.1, 0.0, "b", True, mini_batch=2)]
    m = found(tmp_path, rows, frequent=8, flagged=1)
    assert (m.rare.share.part, m.rare.share.whole) == (1.5, 2)
    assert m.rare.chance == (1 / 2 + 1) / 2
    assert (m.correct.share.part, m.correct.chance) == (1, (1 / 10 + 1 / 1) / 2)


def test_without_the_samplers_probabilities_nothing_is_said(tmp_path: Path) -> None:
    log = load(logs.write(tmp_path, [logs.row()]))
    assert measured(log) is None
    assert "not known" in page.analyse(log)[1][1]


def test_the_page_and_the_command_say_it(tmp_path: Path) -> None:
    files, said = page.analyse(load(logs.write(tmp_path, ROWS)))
    assert "66.7 % (50.0 to 100.0); by chance 75.0 %, at least 66.7 %" in said[3]
    assert "66.7 % (50.0 to 100.0); by chance 75.0 %, at least 66.7 %" in files["index.html"].decode()


def test_the_block_names_what_was_not_run_and_what_a_log_does_not_know(tmp_path: Path) -> None:
    logs.write(tmp_path / "a", ROWS)
    logs.write(tmp_path / "b", [logs.row()])
    logs.write(tmp_path / "c", [rare(0.9, 0.2, "a")])
    logs.write(tmp_path / "d", [logs.row(rare=False, silenced=False)])
    runs = [TrainingRun("stapo", "mini", s, "", "done", [], folder=tmp_path / n) for s, n in enumerate("abcde")]
    _, _, stapo, *others, tis, icepop = mismatch_page.page_block(runs).splitlines()
    assert stapo.startswith("| STAPO, seed 0 (miniature) | 3 | 66.7 % (50.0 to 100.0); by chance ")
    said = [line.split(" | ")[1] for line in others]
    assert said == ["no sampler's probability", *["no token that S2T would silence"] * 2, "no token log on record"]
    assert [line.split(" | ")[:2] for line in (tis, icepop)] == [["| TIS", "not run"], ["| IcePop", "not run"]]


def test_the_largest_of_all_ranks_are_flagged() -> None:
    """Two tokens are to be flagged, and the other rank has 0.5 and 0.2: here 0.9 alone; with 0.5 here too, both."""
    values = torch.tensor([0.9, 0.3, 0.8, 0.1])
    among, chosen = torch.tensor([True, True, False, True]), torch.tensor([True, False, False, False])

    def pool(v: torch.Tensor) -> torch.Tensor:
        return torch.cat([v, torch.tensor([1]) if v.dtype == torch.int64 else torch.tensor([0.5, 0.2])])

    assert largest(values, among, chosen, pool).tolist() == [True, False, False, False]
    values[1] = 0.5
    assert largest(values, among, chosen, pool).tolist() == [True, True, False, False]
    assert not largest(values, among, torch.zeros(4, dtype=torch.bool), lambda v: v).any()


def test_rank_correlation_by_hand() -> None:
    assert rank_correlation([1, 2, 3, 4], [1, 3, 2, 4], [0, 0, 0, 0])[0] == pytest.approx(0.8)  # 1 - 6 x 2 / (4 x 15)
    # midranks 1.5 1.5 3 against 1 2 3: covariance 1.5, squares 1.5 and 2
    rho, low, high = rank_correlation([5, 5, 9], [1, 2, 3], [0, 0, 0])
    assert rho == pytest.approx(1.5 / math.sqrt(3))
    assert all(map(math.isnan, (low, high)))
    assert math.isnan(rank_correlation([1, 1], [1, 2], [0, 1])[0])


def test_its_interval_is_over_clusters() -> None:
    """Draws aa and bb hold one direction each, ab and ba both: +1, -1 and 0 ("1 2" against "1 2" and "2 1", tied)."""
    rho, low, high = rank_correlation([1, 2, 1, 2], [1, 2, 2, 1], ["a", "a", "b", "b"])
    assert (rho, low, high) == (0.0, pytest.approx(-1.0), pytest.approx(1.0))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=30))
def test_rank_correlation_is_scipys(pairs: list[tuple[int, int]]) -> None:
    from scipy.stats import spearmanr

    x, y = np.array(pairs).T
    if len(set(x)) > 1 and len(set(y)) > 1:
        assert rank_correlation(x, y, np.zeros(len(x)))[0] == pytest.approx(float(spearmanr(x, y).statistic))
