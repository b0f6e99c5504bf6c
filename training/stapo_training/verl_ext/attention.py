"""Attention over packed rows without the flash-attn package, by torch's own kernel; importing this registers it.

veRL packs a micro-batch's sequences into one row in which the positions start again. transformers' sdpa takes such a
row with a mask, at the square of its length; flash_attention_2 needs a package that has no wheel for the pinned torch.
torch carries the same kernel as `torch.nn.attention.varlen` (CUDA, sm80 and later, bfloat16 and float16, heads of up to
256 in multiples of 8). Elsewhere scaled_dot_product_attention takes one sequence after the other, so that all but the
kernel runs without a GPU.

Shapes: B rows, T tokens of a row, H heads of the query and K of the keys (K divides H), D numbers a head.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import torch
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from stapo_results.errors import RunFailed

NAME = "stapo_varlen"
"""What `override_config.attn_implementation` calls it."""
KEY = "actor_rollout_ref.model.override_config.attn_implementation"

# torch 2.11 takes fewer heads of keys without being asked; later versions want to be
_grouped: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}
kernel: Any = partial(varlen_attn, window_size=(-1, 0), **_grouped)  # the window (-1, 0) is causal


def boundaries(position_ids: torch.Tensor) -> dict[str, Any]:
    """Where the sequences of a packed row (1, T) begin: what a model's forward hands on to `attend`.

    A sequence begins where a position is not the one before plus 1. Waits for the device, hence once a forward.

    Raises:
        RunFailed: for positions of another shape (mrope has several for a token).
    """
    if position_ids.ndim != 2 or len(position_ids) != 1:
        raise RunFailed(
            f"the attention {NAME} finds the sequences of a packed row by one position a token",
            found=f"positions {tuple(position_ids.shape)}",
            expected="(1, tokens)",
            next_step=f"set {KEY}=sdpa",
        )
    position_T = position_ids.flatten()
    begin = (position_T.diff() != 1).nonzero().flatten() + 1
    bounds = torch.cat([begin.new_zeros(1), begin, begin.new_full((1,), len(position_T))]).int()
    return {"cu_seq_lens_q": bounds, "max_length_q": int(bounds.diff().max())}


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each sequence: query (B, H, T, D), key and value (B, K, T, D) -> (B, T, H, D).

    Padded rows come with a mask (`mask`) and go to transformers' sdpa; a packed row comes with its `boundaries`.

    Raises:
        RunFailed: for what neither of the two is, and for what the kernel does not compute.
    """
    unknown = [k for k in ("softcap", "s_aux") if kwargs.get(k) is not None]
    other = "flash_attention_2" if unknown else "sdpa"  # transformers' sdpa leaves out what those two ask for
    if attention_mask is not None and not unknown:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    unknown += ["sliding_window"] if kwargs.get("sliding_window") is not None else []
    unknown += ["dropout"] if dropout else []
    if cu_seq_lens_q is None or len(query) != 1 or query.shape[2] != key.shape[2] or unknown or not module.is_causal:
        raise RunFailed(
            f"the attention {NAME} takes padded rows with their mask, or one packed row with its boundaries",
            found=f"queries {tuple(query.shape)}, keys {tuple(key.shape)}, boundaries: {cu_seq_lens_q is not None}, "
            f"causal: {module.is_causal}, {' and '.join(unknown) or 'nothing else'}",
            expected="causal attention without dropout, sliding window, soft cap or sinks",
            next_step=f"set {KEY}={other}",
        )
    # norms and rotation may have been taken in float32 under autocast, which the kernel knows nothing of
    q, k, v = (t[0].transpose(0, 1).to(value.dtype) for t in (query, key, value))
    if q.device.type == "cpu" or q.dtype == torch.float32:
        out = one_by_one(q, k, v, cu_seq_lens_q, scaling)
    else:
        out = kernel(q, k, v, cu_seq_lens_q, cu_seq_lens_q, max_length_q, max_length_q, scale=scaling)
    return out.unsqueeze(0), None


def one_by_one(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bounds: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    """What the kernel computes: q (T, H, D), k and v (T, K, D), bounds (sequences + 1,) -> (T, H, D)."""
    lengths = bounds.diff().tolist()
    sequences = zip(*(t.transpose(0, 1).split(lengths, dim=1) for t in (q, k, v)), strict=True)
    out = [scaled_dot_product_attention(*s, is_causal=True, scale=scaling, enable_gqa=True) for s in sequences]
    return torch.cat(out, dim=1).transpose(0, 1)


def mask(*, attention_mask: torch.Tensor | None = None, **kwargs: Any) -> torch.Tensor | None:
    """sdpa's mask of padded rows, also where none has padding: no mask means a packed row to `attend`."""
    if attention_mask is None:
        return None
    kwargs["allow_is_causal_skip"] = False
    return sdpa_mask(attention_mask=attention_mask, **kwargs)


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, mask)
