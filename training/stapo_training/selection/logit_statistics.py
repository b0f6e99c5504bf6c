"""What rows of logits say of a token and its distribution, each logit read once or twice.

Two forms give the same numbers to rounding. `eager` needs torch alone and reads pieces that a processor's cache holds.
`compiled` goes through torch.compile, which needs a C++ compiler or Triton. There each part of the vocabulary gives its
maximum and sums, and the parts are merged as an online softmax merges them (Milakov and Gimelshein 2018, 1805.02867).
The parts keep its float32 sums exact: one loop over 151,936 terms was 5.5e-5 nats off, 128 parts are 4e-6.
"""

from __future__ import annotations

import functools
import math
import os
import shutil
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch.utils._triton import has_triton

from stapo_results.errors import BadInput

Form = Literal["eager", "compiled"]

_CACHED = {"cpu": 2**20, "cuda": 2**25}
"""Logits in float32 at a time in the eager form: 4 MiB, which a core's cache holds; 128 MiB, which keep a GPU busy."""
_FLOOR = -1e4
"""Below the largest logit by this much a probability is 0 in float32; keeps 0 x -inf out of the entropy."""
_PARTS = 128
_LARGE = 2**15
"""The smallest vocabulary for which compiling pays: ten seconds once."""


class LogitStatistics(NamedTuple):
    """Of N tokens, (N,) each; None where it was not asked for.

    logprob_N: log softmax(logits)[chosen], nats. logsumexp_N: of the logits. entropy_N: Shannon's, nats. collision_N:
    the sum of squared probabilities.
    """

    logprob_N: torch.Tensor
    logsumexp_N: torch.Tensor
    entropy_N: Any
    collision_N: Any


def chosen_form(asked: str, vocabulary: int, device: str) -> Form:
    """The form that is asked for; of `auto` compiled for a large vocabulary, divisible into parts, where a compiler is.

    Raises:
        BadInput: another form is asked for, or the compiled one where no compiler is.
    """
    if asked not in ("auto", "eager", "compiled"):
        raise BadInput("unknown form of the logits' statistics", found=asked, expected="auto, eager or compiled")
    # has_triton asks the GPU too; for one of another machine there is what requirements/gpu.txt brings
    tool = shutil.which(os.environ.get("CXX", "g++")) if device == "cpu" else has_triton()
    compiler = bool(tool) or (device != "cpu" and not torch.cuda.is_available())
    if asked == "compiled" and not compiler:
        expected = "Triton" if device != "cpu" else "a C++ compiler (g++, or the one that CXX names)"
        raise BadInput("torch.compile has no compiler", expected=expected, next_step="logits_form=eager, or install it")
    divides = vocabulary >= _LARGE and not vocabulary % _PARTS
    return "compiled" if asked == "compiled" or (asked == "auto" and divides and compiler) else "eager"


@torch.no_grad()
def statistics(
    logits_NV: torch.Tensor,
    chosen_N: torch.Tensor,
    *,
    entropy: bool = True,
    collision: bool = True,
    form: Form = "eager",
) -> LogitStatistics:
    """The statistics of N tokens over V logits of any floating type; a logit of -inf is a probability of 0.

    In float32 (float64 of float64) also under autocast, whose matrix products are of lower precision, and without a
    float32 copy of all logits. What is not asked for is not computed.
    """
    with torch.autocast(logits_NV.device.type, enabled=False):
        if form == "compiled":
            parts = math.gcd(logits_NV.shape[-1], _PARTS)
            return LogitStatistics(*_compiled(_in_parts)(logits_NV, chosen_N, parts, entropy, collision))
        pieces = zip(*(t.split(_rows(logits_NV)) for t in (logits_NV, chosen_N)), strict=True)
        parts = [_eager(logits, chosen, entropy, collision) for logits, chosen in pieces]
        joined: list[Any] = [None if c[0] is None else torch.cat(c) for c in zip(*parts, strict=True)]
        return LogitStatistics(*joined)


