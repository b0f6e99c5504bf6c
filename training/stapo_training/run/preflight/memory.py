"""How much memory a run needs: arithmetic from a model's shape and the run's settings.

Bytes follow what veRL 0.9.1 does (verl/workers/engine/fsdp/transformer_impl.py, FSDP2): fp32 weights, gradients and
AdamW moments sharded over all ranks, bf16 copies gathered a layer at a time, the root (embedding and head) gathered
whole. What cannot be computed (contexts, buffers, processes) is a part marked "assumed". No GPU has confirmed the sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stapo_results.shapes import Shape

GIB = 2**30
MASTER, GRADIENT, MOMENTS = 4, 4, 8  # bytes a parameter: fp32 weight, fp32 gradient, AdamW's two fp32 moments

CONTEXT_GIB = 3.0  # CUDA contexts of trainer and rollout, NCCL buffers, what the caching allocator cannot reuse
ASLEEP_GIB = 1.5  # a sleeping vLLM keeps its CUDA graphs
RANK_PROCESSES_GIB = 8.0  # a rank's trainer and rollout processes in host memory, libraries loaded
CPU_PROCESSES_GIB = 4.0  # veRL's 8 to 9 processes without a GPU: 3.7 to 4.1 GiB measured on the miniature
CPU_RANK_GIB = 0.5  # each further training process


@dataclass(frozen=True)
class Moment:
    """What is in memory at one time of a step: parts by name, in GiB, against a limit in GiB."""

    name: str
    parts: Mapping[str, float]
    limit: float

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        return self.total <= self.limit

    def table(self) -> str:
        """The parts and their sum, one a line, largest first."""
        rows = [*sorted(self.parts.items(), key=lambda x: -x[1]), (f"sum, of {self.limit:.1f} GiB there", self.total)]
        return "".join(f"\n    {gib:8.2f} GiB  {name}" for name, gib in rows)


@dataclass(frozen=True)
class MemoryPlan:
    """A model's shape and the settings that decide a run's memory.

    micro_tokens: tokens of one micro-batch on one rank in the update; logprob_tokens: in the log-probability passes.
    sequence_tokens: the longest prompt and response together.
    tensor_parallel, utilization, sleeps, sequences, batched_tokens: of the rollout (vLLM's names).
    width, rollout_width: bytes of an activation and of a gathered weight in the trainer, and in the rollout.
    vocabulary_copies: tensors of (tokens, vocabulary) at the loss. 1 with flash-attention's cross entropy, whose
    gradient replaces the logits; 3 without (logits, what log_softmax keeps, gradient); 0 with fused kernels.
    entropy_copies: further ones where the entropy is taken whole: 0 when compiled, fused or chunked, 2 otherwise.
    entropy_chunk: tokens whose entropy is taken at a time, in fp32 (0: not in chunks).
    """

    shape: Shape
    ranks: int
    ranks_per_node: int
    micro_tokens: int
    logprob_tokens: int
    sequence_tokens: int
    tensor_parallel: int
    utilization: float
    sleeps: bool
    sequences: int
    batched_tokens: int
    cpu: bool = False
    checkpointing: bool = True
    param_offload: bool = False
    optimizer_offload: bool = False
    offload_policy: bool = False
    reference: bool = False
    width: int = 2
    rollout_width: int = 2
    vocabulary_copies: int = 1
    entropy_copies: int = 0
    entropy_chunk: int = 0

    def moments(self, card: float | None, host: float) -> list[Moment]:
        """Every moment that can be the highest. `card` and `host`: GiB of a GPU (None: not known) and of a machine."""
        if self.cpu:
            return cpu_moments(self, host)
        return [*([] if card is None else gpu_moments(self, card)), *host_moments(self, host)]


def gpu_moments(p: MemoryPlan, card: float) -> list[Moment]:
    """A GPU's memory at the moments of a step that can be its highest.

    Args:
        card: GiB of the card.
    """
    s, tokens, rank = p.shape, p.micro_tokens, p.shape.parameters / p.ranks / GIB
    # FSDP2's offload policy keeps the state in host memory, and AdamW runs there
    weights = {} if p.offload_policy else {"weights, fp32": MASTER * rank}
    gradients = {} if p.offload_policy else {"gradients, fp32": GRADIENT * rank}
    adam = {} if p.offload_policy else {"AdamW moments, fp32": MOMENTS * rank}
    state, idle_adam = weights | gradients | adam, {} if p.optimizer_offload else adam
    context, rollout = {"contexts and buffers, assumed": CONTEXT_GIB}, {"rollout": p.utilization * card}
    outside = context | ({"rollout asleep, assumed": ASLEEP_GIB} if p.sleeps else rollout)
    # the root stays gathered through forward and backward; of the layers, one works while the next is fetched
    outside_update = {"gathered weights": p.width * (s.root_parameters + 2 * s.layer_parameters) / GIB} | outside
    layer = s.saved_bytes_per_token(p.width)
    kept = {"activations": tokens * s.layers * (p.width * s.hidden if p.checkpointing else layer) / GIB}
    token = s.vocab * p.width / GIB  # of a tensor (tokens, vocabulary)
    # entropy_from_logits_with_chunking: the chunk in fp32, its probabilities, their product with it
    chunk = {"entropy of a chunk": 3 * 4 * p.entropy_chunk * s.vocab / GIB} if p.entropy_chunk else {}
    logits = {"logits": p.vocabulary_copies * tokens * token} | chunk
    scoring = {
        "a layer's activations": p.logprob_tokens * layer / GIB,
        "logits, entropy": (min(p.vocabulary_copies, 1) + p.entropy_copies) * p.logprob_tokens * token,
    } | chunk
    backward = {
        "a layer's activations": tokens * layer / GIB if p.checkpointing else 0.0,
        "a layer's activation gradients": tokens * 2 * p.width * (s.intermediate + s.hidden) / GIB,
        "gradients not yet scattered": (p.width + GRADIENT) * (s.root_parameters + s.layer_parameters) / GIB,
    }
    generation = ({} if p.param_offload else weights) | idle_adam | rollout | context
    moments = {
        "update, at the loss": state | kept | logits | outside_update,
        "update, backward through a layer": state | kept | backward | outside_update,
        "log-probabilities": weights | idle_adam | scoring | outside_update,
        "generation": generation,
    }
    if not p.offload_policy:
        moments["optimizer step"] = state | {"AdamW's scratch": MASTER * rank} | outside
        # the trainer saves when the rollout is awake again, and veRL loads an offloaded shard to write it
        moments["saving a checkpoint"] = generation | weights
    return [*(Moment(name, parts, card) for name, parts in moments.items()), rollout_moment(p, p.utilization * card)]


def rollout_moment(p: MemoryPlan, limit: float) -> Moment:
    """What vLLM must hold inside its share of the card: weights, working space, the cache of one longest sequence."""
    s, width, parallel = p.shape, p.rollout_width, p.tensor_parallel
    work = p.batched_tokens * width * (4 * s.hidden + 3 * s.intermediate // parallel) + 4 * p.sequences * s.vocab
    parts = {
        "weights": width * s.parameters / parallel / GIB,
        "working space": work / GIB,
        "KV cache of one longest sequence": p.sequence_tokens * s.kv_bytes_per_token(width) / parallel / GIB,
    }
    return Moment("the rollout's share", parts, limit)


def host_moments(p: MemoryPlan, limit: float) -> list[Moment]:
    """A GPU node's memory while the weights are loaded, and while the run is going on.

    veRL reads the weights as fp32 on the first rank, or on every rank when embedding and head are tied
    (get_init_weight_context_manager). FSDP2's reference model always lives in host memory.
    """
    node, readers = p.shape.parameters / GIB, p.ranks_per_node if p.shape.tied else 1
    processes = {"processes, assumed": RANK_PROCESSES_GIB * p.ranks_per_node}
    kept = {
        "weights": MASTER * (p.param_offload or p.offload_policy),
        "gradients": GRADIENT * p.offload_policy,
        "AdamW moments": MOMENTS * (p.optimizer_offload or p.offload_policy),
        "reference model": MASTER * p.reference,
    }
    sharded = {name: size * node * p.ranks_per_node / p.ranks for name, size in kept.items() if size}
    return [
        Moment("loading, host memory", {"weights being read": MASTER * node * readers} | processes, limit),
        Moment("training, host memory", sharded | processes, limit),
    ]


def cpu_moments(p: MemoryPlan, limit: float) -> list[Moment]:
    """A machine without a GPU: every rank, the rollout and Ray's store share the host memory.

    Three tensors of (tokens, vocabulary) live at the loss: logits, their exponentials, the gradient.
    """
    s, tokens = p.shape, p.ranks * p.micro_tokens
    resident = {
        "weights, gradients, moments": (MASTER + GRADIENT + MOMENTS + MASTER * p.reference) * s.parameters / GIB,
        "rollout's weights": 4 * s.parameters / GIB,
        "processes": CPU_PROCESSES_GIB + CPU_RANK_GIB * (p.ranks - 1),
    }
    layer = s.saved_bytes_per_token(p.width)
    kept = p.width * s.hidden * s.layers + layer if p.checkpointing else layer * s.layers
    update = {"activations": tokens * kept / GIB, "logits": 3 * 4 * tokens * s.vocab / GIB}
    cache = {"rollout's cache": p.sequences * p.sequence_tokens * s.kv_bytes_per_token(4) / GIB}
    return [Moment("update", resident | update, limit), Moment("generation", resident | cache, limit)]


def tightest(moments: Iterable[Moment]) -> Moment:
    """The moment with the least room."""
    return min(moments, key=lambda m: m.limit - m.total)
