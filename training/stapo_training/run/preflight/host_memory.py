"""Memory of machines rather than cards: a GPU node's host, and a machine that has no GPU. Arithmetic as in `memory`."""

from __future__ import annotations

from stapo_results.shapes import Shape
from stapo_training.run.preflight.memory import (
    GRADIENT,
    MASTER,
    MOMENTS,
    Line,
    Moment,
    Rollout,
    Training,
    to_gib,
    vocabulary_line,
)

RANK_PROCESSES_GIB = 8.0  # a rank's trainer and rollout processes in host memory, libraries loaded
CPU_PROCESSES_GIB = 4.0  # veRL's 8 to 9 processes without a GPU: 3.7 to 4.1 GiB measured on the miniature
CPU_RANK_GIB = 0.5  # each further training process


def host_moments(shape: Shape, t: Training, limit: float) -> list[Moment]:
    """A GPU node's memory while the weights are loaded, and while the run is going on.

    veRL reads the weights as fp32 on the first rank, or on every rank when embedding and head are tied
    (get_init_weight_context_manager). FSDP2's reference model always lives in host memory.
    """
    p, share = shape.parameters, t.ranks_per_node / t.ranks
    readers = t.ranks_per_node if shape.tied else 1
    processes = Line("processes", RANK_PROCESSES_GIB * t.ranks_per_node, f"assumed {RANK_PROCESSES_GIB:g} GiB a rank")
    kept = []
    of = f"{p:.4g} x {t.ranks_per_node} / {t.ranks} ranks"
    if t.offload_policy:
        size = MASTER + GRADIENT + MOMENTS
        kept.append(Line("weights, gradients, moments", to_gib(size * p * share), f"{size} B x {of}"))
    else:
        if t.param_offload:
            kept.append(Line("weights", to_gib(MASTER * p * share), f"{MASTER} B x {of}"))
        if t.optimizer_offload:
            kept.append(Line("AdamW moments", to_gib(MOMENTS * p * share), f"{MOMENTS} B x {of}"))
    if t.reference:
        kept.append(Line("reference model", to_gib(MASTER * p * share), f"{MASTER} B x {of}"))
    reading = Line("weights being read", to_gib(MASTER * p * readers), f"{MASTER} B x {p:.4g} x {readers} readers")
    return [
        Moment("loading, host memory", (reading, processes), limit),
        Moment("training, host memory", (*kept, processes), limit),
    ]


def cpu_moments(shape: Shape, t: Training, r: Rollout, limit: float) -> list[Moment]:
    """A machine without a GPU: every rank, the rollout and Ray's store share the host memory.

    Three tensors of (tokens, vocabulary) live at the loss: logits, their exponentials, the gradient.
    """
    p, kv = shape.parameters, shape.kv_bytes_per_token(4)
    size = MASTER + GRADIENT + MOMENTS + (MASTER if t.reference else 0)
    rest = CPU_RANK_GIB * (t.ranks - 1)
    processes = Line("processes", CPU_PROCESSES_GIB + rest, "measured on the miniature")
    state = Line("weights, gradients, moments", to_gib(size * p), f"{size} B x {p:.4g}")
    served = Line("rollout's weights", to_gib(4 * p), f"4 B x {p:.4g}")
    a = t.width * shape.hidden * shape.layers if t.checkpointing else 0
    a += shape.saved_bytes_per_token(t.width) * (1 if t.checkpointing else shape.layers)
    update = (
        Line("activations", to_gib(t.ranks * t.micro_tokens * a), f"{t.ranks} x {t.micro_tokens} tokens x {a} B"),
        vocabulary_line("logits", shape, t.ranks * t.micro_tokens, 3, 4),
    )
    cache = Line(
        "rollout's cache",
        to_gib(r.sequences * r.sequence_tokens * kv),
        f"{r.sequences} x {r.sequence_tokens} tokens x {kv} B",
    )
    return [
        Moment("update", (state, served, *update, processes), limit),
        Moment("generation", (state, served, cache, processes), limit),
    ]
