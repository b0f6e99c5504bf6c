"""Tokens a second of the CPU sampler at a real vocabulary, beside an earlier commit's and transformers' own.

All ways see the same model, prompts and decoding, one after the other within a repeat. A way that is not the sampler
has all prompts in one batch, as an evaluation's loop would.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from stapo_eval.decoding import encode_chat, prompt
from stapo_results import generation
from stapo_results.benchmarks import load
from stapo_results.errors import BadInput
from stapo_results.provenance import fast_bf16
from stapo_results.stop_tokens import stop_token_ids
from studies.bench import benching
from studies.bench.benching import Bench, BenchRow

FILE = "results/stapo_results/generation.py"
SETTINGS = {"t1.0": generation.Drawing(1.0, 1.0), "t0.7": generation.Drawing(0.7, 0.9)}
TYPES = ("bfloat16", "float32") if fast_bf16() else ("float32",)
"""In which the weights are; the first is that of the evaluation on this machine."""


@dataclass(frozen=True)
class Way:
    """A way of sampling: which sampler, the weights' type, the decoding's name."""

    sampler: str
    dtype: str
    setting: str

    def __str__(self) -> str:
        return f"{self.sampler}, {self.dtype}, {self.setting}"


def module_at(commit: str) -> ModuleType:
    """The sampler's file as this repository's commit has it."""
    text = subprocess.run(["git", "show", f"{commit}:{FILE}"], check=True, capture_output=True, text=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "generation_before.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
    return module


def sample(way: Way, model: Any, prompts: Sequence[Sequence[int]], most: int, stop: list[int], pad: int) -> int:
    """Sample every prompt once; the number of response tokens."""
    how, seeds = SETTINGS[way.setting], list(range(len(prompts)))
    if way.sampler == "now":
        found = generation.generate(model, prompts, seeds, how, max_new_tokens=most, stop_token_ids=stop)
        return sum(len(g.token_ids) for g in found)
    if way.sampler == "transformers.generate":
        longest = max(map(len, prompts))
        ids = torch.tensor([[pad] * (longest - len(p)) + list(p) for p in prompts])
        seen = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        torch.manual_seed(0)
        out = model.generate(
            input_ids=ids, attention_mask=seen, max_new_tokens=most, do_sample=True, temperature=how.temperature,
            top_p=how.top_p, top_k=0, eos_token_id=stop, pad_token_id=pad,
        )[:, longest:]  # fmt: skip
        ended = torch.isin(out, torch.tensor(stop)).cumsum(-1)
        return int(((ended == 0) | ((ended == 1) & torch.isin(out, torch.tensor(stop)))).sum())
    module = module_at(way.sampler.removeprefix("at "))
    found = module.generate(
        model, prompts, seeds, max_new_tokens=most, temperature=how.temperature, top_p=how.top_p, stop_token_ids=stop,
        pad_token_id=pad,
    )  # fmt: skip
    return sum(len(g.token_ids) for g in found)


def bench_sampling(
    out: Path,
    model_folder: Path,
    data_dir: Path | None,
    repeats: int,
    before: str = "",
    problems: int = 32,
    most: int = 64,
) -> Bench:
    """Time every way on the first MATH500 problems, and write the record (run.json, bench.json) to `out`.

    Args:
        before: a commit whose sampler has the call of af01ada3; "" leaves it out.
        most: longest response in tokens.

    Raises:
        BadInput: there is no MATH500.
    """
    if data_dir is None:
        raise BadInput(
            "the prompts are MATH500's", found="no folder", expected="the benchmarks", next_step="--data-dir"
        )
    samplers = ("now", "transformers.generate", *([f"at {before}"] if before else []))
    ways = [Way(s, dtype, setting) for setting in SETTINGS for dtype in TYPES for s in samplers]

    def measured() -> tuple[list[BenchRow], dict[str, str]]:
        tokenizer = AutoTokenizer.from_pretrained(model_folder)
        prompts = [encode_chat(tokenizer, prompt(p.problem)) for p in load("math500", data_dir).problems[:problems]]
        seconds: dict[Way, list[float]] = {way: [] for way in ways}
        tokens: dict[Way, int] = {}
        for dtype in TYPES:
            model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=getattr(torch, dtype)).eval()
            stop = stop_token_ids(tokenizer, model.generation_config.eos_token_id)
            for repeat in range(repeats):
                for way in (w for w in ways if w.dtype == dtype):
                    began = time.perf_counter()
                    tokens[way] = sample(way, model, prompts, most, stop, tokenizer.pad_token_id)
                    seconds[way].append(time.perf_counter() - began)
                    print(f"{repeat + 1}/{repeats}, {way}: {tokens[way] / seconds[way][-1]:.0f} tokens/s", flush=True)
        rows = []
        for way in ways:
            values = {"tokens": tokens[way], "tokens_per_second": tokens[way] / min(seconds[way])}
            base = seconds[Way("now", TYPES[0], way.setting)]
            rows.append(benching.timed_row(str(way), seconds[way], base, labels=vars(way), values=values))
        return rows, {
            "model": model_folder.resolve().parent.name,
            "problems": str(problems),
            "threads": str(torch.get_num_threads()),
        }

    config = {"before": before, "problems": problems, "max_tokens": most, "repeats": repeats, "seed": 0}
    return benching.record(out, "sampler", config, f"now, {TYPES[0]}", measured)
