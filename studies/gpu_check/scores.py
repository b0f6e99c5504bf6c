"""The statistics of logits on this machine, against float64: `python -m studies.gpu_check.scores FILE`."""

from __future__ import annotations

import itertools
import json
import statistics as statistics_of
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from stapo_results.store import write_json
from stapo_results.terminal import run_main

_VOCABULARY = 151_936


def check_statistics(out: tyro.conf.Positional[Path]) -> int:
    """Compare the statistics of logits with float64 on this machine's first GPU, else its CPU; time them; write both.

    Vocabulary and form are those of the paper's models: 151,936, compiled where a compiler is. Spreads of 1, 4 and 8,
    temperatures 1 and 0.7, likely and rare tokens, float32 and bfloat16.

    Args:
        out: JSON file: `device`, `form`; of each dtype the largest distances in nats (`logprob_off`, `entropy_off`),
            `collision_off`, `gradient_far` (the norm of the difference over the norm); `reads`: forward, all three
            together, and backward, as multiples of one reading of the logits, each the median of five.

    Returns:
        1 when a distance exceeds 1e-5, a gradient's 1e-5 in float32 or 5e-3 in bfloat16.
    """
    import torch

    from stapo_training.selection.logit_statistics import chosen_form

    device = "cuda" if torch.cuda.is_available() else "cpu"
    form = chosen_form("auto", _VOCABULARY, device)
    found: dict[str, Any] = {"device": device, "form": form}
    for dtype, limit in ((torch.float32, 1e-5), (torch.bfloat16, 5e-3)):
        own = _distances(device, dtype, form)
        own["exact"] = all(v <= 1e-5 for k, v in own.items() if k.endswith("off")) and own["gradient_far"] <= limit
        found[str(dtype).removeprefix("torch.")] = own | {"reads": _reads(device, dtype, form)}
    write_json(out, found)
    print(json.dumps(found, indent=1))
    return 0 if found["float32"]["exact"] and found["bfloat16"]["exact"] else 1


def _distances(device: str, dtype: Any, form: Any) -> dict[str, Any]:
    import torch

    from stapo_training.verl_ext.logits import LogitReading

    g, off = torch.Generator(device).manual_seed(0), dict.fromkeys(("logprob_off", "entropy_off", "collision_off"), 0.0)
    far = 0.0
    for spread, temperature in itertools.product((1.0, 4.0, 8.0), (1.0, 0.7)):
        z = (torch.randn(64, _VOCABULARY, generator=g, device=device) * spread / temperature).to(dtype).requires_grad_()
        chosen = torch.randint(0, _VOCABULARY, (64,), generator=g, device=device)
        chosen[::2] = z[::2].argmax(-1)
        upstream = torch.randn(64, generator=g, device=device)
        reading = LogitReading(form, entropy=True, collision=True)
        logprob = reading(z, chosen, inplace_backward=False)
        logprob.backward(upstream)
        right = z.detach().double().log_softmax(-1)
        p, picked = right.exp(), right.gather(1, chosen[:, None]).squeeze(1)
        pairs = zip(
            (logprob.detach(), reading.entropy_N, reading.collision_N),
            (picked, -(p * right).sum(-1), p.square().sum(-1)),
            strict=True,
        )
        for name, (here, there) in zip(off, pairs, strict=True):
            off[name] = float(np.maximum(off[name], float((here.double() - there).abs().max())))  # NaN stays
        wanted = p.mul_(-upstream.double()[:, None])
        wanted[torch.arange(64, device=device), chosen] += upstream.double()
        assert z.grad is not None
        far = float(np.maximum(far, float((z.grad.double() - wanted).norm() / wanted.norm())))
    return {**off, "gradient_far": far}


def _reads(device: str, dtype: Any, form: Any) -> dict[str, float]:
    import torch

    from stapo_training.selection.logit_statistics import gradient, statistics

    tokens = 32_768 if device == "cuda" else 512
    z = torch.empty(tokens, _VOCABULARY, device=device, dtype=dtype)
    for rows in z.split(1024):
        rows.copy_(torch.randn(rows.shape, device=device) * 4)
    chosen, upstream = torch.randint(0, _VOCABULARY, (tokens,), device=device), torch.randn(tokens, device=device)
    sums = torch.full((tokens,), 20.0, device=device)
    bits = z.view(torch.int32 if dtype == torch.float32 else torch.int16)

    def median(work: Callable[[], Any]) -> float:
        seconds = []
        for _ in range(6):  # the first compiles and allocates
            began = time.perf_counter()
            work()
            if device == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
        return statistics_of.median(seconds[1:])

    one = median(bits.amax)
    forward = median(lambda: statistics(z, chosen, form=form))
    backward = median(lambda: gradient(z, chosen, sums, upstream, z, form))
    return {"seconds": one, "forward": forward / one, "backward": backward / one}


if __name__ == "__main__":
    prog = "python -m studies.gpu_check.scores"  # the check runs this file by its path, where no study can be imported
    sys.exit(run_main(lambda: tyro.cli(check_statistics, prog=prog), extra="train"))
