"""How much memory a run needs and how long a step takes: arithmetic from a model's shape.

GiB are those of tensors (`allocated`). The allocator reserves more while a card has room, and gives it back: an update
on one H100 allocated 37.9, where this plans 39.2, and had reserved 48.3. Sampling was not measured.

Bytes follow what veRL 0.9.1 does (verl/workers/engine/fsdp/transformer_impl.py, FSDP2): fp32 weights, gradients and
AdamW moments sharded over all ranks, bf16 copies gathered a layer at a time, the root (embedding and head) gathered
whole. What cannot be computed (contexts, buffers, processes) is assumed. Seconds: `stapo_results.throughput`, which the
planner uses too.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

from stapo_results import throughput
from stapo_results.errors import BadInput
from stapo_results.shapes import Shape, positions_held, rows_held
from stapo_training.methods import selector_from

GIB = 2**30
MASTER, GRADIENT, MOMENTS = 4, 4, 8  # bytes a parameter: fp32 weight, fp32 gradient, AdamW's two fp32 moments

CONTEXT_GIB = 3.0  # CUDA contexts of trainer and rollout, NCCL buffers, what the caching allocator cannot reuse
ASLEEP_GIB = 1.5  # a sleeping vLLM keeps its CUDA graphs
RANK_PROCESSES_GIB = 8.0  # a rank's trainer and rollout processes in host memory, libraries loaded
CPU_PROCESSES_GIB = 4.0  # veRL's 8 to 9 processes without a GPU: 3.7 to 4.1 GiB measured on the miniature
CPU_RANK_GIB = 0.5  # each further training process

CPU_LENGTH = 0.75
"""A mean response as a share of the longest, where a quarter is cut: MATH on Qwen2.5-Coder-0.5B, 512 tokens."""
_TIMED = 512
"""Rows of the linear layer that is timed: as many as make a processor's speed, whatever it does to the weights."""
_LINEAR = 0.5
"""The linear layers' share of a pass without a GPU; the rest is attention, norms, the draw and the prompts."""

_SMALLER = "actor_rollout_ref.actor.use_dynamic_bsz=true actor_rollout_ref.actor.ppo_max_token_len_per_gpu=TOKENS"
_OFFLOAD = "actor_rollout_ref.actor.fsdp_config.{}=true"


@dataclass(frozen=True)
class Need:
    """One moment of a run: GiB needed and GiB there, and the settings that lower it."""

    moment: str
    gib: float
    limit: float
    lower: str


def memory(config: Any, shape: Shape, card: float | None, host: float, validation: int = 0) -> Need:
    """The moment with the least room.

    Vocabulary-wide tensors of the log-probability passes and vLLM's own share are left out: the first hold less than
    the update, and vLLM says itself when its share is too small.

    Args:
        card, host: GiB of a GPU (None: a machine without one), and those free on a machine (`free_memory`).
        validation: samples of a validation pass.

    Raises:
        BadInput: too little memory, with both numbers and the settings that lower it.
    """
    plan = _of_cpu(config, shape, host, validation) if card is None else _of_gpus(config, shape, card, host)
    tight = min(plan, key=lambda n: n.limit - n.gib)
    if tight.gib > tight.limit:
        there = "" if tight.limit == card else ": so much may be taken now before a process is ended"
        raise BadInput(
            f"too little memory ({tight.moment})",
            found=f"{tight.gib:.1f} GiB needed",
            expected=f"at most {tight.limit:.1f} GiB{there}",
            next_step=f"{tight.lower}; or more GPUs (hardware=), or a smaller size=",
        )
    return tight


def _sizes(config: Any, s: Shape) -> tuple[int, int, int, int]:
    """Bytes of an activation, tokens of a rank's micro-batch, of the longest sequence, bytes a token at the loss.

    A temperature other than 1 makes scaled logits. An entropy in training keeps the gradient of the log-probabilities
    from going where the logits were, and keeps logits and probabilities in fp32.
    """
    actor, w = config.actor_rollout_ref.actor, _width(config.actor_rollout_ref.actor.fsdp_config.dtype)
    longest = int(config.data.max_prompt_length) + int(config.data.max_response_length)
    sequences = int(actor.ppo_micro_batch_size_per_gpu or 1)
    tokens = int(actor.ppo_max_token_len_per_gpu) if actor.use_dynamic_bsz else sequences * longest
    scaled = float(config.actor_rollout_ref.rollout.temperature) != 1
    entropy = bool(actor.calculate_entropy or actor.entropy_coeff)
    return w, tokens, longest, s.vocab * (w * scaled + (w + 8) * entropy)


