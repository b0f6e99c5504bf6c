"""Token statistics without the full logits, against numbers worked out by hand and against float64."""

from __future__ import annotations

import math
import subprocess
import sys
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from token_cases import NAMES, adversarial_logits, assert_equals_float64, generator, random_case
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from stapo_training.selection.token_distribution import score_logits, score_tokens
from stapo_training.selection.token_stats import entropy

# numbers by hand


def test_by_hand() -> None:
    logits = torch.tensor(
        [
            [0.0, 0.0, 0.0, 0.0],  # uniform over 4
            [math.log(0.25), math.log(0.5), -math.inf, math.log(0.25)],
            [0.0, -1e4, 1e4, 0.0],  # one-hot
            [-30000.0, 30000.0, -math.inf, 30000.0],
        ]
    )
    found = score_logits(logits, torch.tensor([3, 0, 0, 1]), k=3, vocabulary=2)
    assert found.logprob_T.tolist() == pytest.approx([math.log(0.25), math.log(0.25), -1e4, math.log(0.5)], rel=1e-6)
    assert found.entropy_T.tolist() == pytest.approx([math.log(4), 1.5 * math.log(2), 0.0, math.log(2)], abs=1e-6)
    assert found.collision_T.tolist() == pytest.approx([0.25, 0.375, 1.0, 0.5], rel=1e-6)
    assert found.top_id_TK.tolist() == [[0, 1, 2], [1, 0, 3], [2, 0, 3], [1, 3, 0]]
    expected = [[0.25, 0.25, 0.25], [0.5, 0.25, 0.25], [1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]
    for row, probabilities in zip(found.top_logprob_TK.exp().tolist(), expected, strict=True):
        assert row == pytest.approx(probabilities, rel=1e-6)


def test_hidden_weight_bias_and_temperature_by_hand() -> None:
    hidden, weight = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    bias, temperature = torch.tensor([2.0, 0.0, -3.0]), torch.tensor([0.5])
    # logits (1 + 2, 2, 3 - 3) / 0.5 = 6, 4, 0
    z = math.exp(6) + math.exp(4) + 1
    found = score_tokens(hidden, weight, torch.tensor([1]), bias_V=bias, temperature_T=temperature, k=2)
    assert float(found.logprob_T) == pytest.approx(4 - math.log(z), rel=1e-6)
    assert float(found.collision_T) == pytest.approx((math.exp(12) + math.exp(8) + 1) / z**2, rel=1e-6)
    assert found.top_id_TK.tolist() == [[0, 1]]


def test_ties_go_to_the_lower_id_within_and_across_tiles() -> None:
    logits = torch.zeros(2, 40)
    logits[0, [7, 9, 33]] = 1.0
    logits[1, 5] = -0.0  # equals 0.0
    found = score_logits(logits, torch.tensor([0, 0]), k=5, vocabulary=8)
    assert found.top_id_TK.tolist() == [[7, 9, 33, 0, 1], [0, 1, 2, 3, 4]]


def test_top_k_with_fewer_possible_tokens_than_k() -> None:
    logits = torch.full((1, 9), -math.inf)
    logits[0, [8, 3]] = torch.tensor([1.0, 0.0])
    found = score_logits(logits, torch.tensor([0]), k=4, vocabulary=4)
    assert found.top_id_TK.tolist() == [[8, 3, 0, 1]]
    assert found.top_logprob_TK[0, 2:].tolist() == [-math.inf, -math.inf]
    assert found.logprob_T.tolist() == [-math.inf]
    assert float(found.entropy_T) == pytest.approx(math.log1p(math.e) - math.e / (1 + math.e), abs=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("column", [0, 5, 11])
def test_a_diverged_token_is_nan_and_its_neighbours_are_not(bad: float, column: int) -> None:
    logits = torch.randn(3, 12, generator=generator(0))
    logits[1, column] = bad
    chosen = torch.tensor([4, 4, 4])
    found, fine = score_logits(logits, chosen, vocabulary=4), score_logits(logits[[0, 2]], chosen[:2], vocabulary=4)
    for name in ("logprob_T", "entropy_T", "collision_T"):
        values = getattr(found, name)
        assert math.isnan(values[1]), name
        assert values[[0, 2]].tolist() == getattr(fine, name).tolist()


# float64


@settings(max_examples=60, deadline=None)
@given(adversarial_logits(), st.integers(0, 2**20), st.sampled_from([5, 64, 1024]), st.sampled_from([1, 4, 512]))
def test_equals_float64(logits: torch.Tensor, seed: int, vocabulary: int, tokens: int) -> None:
    chosen = torch.randint(0, logits.shape[1], (len(logits),), generator=generator(seed))
    found = score_logits(logits, chosen, tokens=tokens, vocabulary=vocabulary)
    assert_equals_float64(found, logits, chosen)


@settings(max_examples=15, deadline=None)
@given(adversarial_logits().filter(lambda z: z.shape[1] <= 1025 and bool(z.isfinite().all())), st.integers(0, 2**20))
def test_hidden_states_equal_float64(logits: torch.Tensor, seed: int) -> None:
    """With the identity as output matrix hidden states are logits, exactly."""
    chosen = torch.randint(0, logits.shape[1], (len(logits),), generator=generator(seed))
    found = score_tokens(logits, torch.eye(logits.shape[1]), chosen)
    assert_equals_float64(found, logits, chosen)


@pytest.mark.parametrize("spread", [0.0, 1.0, 10.0])
def test_a_real_vocabulary_equals_float64(spread: float) -> None:
    logits = spread * torch.randn(8, 151_936, generator=generator(3)) - 3.3
    chosen = torch.randint(0, 151_936, (8,), generator=generator(4))
    assert_equals_float64(score_logits(logits, chosen), logits, chosen)


def test_the_existing_entropy_agrees() -> None:
    logits = 5 * torch.randn(20, 3000, generator=generator(5))
    found = score_logits(logits, torch.zeros(20, dtype=torch.long))
    torch.testing.assert_close(found.entropy_T, entropy(logits), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_inputs_are_multiplied_in_float32(dtype: torch.dtype) -> None:
    """Also under autocast, which would take products and dots in the lower precision."""
    hidden, weight, chosen = random_case(6, 40, 96, 3000)
    low_hidden, low_weight = hidden.to(dtype), weight.to(dtype)
    with torch.autocast("cpu", dtype):
        found = score_tokens(low_hidden, low_weight, chosen)
    logits = low_hidden.double() @ low_weight.double().T
    torch.testing.assert_close(
        found.logprob_T.double(), logits.log_softmax(-1).gather(1, chosen[:, None])[:, 0], rtol=1e-5, atol=2e-5
    )
    assert found.top_id_TK.tolist() == logits.topk(5).indices.tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_logits_equal_their_float32_copy(dtype: torch.dtype) -> None:
    logits = (4 * torch.randn(10, 2500, generator=generator(7))).to(dtype)
    chosen = torch.arange(10)
    found, expected = score_logits(logits, chosen), score_logits(logits.float(), chosen)
    for name in NAMES:
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


# invariance


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**20), st.sampled_from([1, 3, 64]), st.sampled_from([5, 7, 100, 4096]))
def test_the_size_of_tiles_changes_nothing(seed: int, tokens: int, vocabulary: int) -> None:
    hidden, weight, chosen = random_case(seed, 17, 12, 700)
    whole = score_tokens(hidden, weight, chosen, tokens=17, vocabulary=700)
    found = score_tokens(hidden, weight, chosen, tokens=tokens, vocabulary=vocabulary)
    assert found.top_id_TK.tolist() == whole.top_id_TK.tolist()
    for name in ("logprob_T", "entropy_T", "collision_T", "top_logprob_TK"):
        torch.testing.assert_close(getattr(found, name), getattr(whole, name), rtol=1e-5, atol=2e-6)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**20))
