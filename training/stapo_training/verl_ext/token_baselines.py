"""veRL's own ways from hidden states to log-probabilities and entropies: what bench_tokens.py measures ours against.

T tokens, D hidden size, V vocabulary; each returns log-probabilities (T,) of the chosen tokens and entropies (T,).
"""

from __future__ import annotations

import torch
from verl.utils.experimental.torch_functional import FusedLinearForPPO
from verl.utils.torch_functional import entropy_from_logits, logprobs_from_logits


def two_functions(
    hidden_TD: torch.Tensor, weight_VD: torch.Tensor, chosen_T: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The full logits, then the function for log-probabilities and the one for entropies."""
    logits_TV = hidden_TD @ weight_VD.T
    return logprobs_from_logits(logits_TV, chosen_T), entropy_from_logits(logits_TV)


def fused(
    hidden_TD: torch.Tensor, weight_VD: torch.Tensor, chosen_T: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The fused path in PyTorch (`use_fused_kernels` with `impl_backend: torch`): chunks of 512 tokens."""
    return FusedLinearForPPO(impl_backend="torch")(hidden_TD, weight_VD, chosen_T)
