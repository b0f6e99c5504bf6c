"""What one wrong guess of the speculative form costs, by simulation: the numbers of docs/methods.md."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

LIMIT, MEAN, TRUNCATED, SEQUENCES = 15_360, 2_000, 0.03, 512
PAGE = (Path(__file__).parents[1] / "docs/methods.md").read_text()


def redone(ranks: int, wrong: int, trials: int = 300) -> tuple[int, int]:
    """Percent of an update that all ranks wait for: mean and 90th percentile over mini-batches.

    Lengths are exponential but for 3 % at the limit; sequences go, longest first, to the rank with the fewest tokens;
    wrong tokens are anywhere, and a sequence is run again up to its last one.
    """
    rng, found = np.random.default_rng(0), []
    rest = (MEAN - TRUNCATED * LIMIT) / (1 - TRUNCATED)
    for _ in range(trials):
        drawn = np.minimum(rng.exponential(rest, SEQUENCES).astype(int) + 1, LIMIT)
        length_B = np.sort(np.where(rng.random(SEQUENCES) < TRUNCATED, LIMIT, drawn))[::-1]
        tokens_R, free_R = np.zeros(ranks), np.full(ranks, SEQUENCES // ranks)
        rank_B = np.empty(SEQUENCES, int)
        for i, length in enumerate(length_B):
            rank_B[i] = np.argmin(np.where(free_R > 0, tokens_R, np.inf))
            tokens_R[rank_B[i]] += length
            free_R[rank_B[i]] -= 1
        token = rng.integers(length_B.sum(), size=wrong)
        ends_B, again_B = np.cumsum(length_B), np.zeros(SEQUENCES)
        of = np.searchsorted(ends_B, token, side="right")
        np.maximum.at(again_B, of, token - (ends_B - length_B)[of] + 1)
        found.append(np.bincount(rank_B, weights=again_B, minlength=ranks).max() / tokens_R.max())
    return round(100 * np.mean(found)), round(100 * np.quantile(found, 0.9))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [8, 64])
@pytest.mark.parametrize("wrong", [1, 4, 10])
def test_the_pages_share_of_an_update(ranks: int, wrong: int) -> None:
    mean, high = redone(ranks, wrong)
    assert f"| {ranks} | {wrong} | {mean} % | {high} % |" in PAGE
