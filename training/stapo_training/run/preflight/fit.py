"""Does a configuration fit the machine: its settings, the arithmetic, and a refusal that shows a way out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from stapo_results.errors import BadInput
from stapo_results.shapes import Shape
from stapo_training.run.preflight import host_memory, memory
from stapo_training.run.preflight.memory import Moment, Rollout, Training


@dataclass(frozen=True)
class Plan:
    """A model and the settings that decide its memory."""

    shape: Shape
    training: Training
    rollout: Rollout
    cpu: bool

    def moments(self, card: float | None, host: float) -> list[Moment]:
        """Every moment of the run. `card` and `host`: GiB of a GPU (None: not known) and of a machine's memory."""
        if self.cpu:
            return host_memory.cpu_moments(self.shape, self.training, self.rollout, host)
        on_card = [] if card is None else memory.gpu_moments(self.shape, self.training, self.rollout, card)
        return [*on_card, *host_memory.host_moments(self.shape, self.training, host)]


def plan_from(config: Any, shape: Shape) -> Plan:
    """The plan of a resolved configuration (veRL's FSDP engine; keys as in hardware/*.yaml)."""
    a, cpu = config.actor_rollout_ref, config.trainer.device == "cpu"
    sequence = int(config.data.max_prompt_length) + int(config.data.max_response_length)
    parallel = int(a.actor.fsdp_config.ulysses_sequence_parallel_size or 1)
    fused = bool(a.model.get("use_fused_kernels", False))
    width = 4 if a.actor.fsdp_config.dtype in ("float32", "fp32") else 2
    chunked = bool(a.actor.fsdp_config.entropy_from_logits_with_chunking) and not fused
    compiled = bool(a.actor.fsdp_config.use_torch_compile)
    nodes, per_node = int(config.trainer.nnodes), int(config.trainer.n_gpus_per_node)
    return Plan(
        shape,
        Training(
            ranks=nodes * per_node,
            ranks_per_node=per_node,
            micro_tokens=_tokens(
                a.actor.use_dynamic_bsz,
                a.actor.ppo_max_token_len_per_gpu,
                a.actor.ppo_micro_batch_size_per_gpu,
                sequence,
                parallel,
            ),
            logprob_tokens=_tokens(
                a.rollout.log_prob_use_dynamic_bsz,
                a.rollout.log_prob_max_token_len_per_gpu,
                a.rollout.log_prob_micro_batch_size_per_gpu,
                sequence,
                parallel,
            ),
            checkpointing=bool(a.model.enable_gradient_checkpointing),
            param_offload=bool(a.actor.fsdp_config.param_offload),
            optimizer_offload=bool(a.actor.fsdp_config.optimizer_offload),
            offload_policy=bool(a.actor.fsdp_config.offload_policy),
            reference=bool(a.actor.use_kl_loss or config.algorithm.use_kl_in_reward),
            width=width,
            vocabulary_copies=0 if fused else 1 if find_spec("flash_attn") else 3,
            entropy_copies=0 if fused or compiled or chunked else 2,
            entropy_chunk=int(a.actor.fsdp_config.entropy_from_logits_chunk_size) if chunked else 0,
        ),
        Rollout(
            tensor_parallel=int(a.rollout.tensor_model_parallel_size),
            utilization=float(a.rollout.gpu_memory_utilization),
            sleeps=bool(a.rollout.free_cache_engine),
            sequences=int(a.rollout.max_num_seqs),
            batched_tokens=int(a.rollout.max_num_batched_tokens),
            sequence_tokens=sequence,
            width=4 if a.rollout.dtype in ("float32", "fp32") else 2,
        ),
        cpu,
    )


