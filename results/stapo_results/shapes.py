"""What a model's config.json says of its size: parameters, and bytes that grow with the tokens; and what a model's
folder lacks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stapo_results.errors import BadInput

# Facts of hub models, so that a run is planned where the hub cannot be reached: model_facts.json, the values of each
# model's config.json on the hub.
KNOWN: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "model_facts.json").read_text())

# Dense decoders with RMSNorm and SwiGLU: (biases of q, k and v; norms of q and k)
FAMILIES = {"qwen3": (False, True), "qwen2": (True, False), "llama": (False, False), "mistral": (False, False)}


def missing_files(folder: Path, *, tokenizer: str = "") -> list[str]:
    """What a model folder lacks: config.json, the weights or shards that its index names.

    Args:
        tokenizer: a pattern of tokenizer files of which one has to be there; "" asks for none.
    """
    index = folder / "model.safetensors.index.json"
    try:
        shards = set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else {"model.safetensors"}
    except (ValueError, LookupError, TypeError, AttributeError):  # any JSON may stand there
        return [f"readable {index.name}"]
    lacking = sorted(name for name in {"config.json", *shards} if not (folder / name).exists())
    return lacking + ([tokenizer] if tokenizer and not any(folder.glob(tokenizer)) else [])


def rows_held(rows: int) -> int:
    """Rows that a step of the sampler (`stapo_results.generation`) computes and has memory for, with idle ones.

    A multiple of eight: a single one goes another way through oneDNN, and what does not fill the processor's vectors
    goes through other instructions than what does.
    """
    return -(-rows // 8) * 8


def positions_held(positions: int) -> int:
    """Positions by which the sampler's cache grows and its attention looks back.

    A multiple of 512: torch's CPU kernel reads so many at a time, and a part of another length could change a row's
    last bits.
    """
    return -(-positions // 512) * 512


@dataclass(frozen=True)
class Shape:
    """A dense decoder's sizes, by config.json's names."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool
    qkv_bias: bool = False
    qk_norm: bool = True

    @property
    def q(self) -> int:
        """Width of the queries: heads x head_dim."""
        return self.heads * self.head_dim

    @property
    def kv(self) -> int:
        """Width of the keys, and of the values."""
        return self.kv_heads * self.head_dim

    @property
    def layer_parameters(self) -> int:
        """One decoder layer: q, k, v, o; gate, up, down; two norms; the family's biases and head norms."""
        attention = 2 * self.hidden * self.q + 2 * self.hidden * self.kv
        extras = (self.q + 2 * self.kv if self.qkv_bias else 0) + (2 * self.head_dim if self.qk_norm else 0)
        return attention + 3 * self.hidden * self.intermediate + 2 * self.hidden + extras

    @property
    def root_parameters(self) -> int:
        """What lies outside the layers: embedding, output head unless tied, last norm. FSDP2 gathers it as one."""
        return self.vocab * self.hidden * (1 if self.tied else 2) + self.hidden

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + self.root_parameters

    def saved_bytes_per_token(self, width: int) -> int:
        """Bytes that one layer keeps for its backward pass, a token, with an attention kernel that keeps no scores.

        Counted in transformers' Qwen3 layer: each RMSNorm keeps its input in fp32, its result before and after the
        weight; the head norms likewise; rotated q and k, v and the attention's result; four tensors of the MLP.
        `tests/test_preflight.py` compares with what autograd really keeps. For a model without head norms it is an
        upper bound.

        Args:
            width: bytes of an activation: 2 for bf16, 4 for fp32.
        """
        norms = 2 * (4 + 2 * width) * self.hidden
        attention = (4 + 3 * width) * (self.q + self.kv)
        return norms + attention + 4 * width * self.intermediate

    def kv_bytes_per_token(self, width: int) -> int:
        """Bytes of one token in the rollout's KV cache: keys and values of every layer."""
        return 2 * self.layers * self.kv * width


def shape_from(config: Mapping[str, Any], where: str) -> Shape:
    """The shape in a config.json.

    Args:
        where: what to name in an error.

    Raises:
        BadInput: for a model family whose parameters this module cannot count, or a missing or useless value.
    """
    family = config.get("model_type")
    if family not in FAMILIES:
        raise BadInput(
            f"{where}: the memory of this model family cannot be worked out",
            found=f"model_type {family}",
            expected=" | ".join(FAMILIES),
            next_step="run.check_memory=false starts without the arithmetic",
        )
    bias, norms = FAMILIES[family]

    def count(name: str, default: int | None = None) -> int:
        value = config.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or value < 1:
            next_step = "take the model's folder again from where it came from"
            raise BadInput(f"{where}: config.json has no usable {name}", next_step=next_step)
        return value

    heads, hidden = count("num_attention_heads"), count("hidden_size")
    return Shape(
        layers=count("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=count("num_key_value_heads", heads),
        head_dim=count("head_dim", hidden // heads),
        intermediate=count("intermediate_size"),
        vocab=count("vocab_size"),
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=bool(config.get("attention_bias", bias)),
        qk_norm=norms,
    )