def _of_gpus(config: Any, s: Shape, card: float, host: float) -> list[Need]:
    """Of a card: the update, and sampling with a save; of a node: loading, and training.

    veRL reads the weights as fp32 on the first rank, or on every rank when embedding and head are tied
    (get_init_weight_context_manager). FSDP2's reference model always lives in host memory.
    """
    a, per_node = config.actor_rollout_ref, int(config.trainer.n_gpus_per_node)
    fsdp, rollout, giga_parameters = a.actor.fsdp_config, a.rollout, s.parameters / GIB
    part = giga_parameters / (per_node * int(config.trainer.nnodes))
    w, tokens, _, beside = _sizes(config, s)
    # FSDP2's offload policy keeps the state in host memory, and AdamW runs there
    on_card = 0 if fsdp.offload_policy else 1
    state = on_card * (MASTER + GRADIENT + MOMENTS) * part
    idle = on_card * (MASTER + (0 if fsdp.optimizer_offload else MOMENTS)) * part
    share = float(rollout.gpu_memory_utilization) * card
    # the root stays gathered through forward and backward; of the layers, one works while the next is fetched
    gathered = w * (s.root_parameters + 2 * s.layer_parameters) / GIB
    layer, checkpointing = s.saved_bytes_per_token(w), bool(a.model.enable_gradient_checkpointing)
    kept = tokens * s.layers * (w * s.hidden if checkpointing else layer) / GIB
    # the gradient is put where the logits were (verl_ext/logits.py); veRL's entropy, of a training that asks for it: a
    # chunk in fp32, its probabilities, their product with it
    asked = bool(a.actor.calculate_entropy or a.actor.entropy_coeff) and fsdp.entropy_from_logits_with_chunking
    chunk = 3 * 4 * int(fsdp.entropy_from_logits_chunk_size) if asked else 0
    loss = (tokens * (w * s.vocab + beside) + chunk * s.vocab) / GIB
    backward = tokens * (checkpointing * layer + 2 * w * (s.intermediate + s.hidden)) / GIB
    backward += (w + GRADIENT) * (s.root_parameters + s.layer_parameters) / GIB  # gradients not yet scattered
    # AdamW's step makes one more copy of the weights, when the activations are gone
    update = state + max(kept + max(loss, backward) + gathered, on_card * MASTER * part) + CONTEXT_GIB
    update += ASLEEP_GIB if rollout.free_cache_engine else share
    processes, moved = RANK_PROCESSES_GIB * per_node, MASTER + GRADIENT + MOMENTS
    if on_card:
        moved = MASTER * bool(fsdp.param_offload) + MOMENTS * bool(fsdp.optimizer_offload)
    if a.actor.use_kl_loss or config.algorithm.use_kl_in_reward:
        moved += MASTER
    policy, optimizer = _OFFLOAD.format("offload_policy"), _OFFLOAD.format("optimizer_offload")
    less = f"{optimizer}, or a lower actor_rollout_ref.rollout.gpu_memory_utilization"
    reading = MASTER * giga_parameters * (per_node if s.tied else 1)
    return [
        Need("update", update, card, f"{_SMALLER}, or {policy}"),
        # the trainer saves when the rollout is awake again, and veRL loads an offloaded shard to write it
        Need("sampling and saving", idle + share + CONTEXT_GIB, card, less),
        Need("loading, host memory", reading + processes, host, "machines with more memory"),
        Need("training, host memory", moved * part * per_node + processes, host, policy.replace("true", "false")),
    ]


