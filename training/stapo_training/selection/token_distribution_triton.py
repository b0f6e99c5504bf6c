"""`token_distribution.score_tokens` as one Triton kernel for GPUs.

Each program takes a block of tokens and a share of the vocabulary, makes the logits tile by tile in registers and keeps
the reference's running numbers; what the programs of a token found is put together in PyTorch. No logit is written to
memory. Half-precision inputs are multiplied on tensor cores and added up in float32, which rounds no logit; float32
inputs are multiplied in float32.

Not run on a GPU so far: none was at hand. tests/test_token_distribution_triton.py compares it with the reference on
CUDA where there is any, and in Triton's interpreter on a CPU where Triton is installed, where it passed. That it
compiles for compute capability 9.0, with tensor-core instructions, is tested too. Its speed was not measured.
"""

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-not-found]  # comes with PyTorch's CUDA builds
import triton.language as tl  # type: ignore[import-not-found]

from stapo_training.selection.token_distribution import IDS, TokenDistribution, check, finish, keys, logits_of

_LOWEST = torch.finfo(torch.float32).min
_EMPTY = torch.iinfo(torch.int64).min


@triton.jit
def _better(x, ids_V, first, worst_T, VOCABULARY: tl.constexpr):
    """The largest logit left in each row of a tile, its id, its key, and whether that beats the worst key kept."""
    top_T = tl.max(x, 1)
    id_T = tl.min(tl.where(x == top_T[:, None], ids_V[None, :], first + VOCABULARY), 1)
    bits_T = tl.where(top_T == 0.0, 0.0, top_T).to(tl.int32, bitcast=True)
    ordered_T = (bits_T ^ ((bits_T >> 31) & 0x7FFFFFFF)).to(tl.int64)
    key_T = (ordered_T << 32) | (4294967295 - id_T.to(tl.int64))
    return id_T, key_T, (top_T > -float("inf")) & (key_T > worst_T)


