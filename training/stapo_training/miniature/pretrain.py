"""Supervised training of the miniature's base model: next-token loss on worked solutions alone.

Left out on purpose: dropout, mixed precision, validation. One pass over the corpus, so no example is seen twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stapo_results.terminal import Display, report_progress

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Recipe:
    """Size of the model and length of its training."""

    hidden: int = 128
    layers: int = 2
    heads: int = 4
    head_dim: int = 32
    intermediate: int = 256
    positions: int = 8192
    steps: int = 1500
    batch: int = 32
    lr: float = 2e-3
    warmup: int = 30
    weight_decay: float = 0.01
    threads: int = 1


@dataclass(frozen=True)
class Example:
    """Token ids of a conversation; the loss is taken from `start` on (the solution and the end-of-turn token)."""

    ids: tuple[int, ...]
    start: int


def build_model(recipe: Recipe, vocab: int, seed: int, end_id: int, pad_id: int) -> Any:
    """A freshly initialised Qwen3 in float32 with tied embeddings.

    Args:
        vocab: tokens of the vocabulary.
        end_id: the end-of-turn token; with `pad_id` (end of text) it stops a generation.
    """
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=vocab,
        hidden_size=recipe.hidden,
        intermediate_size=recipe.intermediate,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        head_dim=recipe.head_dim,
        max_position_embeddings=recipe.positions,
        tie_word_embeddings=True,
        initializer_range=recipe.hidden**-0.5 / 2,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        bos_token_id=None,
        eos_token_id=end_id,
        pad_token_id=pad_id,
        dtype="float32",
    )
    torch.manual_seed(seed % 2**63)
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=1.0, eos_token_id=[end_id, pad_id], pad_token_id=pad_id
    )
    return model


def collate(examples: Sequence[Example], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, labels), both (B, T) int64, padded on the right; a label of -100 carries no loss."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    ids = [torch.tensor(e.ids) for e in examples]
    labels = [torch.tensor((*(-100 for _ in range(e.start)), *e.ids[e.start :])) for e in examples]
    return pad_sequence(ids, True, pad_id), pad_sequence(labels, True, -100)


def bucket(examples: Sequence[Example], batch: int, seed: int, chunk: int = 8) -> list[Example]:
    """The examples in an order where the `batch` of a step have about the same length, which saves padding.

    Each run of `chunk` batches is sorted by length, then its batches are shuffled; what is left over at the end of
    the examples stays as it is. Without this a quarter of the arithmetic goes into padding.
    """
    import numpy as np

    rng = np.random.default_rng(seed)
    ordered: list[Example] = []
    filled = len(examples) - len(examples) % batch
    for at in range(0, filled, batch * chunk):
        part = sorted(examples[at : min(at + batch * chunk, filled)], key=lambda e: len(e.ids))
        for i in rng.permutation(len(part) // batch):
            ordered += part[int(i) * batch : (int(i) + 1) * batch]
    return ordered + list(examples[filled:])


def learning_rate(step: int, recipe: Recipe) -> float:
    """Linear warm-up from 0, then a cosine down to a twentieth of the peak. `step` counts from 1."""
    if step <= recipe.warmup:
        return recipe.lr * step / recipe.warmup
    done = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    return recipe.lr * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))


def pretrain(model: Any, examples: Sequence[Example], recipe: Recipe, pad_id: int) -> None:
    """Train `model` in place, one batch of `recipe.batch` consecutive examples a step.

    Deterministic for a given number of threads. Padding is on the right, so causal attention needs no mask.
    """
    import torch

    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(recipe.threads)
    torch.use_deterministic_algorithms(True)
    try:
        decay = [p for p in model.parameters() if p.ndim > 1]
        plain = [p for p in model.parameters() if p.ndim <= 1]
        groups = [{"params": decay, "weight_decay": recipe.weight_decay}, {"params": plain, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=recipe.lr, betas=(0.9, 0.98))
        model.train()
        with Display(every=5) as display:
            for step in range(1, recipe.steps + 1):
                ids_BT, labels_BT = collate(examples[(step - 1) * recipe.batch : step * recipe.batch], pad_id)
                hidden_BTD = model.model(input_ids=ids_BT, use_cache=False).last_hidden_state
                # only the positions that carry loss go through the output matrix
                kept_BT = labels_BT[:, 1:] != -100
                logits_NV = model.lm_head(hidden_BTD[:, :-1][kept_BT])
                loss = torch.nn.functional.cross_entropy(logits_NV, labels_BT[:, 1:][kept_BT])
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate(step, recipe)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                nats = loss.item()
                report_progress("base", step, recipe.steps, loss=round(nats, 4))
                display.show(f"base model: step {step} of {recipe.steps}, loss {nats:.3f}", step / recipe.steps)
        model.eval()
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)
