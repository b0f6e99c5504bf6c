"""How much memory a run needs: arithmetic from a model's shape and the run's settings.

Bytes follow what veRL 0.9.1 does (verl/workers/engine/fsdp/transformer_impl.py, FSDP2): fp32 weights, gradients and
AdamW moments sharded over all ranks, bf16 copies gathered a layer at a time, the root (embedding and head) gathered
whole. What cannot be computed (contexts, buffers, processes) is assumed. No GPU has confirmed the sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stapo_results.errors import BadInput
from stapo_results.shapes import Shape

GIB = 2**30
MASTER, GRADIENT, MOMENTS = 4, 4, 8  # bytes a parameter: fp32 weight, fp32 gradient, AdamW's two fp32 moments

CONTEXT_GIB = 3.0  # CUDA contexts of trainer and rollout, NCCL buffers, what the caching allocator cannot reuse
ASLEEP_GIB = 1.5  # a sleeping vLLM keeps its CUDA graphs
RANK_PROCESSES_GIB = 8.0  # a rank's trainer and rollout processes in host memory, libraries loaded
CPU_PROCESSES_GIB = 4.0  # veRL's 8 to 9 processes without a GPU: 3.7 to 4.1 GiB measured on the miniature
CPU_RANK_GIB = 0.5  # each further training process

_SMALLER = "actor_rollout_ref.actor.use_dynamic_bsz=true actor_rollout_ref.actor.ppo_max_token_len_per_gpu=TOKENS"
_OFFLOAD = "actor_rollout_ref.actor.fsdp_config.{}=true"


@dataclass(frozen=True)
class Need:
    """One moment of a run: GiB needed and GiB there, and the settings that lower it."""

    moment: str
    gib: float
    limit: float
    lower: str

    @property
    def room(self) -> float:
        return self.limit - self.gib


def needs(config: Any, shape: Shape, card: float | None, host: float) -> list[Need]:
    """Every moment of a resolved configuration (veRL's FSDP engine) that can be the highest.

    The passes for log-probabilities, packed to the same limit, hold less than the update and are left out.

    Args:
        card, host: GiB of a GPU (None: not known) and of a machine.
    """
    if config.trainer.device == "cpu":
        return _of_cpu(config, shape, host)
    return [*([] if card is None else _of_card(config, shape, card)), *_of_host(config, shape, host)]


def check(config: Any, shape: Shape, card: float | None, host: float) -> Need:
    """The moment with the least room; where the card is known, of the card.

    Raises:
        BadInput: too little memory, with both numbers and the settings that lower it.
    """
    found = needs(config, shape, card, host)
    tight = min(found, key=lambda n: n.room)
    if tight.room < 0:
        raise BadInput(
            f"too little memory ({tight.moment})",
            found=f"{tight.gib:.1f} GiB needed",
            expected=f"at most {tight.limit:.1f} GiB",
            next_step=f"{tight.lower}; or more GPUs (hardware=), or a smaller size=",
        )
    return tight


def _update_tokens(config: Any) -> int:
    """Of a micro-batch on one rank: the packing limit, or whole sequences split over Ulysses ranks."""
    a = config.actor_rollout_ref.actor
    sequences = int(a.ppo_micro_batch_size_per_gpu or 1) * _sequence(config)
    split = int(a.fsdp_config.ulysses_sequence_parallel_size or 1)
    return int(a.ppo_max_token_len_per_gpu) if a.use_dynamic_bsz else -(-sequences // split)


def _sequence(config: Any) -> int:
    """Tokens of the longest prompt and response together."""
    return int(config.data.max_prompt_length) + int(config.data.max_response_length)


def width(dtype: str) -> int:
    """Bytes of a number, by veRL's name of its type."""
    return 4 if dtype in ("float32", "fp32") else 2


def reference(config: Any) -> bool:
    """Whether the run keeps a reference model."""
    return bool(config.actor_rollout_ref.actor.use_kl_loss or config.algorithm.use_kl_in_reward)


def ranks(config: Any) -> int:
    """Training processes, one a GPU."""
    return int(config.trainer.nnodes) * int(config.trainer.n_gpus_per_node)


def _beside_the_logits(config: Any, s: Shape, w: int) -> int:
    """Bytes a token at the loss that the configuration asks for beside the logits, w bytes each.

    A temperature other than 1 makes scaled logits. An entropy in training keeps the gradient of the log-probabilities
    from going where the logits were, and keeps logits and probabilities in fp32 for its own, whether in chunks or not.
    """
    actor, temperature = config.actor_rollout_ref.actor, float(config.actor_rollout_ref.rollout.temperature)
    entropy = actor.calculate_entropy or actor.entropy_coeff != 0
    return s.vocab * (w * (temperature != 1) + (w + 2 * 4) * bool(entropy))


def _of_card(config: Any, s: Shape, card: float) -> list[Need]:
    a = config.actor_rollout_ref
    fsdp, rollout = a.actor.fsdp_config, a.rollout
    rank, w, checkpointing = (
        s.parameters / ranks(config) / GIB,
        width(fsdp.dtype),
        a.model.enable_gradient_checkpointing,
    )
    # FSDP2's offload policy keeps the state in host memory, and AdamW runs there
    weights, gradients, adam = (0.0 if fsdp.offload_policy else size * rank for size in (MASTER, GRADIENT, MOMENTS))
    idle = weights + (0.0 if fsdp.optimizer_offload else adam)
    share = float(rollout.gpu_memory_utilization) * card
    outside = CONTEXT_GIB + (ASLEEP_GIB if rollout.free_cache_engine else share)
    # the root stays gathered through forward and backward; of the layers, one works while the next is fetched
    gathered = w * (s.root_parameters + 2 * s.layer_parameters) / GIB
    tokens = _update_tokens(config)
    layer = s.saved_bytes_per_token(w) / GIB  # of a token
    kept = tokens * s.layers * (w * s.hidden / GIB if checkpointing else layer)
    fused = bool(a.model.get("use_fused_kernels", False))
    # at the loss the gradient is put where the logits were (verl_ext/logits.py); fused kernels keep neither
    logits = 0 if fused else w * s.vocab + _beside_the_logits(config, s, w)
    chunked = bool(fsdp.entropy_from_logits_with_chunking) and not fused
    # entropy without gradient: the chunk in fp32, its probabilities, their product with it
    chunk = 3 * 4 * int(fsdp.entropy_from_logits_chunk_size) * s.vocab / GIB if chunked else 0.0
    backward = tokens * (layer if checkpointing else 0.0) + tokens * 2 * w * (s.intermediate + s.hidden) / GIB
    backward += (w + GRADIENT) * (s.root_parameters + s.layer_parameters) / GIB  # gradients not yet scattered
    loss = tokens * logits / GIB + chunk
    state = weights + gradients + adam
    r, parallel = width(rollout.dtype), int(rollout.tensor_model_parallel_size)
    work = int(rollout.max_num_batched_tokens) * r * (4 * s.hidden + 3 * s.intermediate // parallel)
    work += 4 * int(rollout.max_num_seqs) * s.vocab
    cache = _sequence(config) * s.kv_bytes_per_token(r) / parallel
    policy, optimizer = _OFFLOAD.format("offload_policy"), _OFFLOAD.format("optimizer_offload")
    less = "a lower actor_rollout_ref.rollout.gpu_memory_utilization"
    return [
        Need("update", state + kept + max(loss, backward) + gathered + outside, card, f"{_SMALLER}, or {policy}"),
        # the trainer saves when the rollout is awake again, and veRL loads an offloaded shard to write it
        Need("sampling and saving", idle + share + CONTEXT_GIB, card, f"{optimizer}, or {less}"),
        Need("optimizer step", state + (0.0 if fsdp.offload_policy else MASTER * rank) + outside, card, policy),
        Need(
            "the rollout's share",
            (r * s.parameters / parallel + work + cache) / GIB,
            share,
            "a larger actor_rollout_ref.rollout.tensor_model_parallel_size or gpu_memory_utilization",
        ),
    ]


def _of_host(config: Any, s: Shape, limit: float) -> list[Need]:
    """A GPU node's memory while the weights are loaded, and while the run is going on.

    veRL reads the weights as fp32 on the first rank, or on every rank when embedding and head are tied
    (get_init_weight_context_manager). FSDP2's reference model always lives in host memory.
    """
    fsdp, per_node = config.actor_rollout_ref.actor.fsdp_config, int(config.trainer.n_gpus_per_node)
    node, processes = s.parameters / GIB, RANK_PROCESSES_GIB * per_node
    kept = MASTER * (fsdp.param_offload or fsdp.offload_policy) + GRADIENT * fsdp.offload_policy
    kept += MOMENTS * (fsdp.optimizer_offload or fsdp.offload_policy) + MASTER * reference(config)
    reading = MASTER * node * (per_node if s.tied else 1)
    offload = _OFFLOAD.format("offload_policy").replace("true", "false")
    return [
        Need("loading, host memory", reading + processes, limit, "machines with more memory"),
        Need("training, host memory", kept * node * per_node / ranks(config) + processes, limit, offload),
    ]


def _of_cpu(config: Any, s: Shape, limit: float) -> list[Need]:
    """A machine without a GPU: every rank, the rollout and Ray's store share the host memory.

    Three tensors of (tokens, vocabulary) live at the loss: padded logits, those without padding, the gradient; more
    where `_beside_the_logits` says so.
    """
    a, n = config.actor_rollout_ref, ranks(config)
    w, tokens = width(a.actor.fsdp_config.dtype), n * _update_tokens(config)
    resident = (MASTER + GRADIENT + MOMENTS + MASTER * reference(config) + 4) * s.parameters / GIB  # 4: the rollout's
    resident += CPU_PROCESSES_GIB + CPU_RANK_GIB * (n - 1)
    layer = s.saved_bytes_per_token(w)
    kept = w * s.hidden * s.layers + layer if a.model.enable_gradient_checkpointing else layer * s.layers
    cache = int(a.rollout.max_num_seqs) * _sequence(config) * s.kv_bytes_per_token(4) / GIB
    checkpointing = "actor_rollout_ref.model.enable_gradient_checkpointing=true"
    loss = 3 * 4 * s.vocab + _beside_the_logits(config, s, w)
    return [
        Need("update", resident + tokens * (kept + loss) / GIB, limit, f"{checkpointing}, or {_SMALLER}"),
        Need("sampling", resident + cache, limit, "a lower actor_rollout_ref.rollout.max_num_seqs"),
    ]
