"""Methods that veRL does not have as their papers define them; importing this registers their losses and advantages.

Of Advantage Reweighting, STARE, Lopti and Lp-Reg, `before_step` and `updates` are all that the worker knows: what they
make of a batch before it is trained. Shapes: N response tokens, one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from verl.trainer.ppo.core_algos import (
    agg_loss,
    get_policy_loss_fn,
    kl_penalty,
    register_adv_est,
    register_policy_loss,
)
from verl.utils import tensordict_utils as tu
from verl.utils.torch_functional import masked_mean

from stapo_training.methods import AdvantageConfig, ProxyConfig
from stapo_training.selection.selectors import Pool, alone
from stapo_training.verl_ext.mini_batch import Batch, set_values

PROXY = "proxy_log_probs"
"""The field of the responses' log-probabilities among the tokens that min-p keeps; -inf where Lp-Reg leaves a token."""


def reweighted_advantage(advantage_N: torch.Tensor, old_logprob_N: torch.Tensor, alpha: float) -> torch.Tensor:
    """(alpha p + 1 - alpha) A: the advantage grows with the token's probability p under the old policy: (N,).

    Advantage Reweighting (Yang et al. 2025, 2505.12929); alpha = 0 changes nothing.
    """
    return advantage_N * (alpha * old_logprob_N.exp() + 1 - alpha)


def amplified_advantage(
    advantage_N: torch.Tensor,
    old_logprob_N: torch.Tensor,
    old_entropy_N: torch.Tensor,
    amplify: float,
    rarest: float,
    target_entropy: float,
    pool: Pool = alone,
) -> torch.Tensor:
    """`amplify` x A for the ceil(`rarest` x tokens) with A > 0 of the lowest old probability, A for all others: (N,).

    Only while the mean of the old entropies is below `target_entropy` (nats). STARE's variant O1 (Luo et al. 2026,
    2606.19236), over all tokens given; ties at the end all count, of which its code takes some. A positive factor
    commutes with the clip. pool: a rank's values -> those of all ranks.
    """
    rare_M = pool(old_logprob_N[advantage_N > 0]).sort().values
    if not len(rare_M) or float(pool(old_entropy_N).double().mean()) >= target_entropy:
        return advantage_N
    end = rare_M[math.ceil(rarest * len(rare_M) - 1e-9) - 1]  # 0.1 x 30 = 3.0000000000000004
    return torch.where((advantage_N > 0) & (old_logprob_N <= end), amplify * advantage_N, advantage_N)


