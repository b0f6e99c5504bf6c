"""The objective of each method on a mini-batch worked by hand, and veRL's loss against it."""

import math
from typing import Any

import pytest
import torch

from stapo_training.selection import objectives as o

# Sequence A: advantage 1, three tokens; B: advantage -1, two tokens. The old probability is 0.4 everywhere.
P = [0.6, 0.4, 0.1, 0.2, 0.8]
# ratios: 1.5, 1, 0.25, 0.5, 2
SEQUENCE = torch.tensor([0, 0, 0, 1, 1])
ADVANTAGE = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0])
# -min(r A, clip(r) A), clip 0.8 to 1.28:
#   A: min(1.5, 1.28) = 1.28; min(1, 1) = 1; min(0.25, 0.8) = 0.25
#   B: min(-0.5, -0.8) = -0.8; min(-2, -1.28) = -2 (no dual clip)
HIGHER = [-1.28, -1.0, -0.25, 0.8, 2.0]
# clip 0.8 to 1.2: only the first token differs
SYMMETRIC = [-1.2, -1.0, -0.25, 0.8, 2.0]
ALL = [1, 1, 1, 1, 1]


def surrogate(high: float) -> torch.Tensor:
    return o.clipped_surrogate(torch.tensor(P).log(), torch.full((5,), 0.4).log(), ADVANTAGE, 0.2, high)


def test_clipped_surrogates_by_hand() -> None:
    assert surrogate(0.28).tolist() == pytest.approx(HIGHER, abs=1e-6)
    assert surrogate(0.2).tolist() == pytest.approx(SYMMETRIC, abs=1e-6)


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        (ALL, (-1.28 - 1 - 0.25 + 0.8 + 2) / 5),  # JustRL: every token
        ([1, 1, 0, 1, 1], (-1.28 - 1 + 0.8 + 2) / 4),  # STAPO: the token of p = 0.1 leaves sum and count
        ([0, 0, 0, 1, 0], 0.8),  # 20-Entropy: one token of five
    ],
)
def test_token_mean_by_hand(keep: list[int], expected: float) -> None:
    mask = torch.tensor(keep, dtype=torch.bool)
    assert float(o.token_mean(surrogate(0.28), mask)) == pytest.approx(expected, abs=1e-6)
    assert verl_loss(keep, 0.28, "token-mean") == pytest.approx(expected, abs=1e-6)


def test_grpo_by_hand() -> None:
    mask = torch.tensor(ALL, dtype=torch.bool)
    # A: (-1.2 - 1 - 0.25) / 3 = -0.816667; B: (0.8 + 2) / 2 = 1.4; their mean 0.291667
    assert float(o.sequence_mean(surrogate(0.2), mask, SEQUENCE)) == pytest.approx(0.2916667, abs=1e-6)
    assert verl_loss(ALL, 0.2, "seq-mean-token-mean") == pytest.approx(0.2916667, abs=1e-6)


def test_sequence_mean_is_not_token_mean_at_micro_batch_one() -> None:
    """The trap: a token mean taken micro-batch by micro-batch of one sequence is a sequence mean."""
    losses, mask = surrogate(0.2), torch.tensor(ALL, dtype=torch.bool)
    token, sequence = float(o.token_mean(losses, mask)), float(o.sequence_mean(losses, mask, SEQUENCE))
    assert token == pytest.approx(0.07, abs=1e-6)  # (-1.2 - 1 - 0.25 + 0.8 + 2) / 5
    assert sequence == pytest.approx(0.2916667, abs=1e-6)
    for mode, expected in (("token-mean", token), ("seq-mean-token-mean", sequence)):
        parts = [verl_loss(ALL, 0.2, mode, rows=[0]), verl_loss(ALL, 0.2, mode, rows=[1])]
        assert sum(parts) == pytest.approx(expected, abs=1e-6)


def test_k3_by_hand() -> None:
    # p = 0.5, reference 0.25: d = ln 0.5; 0.5 + ln 2 - 1
    value = o.k3(torch.tensor([0.5]).log(), torch.tensor([0.25]).log())
    assert float(value) == pytest.approx(0.5 + math.log(2) - 1, abs=1e-6)


@pytest.mark.parametrize(("correct", "expected"), [*enumerate([2.47, 1.62, 1.21, 0.94, 0.72, 0.54, 0.35], start=1)])
def test_group_advantages_of_the_papers_appendix(correct: int, expected: float) -> None:
    """G = 8, rewards +1 and -1, unbiased std: 1 to 7 correct give the seven advantages that the appendix prints."""
    rewards = torch.tensor([1.0] * correct + [-1.0] * (8 - correct))
    assert float(o.group_advantage(rewards)[0]) == pytest.approx(expected, abs=0.005)


