"""`stapo-train check`: what is compared, and how it is said (`verl_ext.exactness` does the comparing of methods)."""

from __future__ import annotations

import itertools
import json
import os
import statistics as statistics_of
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stapo_results.store import write_json
from stapo_training.methods import definition_of, methods
from stapo_training.start.configuration import compose, in_full
from stapo_training.start.settings import check_attention

_VOCABULARY = 151_936
_PLACE = ("size=mini", "hardware=cpu", "run.base=unused", "run.out=unused")


def check(method: str, overrides: Sequence[str]) -> int:
    """Print every difference; 1 when one is larger than rounding explains.

    Raises:
        BadInput: for an unknown method, or a configuration that cannot be worked out by hand.
    """
    # before the composition, which imports veRL for its configuration
    os.environ |= {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "stapo_training.verl_ext.platform"}
    warnings.filterwarnings("ignore")  # veRL's, of engines that are not installed
    chosen = [in_full(f"method={method}"), *overrides]
    config = compose([*chosen, *_PLACE])
    check_attention(config)
    own = definition_of(config)
    known = methods().get(chosen[0].partition("=")[2])
    # which tokens make the quantile is open: each reading is held against its own calculation
    definition = own if known is None else known.definition.model_copy(update={"among": own.among})
    if known is None:
        print(f"{method} is not in the registry: it is held against its own overlay's numbers.")
        print("Which tokens a user's selector silences is taken from its file, and is not checked.")
    elif own != definition:
        different = [k for k in type(own).model_fields if getattr(own, k) != getattr(definition, k)]
        print("\n".join(f"{k}: {getattr(own, k)}, in the registry {getattr(definition, k)}" for k in different))
    from stapo_training.verl_ext import exactness  # imports veRL

    print("ranks  micro-batch   loss      gradient norm  gradient  kept tokens")
    cases = []
    for case in exactness.check(compose, chosen, definition):
        cases.append(case)
        numbers = f"{case.loss:<9.1e} {case.norm:<14.1e} {case.gradient:<9.1e} {case.tokens:+d}"
        print(f"{case.ranks:<6} {case.split:<13} {numbers}{'' if case.exact else '  DIFFERS'}", flush=True)
    largest = max(max(c.loss, c.norm, c.gradient) for c in cases)
    exact = all(c.exact for c in cases)
    print(
        f"{method}: largest relative difference {largest:.1e}, "
        + ("exact" if exact else f"above {exactness.LIMIT:g}")
        + f"; {cases[0].silenced} of {cases[0].counted} tokens silenced"
    )
    return 0 if exact else 1


def check_statistics(out: Path) -> int:
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
        own["exact"] = max(v for k, v in own.items() if k.endswith("off")) <= 1e-5 and own["gradient_far"] <= limit
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
            off[name] = max(off[name], float((here.double() - there).abs().max()))
        wanted = p.mul_(-upstream.double()[:, None])
        wanted[torch.arange(64, device=device), chosen] += upstream.double()
        assert z.grad is not None
        far = max(far, float((z.grad.double() - wanted).norm() / wanted.norm()))
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
