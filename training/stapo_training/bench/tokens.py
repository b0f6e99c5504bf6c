"""What token statistics cost, against the matrix product that nobody can avoid (`tox -e bench`, part tokens).

Each way starts from the same hidden states and output matrix, one after the other in each repeat. The baseline is the
product alone, taken as veRL's model takes it: some tokens at a time, all of the vocabulary, nothing done with the
logits. Extra memory is how far the process's resident set, on a GPU the allocator's, rises above where it stood;
weights and inputs are not in it.

The ways differ in what they give: ours has collision probability and top-k as well, the others log-probability and
entropy.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stapo_results import benching
from stapo_results.schema import Bench, BenchRow, Run
from stapo_training.bench.part import Measured, Part

BASELINE = "product alone"
_CHECKED = 16
"""Tokens whose numbers are compared with float64."""


@dataclass(frozen=True)
class Sizes:
    """The ways with full logits take about 12 bytes x tokens x vocabulary of memory, 1.9 GB."""

    tokens: int = 1024
    hidden: int = 1024
    vocabulary: int = 151_936
    chunk: int = 128
    """Tokens that the baseline multiplies at a time."""
    k: int = 5
    repeats: int = 5
    seed: int = 0


GPU = Sizes(tokens=2048, hidden=2048, chunk=2048)
QUICK = Sizes(tokens=64, hidden=32, vocabulary=3000, repeats=1)
Outcome = tuple[Any, Any]
"""Log-probabilities and entropies, (T,) each; None of a way that has none."""


def make_inputs(sizes: Sizes, device: str) -> tuple[Any, Any, Any]:
    """Hidden states (T, D), output matrix (V, D) and chosen ids (T,): logits with a standard deviation of 3."""
    import torch

    g = torch.Generator(device).manual_seed(sizes.seed)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    hidden = torch.randn(sizes.tokens, sizes.hidden, generator=g, device=device).mul_(3 / sizes.hidden**0.5)
    weight = torch.randn(sizes.vocabulary, sizes.hidden, generator=g, device=device, dtype=dtype)
    chosen = torch.randint(0, sizes.vocabulary, (sizes.tokens,), generator=g, device=device)
    return hidden.to(dtype), weight, chosen


def ways(sizes: Sizes, hidden: Any, weight: Any, chosen: Any) -> dict[str, Callable[[], Outcome]]:
    """name -> what is timed."""
    import torch

    from stapo_training.selection import token_distribution as ours
    from stapo_training.verl_ext import token_baselines as verl

    def product() -> Outcome:
        for part in hidden.split(sizes.chunk):
            torch.mm(part, weight.T)
        return None, None

    def product_in_tiles() -> Outcome:
        for columns in weight.split(ours.VOCABULARY):
            for rows in hidden.split(ours.TOKENS):
                torch.mm(rows, columns.T)
        return None, None

    def log_softmax() -> Outcome:
        logprobs = (hidden @ weight.T).float().log_softmax(-1)
        chosen_T = logprobs.gather(1, chosen.unsqueeze(-1)).squeeze(-1)
        return chosen_T, -(logprobs.exp() * logprobs).sum(-1)

    def score(function: Callable[..., Any]) -> Outcome:
        found = function(hidden, weight, chosen, k=sizes.k)
        return found.logprob_T, found.entropy_T

    def score_full() -> Outcome:
        found = ours.score_logits(hidden @ weight.T, chosen, k=sizes.k)
        return found.logprob_T, found.entropy_T

    timed: dict[str, Callable[[], Outcome]] = {
        BASELINE: product,
        "product alone in our tiles": product_in_tiles,
        "ours: score_tokens": lambda: score(ours.score_tokens),
        "full logits, then our score_logits": score_full,
        "full log_softmax, gather, entropy": log_softmax,
        "veRL: logprobs_from_logits, entropy_from_logits": lambda: verl.two_functions(hidden, weight, chosen),
        "veRL: fused torch path": lambda: verl.fused(hidden, weight, chosen),
    }
    if hidden.is_cuda:
        del timed["product alone in our tiles"]  # those on a GPU are others
    return {name: torch.no_grad()(way) for name, way in timed.items()}


def measured(way: Callable[[], Outcome], device: str) -> tuple[float, Outcome]:
    """Seconds and outcome of one call."""
    import torch

    began = time.perf_counter()
    outcome = way()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began, outcome


def _status(name: str) -> int:
    """A number of bytes in Linux's account of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


