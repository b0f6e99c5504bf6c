"""Losses, weights and advantages of every method by hand, and those of veRL in the method's configuration against them.

`stapo-train check` runs them through the real worker. What does not go with a method is refused here, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from stapo_results import store
from stapo_results.errors import BadInput
from stapo_results.schema import Run, StepMetrics
from stapo_training.methods import AdvantageConfig, ProxyConfig, advantage_from, listing, methods, proxy_from
from stapo_training.pages import compose
from stapo_training.selection import objectives as o
from stapo_training.selection.token_stats import proxy_logprob
from stapo_training.verl_ext import advantages

ROOT = Path(__file__).resolve().parents[1]


def verl_loss(
    method: str,
    old: Sequence,
    new: Sequence,
    advantage: Sequence,
    *more: str,
    keep: Sequence | None = None,
    sequences: int = 2,
    tokens: int | None = None,
    proxy: torch.Tensor | None = None,
) -> float:
    """The method's loss on B sequences (lists of probabilities) of a mini-batch with so many sequences and tokens."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.utils.config import omega_conf_to_dataclass

    actor: Any = omega_conf_to_dataclass(compose([f"method={method}", *more]).actor_rollout_ref.actor)
    scale = actor.loss_scale_factor
    actor.global_batch_info.update(
        dp_size=1, batch_num_tokens=tokens, global_batch_size=sequences, loss_scale_factor=scale
    )
    if proxy is not None:
        actor.global_batch_info[advantages.PROXY] = proxy
    loss: Any = get_policy_loss_fn(actor.policy_loss.loss_mode)
    old_log_prob = torch.tensor(old).log()
    value, _ = loss(
        old_log_prob=old_log_prob,
        log_prob=torch.tensor(new).log(),
        advantages=torch.tensor(advantage),
        response_mask=torch.ones_like(old_log_prob) if keep is None else torch.tensor(keep).bool(),
        loss_agg_mode=actor.loss_agg_mode,
        config=actor,
    )
    return float(value)


# Sequence A: advantage 1, three tokens; B: advantage -1, two tokens and a padding. The old probability is 0.4.
P, ADVANTAGE, ALL = [[0.6, 0.4, 0.1], [0.2, 0.8, 1.0]], [[1.0] * 3, [-1.0] * 3], [[1, 1, 1], [1, 1, 0]]
# ratios: 1.5, 1, 0.25, 0.5, 2; -min(r A, clip(r) A) with the clip at 0.8 and 1.28 (GRPO: 1.2):
#   A: min(1.5, 1.28) = 1.28; min(1, 1) = 1; min(0.25, 0.8) = 0.25
#   B: min(-0.5, -0.8) = -0.8; min(-2, -1.28) = -2 (no dual clip)
SURROGATE = {0.28: [-1.28, -1.0, -0.25, 0.8, 2.0], 0.2: [-1.2, -1.0, -0.25, 0.8, 2.0]}


def surrogate(high: float) -> torch.Tensor:
    p_N, advantage_N = (torch.tensor(x).flatten()[:5] for x in (P, ADVANTAGE))
    return o.clipped_surrogate(p_N.log(), torch.full((5,), 0.4).log(), advantage_N, 0.2, high)


def test_clipped_surrogates_by_hand() -> None:
    for high, expected in SURROGATE.items():
        assert surrogate(high).tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("method", "keep", "expected"),
    [
        ("justrl", ALL, (-1.28 - 1 - 0.25 + 0.8 + 2) / 5),
        ("stapo", [[1, 1, 0], [1, 1, 0]], (-1.28 - 1 + 0.8 + 2) / 4),  # the token of p = 0.1 leaves sum and count
        ("entropy20", [[0, 0, 0], [1, 0, 0]], 0.8),  # one token of five
        # A: (-1.2 - 1 - 0.25) / 3 = -0.816667; B: (0.8 + 2) / 2 = 1.4; their mean, and not that of the tokens
        ("grpo", ALL, 0.2916667),
    ],
)
def test_the_papers_losses_by_hand_however_the_mini_batch_is_split(method: str, keep: list, expected: float) -> None:
    mask_N, sequence_N = torch.tensor(keep).flatten()[:5].bool(), torch.tensor([0, 0, 0, 1, 1])
    if method == "grpo":
        own = o.sequence_mean(surrogate(0.2), mask_N, sequence_N)
    else:
        own = o.token_mean(surrogate(0.28), mask_N)
    assert float(own) == pytest.approx(expected, abs=1e-6)
    old, kept = [[0.4] * 3] * 2, int(mask_N.sum())
    for parts in ([slice(0, 2)], [slice(0, 1), slice(1, 2)]):
        found = [verl_loss(method, old[p], P[p], ADVANTAGE[p], keep=keep[p], tokens=kept) for p in parts]
        assert sum(found) == pytest.approx(expected, abs=1e-6)


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
    found = advantages.reweighted_advantage(torch.tensor([2.0, -1.0]), torch.tensor([0.5, 0.1]).log(), alpha=0.3)
    assert found.tolist() == pytest.approx([2 * 0.85, -0.73], abs=1e-6)  # 0.3 x 0.5 + 0.7; 0.3 x 0.1 + 0.7


