"""How much memory a run needs: pure arithmetic from a model's shape and the run's settings.

Every number is a `Line` that carries its own arithmetic as text, so that a refusal can show how it was reached. Bytes
follow what veRL 0.9.1 does (verl/workers/engine/fsdp/transformer_impl.py, FSDP2): fp32 weights, gradients and AdamW
moments sharded over all ranks, bf16 copies gathered a layer at a time, the root (embedding and head) gathered whole.
What cannot be computed (contexts, buffers, fragmentation) is a line too, marked "assumed".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stapo_results.shapes import Shape

GIB = 2**30
MASTER, GRADIENT, MOMENTS = 4, 4, 8  # bytes a parameter: fp32 weight, fp32 gradient, AdamW's two fp32 moments

CONTEXT_GIB = 3.0  # CUDA contexts of trainer and rollout, NCCL buffers, what the caching allocator cannot reuse
ASLEEP_GIB = 1.5  # a sleeping vLLM keeps its CUDA graphs


@dataclass(frozen=True)
class Line:
    """One part of a moment's memory: GiB and how they came about."""

    name: str
    gib: float
    arithmetic: str


@dataclass(frozen=True)
class Moment:
    """What is in memory at one time of a step, against a limit in GiB."""

    name: str
    lines: tuple[Line, ...]
    limit: float

    @property
    def total(self) -> float:
        return sum(line.gib for line in self.lines)

    @property
    def fits(self) -> bool:
        return self.total <= self.limit


@dataclass(frozen=True)
class Training:
    """What decides the trainer's memory.

    micro_tokens: tokens of one micro-batch on one rank in the update; logprob_tokens: in the log-probability passes.
    width: bytes of an activation and of a gathered weight (2: bf16, 4: fp32).
    vocabulary_copies: tensors of (tokens, vocabulary) at the loss. 1 with flash-attention's cross entropy, whose
    gradient replaces the logits; 3 without (logits, what log_softmax keeps, gradient); 0 with fused kernels.
    entropy_copies: further ones where the entropy is taken whole: 0 when compiled, fused or chunked, 2 otherwise.
    entropy_chunk: tokens whose entropy is taken at a time, in fp32 (0: not in chunks).
    """

    ranks: int
    ranks_per_node: int
    micro_tokens: int
    logprob_tokens: int
    checkpointing: bool = True
    param_offload: bool = False
    optimizer_offload: bool = False
    offload_policy: bool = False
    reference: bool = False
    width: int = 2
    vocabulary_copies: int = 1
    entropy_copies: int = 0
    entropy_chunk: int = 0


@dataclass(frozen=True)
class Rollout:
    """What decides the rollout's memory. `sequence_tokens`: the longest prompt and response together."""

    tensor_parallel: int
    utilization: float
    sleeps: bool
    sequences: int
    batched_tokens: int
    sequence_tokens: int
    width: int = 2


def to_gib(size: float) -> float:
    return size / GIB


def _state(shape: Shape, t: Training, *, gradients: bool, moments: bool, weights: bool = True) -> list[Line]:
    """Sharded training state on a GPU; FSDP2's offload policy keeps all of it in host memory."""
    if t.offload_policy:
        return []
    p, of = shape.parameters, f"{shape.parameters:.4g} / {t.ranks} ranks"
    lines = []
    if weights:
        lines.append(Line("weights, fp32", to_gib(MASTER * p / t.ranks), f"{MASTER} B x {of}"))
    if gradients:
        lines.append(Line("gradients, fp32", to_gib(GRADIENT * p / t.ranks), f"{GRADIENT} B x {of}"))
    if moments:
        lines.append(Line("AdamW moments, fp32", to_gib(MOMENTS * p / t.ranks), f"{MOMENTS} B x {of}"))
    return lines


def _gathered(shape: Shape, t: Training) -> Line:
    """The root stays gathered through forward and backward; of the layers, one works while the next is fetched."""
    count = shape.root_parameters + 2 * shape.layer_parameters
    return Line("gathered weights", to_gib(t.width * count), f"{t.width} B x {count:.4g} (root and two layers)")


def _kept(shape: Shape, t: Training) -> Line:
    """Activations between forward and backward: every layer's input with checkpointing, else all it saved."""
    a = t.width * shape.hidden if t.checkpointing else shape.saved_bytes_per_token(t.width)
    what = "activations, layer inputs" if t.checkpointing else "activations"
    text = f"{t.micro_tokens} tokens x {a} B x {shape.layers} layers"
    return Line(what, to_gib(t.micro_tokens * a * shape.layers), text)


_LOGITS = {0: "logits, fused", 1: "logits", 3: "logits, no flash-attention"}


def vocabulary_line(name: str, shape: Shape, tokens: int, copies: int, width: int) -> Line:
    """Tensors of (tokens, vocabulary)."""
    text = f"{tokens} tokens x {shape.vocab} x {width} B x {copies}"
    return Line(name, to_gib(tokens * shape.vocab * width * copies), text)


def _entropy_chunk(shape: Shape, t: Training) -> list[Line]:
    """Chunked entropy: the chunk in fp32, its probabilities, their product with it (entropy_from_logits_with_chunking).

    The log-probability pass has it for every method; a selector's statistics in the update need no more.
    """
    if not t.entropy_chunk:
        return []
    return [vocabulary_line("entropy of a chunk", shape, t.entropy_chunk, 3, 4)]