def extra_bytes(way: Callable[[], Outcome], device: str) -> int | None:
    """How far memory rises during one call above what it was before; None where that cannot be asked."""
    import torch

    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        measured(way, device)
        return torch.cuda.max_memory_allocated() - before
    if sys.platform != "linux":
        return None
    # what the C library keeps of freed memory would be used again and not be seen
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _status("VmRSS")
    way()
    return _status("VmHWM") - before


def distance(outcome: Outcome, hidden: Any, weight: Any, chosen: Any) -> dict[str, float]:
    """The largest distances from float64 on the same float32 logits, over some tokens."""
    logits = hidden[:_CHECKED].float() @ weight.float().T if hidden.is_cuda else hidden[:_CHECKED] @ weight.T
    logprobs = logits.double().log_softmax(-1)
    expected = logprobs.gather(1, chosen[:_CHECKED].unsqueeze(-1)).squeeze(-1), -(logprobs.exp() * logprobs).sum(-1)
    names = ("logprob_off", "entropy_off")
    return {
        name: float((found[:_CHECKED].double() - right).abs().max())
        for name, found, right in zip(names, outcome, expected, strict=True)
        if found is not None
    }


def _measure(sizes: Sizes) -> Measured:
    """Everything on the GPU where there is one, else on the CPU; the baseline comes first."""
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    device = _device()
    inputs = make_inputs(sizes, device)
    timed = ways(sizes, *inputs)
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    values: dict[str, dict[str, float]] = {}
    for name, way in timed.items():  # the first call of each: allocations, caches
        outcome = measured(way, device)[1]
        values[name] = distance(outcome, *inputs)
        del outcome
        if (extra := extra_bytes(way, device)) is not None:
            values[name]["extra_bytes"] = float(extra)
    for _ in range(sizes.repeats):
        for name, way in timed.items():
            seconds[name].append(measured(way, device)[0])
    rows = [benching.timed_row(n, own, seconds[BASELINE], values=values[n]) for n, own in seconds.items()]
    return rows, {"device": device, "threads": str(torch.get_num_threads()), "torch": torch.__version__}


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _value(name: str, form: str, scale: float = 1.0, absent: str = "") -> Callable[[BenchRow], str]:
    return lambda r: format(r.values[name] * scale, form) if name in r.values else absent


def _about(bench: Bench, run: Run) -> str:
    c = run.config
    machine = f"{bench.labels['threads']} threads of {run.hardware['cpu']}"
    return (
        f"{c['tokens']:,} tokens, hidden size {c['hidden']:,}, vocabulary {c['vocabulary']:,}, "
        f"{machine if bench.labels['device'] == 'cpu' else 'one GPU'}, "
        f"{c['repeats']} repeats; the product alone in chunks of {c['chunk']:,} tokens."
    )


PART = Part(
    name="tokens",
    baseline=BASELINE,
    columns={
        "way": lambda r: r.name,
        "seconds": lambda r: f"{r.seconds:.3f}",
        "/ product alone (spread)": benching.spread,
        "extra MB": _value("extra_bytes", ",.0f", 1e-6, "not measured"),
        "log-prob. off": _value("logprob_off", ".0e"),
        "entropy off": _value("entropy_off", ".0e"),
    },
    sizes=lambda repeats, quick: QUICK if quick else replace(GPU if _device() == "cuda" else Sizes(), repeats=repeats),
    measure=_measure,
    about=_about,
)