def _tokens(dynamic: bool, limit: int, micro: int | None, sequence: int, parallel: int) -> int:
    """Tokens of a micro-batch on one rank: the packing limit, or whole sequences split over Ulysses ranks."""
    return int(limit) if dynamic else -(-int(micro or 1) * sequence // parallel)


def check_fit(plan: Plan, card: float | None, host: float) -> list[Moment]:
    """The moments of a plan that fits.

    Raises:
        BadInput: with the arithmetic of the tightest moment, line by line, and the keys whose change makes it fit.
    """
    moments = plan.moments(card, host)
    over = [m for m in moments if not m.fits]
    if over:
        worst = memory.tightest(over)
        way_out = changes_that_fit(plan, card, host)
        raise BadInput(
            f"too little memory ({worst.name}): {worst.total:.1f} GiB needed, {worst.limit:.1f} GiB there",
            found=table(worst),
            expected=f"at most {worst.limit:.1f} GiB",
            next_step=" ".join(way_out)
            if way_out
            else "no setting makes it fit: "
            + ("a smaller size=" if plan.cpu else "more GPUs (hardware=) or a smaller size="),
        )
    return moments


def table(moment: Moment) -> str:
    """The lines of a moment and their sum, one a line, largest first."""
    rows = [(line.name, line.gib, line.arithmetic) for line in sorted(moment.lines, key=lambda line: -line.gib)]
    rows.append((f"sum: {moment.name}", moment.total, f"of {moment.limit:.1f} GiB"))
    return "".join(f"\n    {gib:8.2f} GiB  {name}: {text}" for name, gib, text in rows)


_ACTOR, _ROLLOUT, _FSDP = (f"actor_rollout_ref.{p}" for p in ("actor", "rollout", "actor.fsdp_config"))


def _shorter(plan: Plan) -> Plan:
    """Micro-batches of one longest sequence: veRL packs no less."""
    t, n = plan.training, plan.rollout.sequence_tokens
    return replace(
        plan, training=replace(t, micro_tokens=min(t.micro_tokens, n), logprob_tokens=min(t.logprob_tokens, n))
    )


def _set(**values: Any) -> Callable[[Plan], Plan]:
    return lambda plan: replace(plan, training=replace(plan.training, **values))


def _share(value: float) -> Callable[[Plan], Plan]:
    return lambda plan: replace(plan, rollout=replace(plan.rollout, utilization=value))


# What a user can change without changing the mathematics, cheapest first
_CHANGES: tuple[tuple[str, Callable[[Plan], Plan]], ...] = (
    ("actor_rollout_ref.model.enable_gradient_checkpointing=true", _set(checkpointing=True)),
    (f"{_FSDP}.optimizer_offload=true", _set(optimizer_offload=True)),
    (f"{_FSDP}.param_offload=true", _set(param_offload=True)),
    (f"{_ACTOR}.use_dynamic_bsz=true {_ACTOR}.ppo_max_token_len_per_gpu={{sequence}}", _shorter),
    (f"{_FSDP}.offload_policy=true", _set(offload_policy=True)),
    *((f"{_ROLLOUT}.gpu_memory_utilization={u}", _share(u)) for u in (0.7, 0.5, 0.35, 0.25)),
)
_CPU_CHANGES = (_CHANGES[0], _CHANGES[3])


def changes_that_fit(plan: Plan, card: float | None, host: float) -> list[str]:
    """The overrides with which a plan fits, each of them needed; empty where none of ours suffice."""

    def with_all(changes: Sequence[tuple[str, Callable[[Plan], Plan]]]) -> Plan:
        changed = plan
        for _, change in changes:
            changed = change(changed)
        return changed

    def fits(changes: Sequence[tuple[str, Callable[[Plan], Plan]]]) -> bool:
        return all(m.fits for m in with_all(changes).moments(card, host))

    taken: list[tuple[str, Callable[[Plan], Plan]]] = []
    for change in _CPU_CHANGES if plan.cpu else _CHANGES:
        if change[1](with_all(taken)) != with_all(taken):
            taken.append(change)
        if taken and fits(taken):
            break
    else:
        return []
    for change in list(taken):
        fewer = [c for c in taken if c is not change]
        if fits(fewer):
            taken = fewer
    return [text.format(sequence=plan.rollout.sequence_tokens) for text, _ in taken]
