"""What the bench of sampler and trainer counts, by hand."""

import pytest
import torch

from studies.bench.precision import Scored, distances


def test_distances_by_hand() -> None:
    """Ratios 1.2, 1.5 and 1/3. The lower of two candidates' entropies is under their quantile: another one in each."""
    exact = Scored(torch.tensor([0.6, 0.0015, 0.001]).log(), torch.tensor([1.0, 2.0, 3.0]))
    other = Scored(exact.logprob_N, torch.tensor([1.0, 3.0, 2.0]))
    found = distances(torch.tensor([0.5, 0.001, 0.003]).log(), other, exact)
    assert found == pytest.approx(
        {
            "mean": 0.1025 / 3, "largest": 0.1, "k3": (0.0176784 + 0.0945349 + 0.4319456) / 3, "candidates": 2,
            "candidates_differ": 1, "silenced": 1, "silenced_differ": 2, "entropy_mean": 2 / 3,
        },
        rel=1e-5,
    )  # fmt: skip
