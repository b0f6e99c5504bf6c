"""A micro-batch's logits as veRL's engine packs them: tokens' log-probabilities, and what selectors ask of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from stapo_training.selection.logit_statistics import Form, LogitStatistics, gradient, statistics
from stapo_training.selection.token_stats import proxy_logprob, token_distribution

_AT_A_TIME = 2**26
"""Logits of chosen positions that are read at a time: 128 MiB in bfloat16, 256 in float32."""


class LogitReading:
    """One reading of a micro-batch's logits, in the place of veRL's function `logprobs_from_logits`.

    Called with logits (..., V) and labels (...) it returns log softmax(logits)[label], float32 of bfloat16. What else
    was asked for is in `entropy_N` and `collision_N` afterwards (`LogitStatistics`), without a gradient. With
    `inplace_backward` the gradient is written where the logits were, so nothing may read them after the backward pass.
    """

    def __init__(self, form: Form = "eager", *, entropy: bool = False, collision: bool = False):
        self.form: Form = form
        self.wants = {"entropy": entropy, "collision": collision}
        self.entropy_N: Any = None
        self.collision_N: Any = None

    def __call__(self, logits: torch.Tensor, labels: torch.Tensor, inplace_backward: bool = True) -> torch.Tensor:
        logits_NV, label_N = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
        statistics_N = statistics(logits_NV.detach(), label_N, **self.wants, form=self.form)
        self.entropy_N, self.collision_N = statistics_N.entropy_N, statistics_N.collision_N
        return _LogProb.apply(logits_NV, label_N, statistics_N, inplace_backward, self.form).view(labels.shape)


class _LogProb(torch.autograd.Function):
    """d log p_y / d z_j = (1 if j = y, else 0) - p_j; N tokens. Kept for the backward pass are the logits alone."""

    @staticmethod
    def forward(
        ctx: Any, logits_NV: torch.Tensor, label_N: torch.Tensor, found: LogitStatistics, in_place: bool, form: Form
    ) -> torch.Tensor:
        ctx.save_for_backward(logits_NV, label_N, found.logsumexp_N)
        ctx.in_place, ctx.form = in_place, form
        return found.logprob_N

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        (gradient_N,), (logits_NV, label_N, logsumexp_N) = gradients, ctx.saved_tensors
        into_NV = logits_NV if ctx.in_place else torch.empty_like(logits_NV)
        gradient(logits_NV, label_N, logsumexp_N, gradient_N, into_NV, ctx.form)
        return into_NV, None, None, None, None


@dataclass(frozen=True)
class PackedLogits:
    """The logits at M positions of packed sequences, at the rollout's temperature. Nothing here has a gradient.

    Attributes:
        logits: (1, all tokens, V) with sequences one after the other, or (B, longest, V) padded.
        settings: the engine's output arguments: temperatures, which of the two forms it is.
        offsets: (B + 1,) where the sequences begin in the packed form.
        position_M, token_M: places in the packed form, and the tokens that were chosen there.
    """

    logits: torch.Tensor
    settings: Mapping[str, Any]
    offsets: torch.Tensor
    position_M: torch.Tensor
    token_M: torch.Tensor

    @torch.no_grad()
    def most_probable(self, chosen_M: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The k most probable tokens at some of the positions: ids and log-probabilities, (chosen, k)."""
        found = [token_distribution(*part, k) for part in self._parts(chosen_M)]
        return torch.cat([f.top_id_TK for f in found]), torch.cat([f.top_logprob_TK for f in found])

    @torch.no_grad()
    def proxy_logprob(self, min_p: float) -> torch.Tensor:
        """The tokens' log-probabilities (M,) among the tokens that min-p keeps; -inf for the others."""
        return torch.cat([proxy_logprob(*part, min_p) for part in self._parts(slice(None))])

    def _parts(self, chosen: torch.Tensor | slice) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """(logits at the temperature, tokens) of some positions, a part of them at a time; at least one part."""
        size = max(1, _AT_A_TIME // self.logits.shape[-1])
        for at, tokens in zip(self.position_M[chosen].split(size), self.token_M[chosen].split(size), strict=True):
            if "temperature_rmpad" in self.settings:
                rows, temperature = self.logits[0, at], self.settings["temperature_rmpad"][at]
            else:
                sequence = torch.searchsorted(self.offsets, at, right=True) - 1
                rows = self.logits[sequence, at - self.offsets[sequence]]
                temperature = self.settings["temperature"][sequence]
            if not self.settings.get("temperature_is_one", False):
                rows = rows.float() / temperature.unsqueeze(-1)
            yield rows, tokens
