"""Losses and advantages that veRL does not have as its paper defines them; importing this registers them with veRL."""

from __future__ import annotations

from typing import Any

import torch
from verl.trainer.ppo.core_algos import (
    agg_loss,
    get_policy_loss_fn,
    kl_penalty,
    register_adv_est,
    register_policy_loss,
)
from verl.utils.torch_functional import masked_mean

from stapo_training.selection.objectives import weighted_reinforce_advantage


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
    whole = config.global_batch_info
    return loss * len(log_prob) * whole["dp_size"] / whole["global_batch_size"], metrics


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
    """Lp-Reg (Huang et al. 2025, 2510.03222): a token that the proxy likes better is drawn to it, without a clip.

    Args:
        rollout_is_weights: no weights: the proxy's log-probabilities, -inf of tokens that are not to be regularised.
    """
    assert rollout_is_weights is not None  # the worker has put it there
    ratio = (log_prob - old_log_prob).clamp(-20, 20).exp()
    within = ratio.clamp(1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
    drawn = log_prob.detach() < rollout_is_weights
    k3: Any = kl_penalty  # annotated with an older tensor type
    toward = k3(log_prob, rollout_is_weights.masked_fill(~drawn, 0.0), "low_var_kl")
    losses = torch.where(
        drawn,
        -advantages * ratio + config.policy_loss.ppo_kl_coef * toward,
        torch.maximum(-advantages * ratio, -advantages * within),
    )
    loss = agg_loss(losses, response_mask, loss_agg_mode, **config.global_batch_info)
    return loss, {"actor/lp_reg_share": masked_mean(drawn.float(), response_mask).item()}


@register_adv_est("w_reinforce")
def w_reinforce(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The advantages (B, T) of W-REINFORCE, and the same as returns."""
    advantages = weighted_reinforce_advantage(token_level_rewards.sum(-1)).unsqueeze(-1) * response_mask
    return advantages, advantages
