"""Are S2T's tokens those on which sampler and trainer disagree: overlaps and correlations worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import token_logs as logs
import torch

from stapo_repro.tokens.log import load
from stapo_repro.tokens.numbers import mismatch as measured
from stapo_results.statistics import Number
from stapo_training.verl_ext.token_log_part import largest


def rare(entropy: float, mismatch: float, prompt: str, flagged: bool = False, **more: object) -> dict[str, object]:
    """A rare token; below 0.5 nats S2T silences it."""
    own = {"sampler_logprob": -7.0 - mismatch, "mismatched": flagged, "prompt_id": prompt, "entropy": entropy}
    return logs.row(**own | {"silenced": entropy < 0.5} | more)


def found(folder: Path, rows: list[dict[str, object]], frequent: int, flagged: int) -> dict[str, Number]:
    """Of these rows and of `frequent` tokens with A > 0 and no row, some of them flagged."""
    more = [logs.row(logprob=-0.1, rare=False, silenced=False, mismatched=i < flagged) for i in range(frequent)]
    result = measured(load(logs.write(folder, rows, more)))
    assert result is not None
    return result


ROWS = [rare(0.1, 0.4, "a", True), rare(0.2, 0.1, "a"), rare(0.3, 0.3, "b", True), rare(0.9, 0.2, "b")]


def test_overlaps_by_hand(tmp_path: Path) -> None:
    """S2T: 0.1, 0.2, 0.3 nats. Of three flagged tokens two are S2T's; the three largest of the rare: 0.4, 0.3, 0.2."""
    m = found(tmp_path, ROWS, frequent=26, flagged=1)
    assert [(m[x].part, m[x].whole) for x in ("correct", "rare")] == [(2, 3), (2, 3)]
    assert (m["correct_chance"].mean, m["rare_chance"].mean) == (pytest.approx(3 / 30), 3 / 4)
    assert m["rare_least"].mean == 2 / 3  # three and three of four share two
    # draws of prompts aa, ab, ba, bb: a has 1 of 2, b 1 of 1
    assert (m["correct"].low, m["correct"].high) == (0.5, 1.0)
    # entropies 1 2 3 4 against mismatches 4 1 3 2: 1 - 6 (9 + 1 + 0 + 4) / (4 x 15); all are equally probable
    assert m["entropy"].mean == pytest.approx(-0.4)
    assert not m["probability"].known
    assert (m["median"].mean, m["largest"].mean) == (pytest.approx(0.25), pytest.approx(0.4))


def test_equal_mismatches_count_in_part_and_mini_batches_apart(tmp_path: Path) -> None:
    """Mini-batch 1: one of two equal ones is among the largest. Mini-batch 2: S2T would silence its only token."""
    rows = [rare(0.1, 0.2, "a"), rare(0.9, 0.2, "a"), rare(0.1, 0.0, "b", True, mini_batch=2)]
    m = found(tmp_path, rows, frequent=8, flagged=1)
    assert (m["rare"].part, m["rare"].whole) == (1.5, 2)
    assert m["rare_chance"].mean == (1 / 2 + 1) / 2
    assert (m["correct"].part, m["correct_chance"].mean) == (1, (1 / 10 + 1 / 1) / 2)


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
