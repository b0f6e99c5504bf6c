"""Statistics from logits, and the bookkeeping of packed sequences, against numbers worked out by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stapo_training.selection.token_stats import entropy, response_positions, spans, token_distribution, token_keys
from stapo_training.verl_ext.speculative import correction


def test_entropies_by_hand() -> None:
    logits = torch.tensor(
        [
            [0.0, 0.0, 0.0, 0.0],  # uniform over 4: ln 4
            [math.log(0.5), math.log(0.25), math.log(0.25), -math.inf],  # 1.5 ln 2
            [1e4, 0.0, -1e4, 0.0],  # one-hot: 0
            [30000.0, 30000.0, -30000.0, -math.inf],  # ln 2
        ]
    )
    expected = torch.tensor([math.log(4), 1.5 * math.log(2), 0.0, math.log(2)])
    torch.testing.assert_close(entropy(logits), expected, rtol=0, atol=1e-6)


@settings(max_examples=30)
@given(
    st.integers(1, 7),
    st.sampled_from([2, 33, 4097]),
    st.sampled_from([0.1, 5.0, 1e4]),
    st.sampled_from(["fp32", "bf16"]),
)
def test_entropy_equals_float64(rows: int, vocabulary: int, spread: float, dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(rows * vocabulary)
    logits = (spread * torch.randn(rows, vocabulary, generator=g)).to(
        torch.float32 if dtype == "fp32" else torch.bfloat16
    )
    p = torch.log_softmax(logits.double(), -1)
    expected = -(p.exp() * p).nan_to_num(0).sum(-1)
    torch.testing.assert_close(entropy(logits).double(), expected, rtol=0, atol=1e-5)


def test_entropy_is_the_same_in_chunks() -> None:
    logits = torch.randn(70, 40_000, generator=torch.Generator().manual_seed(0))  # three chunks of 26 rows
    alone = torch.cat([entropy(row[None]) for row in logits])
    torch.testing.assert_close(entropy(logits), alone, rtol=1e-6, atol=1e-6)


def test_spans_and_response_positions() -> None:
    assert spans(torch.tensor([10, 3]), torch.tensor([2, 3])).tolist() == [10, 11, 3, 4, 5]
    # two sequences: a prompt of 2 and a response of 3, a prompt of 3 and a response of 1
    sequence, response = torch.tensor([0, 5, 9]), torch.tensor([0, 3, 4])
    assert response_positions(sequence, response).tolist() == [1, 2, 3, 7]


def test_keys_belong_to_tokens() -> None:
    ids = torch.tensor([5, 6, 7, 8, 9, 5, 6])
    sequence, response = torch.tensor([0, 4, 7]), torch.tensor([0, 2, 4])
    keys = token_keys(ids, sequence, response, seed=3)
    assert len(set(keys.tolist())) == 4
    assert bool(((keys >= 0) & (keys < 1)).all())
    # the other order of the sequences: the same numbers, moved along
    swapped = token_keys(ids[[4, 5, 6, 0, 1, 2, 3]], torch.tensor([0, 3, 7]), response, seed=3)
    assert swapped.tolist() == keys[[2, 3, 0, 1]].tolist()
    assert token_keys(ids, sequence, response, seed=4).tolist() != keys.tolist()
    changed = ids.clone()
    changed[0] = 6  # the prompt is part of what a token is
    assert token_keys(changed, sequence, response, seed=3)[:2].tolist() != keys[:2].tolist()


def test_keys_are_uniform() -> None:
    ids = torch.arange(100_000) % 997
    one = torch.tensor([0, 100_000])
    keys = token_keys(ids, one, torch.tensor([0, 99_000]), seed=0)
    shares = np.histogram(keys.numpy(), bins=10, range=(0, 1))[0] / 99_000
    assert np.abs(shares - 0.1).max() < 0.005  # five standard deviations of a tenth of 99,000
    assert abs(float(np.corrcoef(keys[:-1].numpy(), keys[1:].numpy())[0, 1])) < 0.016


def test_what_is_run_again() -> None:
    offsets = torch.tensor([0, 4, 6, 9])
    guessed = torch.tensor([1, 0, 1, 1, 1, 1, 0, 1, 1], dtype=torch.bool)
    true = torch.tensor([1, 1, 1, 1, 1, 1, 1, 0, 1], dtype=torch.bool)
    plan = correction(guessed, true, offsets)
    # row 0 is wrong at its 2nd token, row 2 at its 1st and 2nd: two tokens of each are run, row 1 is left alone
    assert plan.row_R.tolist() == [0, 2]
    assert plan.tokens_R.tolist() == [2, 2]
    assert torch.nonzero(plan.added_N).flatten().tolist() == [1, 6]
    assert torch.nonzero(plan.removed_N).flatten().tolist() == [7]


def test_a_right_guess_runs_nothing_again() -> None:
    keep = torch.tensor([1, 0, 1], dtype=torch.bool)
    assert correction(keep, keep, torch.tensor([0, 1, 3])).row_R.tolist() == []


def test_the_longest_part_comes_first() -> None:
    offsets = torch.tensor([0, 3, 6, 9])
    true = torch.ones(9, dtype=torch.bool)
    guessed = true.clone()
    guessed[[0, 5, 7]] = False
    plan = correction(guessed, true, offsets)
    assert (plan.row_R.tolist(), plan.tokens_R.tolist()) == ([1, 2, 0], [3, 2, 1])


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30), st.data())
def test_guess_plus_correction_is_the_truth(masks: list[tuple[bool, bool]], data: st.DataObject) -> None:
    guessed, true = (torch.tensor(m) for m in zip(*masks, strict=True))
    inner = sorted(data.draw(st.sets(st.integers(1, max(1, len(masks) - 1)), max_size=5)))
    offsets = torch.tensor(sorted({0, *inner, len(masks)}))
    plan = correction(guessed, true, offsets)
    signed = guessed.int() + plan.added_N.int() - plan.removed_N.int()
    assert signed.tolist() == true.int().tolist()
    covered = torch.zeros(len(masks), dtype=torch.bool)
    for row, tokens in zip(plan.row_R.tolist(), plan.tokens_R.tolist(), strict=True):
        covered[int(offsets[row]) : int(offsets[row]) + tokens] = True
    assert not (guessed ^ true)[~covered].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_entropy_is_exact_under_autocast(dtype: torch.dtype) -> None:
    """Where the engine calls it: matrix products would be of lower precision there."""
    logits = torch.randn(50, 3000, generator=torch.Generator().manual_seed(1))
    expected = entropy(logits)
    with torch.autocast("cpu", dtype):
        assert torch.equal(entropy(logits), expected)


def test_a_temperature_divides_the_logits() -> None:
    logits = torch.tensor([[0.0, 2.0], [0.0, 2.0]])
    # p = 1 / (1 + e^2) and 1 / (1 + e^4)
    expected = [-sum(x * math.log(x) for x in (p, 1 - p)) for p in (1 / (1 + math.exp(2)), 1 / (1 + math.exp(4)))]
    assert entropy(logits, torch.tensor([1.0, 0.5])).tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_distributions_against_float64(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    logits = (5 * torch.randn(40, 300, generator=g)).to(dtype)
    logits[0], logits[1, 7:] = 1.0, -math.inf  # all equal; seven of 300 possible
    chosen, temperature = torch.randint(0, 7, (40,), generator=g), 0.5 + torch.rand(40, generator=g)
    found = token_distribution(logits, chosen, 5, temperature)
    logp = (logits.double() / temperature.double()[:, None]).log_softmax(-1)
    p = logp.exp()
    close = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(found.logprob_T.double(), logp.gather(1, chosen[:, None]).squeeze(1), **close)
    torch.testing.assert_close(found.entropy_T.double(), -(p * logp).nan_to_num(0.0).sum(1), **close)
    torch.testing.assert_close(found.collision_T.double(), p.square().sum(1), **close)
    torch.testing.assert_close(found.top_logprob_TK.double(), logp.topk(5).values, **close)
    torch.testing.assert_close(found.top_logprob_TK.double(), logp.gather(1, found.top_id_TK), **close)
    ids, values = found.top_id_TK, found.top_logprob_TK
    assert ((values.diff() < 0) | (ids.diff() > 0)).all()  # of equal ones the lower id comes first