@torch.no_grad()
def gradient(
    logits_NV: torch.Tensor, chosen_N: torch.Tensor, logsumexp_N: torch.Tensor, upstream_N: torch.Tensor,
    into_NV: torch.Tensor, form: Form = "eager",
) -> None:  # fmt: skip
    """Write d (sum of upstream x log-probability) / d logits into `into_NV`, which may be the logits themselves:
    upstream x ((1 if j is the chosen token, else 0) - p_j)."""
    if form == "compiled":
        _compiled(_fused_gradient)(logits_NV, chosen_N, logsumexp_N, upstream_N, into_NV)
        return
    arguments = into_NV, logits_NV, chosen_N, logsumexp_N, upstream_N
    for into, logits, chosen, logsumexp, upstream in zip(*(t.split(_rows(logits_NV)) for t in arguments), strict=True):
        part = (logits.to(logsumexp.dtype) - logsumexp.unsqueeze(-1)).exp_().mul_(-upstream.unsqueeze(-1))
        part[torch.arange(len(part), device=part.device), chosen] += upstream
        into.copy_(part)


def _rows(logits: torch.Tensor) -> int:
    """Tokens whose logits are read at a time."""
    return max(1, _CACHED.get(logits.device.type, _CACHED["cuda"]) // logits.shape[-1])


def _wide(logits: torch.Tensor) -> torch.Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _eager(
    logits: torch.Tensor, chosen: torch.Tensor, entropy: bool, collision: bool
) -> tuple[torch.Tensor | None, ...]:
    x = _wide(logits)
    logsumexp = x.logsumexp(-1)
    logprob = x.gather(-1, chosen.unsqueeze(-1)).squeeze(-1) - logsumexp
    if not (entropy or collision):
        return logprob, logsumexp, None, None
    y = (x - x.amax(-1, keepdim=True)).clamp_(min=_FLOOR)
    e = y.exp()
    z = e.sum(-1)
    collided = torch.linalg.vecdot(e, e) / (z * z) if collision else None
    return logprob, logsumexp, z.log() - e.mul_(y).sum(-1) / z if entropy else None, collided


def _in_parts(
    logits: torch.Tensor, chosen: torch.Tensor, parts: int, entropy: bool, collision: bool
) -> tuple[torch.Tensor | None, ...]:
    """N x parts maxima and sums, then merged."""
    z = _wide(logits).view(len(logits), parts, logits.shape[-1] // parts)
    top_NP = z.amax(-1).clamp(min=torch.finfo(z.dtype).min)  # a part of nothing but -inf
    d = (z - top_NP.unsqueeze(-1)).clamp(min=_FLOOR)
    e = d.exp()
    sum_NP = e.sum(-1)
    top_N1 = top_NP.amax(-1, keepdim=True)
    weight_NP = (top_NP - top_N1).exp()
    total_N = (weight_NP * sum_NP).sum(-1)
    logsumexp_N = top_N1.squeeze(-1) + total_N.log()
    logprob_N = _wide(logits.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)) - logsumexp_N
    entropy_N = collision_N = None
    if entropy:
        below_NP = (e * d).sum(-1) + sum_NP * (top_NP - top_N1)
        entropy_N = total_N.log() - (weight_NP * below_NP).sum(-1) / total_N
    if collision:
        collision_N = (weight_NP.square() * e.square().sum(-1)).sum(-1) / total_N.square()
    return logprob_N, logsumexp_N, entropy_N, collision_N


def _fused_gradient(
    logits: torch.Tensor, chosen: torch.Tensor, logsumexp: torch.Tensor, upstream: torch.Tensor, into: torch.Tensor
) -> None:
    at_V = torch.arange(logits.shape[-1], device=logits.device)
    hit = (at_V == chosen.unsqueeze(-1)).to(logsumexp.dtype)
    into.copy_((hit - (logits.to(logsumexp.dtype) - logsumexp.unsqueeze(-1)).exp()) * upstream.unsqueeze(-1))


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled once for every number of rows."""
    return torch.compile(function, dynamic=True)
