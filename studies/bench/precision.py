"""What bfloat16 and the form of the statistics do with a real model: distances of sampler and trainer, time of a pass.

`bench_mismatch` draws responses with the product's sampler in bfloat16 at temperature 1. The statistics of the same
tokens are then those of the trainer's own pass over old log-probabilities, in float32 and in bfloat16.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from stapo_eval.decoding import encode_chat
from stapo_results.benchmarks import read_jsonl
from stapo_results.generation import Drawing, generate
from stapo_results.seeds import derive_seed
from stapo_results.stop_tokens import stop_token_ids
from stapo_results.store import sha256_file
from stapo_training.data.rows import verl_rows
from stapo_training.selection.selectors import silence_spurious
from stapo_training.selection.token_stats import TokenStats
from studies.bench import benching
from studies.bench.benching import Bench, BenchRow
from studies.bench.selecting import become_the_only_rank

LEVELS = ("Level 1", "Level 2", "Level 3")
S2T: dict[str, Any] = {"tau_p": 0.002, "q": 0.75}


@dataclass(frozen=True)
class Scored:
    """N response tokens under one policy: log-probabilities (N,) and, of a trainer, entropies (N,), nats."""

    logprob_N: torch.Tensor
    entropy_N: torch.Tensor

    def selection(self) -> tuple[torch.Tensor, torch.Tensor]:
        """S2T's candidates and the tokens it silences, (N,) each, as if every advantage were positive."""
        ones_N = torch.ones_like(self.logprob_N)
        found = silence_spurious(TokenStats(self.logprob_N, self.entropy_N, ones_N, ones_N.bool()), **S2T)
        return found.candidate_N, ~found.keep_N


def distances(sampler_N: torch.Tensor, trainer: Scored, exact: Scored) -> dict[str, float]:
    """How far a trainer is from the sampler, and its selection from that of the float32 trainer, `exact`.

    Args:
        sampler_N: log-probabilities of the sampled tokens, nats.

    Returns:
        mean, largest: absolute difference of a token's probability. k3: mean of ratio - 1 - log ratio, of trainer to
        sampler, nats. candidates, candidates_differ (of the sampler's), silenced, silenced_differ (of `exact`'s):
        tokens. entropy_mean: absolute difference from `exact`, nats.
    """
    ours_N, theirs_N = trainer.logprob_N.double(), sampler_N.double()
    apart_N, ratio_N = (ours_N.exp() - theirs_N.exp()).abs(), ours_N - theirs_N
    candidate_N, silenced_N = trainer.selection()
    return {
        "mean": float(apart_N.mean()),
        "largest": float(apart_N.max()),
        "k3": float((ratio_N.expm1() - ratio_N).mean()),
        "candidates": float(candidate_N.sum()),
        "candidates_differ": float((candidate_N != (theirs_N.exp() < S2T["tau_p"])).sum()),
        "silenced": float(silenced_N.sum()),
        "silenced_differ": float((silenced_N != exact.selection()[1]).sum()),
        "entropy_mean": float((trainer.entropy_N - exact.entropy_N).abs().mean()),
    }


def bench_mismatch(out: Path, model: Path, file: Path, prompts: int = 56, most: int = 512) -> Bench:
    """Measure, and write the record (run.json, bench.json) to `out`.

    Args:
        file: problems with a `level`, JSON lines; those of levels 1 to 3 are used, evenly spread.
        most: longest response in tokens.
    """
    config = {"prompts": prompts, "max_tokens": most, **S2T, "seed": 0}
    return benching.record(out, "mismatch", config, "sampler, bfloat16", lambda: _mismatch(model, file, prompts, most))


def _mismatch(model: Path, file: Path, prompts: int, most: int) -> tuple[list[BenchRow], dict[str, str]]:
    become_the_only_rank()
    began = time.perf_counter()
    sequences = _sampled(model, file, prompts, most)
    seconds = time.perf_counter() - began
    gc.collect()
    sampler_N = torch.cat([s["sampled"] for s in sequences])
    rows = [benching.timed_row("sampler, bfloat16", [seconds], [seconds], values={"tokens": float(len(sampler_N))})]
    exact: Scored | None = None
    for dtype in ("float32", "bfloat16"):
        took, scored = _scored(model, sequences, dtype)
        exact = exact or scored
        values = distances(sampler_N, scored, exact)
        rows.append(benching.timed_row(f"trainer, {dtype}", [took], [seconds], values=values))
    labels = {"model": model.resolve().parent.name, "weights": sha256_file(model / "model.safetensors")}
    return rows, labels | {"threads": str(torch.get_num_threads())}


