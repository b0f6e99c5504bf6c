"""Whether the chosen attention can run: its package, the settings around it, and what the model asks of it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

from stapo_results.errors import BadInput
from stapo_training.run.preflight import inputs

_KEY = "actor_rollout_ref.model.override_config.attn_implementation"
_OURS = "stapo_varlen"  # verl_ext/attention.py
_PACKAGES = {
    "flash_attention_2": "flash-attn",
    "flash_attention_3": "flash-attn-3",
    "flash_attention_4": "flash-attn-4",
}
_WIDEST_HEAD = 256


def check(config: Any) -> None:
    """The package of an attention, and what veRL does with some attentions only.

    That is sequence parallelism, and fused kernels, whose forward drops the boundaries of packed sequences.

    Raises:
        BadInput: naming the key, the value found and what is allowed.
    """
    a, chosen = config.actor_rollout_ref, _chosen(config)
    package = _PACKAGES.get(chosen)
    if package and not _installed(package):
        raise BadInput(
            f"{_KEY} asks for a package that is not installed",
            found=f"{chosen}, and no package {package}",
            expected=f"{_OURS}, which is torch's own kernel, or {package} built for the installed torch",
            next_step=f"set {_KEY}={_OURS}, or install {package} in this environment",
        )
    parallel = "ulysses_sequence_parallel_size"
    parts = {"actor.fsdp_config": a.actor.fsdp_config, "actor": a.actor, "ref.fsdp_config": a.ref.fsdp_config}
    sharded = {name: part[parallel] for name, part in (parts | {"ref": a.ref}).items() if part[parallel] > 1}
    if sharded and not chosen.startswith("flash_attention"):
        key = f"actor_rollout_ref.{next(iter(sharded))}.{parallel}"
        raise BadInput(
            f"{key} would let each rank attend to its own part of a sequence",
            found=f"{chosen} with {next(iter(sharded.values()))}",
            expected="1, or flash_attention_2, through which veRL exchanges the parts",
            next_step=f"set {key}=1",
        )
    if chosen == _OURS and a.model.use_remove_padding and a.model.get("use_fused_kernels", False):
        raise BadInput(
            "actor_rollout_ref.model.use_fused_kernels would not tell the attention where packed sequences begin",
            found=f"true with {chosen}",
            expected="false, or another attention",
            next_step="set actor_rollout_ref.model.use_fused_kernels=false",
        )


def check_model(config: Any, model: str) -> None:
    """What a model's config.json, with the run's overrides, asks of our attention; no check where it is not at hand.

    Raises:
        BadInput: for what the attention does not compute, or its kernel where there is a GPU.
    """
    a = config.actor_rollout_ref
    facts = inputs.find_config(model) if _chosen(config) == _OURS else None
    if facts is None:
        return
    overrides = a.model.override_config
    facts = facts | dict(overrides.get("model_config", overrides))  # as veRL reads it
    other, wrong = "sdpa", []
    if a.model.use_remove_padding:  # padded rows go to sdpa
        head = _head(facts)
        if config.trainer.device != "cpu" and (head % 8 or head > _WIDEST_HEAD):
            wrong.append(f"head_dim {head}")
        if facts.get("attention_dropout"):
            wrong.append(f"attention_dropout {facts['attention_dropout']}")
        if _slides(facts):
            wrong.append(f"sliding_window {facts.get('sliding_window')}")
    if facts.get("attn_logit_softcapping") is not None:
        wrong.append(f"attn_logit_softcapping {facts['attn_logit_softcapping']}")
        other = "flash_attention_2"  # transformers' sdpa leaves it out
    if wrong:
        raise BadInput(
            f"{model}: {_OURS} does not compute this model's attention",
            found=", ".join(wrong),
            expected=f"heads of up to {_WIDEST_HEAD} in multiples of 8, no dropout, no sliding window, no soft cap",
            next_step=f"set {_KEY}={other}",
        )


def _chosen(config: Any) -> str:
    return config.actor_rollout_ref.model.override_config.get("attn_implementation", "flash_attention_2")  # veRL's


def _installed(package: str) -> bool:
    """Asked by the distribution's name, as transformers does: two of them are a module flash_attn."""
    try:
        return distribution(package) is not None
    except PackageNotFoundError:
        return False


def _head(facts: Mapping[str, Any]) -> int:
    """Numbers a head; 0 where config.json does not say (`shapes.shape_from` refuses what is no number)."""
    given, hidden, heads = (facts.get(k) for k in ("head_dim", "hidden_size", "num_attention_heads"))
    if isinstance(given, int):
        return given
    return hidden // heads if isinstance(hidden, int) and isinstance(heads, int) and heads else 0


def _slides(facts: Mapping[str, Any]) -> bool:
    """Whether a layer has a sliding window, by transformers' defaults: Qwen's are off unless switched on."""
    if facts.get("layer_types"):
        return "sliding_attention" in facts["layer_types"]
    on = facts.get("use_sliding_window", not str(facts.get("model_type")).startswith("qwen"))
    some = facts.get("max_window_layers", 0) < facts.get("num_hidden_layers", 1)  # the layers from there on
    return bool(on and some and facts.get("sliding_window"))
