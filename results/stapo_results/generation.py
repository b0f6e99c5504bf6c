"""Batched sampling with transformers where every row draws from a random stream of its own.

The rollout of the CPU training and the `hf` engine of the evaluation are this one function. A row's tokens depend on
its prompt, its seed and the decoding parameters; the batch around it can change them only through rounding in the
matrix products, so a caller that wants the same bytes again keeps the batches fixed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import LogitsProcessor, LogitsProcessorList

from stapo_results.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


@dataclass(frozen=True)
class Generated:
    """One response: its tokens (with the stop token, if it was reached) and their log-probabilities.

    The log-probabilities are those of the distribution that was sampled from (after temperature and top-p), in nats.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: Literal["stop", "length"]


def truncate(
    logits_BV: torch.Tensor, temperature: float, top_p: float, top_k: int = -1, min_p: float = 0.0
) -> torch.Tensor:
    """Log-probabilities (B, V) in float64 of the sampling distribution.

    Temperature first, then min-p: tokens of at least `min_p` times the highest probability (Nguyen et al. 2024); then
    top-k; then nucleus: the smallest set of most probable tokens whose mass reaches `top_p` (Holtzman et al. 2020) of
    what is left. In this order, vLLM's, each sees a distribution that is renormalised. Ties are broken by token id.
    """
    logp_BV = torch.log_softmax(logits_BV.double() / temperature, dim=-1)
    if top_k <= 0 and top_p >= 1.0 and min_p <= 0.0:
        return logp_BV
    sorted_BV, order_BV = torch.sort(logp_BV, dim=-1, descending=True, stable=True)
    if min_p > 0:
        sorted_BV = sorted_BV.masked_fill(sorted_BV < sorted_BV[:, :1] + math.log(min_p), float("-inf"))
    if top_k > 0:
        sorted_BV[:, top_k:] = float("-inf")
    if top_k > 0 or min_p > 0:
        sorted_BV = torch.log_softmax(sorted_BV, dim=-1)
    if top_p < 1.0:
        drop_BV = sorted_BV.exp().cumsum(-1) - sorted_BV.exp() >= top_p
        drop_BV[:, 0] = False
        sorted_BV = sorted_BV.masked_fill(drop_BV, float("-inf"))
    return torch.log_softmax(torch.full_like(logp_BV, float("-inf")).scatter(-1, order_BV, sorted_BV), dim=-1)


class _RowSampler(LogitsProcessor):
    """Turns the scores into a one-hot choice by inverse-CDF sampling with one uniform number a row and position.

    transformers' own sampling draws all rows from one shared generator, so a row's tokens would depend on its
    neighbours; with this processor `generate` runs greedily over choices that are already made.
    """

    def __init__(self, uniform_BT: torch.Tensor, temperature: float, *cuts: Any):
        self.uniform_BT, self.temperature, self.cuts = uniform_BT, temperature, cuts
        self.step = 0
        self.logprobs: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        if self.temperature == 0:
            logp_BV = torch.log_softmax(scores.double(), dim=-1)
            choice_B = scores.argmax(-1)
        else:
            logp_BV = truncate(scores, self.temperature, *self.cuts)
            cdf_BV = logp_BV.exp().cumsum(-1)
            # scaling by the last entry keeps the draw inside the vocabulary in spite of rounding
            draw_B1 = self.uniform_BT[:, self.step, None].to(cdf_BV.device) * cdf_BV[:, -1:]
            choice_B = torch.searchsorted(cdf_BV, draw_B1, right=True).squeeze(-1).clamp_(max=cdf_BV.size(-1) - 1)
        self.step += 1
        self.logprobs.append(logp_BV.gather(-1, choice_B[:, None]).squeeze(-1).float().cpu())
        return torch.full_like(scores, float("-inf")).scatter(-1, choice_B[:, None], 0.0)


def _left_padded(rows: Sequence[Sequence[int]], value: int) -> torch.Tensor:
    rows_T = [torch.tensor(row) for row in rows]
    return pad_sequence(rows_T, batch_first=True, padding_value=value, padding_side="left")


@torch.inference_mode()
def generate(
    model: Any,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[int],
    *,
    max_new_tokens: int,
    temperature: float,
    top_p: float,
    stop_token_ids: Collection[int],
    pad_token_id: int,
    top_k: int = -1,
    min_p: float = 0.0,
) -> list[Generated]:
    """Sample one response a prompt, as one batch with a KV cache.

    Args:
        model: a transformers causal language model in eval mode.
        prompts: B lists of token ids, none empty.
        seeds: B seeds in [0, 2**63), one a row.
        max_new_tokens: longest response in tokens, the stop token included.
        temperature: 0 is greedy.
        stop_token_ids: a row ends with the first of these.

    Raises:
        BadInput: for an empty prompt.
    """
    if not prompts:
        return []
    if any(not p for p in prompts):
        raise BadInput("a prompt without a token cannot be continued", next_step="check the chat template")
    device = next(model.parameters()).device
    ids_BT = _left_padded(prompts, pad_token_id)
    attention_BT = _left_padded([[1] * len(p) for p in prompts], 0)
    draws = (torch.Generator().manual_seed(seed) for _, seed in zip(prompts, seeds, strict=True))
    uniform_BT = torch.stack([torch.rand(max_new_tokens, dtype=torch.float64, generator=g) for g in draws])
    sampler = _RowSampler(uniform_BT, temperature, top_p, top_k, min_p)
    out_BT = model.generate(
        input_ids=ids_BT.to(device),
        attention_mask=attention_BT.to(device),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        temperature=None,
        top_p=None,
        top_k=None,
        logits_processor=LogitsProcessorList([sampler]),
        eos_token_id=sorted(stop_token_ids),
        pad_token_id=pad_token_id,
        use_cache=True,
    )
    new = out_BT[:, ids_BT.shape[1] :].tolist()
    logprobs = torch.stack(sampler.logprobs, dim=1).tolist()
    stops = set(stop_token_ids)
    results = []
    for row, row_logprobs in zip(new, logprobs, strict=True):
        end = next((i + 1 for i, t in enumerate(row) if t in stops), None)  # [:None] is the whole row
        results.append(Generated(row[:end], row_logprobs[:end], "length" if end is None else "stop"))
    return results
