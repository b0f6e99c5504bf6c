"""Losses and advantages that veRL does not have as its paper defines them; importing this registers them with veRL."""

from __future__ import annotations

from typing import Any

import torch
from verl.trainer.ppo.core_algos import get_policy_loss_fn, register_adv_est, register_policy_loss

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


@register_adv_est("w_reinforce")
def w_reinforce(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The advantages (B, T) of W-REINFORCE, and the same as returns."""
    advantages = weighted_reinforce_advantage(token_level_rewards.sum(-1)).unsqueeze(-1) * response_mask
    return advantages, advantages
