"""Sampling with a transformers model where every response draws from a random stream of its own.

The rollout of the CPU training and the `hf` engine of the evaluation are this one sampler. A response that ends gives
its place to the next prompt. A prompt passes through the model alone, and on a CPU every row of a step is computed the
same whatever rows are beside it (oneDNN's packed layers, attention in fixed parts). So there a response is decided by
prompt, seed and decoding, to the bit, and one that is missing can be made again alone.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import deque
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch.nn import functional as F

from stapo_results.errors import BadInput, RunFailed
from stapo_results.shapes import positions_held, rows_held

ATTENTION = "stapo_rows"
"""The name of the sampler's attention among those of transformers."""
_BLOCK = 128
"""Neighbouring tokens whose probabilities are summed for a draw; so many of the most probable are cut first."""
_PACKED_FOR = 64
"""Rows for which linear layers are packed, however many there are."""
_AT_A_TIME = 2**20
"""Logits in float32 at a time: 4 MiB, which a processor's cache holds."""


@dataclass(frozen=True)
class Drawing:
    """How a token is drawn: temperature (0: the most probable token), then the cuts min-p (0: none), top-k (-1: none)
    and top-p (1: none)."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0


@dataclass(frozen=True)
class Generated:
    """One response: its tokens (with the stop token, if it was reached) and their log-probabilities.

    The log-probabilities are those of the distribution that was sampled from (after temperature and top-p), in nats.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: Literal["stop", "length"]


