"""`stapo-train check`: what is compared, and how it is said (`verl_ext.exactness` does the comparing of methods)."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

from stapo_results.store import write_json
from stapo_training.methods import definition_of, methods
from stapo_training.run.configuration import compose, in_full
from stapo_training.run.preflight import check_attention

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
    for case in exactness.check(chosen, definition):
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
    """Compare token statistics with float64 on this machine's first GPU, else its CPU, and write the distances.

    Logits have a standard deviation of 3, over the paper's vocabulary on a GPU. bfloat16 there, float32 on a CPU.

    Args:
        out: JSON file with `logprob_off` and `entropy_off`, the largest distances in nats, and `device`.

    Returns:
        1 when a distance reaches 1e-3 nats.
    """
    import torch

    from stapo_training.selection.token_stats import token_distribution

    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokens, hidden, vocabulary = (256, 2048, 151_936) if device == "cuda" else (64, 256, 8192)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    g = torch.Generator(device).manual_seed(0)
    hidden_TD = (torch.randn(tokens, hidden, generator=g, device=device) * 3 / hidden**0.5).to(dtype)
    weight_VD = torch.randn(vocabulary, hidden, generator=g, device=device).to(dtype)
    chosen_T = torch.randint(0, vocabulary, (tokens,), generator=g, device=device)
    with torch.no_grad():
        found = token_distribution(hidden_TD.float() @ weight_VD.float().T, chosen_T, k=5)
        few = slice(0, 16)  # float64 logits of all tokens would take gigabytes
        logp = (hidden_TD[few].double() @ weight_VD.double().T).log_softmax(-1)
        chosen = logp.gather(1, chosen_T[few, None]).squeeze(1)
        entropy = -(logp.exp() * logp).sum(-1)
    off = {
        "logprob_off": float((found.logprob_T[few].double() - chosen).abs().max()),
        "entropy_off": float((found.entropy_T[few].double() - entropy).abs().max()),
    }
    write_json(out, {**off, "device": device})
    print(json.dumps({**off, "device": device}))
    return 0 if max(off.values()) < 1e-3 else 1
