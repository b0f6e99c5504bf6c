"""veRL 0.9.1's habits (docs/configuration.md, same numbers): what is a setting is pinned, what is not is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stapo_training.pages import compose


@pytest.fixture(scope="module")
def paper() -> Any:
    return compose([])


PINNED = {  # beside what decided.yaml holds; in brackets veRL's own
    "actor_rollout_ref.actor.calculate_entropy": False,
    "actor_rollout_ref.actor.shuffle": False,
    "actor_rollout_ref.actor.ppo_epochs": 1,
    "actor_rollout_ref.rollout.calculate_log_probs": True,
    "actor_rollout_ref.rollout.top_k": -1,
    "actor_rollout_ref.rollout.val_kwargs.do_sample": True,  # (False)
}


@pytest.mark.parametrize("key", PINNED)
def test_what_is_a_setting_is_pinned(paper: Any, key: str) -> None:
    from omegaconf import OmegaConf

    assert OmegaConf.select(paper, key) == PINNED[key]


def test_the_loggers_are_verls() -> None:
    from verl.utils.tracking import Tracking

    from stapo_training.start.settings import _LOGGERS

    assert sorted(_LOGGERS) == sorted(Tracking.supported_backend)


def test_3_the_advantage_is_divided_by_the_unbiased_deviation() -> None:
    import numpy as np
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    group = np.array(["a", "a"], dtype=object)
    advantage, _ = compute_grpo_outcome_advantage(torch.tensor([[1.0], [-1.0]]), torch.ones(2, 1), group)
    # mean 0, unbiased deviation sqrt(2): 1 / 1.41421
    assert advantage.flatten().tolist() == pytest.approx([0.70711, -0.70711], abs=1e-5)


@pytest.mark.parametrize("machine", ["1gpu", "64gpu"])
def test_7_entropies_are_float32_on_gpus(machine: str) -> None:
    from verl.utils.torch_functional import entropy_from_logits

    a = compose(["size=qwen3-8b", f"hardware={machine}"]).actor_rollout_ref
    assert (a.model.use_fused_kernels, a.actor.use_fused_kernels) == (False, False)
    assert a.actor.fsdp_config.entropy_from_logits_with_chunking is True
    logits = torch.tensor([[0.0, 1.0, 2.0]], dtype=torch.bfloat16)
    assert entropy_from_logits(logits).dtype == torch.bfloat16


def test_10_sequences_stay_in_their_mini_batch() -> None:
    from stapo_training.verl_ext.trainer import balanced_order

    # two mini-batches of four on two ranks: 9 + 1 against 5 + 4 in the first, 8 + 2 against 7 + 3 in the second
    assert balanced_order([9, 5, 4, 1, 2, 7, 8, 3], ranks=2, mini_batch=4) in (
        [[0, 3, 4, 6], [1, 2, 5, 7]],
        [[1, 2, 5, 7], [0, 3, 4, 6]],
        [[0, 3, 5, 7], [1, 2, 4, 6]],
        [[1, 2, 4, 6], [0, 3, 5, 7]],
    )
    assert balanced_order([3, 1, 2, 9], ranks=1, mini_batch=2) == [[0, 1, 2, 3]]


def test_11_the_first_rollout_step_has_a_learning_rate_of_zero(paper: Any) -> None:
    from verl.utils.torch_functional import get_constant_schedule_with_warmup

    optim = paper.actor_rollout_ref.actor.optim
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=optim.lr)
    schedule = get_constant_schedule_with_warmup(optimizer, num_warmup_steps=optim.lr_warmup_steps)
    rates = []
    for _ in range(12):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[:3] == pytest.approx([0, 1e-7, 2e-7])
    assert rates[9:] == pytest.approx([9e-7, 1e-6, 1e-6])


@pytest.mark.parametrize("source", ["math_dapo", "aime24", "a name that veRL does not know"])
def test_14_the_reward_does_not_depend_on_the_data_source(source: str) -> None:
    from stapo_training.reward import compute_score

    assert compute_score(source, r"so \boxed{42}", "42")["score"] == 1.0


def test_18_the_gradient_is_clipped_by_the_optimizers_key() -> None:
    from verl.utils.config import omega_conf_to_dataclass

    actor = compose(["actor_rollout_ref.actor.optim.clip_grad=0.5"]).actor_rollout_ref.actor
    assert omega_conf_to_dataclass(actor.optim).clip_grad == actor.grad_clip == 0.5
    engine = Path(__import__("verl").__file__).parent / "workers" / "engine" / "fsdp" / "transformer_impl.py"
    assert "optimizer_config.clip_grad" in engine.read_text()
    assert "grad_clip" not in engine.read_text().replace("optimizer_config.clip_grad", "")


def _clipped_share(log_prob: list[list[float]], advantage: list[list[float]]) -> float:
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.utils.config import omega_conf_to_dataclass

    actor = omega_conf_to_dataclass(compose(["method=clip_cov"]).actor_rollout_ref.actor)
    lp = torch.tensor(log_prob)
    loss: Any = get_policy_loss_fn("clip_cov")
    _, metrics = loss(
        old_log_prob=lp,
        log_prob=lp,
        advantages=torch.tensor(advantage),
        response_mask=torch.ones_like(lp),
        loss_agg_mode="token-mean",
        config=actor,
    )
    return metrics["actor/pg_clipfrac"]


def test_19_a_covariance_needs_more_than_one_sequence_in_a_micro_batch() -> None:
    # one sequence: its advantage is its mean, every covariance is 0, nothing lies between 1 and 5
    assert _clipped_share([[-4.0, 0, 0, 0]], [[-1.0] * 4]) == 0
    # two: mean log-probability -1, mean advantage 0; the last one's first token has (-1)(-4 + 1) = 3
    assert _clipped_share([[-4.0, 0, 0, 0], [-4.0, 0, 0, 0]], [[1.0] * 4, [-1.0] * 4]) == pytest.approx(1 / 8)


@pytest.mark.parametrize(("method", "machine"), [("clip_cov", "1gpu"), ("kl_cov", "64gpu")])
def test_19_so_the_covariance_methods_run_on_packed_batches(method: str, machine: str) -> None:
    actor = compose(["size=qwen3-8b", f"hardware={machine}", f"method={method}"]).actor_rollout_ref.actor
    assert (actor.use_dynamic_bsz, actor.ppo_max_token_len_per_gpu) == (True, 32768)


@pytest.mark.parametrize(
    ("length", "answer", "reward"),
    [
        (12288, "42", 1.0),  # 15,360 - 3,072: the last length without a punishment
        (13824, "42", 0.5),  # half of the buffer
        (15360, "42", 0.0),
        (15360, "41", -2.0),
    ],
)
def test_dapo_punishes_overlong_responses_over_the_last_fifth(length: int, answer: str, reward: float) -> None:
    import asyncio

    import numpy as np
    from tensordict import TensorDict
    from verl import DataProto
    from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls

    from stapo_training.reward import compute_score

    class Tokenizer:
        def decode(self, ids: Any, skip_special_tokens: bool) -> str:
            return rf"\boxed{{{answer}}}"

    config = compose(["method=dapo"])
    mask = torch.zeros(1, 16384, dtype=torch.long)
    mask[0, 1024 : 1024 + length] = 1
    fields = {"responses": torch.zeros(1, 15360, dtype=torch.long), "attention_mask": mask}
    given = {"data_source": "math_dapo", "reward_model": {"ground_truth": "42"}}
    row = DataProto(TensorDict(fields, 1), {k: np.array([v], dtype=object) for k, v in given.items()})

    async def score() -> dict:
        manager: Any = get_reward_manager_cls(config.reward.reward_manager.name)
        return await manager(config=config, tokenizer=Tokenizer(), compute_score=compute_score).run_single(row)

    assert float(asyncio.run(score())["reward_score"]) == pytest.approx(reward)
