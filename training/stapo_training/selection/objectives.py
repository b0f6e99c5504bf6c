"""The objectives of the methods written out, as references for what veRL computes.

Training runs veRL's losses; these few lines say what they have to equal (tests/test_objectives.py, test_worker.py).
Losses are minimised: each is the negative of the paper's objective. Shapes: G responses of a group, N tokens (flat),
S sequences; `sequence_N` says which sequence a token belongs to.
"""

from __future__ import annotations

import torch


def group_advantage(reward_G: torch.Tensor) -> torch.Tensor:
    """(reward - mean) / (unbiased std + 1e-6) over the G responses of one prompt (STAPO, Eq. ratio_adv_def)."""
    return (reward_G - reward_G.mean()) / (reward_G.std() + 1e-6)


def clipped_surrogate(
    logprob_N: torch.Tensor, old_logprob_N: torch.Tensor, advantage_N: torch.Tensor, low: float, high: float
) -> torch.Tensor:
    """-min(r A, clip(r, 1 - low, 1 + high) A) for each token, r = pi / pi_old (DAPO, STAPO Eq. dapo_loss): (N,).

    GRPO: low = high = 0.2. JustRL, STAPO, 20-Entropy: 0.2 and 0.28. No dual clip: the paper's equations have none.
    """
    ratio_N = (logprob_N - old_logprob_N).exp()
    return -torch.minimum(ratio_N * advantage_N, ratio_N.clamp(1 - low, 1 + high) * advantage_N)


def k3(logprob_N: torch.Tensor, reference_logprob_N: torch.Tensor) -> torch.Tensor:
    """The k3 estimate of KL(pi || reference) for each token, exp(d) - d - 1 with d = log ref - log pi: (N,)."""
    d_N = reference_logprob_N - logprob_N
    return d_N.exp() - d_N - 1


def token_mean(loss_N: torch.Tensor, keep_N: torch.Tensor) -> torch.Tensor:
    """The mean over the kept tokens of the mini-batch: silenced tokens leave numerator and denominator (STAPO)."""
    return (loss_N * keep_N).sum() / keep_N.sum()


def sequence_mean(loss_N: torch.Tensor, keep_N: torch.Tensor, sequence_N: torch.Tensor) -> torch.Tensor:
    """The mean over S sequences of each one's token mean (GRPO, DeepSeekMath Eq. 3). Sequences without a kept token
    count as 0."""
    sequences = int(sequence_N.max()) + 1
    total_S = loss_N.new_zeros(sequences).index_add_(0, sequence_N, loss_N * keep_N)
    count_S = loss_N.new_zeros(sequences).index_add_(0, sequence_N, keep_N.to(loss_N.dtype))
    return (total_S / count_S.clamp(min=1)).mean()