@triton.jit
def _kernel(
    hidden,
    weight,
    bias,
    temperature,
    chosen,
    numbers,
    key_out,
    tokens,
    vocabulary,
    hidden_stride,
    weight_stride,
    tiles_each,
    DEPTH: tl.constexpr,
    K: tl.constexpr,
    KEPT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_TEMPERATURE: tl.constexpr,
    TOKENS: tl.constexpr,
    VOCABULARY: tl.constexpr,
    STEP: tl.constexpr,
    LOWEST: tl.constexpr,
    EMPTY: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Write m, s, a, c, z_y of TOKENS tokens to numbers (5, splits, T), float64, keys to key_out (splits, T, K), int64.

    Program (i, j): the i-th block of tokens, the j-th `tiles_each` tiles of the vocabulary. KEPT: K rounded up to a
    power of two. LOWEST stands for -inf among the k best, where -inf itself says that a logit has been taken.
    """
    row_T = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    there_T = row_T < tokens
    step_D = tl.arange(0, STEP)
    column_K = tl.arange(0, KEPT)
    chosen_T = tl.load(chosen + row_T, mask=there_T, other=0)
    max_T = tl.full((TOKENS,), LOWEST, tl.float32)
    sum_T = tl.zeros((TOKENS,), tl.float64)
    moment_T = tl.zeros((TOKENS,), tl.float64)
    square_T = tl.zeros((TOKENS,), tl.float64)
    logit_T = tl.zeros((TOKENS,), tl.float64)
    # different numbers, so that one key replaces one; what lies beyond K is never replaced
    empty_K = tl.where(column_K < K, EMPTY + column_K.to(tl.int64), 9223372036854775807)
    key_TK = tl.zeros((TOKENS, KEPT), tl.int64) + empty_K[None, :]

    first_tile = tl.program_id(1) * tiles_each
    last_tile = tl.minimum(first_tile + tiles_each, tl.cdiv(vocabulary, VOCABULARY))
    for tile in range(first_tile, last_tile):
        first = tile * VOCABULARY
        ids_V = first + tl.arange(0, VOCABULARY)
        known_V = ids_V < vocabulary
        z = tl.zeros((TOKENS, VOCABULARY), tl.float32)
        for d in range(0, DEPTH, STEP):
            deep_D = d + step_D < DEPTH
            # 64-bit offsets: 151,936 x 16,384 is beyond 2^31
            h = tl.load(
                hidden + row_T[:, None].to(tl.int64) * hidden_stride + (d + step_D)[None, :],
                mask=there_T[:, None] & deep_D[None, :],
                other=0.0,
            )
            w = tl.load(
                weight + ids_V[None, :].to(tl.int64) * weight_stride + (d + step_D)[:, None],
                mask=known_V[None, :] & deep_D[:, None],
                other=0.0,
            )
            if WIDEN:
                h, w = h.to(tl.float32), w.to(tl.float32)
            z = tl.dot(h, w, z, input_precision="ieee")
        if HAS_BIAS:
            z += tl.load(bias + ids_V, mask=known_V, other=0.0).to(tl.float32)[None, :]
        if HAS_TEMPERATURE:
            z = z / tl.load(temperature + row_T, mask=there_T, other=1.0).to(tl.float32)[:, None]
        hit = (ids_V[None, :] == chosen_T[:, None]) & known_V[None, :]
        logit_T += tl.sum(tl.where(hit, z, 0.0), 1).to(tl.float64)

        # the k best: taken one at a time out of the tile while a row has one that beats its worst
        x = tl.where(known_V[None, :], tl.maximum(z, LOWEST), -float("inf"))
        worst_T = tl.min(key_TK, 1)
        id_T, new_T, better_T = _better(x, ids_V, first, worst_T, VOCABULARY)
        while tl.max(better_T.to(tl.int32), 0) > 0:
            replaced = (key_TK == worst_T[:, None]) & better_T[:, None]
            key_TK = tl.where(replaced, new_T[:, None], key_TK)
            x = tl.where(ids_V[None, :] == id_T[:, None], -float("inf"), x)
            worst_T = tl.min(key_TK, 1)
            id_T, new_T, better_T = _better(x, ids_V, first, worst_T, VOCABULARY)

        z = tl.where(known_V[None, :], z, -float("inf"))
        new_max_T = tl.maximum(max_T, tl.max(z, 1))
        y = z - new_max_T[:, None]
        y = tl.where(y < -1e4, -1e4, y)  # not tl.maximum, which drops a NaN
        e = tl.exp(y)
        down_T = max_T.to(tl.float64) - new_max_T.to(tl.float64)
        scale_T = tl.exp(down_T)
        moment_T = scale_T * (moment_T + down_T * sum_T) + tl.sum(e * y, 1).to(tl.float64)
        square_T = scale_T * scale_T * square_T + tl.sum(e * e, 1).to(tl.float64)
        sum_T = scale_T * sum_T + tl.sum(e, 1).to(tl.float64)
        max_T = new_max_T

    splits = tl.num_programs(1)
    out = numbers + tl.program_id(1) * tokens + row_T
    tl.store(out, max_T.to(tl.float64), mask=there_T)
    tl.store(out + splits * tokens, sum_T, mask=there_T)
    tl.store(out + 2 * splits * tokens, moment_T, mask=there_T)
    tl.store(out + 3 * splits * tokens, square_T, mask=there_T)
    tl.store(out + 4 * splits * tokens, logit_T, mask=there_T)
    place = key_out + (tl.program_id(1) * tokens + row_T[:, None]) * K + column_K[None, :]
    tl.store(place, key_TK, mask=there_T[:, None] & (column_K < K)[None, :])


@torch.no_grad()
def score_tokens(
    hidden_TD: torch.Tensor,
    weight_VD: torch.Tensor,
    chosen_T: torch.Tensor,
    *,
    bias_V: torch.Tensor | None = None,
    temperature_T: torch.Tensor | None = None,
    k: int = 5,
    splits: int | None = None,
) -> TokenDistribution:
    """As `token_distribution.score_tokens`. splits: shares of the vocabulary, None to fill the GPU.

    Raises:
        ValueError: as the reference.
    """
    check(hidden_TD, weight_VD, chosen_T, k)
    tokens, depth = hidden_TD.shape
    device = hidden_TD.device
    half = hidden_TD.dtype == weight_VD.dtype and hidden_TD.dtype in (torch.bfloat16, torch.float16)
    # what 255 registers a thread hold: ptxas spills none or two of them for compute capability 9.0
    block, tile, step = (128, 128, 64) if half else (64, 64, 32)
    if hidden_TD.stride(1) != 1:
        hidden_TD = hidden_TD.contiguous()
    if weight_VD.stride(1) != 1:
        weight_VD = weight_VD.contiguous()
    blocks, tiles = -(-tokens // block), -(-len(weight_VD) // tile)
    if splits is None:  # four programs a multiprocessor, one after the other: the last round is seldom far from full
        splits = max(1, 4 * torch.cuda.get_device_properties(device).multi_processor_count // max(1, blocks))
    each = -(-tiles // min(splits, tiles))
    splits = -(-tiles // each)
    numbers = torch.empty(5, splits, tokens, dtype=torch.float64, device=device)
    key_STK = torch.empty(splits, tokens, k, dtype=torch.int64, device=device)
    if tokens:
        launch: Any = _kernel  # the decorator takes the grid in brackets
        launch[(blocks, splits)](
            hidden_TD,
            weight_VD,
            bias_V,
            temperature_T,
            chosen_T,
            numbers,
            key_STK,
            tokens,
            len(weight_VD),
            hidden_TD.stride(0),
            weight_VD.stride(0),
            each,
            DEPTH=depth,
            K=k,
            KEPT=triton.next_power_of_2(k),
            HAS_BIAS=bias_V is not None,
            HAS_TEMPERATURE=temperature_T is not None,
            TOKENS=block,
            VOCABULARY=tile,
            STEP=step,
            LOWEST=_LOWEST,
            EMPTY=_EMPTY,
            WIDEN=not half,
            num_warps=8,
            num_stages=3,
        )
    return _together(numbers, key_STK)


def _together(numbers: torch.Tensor, key_STK: torch.Tensor) -> TokenDistribution:
    """One distribution a token from what the splits of the vocabulary found: numbers (5, S, T), keys (S, T, K)."""
    max_ST, sum_ST, moment_ST, square_ST, logit_ST = numbers
    max_T = max_ST.amax(0)
    down_ST = max_ST - max_T
    scale_ST = down_ST.exp()
    key_TK = key_STK.transpose(0, 1).flatten(1).topk(key_STK.shape[2], 1).values
    impossible_TK = keys(torch.full_like(key_TK, -torch.inf, dtype=torch.float32), key_TK & IDS)
    key_TK = torch.where(logits_of(key_TK) == _LOWEST, impossible_TK, key_TK)
    return finish(
        max_T,
        (scale_ST * sum_ST).sum(0),
        (scale_ST * (moment_ST + down_ST * sum_ST)).sum(0),
        (scale_ST * scale_ST * square_ST).sum(0),
        logit_ST.sum(0),
        key_TK,
    )
