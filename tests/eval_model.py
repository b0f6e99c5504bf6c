"""The random model of the evaluation's tests, and small benchmarks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from stapo_results.benchmarks import registry_entry, write_registry

PURE = ("samples.jsonl", "judgements.jsonl", "verdicts.jsonl", "summary.json")
BOXES = [form % i for i in range(6) for form in (r"\boxed{%d}", r"\boxed{ %d }", r"\fbox{%d}", r"\boxed{0%d}")]
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['content'] + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>' }}{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}!{% endif %}"
)


def pure_files(out: Path) -> dict[str, object]:
    """The files of a run that are pure functions of its options and samples; cells without the code's version, which
    may change under a test."""
    files: dict[str, object] = {n: (out / n).read_bytes() for n in PURE if (out / n).exists()}
    for path in (out / "cells").iterdir():
        cell = json.loads(path.read_bytes())
        files[path.name] = {k: v for k, v in cell.items() if k not in ("code_commit", "code_dirty")}
    return files


def build(folder: Path, *, seed: int = 0, positions: int = 512, head_dim: int = 16, labels: dict | None = None) -> Path:
    """Write the model; its vocabulary holds whole boxes, so that random text answers now and then."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    raw = Tokenizer(models.BPE({t: i for i, t in enumerate(special + alphabet)}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(special)
    raw.add_tokens(BOXES)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=head_dim,
        max_position_embeddings=positions,
        initializer_range=0.3,
        tie_word_embeddings=True,
        eos_token_id=2,
        pad_token_id=0,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    if labels:
        known = {"method": "base", "size": "mini", "train_seed": 0, "step": "base"}
        (folder / "stapo.json").write_text(json.dumps(known | labels))
    return folder


def benchmarks(folder: Path, problems: int = 6, samples: int = 4, answer: Callable[[int], str] = str) -> Path:
    """Two benchmarks of a few problems; golds are among the boxes, or what `answer` makes of a problem's number."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = {}
    for name, offset in (("sums", 0), ("longer-sums", 500)):
        rows = [
            {"id": f"{name}-{i}", "problem": f"What is {offset + i} + {i}?" + " Think." * (i % 3), "answer": answer(i)}
            for i in range(problems)
        ]
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(r) + "\n" for r in rows))
        entries[name] = registry_entry(path, name, samples=samples)
    write_registry(folder / "registry.yaml", entries)
    return folder


def whole_lines(out: Path) -> list[bytes]:
    """The samples of an evaluation's folder that are written whole, as bytes."""
    path = out / "samples.jsonl"
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [x for x in lines if x.endswith(b"\n")]