def _sampled(folder: Path, file: Path, prompts: int, most: int) -> list[dict[str, torch.Tensor]]:
    problems = [r for r in read_jsonl(file) if r["level"] in LEVELS]
    chosen = [(r["problem"], r["answer"], r["id"]) for r in problems[:: len(problems) // prompts][:prompts]]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = [row["prompt"][0]["content"] for row in verl_rows(chosen, data_source="math", split="train")]
    ids = [encode_chat(tokenizer, text) for text in texts]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    stop = stop_token_ids(tokenizer, model.generation_config.eos_token_id)
    seeds = [derive_seed("mismatch", 0, i) for i in range(len(ids))]
    found = []
    for prompt, one in zip(ids, generate(model, ids, seeds, Drawing(), max_new_tokens=most, stop_token_ids=stop),
                           strict=True):  # fmt: skip
        whole, ones = torch.tensor([*prompt, *one.token_ids]), torch.ones(len(one.token_ids))
        own = {"prompts": torch.tensor(prompt), "responses": torch.tensor(one.token_ids), "input_ids": whole}
        own |= {"position_ids": torch.arange(len(whole)), "response_mask": ones.long(), "advantages": ones}
        found.append(own | {"old_log_probs": ones, "sampled": torch.tensor(one.logprobs, dtype=torch.float64)})
    return found


def _scored(model: Path, sequences: Sequence[Mapping[str, torch.Tensor]], dtype: str) -> tuple[float, Scored]:
    """The trainer's pass, a sequence a time, in the form of the statistics that a run would choose."""
    from stapo_training.start.configuration import compose
    from stapo_training.verl_ext import in_process

    place = ["run.base=unused", "run.out=unused", "method=stapo", f"run.cpu_dtype={dtype}"]
    worker = in_process.build(compose([*place, f"actor_rollout_ref.model.path={model}"]))
    engine = worker.engine.engine_config
    engine.use_dynamic_bsz, engine.infer_micro_batch_size_per_gpu = False, 1
    began = time.perf_counter()
    logprob, entropy = in_process.old_policy(worker, in_process.batch(sequences))
    seconds = time.perf_counter() - began
    found = Scored(logprob.values().float(), entropy.values().float())
    del worker, engine
    gc.collect()
    return seconds, found


def bench_update(out: Path, folder: Path, repeats: int, tokens: int = 512) -> Bench:
    """Time a forward and backward pass of one micro-batch, with log-probability and entropy in each form.

    `plain` is torch's log_softmax of all logits in float32, under autograd. AdamW's step is the same in all and left
    out. Weights are of the dtype that the processor is fast at; activations are checkpointed.
    """
    from stapo_results.provenance import fast_bf16

    dtype = torch.bfloat16 if fast_bf16() else torch.float32

    def measured() -> tuple[list[BenchRow], dict[str, str]]:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).train()
        model.gradient_checkpointing_enable()
        ids = torch.randint(0, model.config.vocab_size, (1, tokens + 1), generator=torch.Generator().manual_seed(0))
        seconds: dict[str, list[float]] = {"plain": [], "eager": [], "compiled": []}
        for repeat in range(repeats + 1):  # the first compiles and allocates
            for form, own in seconds.items():
                model.zero_grad(set_to_none=False)
                began = time.perf_counter()
                logits = model(input_ids=ids[:, :-1], use_cache=False).logits[0]
                _logprob(logits, ids[0, 1:], form).mean().backward()
                own += [time.perf_counter() - began] if repeat else []
        rows = [benching.timed_row(form, own, seconds["plain"]) for form, own in seconds.items()]
        labels = {"dtype": str(dtype).removeprefix("torch."), "threads": str(torch.get_num_threads())}
        return rows, {"model": folder.resolve().parent.name, **labels}

    return benching.record(out, "update", {"tokens": tokens, "repeats": repeats, "seed": 0}, "plain", measured)


def _logprob(logits: torch.Tensor, chosen: torch.Tensor, form: str) -> torch.Tensor:
    if form != "plain":
        from stapo_training.verl_ext.logits import LogitReading

        return LogitReading("compiled" if form == "compiled" else "eager", entropy=True)(logits, chosen)
    every = logits.float().log_softmax(-1)
    with torch.no_grad():
        _ = -(every.exp() * every).sum(-1)
    return every.gather(-1, chosen[:, None])
