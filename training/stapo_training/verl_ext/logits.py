"""A micro-batch's logits as veRL's engine packs them: tokens' log-probabilities, and what selectors ask of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from stapo_training.selection.token_stats import proxy_logprob, token_distribution

_AT_A_TIME = 2**26
"""Logits that are read at a time: 128 MiB in bfloat16, 256 in float32."""


def logprobs_from_logits(logits: torch.Tensor, labels: torch.Tensor, inplace_backward: bool = True) -> torch.Tensor:
    """log softmax(logits)[label], float32 of bfloat16: logits (..., V), labels (...) -> (...).

    Replaces veRL's function of this name. A part of the logits is in float32 at a time; with `inplace_backward` the
    gradient is written where the logits were, so nothing may read them after the backward pass.
    """
    found = _LogProb.apply(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), inplace_backward)
    return found.view(labels.shape)


class _LogProb(torch.autograd.Function):
    """d log p_y / d z_j = (1 if j = y, else 0) - p_j; N tokens. Kept for the backward pass are the logits alone."""

    @staticmethod
    def forward(ctx: Any, logits_NV: torch.Tensor, label_N: torch.Tensor, in_place: bool) -> torch.Tensor:
        wide = torch.promote_types(logits_NV.dtype, torch.float32)
        sum_N = torch.cat([part.to(wide).logsumexp(-1) for part in logits_NV.split(_rows(logits_NV))])
        ctx.save_for_backward(logits_NV, label_N, sum_N)
        ctx.in_place = in_place
        return logits_NV.gather(-1, label_N.unsqueeze(-1)).squeeze(-1).to(wide) - sum_N

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (gradient_N,), (logits_NV, label_N, sum_N) = gradients, ctx.saved_tensors
        into_NV = logits_NV if ctx.in_place else torch.empty_like(logits_NV)
        whole = into_NV, logits_NV, label_N, sum_N, gradient_N
        for into, logits, label, logsumexp, gradient in zip(*(t.split(_rows(logits_NV)) for t in whole), strict=True):
            part = (logits.to(sum_N.dtype) - logsumexp.unsqueeze(-1)).exp_().mul_(-gradient.unsqueeze(-1))
            part[torch.arange(len(part), device=part.device), label] += gradient
            into.copy_(part)
        return into_NV, None, None


def _rows(logits: torch.Tensor) -> int:
    """Tokens whose logits are read at a time."""
    return max(1, _AT_A_TIME // logits.shape[-1])


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
    def measured(self, what: Callable[..., torch.Tensor], chosen_M: torch.Tensor | None = None) -> torch.Tensor:
        """`entropy`, `collision` or both of `token_stats` at some of the positions (None: all)."""
        return torch.cat([what(*part) for part in self._parts(self._at(chosen_M))], -1)

    @torch.no_grad()
    def most_probable(self, chosen_M: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The k most probable tokens at some of the positions: ids and log-probabilities, (chosen, k)."""
        tokens = iter(self.token_M[chosen_M].split(_rows(self.logits)))
        parts = self._parts(self._at(chosen_M))
        found = [token_distribution(rows, next(tokens), k, temperature) for rows, temperature in parts]
        return torch.cat([f.top_id_TK for f in found]), torch.cat([f.top_logprob_TK for f in found])

    @torch.no_grad()
    def proxy_logprob(self, min_p: float) -> torch.Tensor:
        """The tokens' log-probabilities (M,) among the tokens that min-p keeps; -inf for the others."""
        tokens = iter(self.token_M.split(_rows(self.logits)))
        parts = self._parts(self.position_M)
        return torch.cat([proxy_logprob(rows, next(tokens), min_p, temperature) for rows, temperature in parts])

    @property
    def _unit(self) -> bool:
        return bool(self.settings.get("temperature_is_one", False))

    def _at(self, chosen_M: torch.Tensor | None) -> torch.Tensor:
        return self.position_M if chosen_M is None else self.position_M[chosen_M]

    def _parts(self, position: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
        """(logits, temperatures; None: 1) at positions, a part of them at a time; at least one part."""
        for part in position.split(_rows(self.logits)):
            if "temperature_rmpad" in self.settings:
                rows, temperature = self.logits[0, part], self.settings["temperature_rmpad"][part]
            else:
                sequence = torch.searchsorted(self.offsets, part, right=True) - 1
                rows = self.logits[sequence, part - self.offsets[sequence]]
                temperature = self.settings["temperature"][sequence]
            yield rows, None if self._unit else temperature