def isolated_advantages(
    advantage_N: torch.Tensor, old_logprob_N: torch.Tensor, eta: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Lopti: the advantages (N,), (N,) of its two updates, the first of tokens with old probability < eta.

    Low-Probability Token Isolation (Yang et al. 2025, 2505.12929): each update counts the other's tokens in its
    normaliser, with advantage 0, as the published code does.
    """
    low_N = old_logprob_N.exp() < eta
    return advantage_N * low_N, advantage_N * ~low_N


def lowest_of_wrong(old_logprob_N: torch.Tensor, advantage_N: torch.Tensor, share: float, pool: Pool) -> torch.Tensor:
    """The tokens (N,) with A < 0 that are among the `share` of them with the lowest old probability; ties all count.

    Lp-Reg (Huang et al. 2025, 2510.03222): those it may regularise. As in its code, where the share is less than two
    tokens there are none. pool: a rank's values -> those of all ranks.
    """
    wrong_N = advantage_N < 0
    every_M = pool(old_logprob_N[wrong_N])
    count = int(share * len(every_M))
    end = every_M.topk(count, largest=False).values[-1] if count > 1 else -torch.inf
    return wrong_N & (old_logprob_N <= end)


def before_step(data: Batch, config: AdvantageConfig, pool: Pool) -> None:
    """Change the advantages of a rollout step's batch: AR's weights, and STARE's, over its tokens on all ranks."""
    if alpha := config.reweight:
        old_N = data["old_log_probs"].values()
        set_values(data, "advantages", reweighted_advantage(data["advantages"].values(), old_N, alpha))
    if config.amplify > 1:
        advantage_N, old_N, entropy_N = (data[k].values() for k in ("advantages", "old_log_probs", "entropy"))
        mask_N = data["response_mask"].values().bool()
        numbers = config.amplify, config.rarest, config.target_entropy
        amplified_N = amplified_advantage(advantage_N * mask_N, old_N, entropy_N[mask_N], *numbers, pool)
        set_values(data, "advantages", amplified_N)


def updates(data: Batch, config: AdvantageConfig, proxy: ProxyConfig, pool: Pool) -> Iterator[Batch]:
    """What a mini-batch is trained as, an optimizer step each: itself, or Lopti's two parts."""
    if proxy.min_p:
        old_N, proxy_N, a_N = (data[k].values() for k in ("old_log_probs", PROXY, "advantages"))
        may_N = lowest_of_wrong(old_N, a_N * data["response_mask"].values(), proxy.lowest, pool)
        set_values(data, PROXY, torch.where(may_N, proxy_N, -torch.inf))
    if not config.isolate:
        yield data
        return
    last = tu.get(data, "update_lr_scheduler", default=False)
    parts = isolated_advantages(data["advantages"].values(), data["old_log_probs"].values(), config.isolate)
    for number, part_N in enumerate(parts):
        part = data.copy()
        set_values(part, "advantages", part_N)
        tu.assign_non_tensor(part, update_lr_scheduler=last and number == 1)
        yield part


def joined(outputs: list[Any]) -> Any:
    """What the worker returns of a mini-batch's updates; veRL takes the mean of what a list of metrics holds."""
    *firsts, output = outputs
    if firsts and output is not None:
        first, second = (tu.get(o, "metrics") for o in outputs)
        for name, value in second.items():
            if isinstance(value, list):
                second[name] = first[name] + value
            elif isinstance(first.get(name), float):
                second[name] = [[first[name]], [value]]
        tu.assign_non_tensor(output, metrics=second)
    return output


def with_proxy(loss: Any, model_output: dict, data: Batch, dp_group: Any = None) -> Any:
    """veRL's loss over a micro-batch, with the proxy where `lp_reg` finds it: veRL hands over its own fields alone."""
    loss.keywords["config"].global_batch_info[PROXY] = data.select(PROXY).to_padded_tensor()[PROXY]
    return loss(model_output=model_output, data=data, dp_group=dp_group)


@register_policy_loss("lp_reg")
def lp_reg(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Lp-Reg (Huang et al. 2025, 2510.03222): a token that the proxy likes better is drawn to it, without a clip."""
    assert rollout_is_weights is None  # `ProxyConfig.needs`
    proxy = config.global_batch_info.pop(PROXY)
    ratio = (log_prob - old_log_prob).clamp(-20, 20).exp()
    within = ratio.clamp(1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
    drawn = log_prob.detach() < proxy
    k3: Any = kl_penalty  # annotated with an older tensor type
    toward = k3(log_prob, proxy.masked_fill(~drawn, 0.0), "low_var_kl")
    losses = torch.where(
        drawn,
        -advantages * ratio + config.policy_loss.ppo_kl_coef * toward,
        torch.maximum(-advantages * ratio, -advantages * within),
    )
    loss = agg_loss(losses, response_mask, loss_agg_mode, **config.global_batch_info)
    return loss, {"actor/lp_reg_share": masked_mean(drawn.float(), response_mask).item()}


@register_policy_loss("gmpo")
def gmpo(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """GMPO (Zhao et al. 2025, 2507.20673): veRL's `geo_mean`, as a mean over the mini-batch's sequences.

    veRL's takes the mean over a micro-batch and the engine adds micro-batches up, so that its gradient grows with their
    number.
    """
    verl: Any = get_policy_loss_fn("geo_mean")
    loss, metrics = verl(
        old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights=rollout_is_weights
    )
    batch_info = config.global_batch_info
    return loss * len(log_prob) * batch_info["dp_size"] / batch_info["global_batch_size"], metrics


@register_adv_est("w_reinforce")
def w_reinforce(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The advantages (B, T), and the same as returns: 0.1 for a right response, -1 for a wrong one, without a baseline.

    W-REINFORCE (Zhu et al. 2025, 2506.01347; lambda = 0.1 in its published script, whose rewards are 0 and 1).
    """
    advantages = torch.where(token_level_rewards.sum(-1, keepdim=True) > 0, 0.1, -1.0) * response_mask
    return advantages, advantages
