"""What a model says at each token: probability, entropy, collision probability, top-k; the (T, V) logits never exist.

The logits come in tiles of some tokens and some of the vocabulary. Each tile is made, read a few times while a cache
holds it, and overwritten by the next; of a token, five running numbers and its k best logits remain. With m the
largest logit z so far, these are s = sum exp(z - m), a = sum exp(z - m) (z - m) and c = sum exp(2 (z - m)), from which

    log p_y = (z_y - m) - log s        H = log s - a / s        sum p^2 = c / s^2

No difference of large numbers occurs: m and log s are never added up, and both terms of H are positive. Tiles are
float32, sums over tiles float64. Nothing here has a gradient.

Shapes: T tokens, D hidden size, V vocabulary, K of top-k.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

TOKENS, VOCABULARY = 512, 1024
"""A tile's size: 2 MiB of float32, which a CPU's cache holds; wide enough that the product runs at full speed."""
_FLOOR = -1e4
"""exp of this is 0 in float32. Keeps 0 x -inf out of the sums."""
_LOWEST = torch.finfo(torch.float32).min
_IDS = 2**32 - 1


@dataclass(frozen=True)
class TokenDistribution:
    """The next-token distributions at T tokens, float32, on the device of what they were made from.

    logprob_T: log of the probability of the token that was chosen, nats. entropy_T: Shannon entropy, nats. collision_T:
    sum of squared probabilities. top_id_TK: the K most probable tokens, int64; of equal ones the lower id comes first.
    top_logprob_TK: theirs, nats. A logit that is NaN or +inf makes its token's numbers NaN; -inf is a probability of 0.
    """

    logprob_T: torch.Tensor
    entropy_T: torch.Tensor
    collision_T: torch.Tensor
    top_id_TK: torch.Tensor
    top_logprob_TK: torch.Tensor


@torch.no_grad()
def score_tokens(
    hidden_TD: torch.Tensor,
    weight_VD: torch.Tensor,
    chosen_T: torch.Tensor,
    *,
    bias_V: torch.Tensor | None = None,
    temperature_T: torch.Tensor | None = None,
    k: int = 5,
    tokens: int | None = None,
    vocabulary: int | None = None,
) -> TokenDistribution:
    """The distributions softmax((hidden weight^T + bias) / temperature), and the probability of each chosen token.

    Products of bfloat16 or float16 are taken in float32, so that logits are not rounded as the model's own are.
    `tokens` x `vocabulary` is a tile's size; None fits a CPU's cache, or gives a GPU few and large operations.

    Raises:
        ValueError: when k is not in 1 to V, a chosen id not below V, or shapes do not fit.
    """
    if hidden_TD.ndim != 2 or weight_VD.ndim != 2 or hidden_TD.shape[1] != weight_VD.shape[1]:
        raise ValueError(f"hidden {tuple(hidden_TD.shape)} and weight {tuple(weight_VD.shape)} are not (T, D), (V, D)")
    _check_chosen(chosen_T, len(hidden_TD), len(weight_VD), k)
    on_cpu = hidden_TD.device.type == "cpu"
    tokens, vocabulary = tokens or (TOKENS if on_cpu else 4096), vocabulary or (VOCABULARY if on_cpu else 8192)
    running = _Running(chosen_T, k, vocabulary)
    with torch.autocast(hidden_TD.device.type, enabled=False):  # it would take products and dots in bfloat16
        buffer = torch.empty(2 * min(tokens, len(hidden_TD)), vocabulary, device=hidden_TD.device)
        for first in range(0, len(weight_VD), vocabulary):
            weight = weight_VD[first : first + vocabulary].float()
            for start in range(0, len(hidden_TD), tokens):
                rows = slice(start, min(start + tokens, len(hidden_TD)))
                size = rows.stop - rows.start
                # the last tiles are smaller: views of the same memory with rows side by side
                tile, scratch = (
                    half[: size * len(weight)].view(size, len(weight)) for half in buffer.view(2, -1).unbind()
                )
                torch.mm(hidden_TD[rows].float(), weight.T, out=tile)
                if bias_V is not None:
                    tile += bias_V[first : first + vocabulary].float()
                if temperature_T is not None:
                    tile /= temperature_T[rows].float().unsqueeze(-1)
                running.add(rows, first, tile, scratch)
    return running.result()


@torch.no_grad()
def score_logits(
    logits_TV: torch.Tensor,
    chosen_T: torch.Tensor,
    *,
    temperature_T: torch.Tensor | None = None,
    k: int = 5,
    tokens: int | None = None,
    vocabulary: int | None = None,
) -> TokenDistribution:
    """The same from logits that are there already, of any floating type; no float32 copy of all of them is made.

    The tiles that are not given are a CPU's cache's, or whole rows on a GPU, which wants few and large operations.

    Raises:
        ValueError: as `score_tokens`.
    """
    on_cpu = logits_TV.device.type == "cpu"
    tokens, vocabulary = tokens or (TOKENS if on_cpu else 128), vocabulary or (VOCABULARY if on_cpu else 2**20)
    _check_chosen(chosen_T, len(logits_TV), logits_TV.shape[1], k)
    running = _Running(chosen_T, k, min(vocabulary, logits_TV.shape[1]))
    with torch.autocast(logits_TV.device.type, enabled=False):
        for start in range(0, len(logits_TV), tokens):
            rows = slice(start, min(start + tokens, len(logits_TV)))
            for first in range(0, logits_TV.shape[1], vocabulary):
                tile = logits_TV[rows, first : first + vocabulary].to(torch.float32, copy=True)
                if temperature_T is not None:
                    tile /= temperature_T[rows].float().unsqueeze(-1)
                running.add(rows, first, tile, torch.empty_like(tile))
    return running.result()


def _check_chosen(chosen_T: torch.Tensor, tokens: int, vocabulary: int, k: int) -> None:
    if chosen_T.shape != (tokens,):
        raise ValueError(f"chosen ids have the shape {tuple(chosen_T.shape)}, and there are {tokens} tokens")
    if not 1 <= k <= vocabulary:
        raise ValueError(f"k = {k} is not in 1 to {vocabulary}, the vocabulary")
    if tokens and not 0 <= int(chosen_T.min()) <= int(chosen_T.max()) < vocabulary:
        raise ValueError(f"chosen ids {int(chosen_T.min())} to {int(chosen_T.max())}, the vocabulary is {vocabulary}")


class _Running:
    """What is known of T tokens after some tiles of their logits, which come in the order of the vocabulary."""

    def __init__(self, chosen_T: torch.Tensor, k: int, vocabulary: int):
        device, tokens = chosen_T.device, len(chosen_T)
        self.chosen_T = chosen_T.long()
        self.max_T = torch.full((tokens,), _LOWEST, device=device)
        self.logit_T = torch.full((tokens,), torch.nan, device=device)
        self.sum_T, self.moment_T, self.square_T = torch.zeros(3, tokens, dtype=torch.float64, device=device)
        self.key_TK = torch.full((tokens, k), torch.iinfo(torch.int64).min, device=device)
        self.kth_T = torch.full((tokens,), torch.nan, device=device)  # NaN: fewer than k logits were seen
        self.last_V = _IDS - torch.arange(vocabulary, device=device)

    def add(self, rows: slice, first: int, tile_TV: torch.Tensor, scratch_TV: torch.Tensor) -> None:
        """Count a tile of `rows`, float32, whose first column is the token `first`. Overwrites both tensors."""
        top_T = tile_TV.amax(-1)
        self._rank(rows, first, tile_TV, top_T)
        column_T = self.chosen_T[rows] - first
        here_T = (column_T >= 0) & (column_T < tile_TV.shape[1])
        found_T = tile_TV.gather(1, column_T.clamp(0, tile_TV.shape[1] - 1).unsqueeze(-1)).squeeze(-1)
        self.logit_T[rows] = torch.where(here_T, found_T, self.logit_T[rows])

        old_T, max_T = self.max_T[rows], torch.maximum(self.max_T[rows], top_T)
        y_TV = tile_TV.sub_(max_T.unsqueeze(-1)).clamp_(min=_FLOOR)
        e_TV = torch.exp(y_TV, out=scratch_TV)
        sum_T, moment_T, square_T = self.sum_T[rows], self.moment_T[rows], self.square_T[rows]
        down_T = old_T.double() - max_T.double()
        scale_T = down_T.exp()
        self.moment_T[rows] = scale_T * (moment_T + down_T * sum_T) + torch.linalg.vecdot(e_TV, y_TV)
        self.square_T[rows] = scale_T * scale_T * square_T + torch.linalg.vecdot(e_TV, e_TV)
        self.sum_T[rows] = scale_T * sum_T + e_TV.sum(-1)
        self.max_T[rows] = max_T

    def _rank(self, rows: slice, first: int, tile_TV: torch.Tensor, top_T: torch.Tensor) -> None:
        """Take the tile's logits into the k best of the rows where one of them is among these.

        One equal to the k-th is not: its id is higher. `not <=` is also true where the k-th is NaN.
        """
        better_R = torch.nonzero(~(top_T <= self.kth_T[rows])).squeeze(-1)
        if not len(better_R):
            return
        key_RV = _keys(tile_TV[better_R], self.last_V[: tile_TV.shape[1]] - first)
        better_R = better_R + rows.start
        key_RK = torch.cat([self.key_TK[better_R], key_RV], 1).topk(self.key_TK.shape[1], 1).values
        self.key_TK[better_R] = key_RK
        unfilled_R = key_RK[:, -1] == torch.iinfo(torch.int64).min
        self.kth_T[better_R] = _logits_of(key_RK[:, -1]).masked_fill_(unfilled_R, torch.nan)

    def result(self) -> TokenDistribution:
        log_T, max_T = self.sum_T.log(), self.max_T.double()
        return TokenDistribution(
            logprob_T=((self.logit_T.double() - max_T) - log_T).float(),
            entropy_T=(log_T - self.moment_T / self.sum_T).clamp_(min=0.0).float(),
            collision_T=(self.square_T / (self.sum_T * self.sum_T)).float(),
            top_id_TK=_IDS - (self.key_TK & _IDS),
            top_logprob_TK=((_logits_of(self.key_TK).double() - max_T.unsqueeze(-1)) - log_T.unsqueeze(-1)).float(),
        )


def _keys(logits: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """Integers that order as (logit descending, token id ascending) does, in int64, from float32 and 2^32 - 1 - id."""
    bits = (logits + 0.0).view(torch.int32)  # + 0.0 makes -0.0 a 0.0, which it equals
    return ((bits ^ (bits >> 31 & 0x7FFFFFFF)).long() << 32) | last


def _logits_of(key: torch.Tensor) -> torch.Tensor:
    """The logits, float32, that `_keys` were made from."""
    bits = (key >> 32).int()
    return (bits ^ (bits >> 31 & 0x7FFFFFFF)).view(torch.float32)
