"""What can be known to fail before a training starts anything expensive.

`examine` makes every check that needs no veRL and collects what stands in the way. Arithmetic: `memory`; looking at the
machine: `machine`; files: `inputs`; asking veRL itself: `registration`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from stapo_results.checks import Checks
from stapo_results.errors import BadInput
from stapo_results.shapes import KNOWN, Shape
from stapo_results.throughput import CARDS, card_named
from stapo_training import reward
from stapo_training.methods import advantage_from, proxy_from, selector_from
from stapo_training.run.preflight import attention, inputs, machine, memory
from stapo_training.run.watch import loggers
from stapo_training.run.watch.alarms import alarms_from
from stapo_training.token_log.writer import token_log_from


@dataclass
class Preflight:
    """What the checks found of a run. Values that a failed check would have given are None.

    validation: samples of a validation.
    card, card_gib: the key of `throughput.CARDS`, and GiB of the smallest card that the run would use.
    """

    checks: Checks = field(default_factory=Checks)
    files: list[Path] = field(default_factory=list)
    prompts: int | None = None
    validation: int | None = None
    card: str | None = None
    card_gib: float | None = None
    shape: Shape | None = None
    memory: memory.Need | None = None
    checkpoints: machine.Checkpoints | None = None
    warnings: list[str] = field(default_factory=list)


def check_settings(config: Any) -> Checks:
    """The checks that need no machine, no data and no model."""
    a, checks = config.actor_rollout_ref, Checks()
    checks.attempt("selector", selector_from, a.selector, a.actor)
    checks.attempt("advantage", advantage_from, a, config.algorithm)
    checks.attempt("proxy", proxy_from, a, config.algorithm)
    checks.attempt("dynamic sampling", _check_groups, config)
    checks.attempt("token log", token_log_from, a.token_log, a.actor, config.run.out)
    checks.attempt("sizes", check_sizes, config)
    checks.attempt("attention", attention.check, config)
    checks.attempt("one machine", _check_cpu, config)
    checks.attempt("alarms", alarms_from, config.alarms)
    checks.attempt("loggers", loggers.check, config.trainer.logger)
    checks.attempt("verifier", reward.verifier_from, config)
    return checks


def examine(config: Any) -> Preflight:
    """All checks on files, sizes and this machine (or the Ray cluster of ray_init.address); writes nothing.

    Raises:
        BadInput: run.base is needed and not given; everything else is collected in `checks`.
    """
    inputs.check_base(config)
    found = Preflight(check_settings(config))
    checks, files = found.checks, list(inputs.data_files(config))
    found.files = [path for _, path in files]
    model = checks.attempt("model", inputs.check_model, config)
    prompts = 0
    for kind, path in files:
        rows = checks.attempt(f"data.{kind}", inputs.check_data, kind, path, inputs.how_to_make(config, path))
        if kind == "train_files":
            prompts = None if rows is None or prompts is None else prompts + rows
        elif rows is not None:
            found.validation = (found.validation or 0) + rows * int(config.actor_rollout_ref.rollout.val_kwargs.n)
    if prompts is not None:
        found.prompts = prompts
        checks.attempt("prompts", check_prompts, config, prompts)
    # a hub model that is not cached may still have known facts, so that its run is planned
    model = model or (config.actor_rollout_ref.model.path if config.actor_rollout_ref.model.path in KNOWN else None)
    if model:
        checks.attempt("the model's attention", attention.check_model, config, model)
    if model:  # without the check of memory a model of an unknown family is no hindrance
        found.shape = (checks if config.run.check_memory else Checks()).attempt("shape", inputs.find_shape, model)
    host = _look_at_machine(config, found)
    if config.run.check_memory and found.shape and (found.card_gib or config.trainer.device == "cpu"):
        found.memory = checks.attempt("memory", memory.check, config, found.shape, found.card_gib, host)
    out = Path(config.run.out)
    if found.shape:
        found.checkpoints = machine.plan_checkpoints(config, found.shape.parameters, out)
        checks.attempt("disk", machine.check_disk, found.checkpoints, out)
    return found


def _look_at_machine(config: Any, found: Preflight) -> float:
    """Fills in the card; returns the GiB of memory of the smallest node (infinite where it is not known)."""
    checks, address = found.checks, config.ray_kwargs.ray_init.get("address")
    nodes = checks.attempt("cluster", machine.cluster_nodes, address) if address else [machine.this_node()]
    if nodes is not None and (warning := checks.attempt("cores", machine.check_cores, config, nodes)):
        found.warnings.append(warning)
    if config.trainer.device == "cpu" and not address:
        return psutil.virtual_memory().available / memory.GIB
    asked = int(config.trainer.nnodes), int(config.trainer.n_gpus_per_node)
    if config.trainer.device == "cpu":
        if nodes is not None:
            checks.attempt("slots", machine.check_slots, nodes, *asked)
        return min((n.memory for n in nodes or ()), default=math.inf)
    if nodes is not None:
        found.card_gib = checks.attempt("GPUs", machine.check_gpus, nodes, *asked)
        checks.attempt("driver", machine.check_driver, nodes)
        checks.attempt("tools", machine.check_tools, nodes)
        names = {g.name for n in nodes for g in n.gpus}
        found.card = card_named(min(names)) if names else None
    if found.card_gib is None and config.run.card is not None:
        found.card = checks.attempt("run.card", planned_card, config.run.card)
        found.card_gib = CARDS[found.card].gib if found.card else None
        return math.inf  # the memory of a node that is not here
    return min((n.memory for n in nodes or ()), default=math.inf)


def planned_card(name: str) -> str:
    """The card of run.card.

    Raises:
        BadInput: for one whose values are not known.
    """
    if name not in CARDS:
        raise BadInput("unknown run.card", found=name, expected=" | ".join(CARDS), next_step="run.card=H100")
    return name


def check_prompts(config: Any, prompts: int) -> None:
    """Raises BadInput when the training files hold less than one batch."""
    batch = config.data.train_batch_size
    if prompts < batch:
        raise BadInput(
            "fewer prompts than one training batch",
            found=prompts,
            expected=f"at least {batch}",
            next_step=f"more data, or data.train_batch_size={prompts} (and a mini-batch that divides it)",
        )


def _check_cpu(config: Any) -> None:
    """Without GPUs a Ray of the run's own has one node, and a cluster's has slots of its own."""
    ray, nodes = config.ray_kwargs.ray_init, config.trainer.nnodes
    address, slots = ray.get("address"), [k for k in ("num_cpus", "num_gpus") if ray.get(k) is not None]
    if config.trainer.device == "cpu" and (bool(slots) if address else nodes > 1):
        raise BadInput(
            "several nodes without GPUs are a Ray cluster that runs already",
            found=f"trainer.nnodes={nodes}, ray_init.address={address}, {' and '.join(slots) or 'no slots'} given",
            expected="one node and no address, or an address and the nodes' own slots",
            next_step="cpu.ranks=2 takes two processes of one machine, hardware=cpu-2nodes two nodes (docs/cluster.md)",
        )


def check_sizes(config: Any) -> None:
    """Sizes that have to divide, and the packing limit, which has to hold one sequence.

    Raises:
        BadInput: with both numbers and the key.
    """
    a = config.actor_rollout_ref
    world, batch = config.trainer.n_gpus_per_node * config.trainer.nnodes, config.data.train_batch_size
    sharded = a.actor.fsdp_config.ulysses_sequence_parallel_size  # that many ranks share their sequences
    mini, n, dynamic = a.actor.ppo_mini_batch_size, a.rollout.n, a.actor.use_dynamic_bsz
    mini_key = "actor_rollout_ref.actor.ppo_mini_batch_size"
    parts = {
        f"data.train_batch_size by {mini_key}": (batch, mini),
        "the ranks by actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size": (world, sharded),
        "the ranks by actor_rollout_ref.rollout.tensor_model_parallel_size": (
            world,
            a.rollout.tensor_model_parallel_size,
        ),
    }
    ranks = max(1, world // sharded)  # data-parallel
    parts[f"a mini-batch's sequences ({mini_key} x rollout.n) by the ranks"] = mini * n, ranks
    for key, micro in (
        ("rollout.log_prob_micro_batch_size_per_gpu", a.rollout.log_prob_micro_batch_size_per_gpu),
        ("actor.ppo_micro_batch_size_per_gpu", a.actor.ppo_micro_batch_size_per_gpu),
    ):
        if not dynamic and micro:
            parts[f"a rank's mini-batch by actor_rollout_ref.{key}"] = mini * n // ranks, micro
    for name, (whole, part) in parts.items():
        if whole % part:
            raise BadInput(
                f"{name} does not divide",
                found=f"{whole} / {part}",
                expected="no remainder",
                next_step="change one of the two",
            )
    longest = config.data.max_prompt_length + config.data.max_response_length
    _check_covariance(a.actor, longest)
    limit = a.actor.ppo_max_token_len_per_gpu * a.actor.fsdp_config.ulysses_sequence_parallel_size
    if dynamic and limit < longest:
        raise BadInput(
            "a micro-batch does not hold one sequence",
            found=f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu {limit} tokens",
            expected=f"at least data.max_prompt_length + data.max_response_length = {longest}",
            next_step=f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={longest}",
        )


def _check_covariance(actor: Any, longest: int) -> None:
    """Clip-Cov and KL-Cov rank the tokens of one micro-batch: in a single sequence all covariances are 0."""
    if actor.policy_loss.loss_mode not in ("clip_cov", "kl_cov"):
        return
    key, found, least = "ppo_micro_batch_size_per_gpu", actor.ppo_micro_batch_size_per_gpu, 2
    if actor.use_dynamic_bsz:
        limit = actor.ppo_max_token_len_per_gpu * actor.fsdp_config.ulysses_sequence_parallel_size
        key, found, least = "ppo_max_token_len_per_gpu", limit, 2 * longest
    if found < least:
        raise BadInput(
            f"{actor.policy_loss.loss_mode} needs micro-batches that can hold two sequences",
            found=f"actor_rollout_ref.actor.{key}={found}",
            expected=f"at least {least}",
            next_step=f"set actor_rollout_ref.actor.{key}={least}, if the memory has room for it",
        )


def _check_groups(config: Any) -> None:
    groups = config.algorithm.get("filter_groups")
    if groups and groups.enable and groups.metric not in ("acc", "score", "reward"):
        raise BadInput(
            "algorithm.filter_groups.metric names nothing that the reward gives",
            found=groups.metric,
            expected="acc | score | reward",
            next_step="algorithm.filter_groups.metric=acc",
        )