_CONTEXT = Line("contexts and buffers", CONTEXT_GIB, "assumed")


def _outside(r: Rollout, card: float) -> list[Line]:
    """What a training GPU holds besides the training."""
    if r.sleeps:
        return [_CONTEXT, Line("rollout asleep", ASLEEP_GIB, "assumed")]
    return [_CONTEXT, Line("rollout, not freed", r.utilization * card, f"{r.utilization} x {card:.1f} GiB")]


def gpu_moments(shape: Shape, t: Training, r: Rollout, card: float) -> list[Moment]:
    """A GPU's memory at the moments of a step that can be its highest.

    Args:
        card: GiB of the card.
    """
    tokens, layer = t.micro_tokens, shape.saved_bytes_per_token(t.width)
    state = _state(shape, t, gradients=True, moments=True)
    gathered, outside = _gathered(shape, t), _outside(r, card)
    unscattered = shape.root_parameters + shape.layer_parameters
    flight = 2 * t.width * (shape.intermediate + shape.hidden)
    moments = [
        Moment(
            "update, at the loss",
            (
                *state,
                gathered,
                _kept(shape, t),
                vocabulary_line(_LOGITS[t.vocabulary_copies], shape, tokens, t.vocabulary_copies, t.width),
                *_entropy_chunk(shape, t),
                *outside,
            ),
            card,
        ),
        Moment(
            "update, backward through a layer",
            (
                *state,
                gathered,
                _kept(shape, t),
                *(
                    [Line("a layer's activations", to_gib(tokens * layer), f"{tokens} tokens x {layer} B")]
                    if t.checkpointing
                    else []
                ),
                Line("a layer's activation gradients", to_gib(tokens * flight), f"{tokens} tokens x {flight} B"),
                Line(
                    "gradients not yet scattered",
                    to_gib((t.width + GRADIENT) * unscattered),
                    f"({t.width} + {GRADIENT}) B x {unscattered:.4g} (root and a layer)",
                ),
                *outside,
            ),
            card,
        ),
        Moment(
            "log-probabilities",
            (
                *_state(shape, t, gradients=False, moments=not t.optimizer_offload),
                gathered,
                Line(
                    "a layer's activations", to_gib(t.logprob_tokens * layer), f"{t.logprob_tokens} tokens x {layer} B"
                ),
                vocabulary_line(
                    "logits, entropy", shape, t.logprob_tokens, min(t.vocabulary_copies, 1) + t.entropy_copies, t.width
                ),
                *_entropy_chunk(shape, t),
                *outside,
            ),
            card,
        ),
        Moment(
            "generation",
            (
                *_state(shape, t, gradients=False, moments=not t.optimizer_offload, weights=not t.param_offload),
                Line("rollout", r.utilization * card, f"{r.utilization} x {card:.1f} GiB"),
                _CONTEXT,
            ),
            card,
        ),
        rollout_share(shape, r, card),
    ]
    if t.param_offload and not t.offload_policy:
        # the trainer saves when the rollout is awake again, and veRL loads an offloaded shard to write it
        awake = (*_state(shape, t, gradients=False, moments=not t.optimizer_offload), *moments[-2].lines[-2:])
        moments.append(Moment("saving a checkpoint", awake, card))
    if not t.offload_policy:  # there AdamW runs on the host
        scratch = Line(
            "AdamW's scratch",
            to_gib(MASTER * shape.parameters / t.ranks),
            f"{MASTER} B x {shape.parameters:.4g} / {t.ranks} ranks",
        )
        moments.insert(2, Moment("optimizer step", (*state, scratch, *outside), card))
    return moments


def rollout_share(shape: Shape, r: Rollout, card: float) -> Moment:
    """What vLLM must hold inside its share of the card: weights, working space, the cache of one longest sequence."""
    work = r.batched_tokens * r.width * (4 * shape.hidden + 3 * shape.intermediate // r.tensor_parallel)
    cache = r.sequence_tokens * shape.kv_bytes_per_token(r.width)
    of = f"/ {r.tensor_parallel} (tensor parallel)"
    return Moment(
        "the rollout's share",
        (
            Line("weights", to_gib(r.width * shape.parameters / r.tensor_parallel),
                 f"{r.width} B x {shape.parameters:.4g} {of}"),
            Line("working space", to_gib(work + 4 * r.sequences * shape.vocab),
                 f"{r.batched_tokens} tokens in a batch; logits of {r.sequences} sequences"),
            Line("KV cache of one longest sequence", to_gib(cache / r.tensor_parallel),
                 f"{r.sequence_tokens} tokens x {shape.kv_bytes_per_token(r.width)} B {of}"),
        ),
        r.utilization * card,
    )  # fmt: skip


def cached_tokens(shape: Shape, r: Rollout, card: float) -> int:
    """Tokens that fit the KV cache of one rollout replica (all its tensor-parallel ranks together)."""
    weights, work, _ = rollout_share(shape, r, card).lines
    free = (r.utilization * card - weights.gib - work.gib) * GIB * r.tensor_parallel
    return max(0, int(free // shape.kv_bytes_per_token(r.width)))


def tightest(moments: Sequence[Moment]) -> Moment:
    """The moment with the least room."""
    return min(moments, key=lambda m: m.limit - m.total)