def _of_cpu(config: Any, s: Shape, limit: float, validation: int) -> list[Need]:
    """A machine without a GPU: every rank, the rollout and Ray's store share the host memory.

    Three tensors of (tokens, vocabulary) live at the loss: padded logits, those without padding, the gradient.
    Embedding and head are there four times more in a backward pass: gathered, their gradient, and what goes into and
    comes out of its reduction; the layers stay gathered. AdamW's temporaries come when these are gone, and are less.
    The trainer's weights stay in Ray's store from one step to the next, in the rollout's type, beside the rollout's
    copy.
    """
    a, ranks = config.actor_rollout_ref, int(config.trainer.nnodes) * int(config.trainer.n_gpus_per_node)
    w, tokens, longest, beside = _sizes(config, s)
    sampled, samples = _width(a.rollout.dtype), max(int(config.data.train_batch_size) * int(a.rollout.n), validation)
    places = rows_held(min(int(a.rollout.max_num_seqs), samples))
    reference = bool(a.actor.use_kl_loss or config.algorithm.use_kl_in_reward)
    each = MASTER + GRADIENT + MOMENTS + 2 * sampled
    each += _width(a.ref.fsdp_config.model_dtype) * reference
    resident = each * s.parameters / GIB + CPU_PROCESSES_GIB + CPU_RANK_GIB * (ranks - 1)
    layer = s.saved_bytes_per_token(w)
    kept = w * s.hidden * s.layers + layer if a.model.enable_gradient_checkpointing else layer * s.layers
    root = 2 * (w + GRADIENT) * s.root_parameters
    layers = 0 if a.actor.fsdp_config.reshard_after_forward else w * s.layers * s.layer_parameters
    update = ranks * (tokens * (kept + 3 * 4 * s.vocab + beside) + root + layers) / GIB
    # the sampler packs the layers' weights anew; logits are drawn from a few rows at a time
    each_place = positions_held(longest) * s.kv_bytes_per_token(sampled) + sampled * s.vocab
    sampling = (sampled * s.parameters + places * each_place) / GIB
    less = ["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1, or a lower data.max_response_length"]
    if not a.model.enable_gradient_checkpointing:
        less.append("actor_rollout_ref.model.enable_gradient_checkpointing=true")
    if w == MASTER:
        less.append("run.cpu_dtype=bfloat16")
    others, fewer = "end what else uses memory", list[str]()
    if places > rows_held(1):
        fewer.append("a lower actor_rollout_ref.rollout.max_num_seqs")
    if longest > positions_held(1):
        fewer.append("a lower data.max_response_length")
    return [
        Need("update", resident + update, limit, ", or ".join([*less, others])),
        Need("sampling", resident + sampling, limit, ", or ".join([*fewer, others])),
    ]


def _width(dtype: str) -> int:
    """Bytes of a number, by veRL's name of its type."""
    return 4 if dtype in ("float32", "fp32") else 2


def step(config: Any, shape: Shape, validation: int) -> throughput.Step:
    """What `stapo_results.throughput` estimates on GPUs of this configuration; `validation`: its samples."""
    a, prompts = config.actor_rollout_ref, int(config.data.train_batch_size)
    lengths, selector = throughput.lengths_of(int(config.data.max_response_length)), selector_from(a.selector)
    return throughput.Step(
        shape,
        prompts * int(a.rollout.n),
        lengths,
        checkpointing=bool(a.model.enable_gradient_checkpointing),
        reference=bool(a.actor.use_kl_loss or config.algorithm.use_kl_in_reward),
        # a step's first mini-batch takes the statistics of the old-log-prob pass
        own_pass=selector.own_pass * (1 - int(a.actor.ppo_mini_batch_size) / prompts),
        tensor_parallel=int(a.rollout.tensor_model_parallel_size),
        width=_width(a.rollout.dtype),
        places=int(a.rollout.max_num_seqs),
        validation=validation,
        settings=len(config.run.validation_settings),
        logits="eager" if a.logits_form == "eager" else "compiled",
        every=int(config.run.steps) / (validations(config) or math.inf),
    )


def forward_tokens(shape: Shape, dtype: str) -> float:
    """Tokens a second of a forward pass on this machine's CPU as it is now, from the time of one linear layer."""
    import torch

    weight = torch.zeros(shape.intermediate, shape.hidden, dtype=getattr(torch, dtype))
    rows, seconds = torch.zeros(_TIMED, shape.hidden, dtype=weight.dtype), list[float]()
    for _ in range(10):
        began = time.perf_counter()
        torch.nn.functional.linear(rows, weight)
        seconds.append(time.perf_counter() - began)
    return _LINEAR * _TIMED / min(seconds) * weight.numel() / shape.parameters


def cpu_seconds(config: Any, shape: Shape) -> float:
    """Seconds of a step without a GPU, where a response is as long as `CPU_LENGTH` says and a prompt short.

    A token of a response is sampled as fast as it is read, at 2 P; `Step.passes` counts the others.
    """
    counted = step(config, shape, 0)
    tokens = counted.sequences * CPU_LENGTH * int(config.data.max_response_length)
    return tokens * (1 + counted.passes / 2) / forward_tokens(shape, config.actor_rollout_ref.rollout.dtype)


def validations(config: Any) -> int:
    """How often a run validates: before the training, every trainer.test_freq steps, and after the last step."""
    steps, every = int(config.run.steps), int(config.trainer.test_freq)
    return bool(config.trainer.val_before_train) + (-(-steps // every) if every > 0 else 0)