def draw(logits_RV: torch.Tensor, uniform_R: torch.Tensor, how: Drawing) -> tuple[torch.Tensor, torch.Tensor]:
    """One token a row by the inverse distribution function: (ids (R,), log-probabilities (R,) float64, nats).

    Temperature first, then min-p: tokens of at least `min_p` times the highest probability (Nguyen et al. 2024); then
    top-k; then nucleus: the smallest set of most probable tokens whose mass reaches `top_p` (Holtzman et al. 2020) of
    what is left. In this order, vLLM's, each sees a distribution that is renormalised. Ties are broken by token id.
    Probabilities are float32, their sums float64.

    Args:
        uniform_R: numbers in [0, 1), float64, which run through the tokens that may be drawn by id.

    Returns:
        Of a row whose logits are not finite, any token and NaN.
    """
    size = max(1, _AT_A_TIME // logits_RV.shape[-1])
    pieces = [_draw(x, u, how) for x, u in zip(logits_RV.split(size), uniform_R.split(size), strict=True)]
    ids, logprobs = zip(*pieces, strict=True)
    return torch.cat(ids), torch.cat(logprobs)


def _draw(logits: torch.Tensor, uniform: torch.Tensor, how: Drawing) -> tuple[torch.Tensor, torch.Tensor]:
    x = logits.float()
    top, best = x.max(-1, keepdim=True)
    x = (x - top) / (how.temperature or 1.0)
    blocks = F.pad(x, (0, -x.shape[-1] % _BLOCK), value=-torch.inf).view(len(x), -1, _BLOCK)
    mass = blocks.exp()
    sum_of_block = mass.sum(-1).double()
    total = sum_of_block.sum(-1)
    if not (sound := total.isfinite()).all():
        ids, logprobs = _draw(logits.where(sound.unsqueeze(-1), 0.0), uniform, how)
        return ids, logprobs.where(sound, math.nan)
    if how.temperature == 0:
        return best.squeeze(-1), -total.log()
    if how.top_p < 1.0 or how.top_k > 0 or how.min_p > 0:
        return _draw_top(blocks, total, uniform, how)
    row = torch.arange(len(x), device=x.device)
    block, rest = _place(sum_of_block, uniform)
    within, _ = _place(mass[row, block].double(), rest)
    ids = block * _BLOCK + within
    return ids, x[row, ids].double() - total.log()


def _place(weight: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the uniform numbers (R,) fall in rows of weights (R, n), and how far into that place, in [0, 1)."""
    ends = weight.cumsum(-1)
    target = uniform.unsqueeze(-1) * ends[:, -1:]
    last = torch.searchsorted(ends, ends[:, -1:].contiguous())  # rounding may not lead to a token of weight 0
    at = torch.minimum(torch.searchsorted(ends, target, right=True), last)
    width = weight.gather(-1, at)
    into = (target - (ends.gather(-1, at) - width)) / width
    return at.squeeze(-1), into.squeeze(-1).clamp(0.0, 1.0)


def _draw_top(
    blocks: torch.Tensor, total: torch.Tensor, uniform: torch.Tensor, how: Drawing
) -> tuple[torch.Tensor, torch.Tensor]:
    """The draw among the most probable tokens. A row is sorted whole where `_BLOCK` of them do not decide it."""
    rows, count = len(blocks), blocks.shape[1] * _BLOCK
    few = min(_BLOCK, blocks.shape[1])
    # the largest values lie in the blocks with the largest maxima
    among = blocks.amax(-1).topk(few, -1).indices.sort(-1).values
    inside = blocks.gather(1, among.unsqueeze(-1).expand(-1, -1, _BLOCK)).view(rows, -1)
    order = inside.sort(dim=-1, descending=True, stable=True)
    values, at = order.values[:, :_BLOCK], order.indices[:, :_BLOCK]
    ids = among.gather(-1, at // _BLOCK) * _BLOCK + at % _BLOCK
    kept = _kept(values, total, how)
    # Top-p of what min-p and top-k leave needs all that they leave. What lies outside is at most the last of these
    # values; equal ones count as undecided, so that ids break ties.
    cuts_before = how.top_k > 0 or how.min_p > 0
    needed = _kept(values, total, replace(how, top_p=1.0)) if cuts_before else kept
    decided = values[:, -1] < values.masked_fill(~needed, torch.inf).amin(-1)
    result = _among(ids, values.masked_fill(~kept, -torch.inf), uniform)
    if count > _BLOCK and not decided.all():
        rest = ~decided
        ordered = blocks[rest].view(-1, count).sort(dim=-1, descending=True, stable=True)
        values = ordered.values.masked_fill(~_kept(ordered.values, total[rest], how), -torch.inf)
        for into, part in zip(result, _among(ordered.indices, values, uniform[rest]), strict=True):
            into[rest] = part
    return result


def _kept(values: torch.Tensor, total: torch.Tensor, how: Drawing) -> torch.Tensor:
    """Which of the sorted logits (largest first; their largest is 0) the cuts keep; always the first."""
    keep = torch.ones_like(values, dtype=torch.bool)
    if how.min_p > 0:
        keep = values >= math.log(how.min_p)
    if how.top_k > 0:
        keep[:, how.top_k :] = False
    if how.top_k > 0 or how.min_p > 0:
        total = values.masked_fill(~keep, -torch.inf).exp().double().sum(-1)
    if how.top_p < 1.0:
        mass = values.exp().double()
        keep &= mass.cumsum(-1) - mass < how.top_p * total.unsqueeze(-1)
    keep[:, 0] = True
    return keep


def _among(ids: torch.Tensor, values: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    ids, order = ids.sort(-1)
    values = values.gather(-1, order)
    mass = values.exp().double()
    at = _place(mass, uniform)[0].unsqueeze(-1)
    logprob = values.gather(-1, at).double() - mass.sum(-1, keepdim=True).log()
    return ids.gather(-1, at).squeeze(-1), logprob.squeeze(-1)


class _Slots:
    """Keys and values of all rows: a tensor (rows, heads, positions, head size) each for every layer.

    Attributes:
        position_R: the place of the token that every row in use reads next; None while a prompt is read.
        prompt: keys and values of the prompt that was read last, by layer.
    """

    def __init__(self, rows: int):
        self.rows = rows
        self.layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.prompt: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.position_R: torch.Tensor | None = None
        self._row_R = torch.empty(0)
        self._alike: list[tuple[slice, torch.Tensor]] = []

    def at(self, position_R: torch.Tensor) -> None:
        """The first rows read a token each, at these positions.

        Neighbours that look back over as many parts are computed together: a long row costs a short one nothing.
        """
        self.position_R = position_R
        self._row_R = torch.arange(len(position_R), device=position_R.device)
        self._alike = []
        seen_R = [positions_held(p + 1) for p in position_R.tolist()]
        first = 0
        for seen, same in itertools.groupby(seen_R):
            rows = slice(first, first := first + len(list(same)))
            seen_rS = torch.arange(seen, device=position_R.device) <= position_R[rows, None]
            self._alike.append((rows, seen_rS))
        for layer, pair in list(self.layers.items()):
            self._grow(layer, pair, max(seen_R))

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, window: int | None
    ) -> torch.Tensor:
        """Attention (B, heads, T, D) over what the rows have seen, the new keys and values included."""
        if self.position_R is None:
            self.prompt[layer] = key, value
            seen = key.shape[2]
            mask = None
            if window and seen > window:
                mask = torch.ones(seen, seen, dtype=torch.bool, device=key.device).tril().triu(1 - window)
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True
            )
        keys, values = self.layers[layer]
        keys[self._row_R, :, self.position_R] = key[:, :, 0]
        values[self._row_R, :, self.position_R] = value[:, :, 0]
        # the queries that share a head of keys are the rows of one product
        grouped = query.reshape(len(query), keys.shape[1], -1, query.shape[-1])
        parts = []
        for rows, mask_rS in self._alike:
            seen = mask_rS.shape[1]
            if window:
                mask_rS = mask_rS & (torch.arange(seen, device=key.device) > self.position_R[rows, None] - window)
            parts.append(
                F.scaled_dot_product_attention(
                    grouped[rows],
                    keys[rows, :, :seen],
                    values[rows, :, :seen],
                    attn_mask=mask_rS[:, None, None],
                    scale=scale,
                )
            )
        return torch.cat(parts).reshape(*query.shape[:-1], values.shape[-1])

    def take(self, row: int) -> None:
        """Give a row the prompt that was read last."""
        for layer, pair in self.prompt.items():
            length = pair[0].shape[2]
            self._grow(layer, pair, length + 1)
            for cache, part in zip(self.layers[layer], pair, strict=True):
                cache[row, :, :length] = part[0]

    def clear(self, row: int) -> None:
        """Forget what a row has seen: a mask hides a number, and no NaN."""
        for pair in self.layers.values():
            for cache in pair:
                cache[row].zero_()

    def swap(self, row: int, other: int, length: int) -> None:
        """Two rows change places with what they have seen, of `length` positions at most."""
        for pair in self.layers.values():
            for cache in pair:
                cache[[row, other], :, :length] = cache[[other, row], :, :length]

    def _grow(self, layer: int, like: tuple[torch.Tensor, torch.Tensor], positions: int) -> None:
        have = self.layers.get(layer)
        if have is not None and have[0].shape[2] >= positions:
            return
        grown = []
        for i, x in enumerate(like):
            new = x.new_zeros(self.rows, x.shape[1], positions_held(positions), x.shape[3])
            if have is not None:
                new[:, :, : have[i].shape[2]] = have[i]
            grown.append(new)
        self.layers[layer] = grown[0], grown[1]


def _not_replaced(found: str) -> BadInput:
    return BadInput(
        "the sampler cannot replace this model's attention",
        found=found,
        expected="a decoder with transformers' attention interface",
        next_step="use engine vllm",
    )


def _not_finite() -> RunFailed:
    diverged = "the policy has diverged, or the weights are damaged"
    return RunFailed("the model's logits are not finite", next_step=diverged)


def _attend(
    module: Any, query: Any, key: Any, value: Any, _mask: Any, *, slots: _Slots, scaling: float | None = None,
    sliding_window: int | None = None, softcap: float | None = None, s_aux: Any = None, **_: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """transformers' attention interface; `slots` comes with the call of the model."""
    if softcap is not None or s_aux is not None:
        raise _not_replaced("its attention has a soft cap or sinks")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return slots.attend(module.layer_idx, query, key, value, scale, sliding_window).transpose(1, 2).contiguous(), None


def _packable(layer: Any) -> bool:
    """Whether oneDNN packs a layer on this processor; a subclass of Linear may compute something else."""
    if (
        type(layer) is not torch.nn.Linear
        or layer.weight.device.type != "cpu"
        or not torch.backends.mkldnn.is_available()
    ):
        return False
    wide = layer.weight.dtype == torch.float32
    return wide or (layer.weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _pack(layers: Iterable[torch.nn.Linear], rows: int, kept: Collection[int]) -> None:
    """Give linear layers a copy of their weights in oneDNN's order for few rows: a CPU otherwise reorders a layer's
    weights each time that it reads them, and computes a row in another order beside other rows. `kept`: ids of the
    weights that stay beside their copies."""
    packed: dict[int, torch.Tensor] = {}
    for layer in layers:
        if (weight := id(layer.weight)) not in packed:
            packed[weight] = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), rows)
            if weight not in kept:
                layer.weight.data = layer.weight.new_empty(0, layer.in_features)
        layer.forward = functools.partial(_linear, packed[weight], layer.bias)


def _linear(packed: torch.Tensor, bias: torch.Tensor | None, input: torch.Tensor) -> torch.Tensor:
    flat = input.reshape(-1, input.shape[-1])
    out = torch.ops.mkldnn._linear_pointwise(flat, packed, bias, "none", [], "")
    return out.view(*input.shape[:-1], out.shape[-1])


@dataclass
class _Row:
    """A response that is being made; `position`: where its last token stands."""

    key: Hashable
    position: int
    tokens: list[int]
    logprobs: list[float]
    uniform: torch.Tensor
    how: Drawing
    most: int


class Sampler:
    """Works on up to `rows` responses at a time with a transformers causal language model in eval mode.

    The model is changed for as long as the sampler is open: its attention is this module's, and on a CPU its linear
    layers have packed weights. Open a new one when the weights have changed.

    Args:
        packed_alone: a linear layer's own weights go when they are packed, where `exact`: the router of a mixture of
            experts may read its own. That halves the memory, and the model is of no use once the sampler is closed.

    Attributes:
        exact: whether a response is the same to the bit whatever is beside it: all matrices are packed, as on a CPU
            without a mixture of experts.

    Raises:
        BadInput: a model whose attention cannot be replaced, or that another sampler has.
        RunFailed: its logits are not finite.
    """

    def __init__(self, model: Any, rows: int, stop_token_ids: Collection[int], *, packed_alone: bool = False):
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        for layer in model.modules():
            kinds = getattr(layer, "rope_type", None) or ()
            if rows > 1 and (
                found := {"longrope", "dynamic"} & {*(kinds.values() if isinstance(kinds, dict) else [kinds])}
            ):
                # transformers takes the factors by the longest row: a response would depend on those beside it
                raise BadInput(f"{type(model).__name__} has rotary embeddings of the kind {found.pop()}",
                               next_step="another engine, such as vllm, or --batch-rows 1")  # fmt: skip
        self._before = model.config._attn_implementation
        if self._before == ATTENTION:
            raise BadInput("another sampler has this model", next_step="close it first")
        ALL_ATTENTION_FUNCTIONS.register(ATTENTION, _attend)
        model.set_attn_implementation(ATTENTION)
        tables = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
        self._packed = [layer for layer in model.modules() if _packable(layer)]
        known = tables | {id(m.weight) for m in self._packed}
        self.exact = bool(self._packed) and all(id(p) in known for p in model.parameters() if p.dim() > 1)
        _pack(self._packed, _PACKED_FOR, tables if packed_alone and self.exact else known)
        self.model, self.stops = model, set(stop_token_ids)
        self.device = next(model.parameters()).device
        self.slots = _Slots(rows_held(rows))
        self.rows = rows
        self.waiting: deque[tuple[Hashable, tuple[int, ...], int, Drawing, int]] = deque()
        self.working: list[_Row] = []
        self._read: tuple[tuple[int, ...], torch.Tensor] | None = None  # the last prompt, with its logits
        try:
            if model.config.get_text_config()._attn_implementation != ATTENTION:
                raise _not_replaced(type(model).__name__)
            self.read((0,))  # the attention is asked what it cannot do before a response is
        except Exception:
            self.close()
            raise

    def close(self) -> None:
        """Give the model back as it was, but for weights that went."""
        for layer in self._packed:
            vars(layer).pop("forward", None)
        self.model.set_attn_implementation(self._before)

    def add(self, key: Hashable, prompt: Sequence[int], seed: int, how: Drawing, max_new_tokens: int) -> None:
        """Ask for a response of at most so many tokens, the stop token included.

        Args:
            key: what `step` returns it under.
            seed: in [0, 2**63).

        Raises:
            BadInput: for an empty prompt, or no token to make.
        """
        if not prompt:
            raise BadInput("a prompt without a token cannot be continued", next_step="check the chat template")
        if max_new_tokens < 1:
            raise BadInput("a response has at least one token", found=max_new_tokens, next_step="a higher limit")
        self.waiting.append((key, tuple(prompt), seed, how, max_new_tokens))

    def __len__(self) -> int:
        """Responses that are not finished."""
        return len(self.waiting) + len(self.working)

    @property
    def under_way(self) -> int:
        """Tokens of the responses that are being made."""
        return sum(len(row.tokens) for row in self.working)

    @torch.inference_mode()
    def step(self) -> list[tuple[Hashable, Generated | Exception]]:
        """Read a waiting prompt and draw its first token where a place is free; else a token for every response.

        Returns:
            What ended; an error in place of a response where the model cannot read the prompt, or its logits are not
        finite.
        """
        if self.waiting and len(self.working) < self.rows:
            key, prompt, seed, how, most = self.waiting.popleft()
            try:
                self._begin(key, prompt, seed, how, most)
            except (RuntimeError, ValueError, IndexError) as e:
                return [(key, e)]
            return self._ended([len(self.working) - 1])
        if not self.working:
            return []
        self._sort()
        padding = [0] * (rows_held(len(self.working)) - len(self.working))
        token_R = torch.tensor([r.tokens[-1] for r in self.working] + padding, device=self.device)
        position_R = torch.tensor([r.position for r in self.working] + padding, device=self.device)
        self.slots.at(position_R)
        logits_RV = self._logits(token_R[:, None], position_R[:, None])[: len(self.working)]
        of_how: dict[Drawing, list[int]] = {}
        for i, row in enumerate(self.working):
            of_how.setdefault(row.how, []).append(i)
        for how, places in of_how.items():
            rows = [self.working[i] for i in places]
            uniform = torch.stack([r.uniform[len(r.tokens)] for r in rows])
            logits = logits_RV if len(of_how) == 1 else logits_RV[places]
            for row, token, logprob in zip(rows, *self._draw(logits, uniform, how), strict=True):
                row.position += 1
                row.tokens.append(token)
                row.logprobs.append(logprob)
        return self._ended(range(len(self.working)))

    @torch.inference_mode()
    def read(self, prompt: tuple[int, ...]) -> torch.Tensor:
        """The logits (1, V) behind a prompt; of the one that was read last without the model."""
        if self._read is None or self._read[0] != prompt:
            self.slots.position_R, self.slots.prompt, self._read = None, {}, None
            ids = torch.tensor(prompt, device=self.device)[None]
            logits = self._logits(ids, torch.arange(len(prompt), device=self.device)[None])
            if len(self.slots.prompt) != self.model.config.get_text_config().num_hidden_layers:
                raise RunFailed(
                    "some layers of the model keep a state that is no attention",
                    found=f"{len(self.slots.prompt)} layers with keys",
                    next_step="use engine vllm",
                )
            if not logits.max().isfinite():
                raise _not_finite()
            self._read = prompt, logits
        return self._read[1]

    def _begin(self, key: Hashable, prompt: tuple[int, ...], seed: int, how: Drawing, most: int) -> None:
        """Give a prompt the next row, and draw its first token."""
        logits = self.read(prompt)
        self.slots.take(len(self.working))
        uniform = torch.rand(most, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        token, logprob = self._draw(logits, uniform[:1], how)
        self.working.append(_Row(key, len(prompt), token, logprob, uniform, how, most))

    def _sort(self) -> None:
        """Rows that have more parts to look back over come first."""
        rows = self.working
        for i in range(len(rows)):
            longest = max(range(i, len(rows)), key=lambda k: positions_held(rows[k].position + 1))
            if positions_held(rows[longest].position + 1) > positions_held(rows[i].position + 1):
                rows[i], rows[longest] = rows[longest], rows[i]
                self.slots.swap(i, longest, rows[i].position)

    def _ended(self, places: Sequence[int]) -> list[tuple[Hashable, Generated | Exception]]:
        """The responses of these rows that have ended; the last row takes the place of each."""
        ended: list[tuple[Hashable, Generated | Exception]] = []
        for i in reversed(places):
            row = self.working[i]
            stopped, broken = row.tokens[-1] in self.stops, math.isnan(row.logprobs[-1])
            if not (stopped or broken) and len(row.tokens) < row.most:
                continue
            response = Generated(row.tokens, row.logprobs, "stop" if stopped else "length")
            ended.append((row.key, _not_finite() if broken else response))
            if broken:
                self.slots.clear(i)
            last = self.working.pop()
            if last is not row:
                self.working[i] = last
                self.slots.swap(len(self.working), i, last.position)
        return ended[::-1]

    def all_ended(self) -> Iterator[list[tuple[Hashable, Generated]]]:
        """Work until nothing waits: the responses that ended in each step.

        Raises:
            Exception: the first error of a response.
        """
        while len(self):
            ended = []
            for key, response in self.step():
                if isinstance(response, Exception):
                    raise response
                ended.append((key, response))
            yield ended

    def _draw(self, logits: torch.Tensor, uniform: torch.Tensor, how: Drawing) -> tuple[list[int], list[float]]:
        ids, logprobs = draw(logits, uniform.to(self.device), how)
        return ids.tolist(), logprobs.tolist()

    def _logits(self, ids: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """The last position's logits (B, V)."""
        out = self.model(input_ids=ids, position_ids=position, use_cache=False, logits_to_keep=1, slots=self.slots)
        return out.logits[:, -1]


def generate(
    model: Any,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[int],
    how: Drawing,
    *,
    max_new_tokens: int,
    stop_token_ids: Collection[int],
    rows: int = 64,
) -> list[Generated]:
    """One response a prompt, in the order of the prompts (`Sampler`).

    Raises:
        BadInput: for an empty prompt.
    """
    with closing(Sampler(model, min(rows, len(prompts)), stop_token_ids)) as sampler:
        for i, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
            sampler.add(i, prompt, seed, how, max_new_tokens)
        response_of = dict(itertools.chain.from_iterable(sampler.all_ended()))
    return [response_of[i] for i in range(len(prompts))]