def test_a_group_of_one_mind_has_no_advantage() -> None:
    assert o.group_advantage(torch.ones(8)).tolist() == [0.0] * 8


def test_advantage_reweighting_by_hand() -> None:
    found = o.reweighted_advantage(torch.tensor([2.0, -1.0]), torch.tensor([0.5, 0.1]).log(), alpha=0.3)
    assert found.tolist() == pytest.approx([2 * 0.85, -0.73], abs=1e-6)  # 0.3 x 0.5 + 0.7; 0.3 x 0.1 + 0.7


def test_stare_amplifies_the_rarest_tokens_of_right_responses_while_the_entropy_is_low() -> None:
    p = [0.9, 0.001, 0.0001, 0.001, 0.001, 0.02, 0.5, 0.6, 0.7, 0.8]
    advantage = torch.tensor([2.0, 2.0, -1.0, 2.0, 0.0, 3.0, 3.0, -1.0, 3.0, 3.0])

    def amplified(rarest: float, *entropies: float) -> list[float]:
        return o.amplified_advantage(
            advantage, torch.tensor(p).log(), torch.tensor(entropies), 1.1, rarest, target_entropy=0.3
        ).tolist()

    # seven tokens have A > 0: a tenth is one token, with which the other one of p = 0.001 ties
    assert amplified(0.1, 0.1, 0.4) == pytest.approx([2.0, 2.2, -1.0, 2.2, 0.0, 3.0, 3.0, -1.0, 3.0, 3.0])
    # 0.3 x 7 = 2.1 is three tokens: also p = 0.02
    assert amplified(0.3, 0.1, 0.4) == pytest.approx([2.0, 2.2, -1.0, 2.2, 0.0, 3.3, 3.0, -1.0, 3.0, 3.0])
    assert amplified(0.1, 0.1, 0.5) == advantage.tolist()  # the mean is the target


def test_stare_ranks_the_tokens_of_all_ranks() -> None:
    def both(v: torch.Tensor) -> torch.Tensor:
        return torch.cat([v, torch.tensor([0.01, 0.02]).log()])

    given = (torch.ones(2), torch.tensor([0.015, 0.5]).log(), torch.zeros(2))
    assert o.amplified_advantage(*given, 1.1, 0.25, 0.3, both).tolist() == [1.0, 1.0]  # one of four, on the other rank
    assert o.amplified_advantage(*given, 1.1, 0.5, 0.3, both).tolist() == pytest.approx([1.1, 1.0])


def test_lopti_trains_rare_tokens_first_and_the_others_in_an_update_of_their_own() -> None:
    advantage, old = torch.tensor([2.0, -1.0, 3.0]), torch.tensor([0.39, 0.4, 0.9]).log()
    low, high = o.isolated_advantages(advantage, old, eta=0.4)
    assert (low.tolist(), high.tolist()) == ([2.0, 0.0, 0.0], [0.0, -1.0, 3.0])


def verl_loss(keep: list[int], high: float, mode: str, rows: list[int] | None = None) -> float:
    """veRL's vanilla loss on the same mini-batch, padded; `rows` is one micro-batch of it."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config import FSDPActorConfig

    config: Any = FSDPActorConfig(
        strategy="fsdp2",
        ppo_micro_batch_size_per_gpu=1,
        rollout_n=1,
        clip_ratio=0.2,
        clip_ratio_low=0.2,
        clip_ratio_high=high,
        clip_ratio_c=1e9,
        loss_agg_mode=mode,
    )
    config.global_batch_info.update(dp_size=1, batch_num_tokens=sum(keep), global_batch_size=2, loss_scale_factor=None)

    def padded(flat: list[float]) -> torch.Tensor:
        return torch.tensor([flat[:3], [*flat[3:], 0.0]])[rows if rows is not None else [0, 1]]

    loss, _ = get_policy_loss_fn("vanilla")(
        old_log_prob=padded([math.log(0.4)] * 5),
        log_prob=padded([math.log(p) for p in P]),
        advantages=padded(ADVANTAGE.tolist()),
        response_mask=padded([float(k) for k in keep]).bool(),
        loss_agg_mode=mode,
        config=config,
    )
    return float(loss)