def test_stare_amplifies_the_rarest_tokens_of_right_responses_while_the_entropy_is_low() -> None:
    p = [0.9, 0.001, 0.0001, 0.001, 0.001, 0.02, 0.5, 0.6, 0.7, 0.8]
    advantage = torch.tensor([2.0, 2.0, -1.0, 2.0, 0.0, 3.0, 3.0, -1.0, 3.0, 3.0])

    def amplified(rarest: float, *entropies: float) -> list[float]:
        return advantages.amplified_advantage(
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
    assert advantages.amplified_advantage(*given, 1.1, 0.25, 0.3, both).tolist() == [
        1.0,
        1.0,
    ]  # one of four, on the other rank
    assert advantages.amplified_advantage(*given, 1.1, 0.5, 0.3, both).tolist() == pytest.approx([1.1, 1.0])


def test_lopti_trains_rare_tokens_first_and_the_others_in_an_update_of_their_own() -> None:
    advantage, old = torch.tensor([2.0, -1.0, 3.0]), torch.tensor([0.39, 0.4, 0.9]).log()
    low, high = advantages.isolated_advantages(advantage, old, eta=0.4)
    assert (low.tolist(), high.tolist()) == ([2.0, 0.0, 0.0], [0.0, -1.0, 3.0])


@pytest.mark.parametrize("last", [True, False])
def test_lopti_advances_the_learning_rate_once_however_many_updates_a_mini_batch_has(last: bool) -> None:
    def jagged(*rows: list[float]) -> torch.Tensor:
        return torch.nested.as_nested_tensor([torch.tensor(r) for r in rows], layout=torch.jagged)

    fields = {"advantages": jagged([1.0, 1.0], [-1.0]), "old_log_probs": jagged([-3.0, -0.1], [-2.0])}
    data = TensorDict(fields, batch_size=[2])
    tu.assign_non_tensor(data, update_lr_scheduler=last)
    parts = list(advantages.updates(data, AdvantageConfig(isolate=0.4), ProxyConfig(), lambda v: v))
    assert [tu.get(p, "update_lr_scheduler") for p in parts] == [False, last]


def test_gmpo_is_the_mean_over_the_mini_batch_however_it_is_split() -> None:
    e = torch.tensor([[0.5, -0.1], [-0.6, 0.2]]).exp()
    old = [[0.1, 0.1], [0.1, 0.1]]
    new = (0.1 * e).tolist()
    advantage = [[1.0, 1.0], [-1.0, -1.0]]
    # A > 0: log ratios cut at 0.4 from above: (0.4 - 0.1) / 2 = 0.15, exp 1.161834; A < 0: at -0.4 from below:
    # (-0.4 + 0.2) / 2 = -0.1, exp 0.904837; of a mini-batch of 4: (-1.161834 + 0.904837) / 4
    whole = verl_loss("gmpo", old, new, advantage, sequences=4)
    assert whole == pytest.approx(-0.0642493, abs=1e-6)
    one_by_one = [verl_loss("gmpo", [o], [n], [a], sequences=4) for o, n, a in zip(old, new, advantage, strict=True)]
    assert sum(one_by_one) == pytest.approx(whole, abs=1e-6)


@pytest.mark.parametrize(
    ("method", "new", "kept"),
    [
        # 0.5 to 0.7 and 0.5 to 0.3 moved by 0.2 > 0.15: cut; 0.01 to 0.1 though its ratio is 10: 10 ln 0.1
        ("dppo-tv", 0.1, 23.025851),
        # binary KL of 0.5 to 0.7 and to 0.3: 0.0872 > 0.05, cut; 0.01 to 0.05: 0.0247, 5 ln 0.05; 0.3 to 0.2: 0.0282
        ("dppo-kl", 0.05, 14.978661),
    ],
)
def test_dppo_cuts_what_moved_by_more_than_its_threshold(method: str, new: float, kept: float) -> None:
    found = verl_loss(method, [[0.5, 0.01], [0.5, 0.3]], [[0.7, new], [0.3, 0.2]], [[1.0, 1.0], [-1.0, -1.0]])
    # 0.3 to 0.2: -(2/3) ln 0.2; over 2 sequences x 15,360 tokens
    assert found == pytest.approx((kept - 1.072959) / 2 / 15360, rel=1e-5)


def test_lp_regs_proxy_is_what_min_p_leaves() -> None:
    p = torch.tensor([[0.6, 0.29, 0.1, 0.01], [0.25, 0.25, 0.25, 0.25]])
    # at least 0.02 x 0.6 = 0.012: all but the last, 0.99 of the mass; of the second row all
    found = proxy_logprob(p[[0, 0, 1]].log(), torch.tensor([2, 3, 0]), 0.02)
    assert found.exp().tolist() == pytest.approx([0.1 / 0.99, 0.0, 0.25])
    # at temperature 0.5 the squares count: 0.6^2, 0.29^2 and 0.1^2 = 0.0278 x 0.36 are left
    (found,) = proxy_logprob(p[:1].log() / 0.5, torch.tensor([2]), 0.02).exp().tolist()
    assert found == pytest.approx(0.01 / (0.36 + 0.0841 + 0.01))


def test_lp_reg_may_regularise_the_lowest_share_of_wrong_responses_over_all_ranks() -> None:
    old, advantage = torch.tensor([-9.0, -8.0, -7.0, -6.0, -1.0]), torch.tensor([1.0, -1.0, -1.0, -1.0, -1.0])

    def both(v: torch.Tensor) -> torch.Tensor:
        return torch.cat([v, torch.tensor([-7.5, -7.0, -2.0, -2.0])])

    # of eight tokens with A < 0 the share 0.4 is three: -8, -7.5 and both of -7, one of them here
    assert advantages.lowest_of_wrong(old, advantage, 0.4, both).tolist() == [False, True, True, False, False]
    assert advantages.lowest_of_wrong(old, advantage, 0.25, both).tolist() == [False, True, False, False, False]
    assert not advantages.lowest_of_wrong(old, advantage, 0.24, both).any()  # one token


def test_lp_reg_draws_a_token_to_its_proxy_and_leaves_the_others_to_the_clip() -> None:
    # A < 0: p 0.1, proxy 0.2: ratio 0.5, -(-1)(0.5) + (2 - ln 2 - 1) = 0.806853; one above its proxy: 1 x 1
    # proxy 0: one that is not to be regularised: 0.5; A > 0: ratio 20, cut at 10: -10
    proxy = torch.tensor([[0.2, 0.1], [0.0, 0.0]]).log()
    old, new = [[0.2, 0.3], [0.1, 0.01]], [[0.1, 0.3], [0.05, 0.2]]
    given = (old, new, [[-1.0, -1.0], [-1.0, 1.0]])
    found = verl_loss("lp-reg", *given, proxy=proxy)
    assert found == pytest.approx((0.806853 + 1 + 0.5 - 10) / 4, abs=1e-6)
    half = "actor_rollout_ref.actor.policy_loss.ppo_kl_coef=0.5"
    found = verl_loss("lp-reg", *given, half, proxy=proxy)
    assert found == pytest.approx((0.5 + 0.306853 / 2 + 1 + 0.5 - 10) / 4, abs=1e-6)


@pytest.mark.parametrize(("method", "weights"), [("tis", [2.0, 1.0, 0.2, 2.0]), ("icepop", [3.0, 1.0, 0.0, 0.0])])
def test_rollout_correction_weighs_by_trainer_over_sampler(method: str, weights: list[float]) -> None:
    from tensordict import TensorDict
    from verl import DataProto
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch

    ratio, rollout = torch.tensor([[3.0, 1.0, 0.2, 6.0]]), torch.tensor([[0.1, 0.1, 0.1, 0.1]])
    fields = {
        "old_log_probs": (ratio * rollout).log(),
        "rollout_log_probs": rollout.log(),
        "response_mask": torch.ones(1, 4, dtype=torch.long),
    }
    config: Any = compose([f"method={method}"]).algorithm.rollout_correction
    found, _ = compute_rollout_correction_and_add_to_batch(DataProto(TensorDict(fields, batch_size=1)), config)
    assert found.batch["rollout_is_weights"].tolist()[0] == pytest.approx(weights, rel=1e-5)
    assert found.batch["response_mask"].tolist() == [[1, 1, 1, 1]]


def test_w_reinforce_has_no_baseline() -> None:
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    name = compose(["method=w-reinforce"]).algorithm.adv_estimator
    rewards, mask = torch.tensor([[0.0, 1.0], [-1.0, 0.0], [0.0, 1.0]]), torch.tensor([[1, 1], [1, 0], [1, 1]])
    advantages, _ = get_adv_estimator_fn(name)(token_level_rewards=rewards, response_mask=mask, index=None, config=None)
    assert advantages.flatten().tolist() == pytest.approx([0.1, 0.1, -1.0, 0.0, 0.1, 0.1])


def test_every_method_has_records_of_trainings_that_moved_in_five_steps_at_least() -> None:
    """The schema refuses metrics that are not finite. Those that were killed have three steps."""
    found: dict[str, list[bool]] = {method: [] for method in methods()}
    records = ROOT / "results" / "records"
    for file in set(records.glob("**/train/*/run.json")) - set(records.glob("kills/**/run.json")):
        run = store.read_json(file, Run)
        if run.status == "done" and run.config["run"]["method"] in found:
            steps = [m.values for m in store.read(file.with_name("metrics.jsonl"), StepMetrics) if m.step]
            # a step whose groups are all right, or all wrong, has no gradient
            moved = sum(v["grad_norm"] > 0 for v in steps)
            found[run.config["run"]["method"]].append(moved >= 5 and all("silenced_share" in v for v in steps))
    assert [method for method, good in found.items() if not (good and all(good))] == []


A = "actor_rollout_ref."


@pytest.mark.parametrize(
    ("method", "override", "cure"),
    [
        ("lp-reg", f"{A}proxy.min_p=0", f"{A}actor.policy_loss.loss_mode=vanilla"),
        ("lp-reg", f"{A}actor.policy_loss.loss_mode=vanilla", f"{A}actor.policy_loss.loss_mode=lp_reg"),
        ("lp-reg", "algorithm.rollout_correction.rollout_is=token", "algorithm.rollout_correction.rollout_is=null"),
        ("lp-reg", "algorithm.rollout_correction.bypass_mode=true", "algorithm.rollout_correction.bypass_mode=False"),
        ("stare", "algorithm.rollout_correction.bypass_mode=true", "algorithm.rollout_correction.bypass_mode=False"),
        ("stare", f"{A}actor.policy_loss.loss_mode=gspo", f"{A}actor.policy_loss.loss_mode=vanilla"),
        ("ar", f"{A}actor.entropy_coeff=0.1", f"{A}actor.entropy_coeff=0"),
        ("lopti", f"{A}selector.name=silence_spurious", f"{A}selector.name=keep_all"),
        ("lopti", f"{A}actor.use_kl_loss=true", f"{A}actor.use_kl_loss=False"),
        ("lopti", f"{A}token_log.mode=full", f"{A}token_log.mode=off"),
    ],
)
def test_what_does_not_go_with_a_method_is_refused_with_what_does(method: str, override: str, cure: str) -> None:
    config = compose([f"method={method}", override])
    a = config.actor_rollout_ref
    with pytest.raises(BadInput) as caught:
        (advantage_from(a, config.algorithm), proxy_from(a, config.algorithm))
    assert caught.value.next_step == f"set {cure}"
    assert override.partition("=")[0].removeprefix(A).rpartition(".")[2] in str(caught.value)


def test_one_method_is_shown_with_its_needs_and_its_overlay() -> None:
    shown = listing(ROOT / "results" / "records", "Lopti").splitlines()
    assert shown[0].startswith("lopti: ")
    assert "  needs actor_rollout_ref.token_log.mode=off" in shown
    assert "      isolate: 0.4" in shown
    with pytest.raises(BadInput, match="stare"):
        listing(ROOT, "STAREE")
