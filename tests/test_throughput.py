"""The formula of time: by hand, and beside the one published time of such a training."""

from __future__ import annotations

import pytest

from stapo_results.shapes import KNOWN, Shape, shape_from
from stapo_results.throughput import CARDS, Card, Lengths, Step, lengths_of, multiplied

LIMIT = 15_360
SMALL = Shape(layers=2, hidden=8, heads=2, kv_heads=1, head_dim=4, intermediate=16, vocab=100, tied=True)
# 2 layers of (2 x 8 x 8 + 2 x 8 x 4 + 3 x 8 x 16 + 2 x 8 + 2 x 4 = 600), and 100 x 8 of the head
MATRIX = 2 * 600 + 800


def test_the_square_of_lengths_with_a_tail() -> None:
    """One in ten at 100, the others 20 in the mean: 0.1 x 10,000 + 0.9 x 2 x 400."""
    assert Lengths(28, 100, truncated=0.1).mean_square == pytest.approx(1720)


def test_sampling_by_hand() -> None:
    """4 cards, replicas of 2: each has 500 sequences, 100 side by side, and takes 5,000 + 4 x 1,000 steps."""
    s = Step(SMALL, 1000, Lengths(1000, 5000, 0.0), tensor_parallel=2, places=100)
    weights, cache = 9000 * 2 * MATRIX, 500 * (150 * 1000 + 2 * 1000**2 / 2) * 2 * 2 * 4 * 2
    reading = (weights + cache) / 2 / (2e12 * 0.65)
    assert s.sampling(Card(1, 2.0, 80), 4) == pytest.approx(reading + 9000 * 3.5e-3 + 500 * 1000 * 20e-6)
    # where all find a place at once the longest response alone decides
    at_once = Step(SMALL, 100, Lengths(1000, 5000), places=100)
    assert at_once.sampling(Card(1, 1e9, 80), 1) == pytest.approx(5000 * 3.5e-3 + 100 * 1000 * 20e-6)


def test_an_update_by_hand() -> None:
    """10 P x 100 x 1,150 tokens and attention; 12 bytes a logit and 15 x the kept activations, of 4 cards."""
    u = Step(SMALL, 100, Lengths(1000, 5000, 0.0))
    assert multiplied(SMALL) == MATRIX
    flops = 10 * (MATRIX * 100 * 1150 + 2 * 8 * 100 * 2 * 1000**2)
    logits, touched = 100 * 1150 * 12 * 100, 100 * 1150 * 15 * 2 * SMALL.saved_bytes_per_token(2)
    seconds = flops / (3e12 * 0.5) + logits / (2e12 * 0.9) + touched / (2e12 * 0.65)
    assert u.update(Card(3, 2.0, 80), 4) == pytest.approx(seconds / 4)
    both, card = Step(SMALL, 100, Lengths(1000, 5000, 0.0), own_pass=True, reference=True), Card(1e9, 2.0, 80)
    assert both.passes == 14
    more = 4 * 100 / 0.9 + 3 * 2 * SMALL.saved_bytes_per_token(2) / 0.65  # each further pass makes its logits too
    assert both.update(card, 4) - u.update(card, 4) == pytest.approx(2 * 100 * 1150 * more / 2e12 / 4, rel=1e-4)


def test_the_mini_batch_that_an_h100_has_run() -> None:
    """1.7B, 134 sequences of 95,064 tokens, checkpointed, eager logits (results/records/bench/h100): updates of 5.76 s,
    and of 6.07 s with the entropies of its tokens, the old policy's pass 1.82 s, a selection's own 1.81 s."""
    lengths = [288] * 128 + [14_368] * 3 + [9_032, 4_032, 2_032]
    assert (len(lengths), sum(lengths)) == (134, 95_064)
    step = Step(shape_from(KNOWN["Qwen/Qwen3-1.7B-Base"], ""), 134, Lengths(0, 0), logits="eager")
    squares = sum(n * n for n in lengths)
    update, forward = (step.on_one(CARDS["H100"], 95_064, squares, gradient=g) for g in (True, False))
    assert [update, update] == [pytest.approx(5.76, rel=0.1), pytest.approx(6.07, rel=0.1)]
    assert [forward, forward] == [pytest.approx(1.82, rel=0.1), pytest.approx(1.81, rel=0.1)]


def test_validation_counts_by_its_settings() -> None:
    shape, card = shape_from(KNOWN["Qwen/Qwen3-1.7B-Base"], ""), CARDS["H100"]
    one, two = (Step(shape, 2048, lengths_of(LIMIT), settings=n).seconds(card, 8) for n in (1, 2))
    assert two - one == pytest.approx(Step(shape, 960, lengths_of(LIMIT)).sampling(card, 8) / 5)


@pytest.mark.parametrize(("mean", "truncated"), [(7278, 0.03), (7626, 0.2)])
def test_justrls_published_time_is_met_at_a_mean_length_that_is_not_published(mean: int, truncated: float) -> None:
    """1.5B on 32 A800, about 15 days for 4,380 steps: 296 s a step. Between these lengths the formula gives as much."""
    deepseek = {"model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 1536, "num_attention_heads": 12}
    deepseek |= {"num_key_value_heads": 2, "intermediate_size": 8960, "vocab_size": 151_936}
    step = Step(shape_from(deepseek, ""), 2048, Lengths(mean, LIMIT, truncated), settings=1)
    # an A800 is an A100 with slower links
    assert round(step.seconds(CARDS["A100"], 32)) == round(15 * 86_400 / 4_380)


@pytest.mark.parametrize(
    ("mean", "truncated", "seconds"), [(1130, 0.02, 204), (2020, 0.03, 274), (2850, 0.03, 350), (5050, 0.08, 664)]
)
def test_the_pages_table(mean: int, truncated: float, seconds: int) -> None:
    """1.7B on 8 H100, as docs/training.md has it."""
    shape = shape_from(KNOWN["Qwen/Qwen3-1.7B-Base"], "")
    assert round(Step(shape, 2048, Lengths(mean, LIMIT, truncated)).seconds(CARDS["H100"], 8)) == seconds