def test_the_order_of_tokens_changes_nothing(seed: int) -> None:
    logits, chosen = 3 * torch.randn(30, 1500, generator=generator(seed)), torch.arange(30)
    order = torch.randperm(30, generator=generator(seed + 1))
    straight, moved = score_logits(logits, chosen, tokens=8), score_logits(logits[order], chosen[order], tokens=8)
    for name in NAMES:
        assert torch.equal(getattr(straight, name)[order], getattr(moved, name)), name


def test_no_token_at_all() -> None:
    found = score_tokens(torch.empty(0, 4), torch.randn(9, 4), torch.empty(0, dtype=torch.long), k=3)
    assert (found.logprob_T.shape, found.top_id_TK.shape) == ((0,), (0, 3))


@pytest.mark.parametrize(
    ("chosen", "k", "depth"), [([0, 9], 2, 4), ([-1, 0], 2, 4), ([0], 2, 4), ([0, 0], 10, 4), ([0, 0], 2, 5)]
)
def test_arguments_that_do_not_fit(chosen: list[int], k: int, depth: int) -> None:
    with pytest.raises(ValueError, match=r"\d"):
        score_tokens(torch.randn(2, 4), torch.randn(9, depth), torch.tensor(chosen), k=k)


def test_there_is_no_gradient() -> None:
    hidden = torch.randn(2, 4, requires_grad=True)
    assert not score_tokens(hidden, torch.randn(9, 4), torch.tensor([0, 1])).logprob_T.requires_grad


