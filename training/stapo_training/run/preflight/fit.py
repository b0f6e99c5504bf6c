"""Does a configuration fit the machine: its memory plan, and a refusal that names the settings that would fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from stapo_results.errors import BadInput
from stapo_results.shapes import Shape
from stapo_training.run.preflight.memory import MemoryPlan, Moment, tightest


def plan_from(config: Any, shape: Shape) -> MemoryPlan:
    """The plan of a resolved configuration (veRL's FSDP engine; keys as in hardware/*.yaml)."""
    a, fsdp = config.actor_rollout_ref, config.actor_rollout_ref.actor.fsdp_config
    sequence = int(config.data.max_prompt_length) + int(config.data.max_response_length)
    fused = bool(a.model.get("use_fused_kernels", False))
    chunked = bool(fsdp.entropy_from_logits_with_chunking) and not fused

    def tokens(dynamic: bool, limit: int, micro: int | None) -> int:
        """Of a micro-batch on one rank: the packing limit, or whole sequences split over Ulysses ranks."""
        return (
            int(limit) if dynamic else -(-int(micro or 1) * sequence // int(fsdp.ulysses_sequence_parallel_size or 1))
        )

    def width(dtype: str) -> int:
        return 4 if dtype in ("float32", "fp32") else 2

    return MemoryPlan(
        shape=shape,
        ranks=int(config.trainer.nnodes) * int(config.trainer.n_gpus_per_node),
        ranks_per_node=int(config.trainer.n_gpus_per_node),
        micro_tokens=tokens(
            a.actor.use_dynamic_bsz, a.actor.ppo_max_token_len_per_gpu, a.actor.ppo_micro_batch_size_per_gpu
        ),
        logprob_tokens=tokens(
            a.rollout.log_prob_use_dynamic_bsz,
            a.rollout.log_prob_max_token_len_per_gpu,
            a.rollout.log_prob_micro_batch_size_per_gpu,
        ),
        sequence_tokens=sequence,
        tensor_parallel=int(a.rollout.tensor_model_parallel_size),
        utilization=float(a.rollout.gpu_memory_utilization),
        sleeps=bool(a.rollout.free_cache_engine),
        sequences=int(a.rollout.max_num_seqs),
        batched_tokens=int(a.rollout.max_num_batched_tokens),
        cpu=config.trainer.device == "cpu",
        checkpointing=bool(a.model.enable_gradient_checkpointing),
        param_offload=bool(fsdp.param_offload),
        optimizer_offload=bool(fsdp.optimizer_offload),
        offload_policy=bool(fsdp.offload_policy),
        reference=bool(a.actor.use_kl_loss or config.algorithm.use_kl_in_reward),
        width=width(fsdp.dtype),
        rollout_width=width(a.rollout.dtype),
        vocabulary_copies=0 if fused else 1 if find_spec("flash_attn") else 3,
        entropy_copies=0 if fused or chunked or bool(fsdp.use_torch_compile) else 2,
        entropy_chunk=int(fsdp.entropy_from_logits_chunk_size) if chunked else 0,
    )


def check_fit(plan: MemoryPlan, card: float | None, host: float) -> list[Moment]:
    """The moments of a plan that fits.

    Raises:
        BadInput: with the arithmetic of the tightest moment, line by line, and the keys whose change makes it fit.
    """
    moments = plan.moments(card, host)
    over = [m for m in moments if not m.fits]
    if over:
        worst = tightest(over)
        none = "no setting makes it fit: " + ("" if plan.cpu else "more GPUs (hardware=) or ") + "a smaller size="
        raise BadInput(
            f"too little memory ({worst.name}): {worst.total:.1f} GiB needed, {worst.limit:.1f} GiB there",
            found=worst.table(),
            expected=f"at most {worst.limit:.1f} GiB",
            next_step=" ".join(changes_that_fit(plan, card, host)) or none,
        )
    return moments


def changes_that_fit(plan: MemoryPlan, card: float | None, host: float) -> list[str]:
    """The overrides with which a plan fits, each of them needed; empty where none of ours suffice."""

    def fits(chosen: Mapping[str, Mapping[str, Any]]) -> bool:
        return all(m.fits for m in changed(chosen).moments(card, host))

    def changed(chosen: Mapping[str, Mapping[str, Any]]) -> MemoryPlan:
        return replace(plan, **{k: v for values in chosen.values() for k, v in values.items()})

    taken: dict[str, Mapping[str, Any]] = {}
    for override, values in _changes(plan):
        if replace(changed(taken), **values) != changed(taken):
            taken[override] = values
        if taken and fits(taken):
            break
    else:
        return []
    for override in list(taken):
        fewer = {k: v for k, v in taken.items() if k != override}
        if fits(fewer):
            taken = fewer
    return list(taken)


def _changes(p: MemoryPlan) -> Iterator[tuple[str, dict[str, Any]]]:
    """What a user can change without changing the mathematics, cheapest first."""
    actor, sequence = "actor_rollout_ref.actor", p.sequence_tokens
    # veRL packs no less than one longest sequence
    packed = {"micro_tokens": min(p.micro_tokens, sequence), "logprob_tokens": min(p.logprob_tokens, sequence)}
    packing = f"{actor}.use_dynamic_bsz=true {actor}.ppo_max_token_len_per_gpu={sequence}", packed
    yield "actor_rollout_ref.model.enable_gradient_checkpointing=true", {"checkpointing": True}
    if p.cpu:
        yield packing
        return
    yield f"{actor}.fsdp_config.optimizer_offload=true", {"optimizer_offload": True}
    yield f"{actor}.fsdp_config.param_offload=true", {"param_offload": True}
    yield packing
    yield f"{actor}.fsdp_config.offload_policy=true", {"offload_policy": True}
    for share in (0.7, 0.5, 0.35, 0.25):
        yield f"actor_rollout_ref.rollout.gpu_memory_utilization={share}", {"utilization": share}