# memory


class Allocations(TorchDispatchMode):
    """The largest sum of the sizes of storages that operations made and that lived at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {t.untyped_storage()._cdata for t in _tensors((args, kwargs))}
        made = func(*args, **(kwargs or {}))
        for tensor in _tensors(made):
            storage = tensor.untyped_storage()
            if storage._cdata not in self.alive and storage._cdata not in known:
                self.alive[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, self.alive.pop, storage._cdata, None)
        self.peak = max(self.peak, sum(self.alive.values()))
        return made


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [t for t in tree_leaves(tree) if isinstance(t, torch.Tensor)]


def test_the_count_of_allocations_sees_full_logits() -> None:
    hidden, weight, _ = random_case(0, 64, 8, 5000)
    with Allocations() as counted:
        z = hidden @ weight.T
        z.log_softmax(-1)
    assert counted.peak == pytest.approx(2 * 64 * 5000 * 4, rel=0.01)


def test_memory_does_not_grow_with_the_logits() -> None:
    """4,096 x 20,000 logits would be 328 MB, and 82 MB those of a quarter of the vocabulary."""
    hidden, weight, chosen = random_case(1, 4096, 8, 20_000)
    hidden, weight = hidden.bfloat16(), weight.bfloat16()
    peaks = []
    for vocabulary in (5000, 20_000):
        with Allocations() as counted:
            score_tokens(hidden, weight[:vocabulary], chosen % vocabulary)
        peaks.append(counted.peak)
    # a tile and its scratch are 4 MiB; ranking the first tile, all rows of it in int64, takes 12 more
    assert peaks[0] < 20 * 2**20
    assert peaks[1] == pytest.approx(peaks[0], rel=0.05)


_REAL = """
import resource, torch
from stapo_training.selection.token_distribution import score_tokens
hidden = torch.randn(16384, 2048, dtype=torch.bfloat16)
weight = torch.randn(151936, 2048, dtype=torch.bfloat16)
chosen = torch.randint(0, 151936, (16384,))
score_tokens(hidden[:8], weight[:64], chosen[:8] % 64)  # the libraries' own first use
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = score_tokens(hidden, weight, chosen)
assert found.entropy_T.isfinite().all()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.slow
def test_extra_memory_at_full_size_is_under_a_gibibyte() -> None:
    """16,384 tokens, hidden 2,048, vocabulary 151,936: naive float32 logits are 10 GB. Two core minutes, or more."""
    ended = subprocess.run([sys.executable, "-c", _REAL], capture_output=True, text=True, timeout=3600)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert int(ended.stdout) < 2**30
