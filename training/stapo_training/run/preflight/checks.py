"""What can be known to fail before a training starts anything expensive.

`examine` makes every check that needs no veRL and collects what stands in the way; `validate` asks veRL itself and a
worker's process. Arithmetic: `memory`, `fit`, `disk`, `steptime`; looking at the machine: `machine`; files: `inputs`.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil

from stapo_results.errors import BadInput
from stapo_results.shapes import KNOWN
from stapo_results.throughput import CARDS, card_named
from stapo_training.methods import selector_from
from stapo_training.run.preflight import inputs, machine, registration
from stapo_training.run.preflight.disk import Checkpoints, check_disk, plan_checkpoints
from stapo_training.run.preflight.fit import Plan, check_fit, plan_from
from stapo_training.run.preflight.machine import Node
from stapo_training.run.preflight.memory import GIB, Moment
from stapo_training.run.preflight.shapes import find_shape
from stapo_training.token_log.writer import token_log_from

T = TypeVar("T")


@dataclass(frozen=True)
class Facts:
    """What is needed to check a run before Ray starts."""

    out: Path
    model: Path
    files: list[Path]
    prompts: int


@dataclass
class Report:
    """What the checks found. Values that a failed check would have given are None."""

    facts: Facts
    problems: list[BadInput] = field(default_factory=list)
    nodes: list[Node] | None = None
    card: str | None = None
    card_gib: float | None = None
    plan: Plan | None = None
    moments: list[Moment] | None = None
    checkpoints: Checkpoints | None = None
    command: str = ""
    settings_refused: bool = False
    """The settings themselves are wrong: veRL and a worker's process would only say so again."""

    def attempt(self, check: Callable[..., T], *args: Any) -> T | None:
        """The check's value, or None with its refusal kept: a reader wants to know all that is wrong at once."""
        try:
            return check(*args)
        except BadInput as e:
            self.problems.append(e)
            return None

    def refuse(self) -> None:
        """Raises BadInput when anything stands in the way."""
        if len(self.problems) == 1:
            raise self.problems[0]
        if self.problems:
            listed = "\n\n".join(f"{i}. {p}" for i, p in enumerate(self.problems, 1))
            raise BadInput(f"{len(self.problems)} things stand in the way\n\n{listed}")


def check(config: Any) -> Facts:
    """Everything that can be known to fail before anything expensive starts.

    Raises:
        BadInput: for missing or changed files, sizes that do not divide, too little memory or disk, missing GPUs.
    """
    report = examine(config)
    report.refuse()
    return report.facts


def examine_settings(config: Any) -> Report:
    """The checks that need no machine, no data and no model: selector and sizes."""
    report = Report(Facts(Path(config.run.out).resolve(), Path(config.actor_rollout_ref.model.path), [], 0))
    report.attempt(selector_from, config.actor_rollout_ref.selector, config.actor_rollout_ref.actor)
    report.attempt(token_log_from, config.actor_rollout_ref.token_log, config.actor_rollout_ref.actor, config.run.out)
    report.attempt(check_sizes, config)
    report.settings_refused = bool(report.problems)
    return report


def examine(config: Any) -> Report:
    """All checks on files, sizes and this machine (or the Ray cluster of ray_init.address); writes nothing."""
    files = list(inputs.data_files(config))
    out = Path(config.run.out).resolve()
    report = examine_settings(config)
    report.facts = Facts(out, report.facts.model, [path for _, path in files], 0)
    model = report.attempt(inputs.check_model, config)
    rows = [
        (kind, report.attempt(inputs.check_data, kind, path, inputs.how_to_make(config, path))) for kind, path in files
    ]
    trained = [n for kind, n in rows if kind == "train_files"]
    if None not in trained:
        report.facts = Facts(out, report.facts.model, report.facts.files, sum(n or 0 for n in trained))
        report.attempt(check_prompts, config, report.facts.prompts)
    # a hub model that is not cached may still have known facts, so that its run is planned
    model = model or (config.actor_rollout_ref.model.path if config.actor_rollout_ref.model.path in KNOWN else None)
    if model and config.run.check_memory:
        shape = report.attempt(find_shape, model)
        report.plan = plan_from(config, shape) if shape else None
    host = _look_at_machine(config, report)
    if report.plan and (report.plan.cpu or report.card_gib):
        report.moments = report.attempt(check_fit, report.plan, report.card_gib, host)
    contents = config.actor_rollout_ref.actor.checkpoint.save_contents
    report.checkpoints = plan_checkpoints(
        report.plan.shape.parameters if report.plan else 0,
        contents,
        int(config.run.steps),
        int(config.trainer.save_freq),
        config.trainer.max_actor_ckpt_to_keep,
        machine.free_disk(out),
        0.0 if config.actor_rollout_ref.token_log.mode == "off" else config.actor_rollout_ref.token_log.largest_gib,
    )
    report.attempt(check_disk, report.checkpoints, out)
    return report


def _look_at_machine(config: Any, report: Report) -> float:
    """Fills in nodes and card; returns the GiB of memory of the smallest node (infinite where it is not known)."""
    report.attempt(check_ports, config)
    if config.trainer.device == "cpu":
        return psutil.virtual_memory().available / GIB
    address = config.ray_kwargs.ray_init.get("address")
    nodes = report.attempt(machine.cluster_nodes, address) if address else [machine.this_node()]
    if nodes is not None:
        report.nodes = nodes
        asked = int(config.trainer.nnodes), int(config.trainer.n_gpus_per_node)
        report.card_gib = report.attempt(machine.check_gpus, nodes, *asked)
        names = {g.name for n in nodes for g in n.gpus}
        report.card = card_named(min(names)) if names else None
    if report.card_gib is None and config.run.card is not None:
        report.card = report.attempt(planned_card, config.run.card)
        report.card_gib = CARDS[report.card].gib if report.card else None
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


def check_ports(config: Any) -> None:
    """Raises BadInput when something listens on a configured port of this machine."""
    taken = machine.ports_in_use(config)
    if taken:
        raise BadInput(
            "a port is in use",
            found=", ".join(f"{key}={port}" for key, port in taken),
            expected="a free port",
            next_step=f"choose another: {taken[0][0]}={taken[0][1] + 1}",
        )


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


def check_sizes(config: Any) -> None:
    """Sizes that have to divide, and the packing limit, which has to hold one sequence.

    Raises:
        BadInput: with both numbers and the key.
    """
    a = config.actor_rollout_ref
    ranks, batch = config.trainer.n_gpus_per_node * config.trainer.nnodes, config.data.train_batch_size
    mini, n, parallel = a.actor.ppo_mini_batch_size, a.rollout.n, a.rollout.tensor_model_parallel_size
    rows = mini * n // ranks
    dynamic = a.actor.use_dynamic_bsz
    parts = [
        ("data.train_batch_size by actor_rollout_ref.actor.ppo_mini_batch_size", batch, mini),
        (
            "a mini-batch's sequences (actor_rollout_ref.actor.ppo_mini_batch_size x rollout.n) by the ranks",
            mini * n,
            ranks,
        ),
        ("the ranks by actor_rollout_ref.rollout.tensor_model_parallel_size", ranks, parallel),
    ]
    for key, micro in (
        ("rollout.log_prob_micro_batch_size_per_gpu", a.rollout.log_prob_micro_batch_size_per_gpu),
        ("actor.ppo_micro_batch_size_per_gpu", a.actor.ppo_micro_batch_size_per_gpu),
    ):
        if not dynamic and micro:
            parts.append((f"a rank's mini-batch by actor_rollout_ref.{key}", rows, micro))
    for name, whole, part in parts:
        if whole % part:
            raise BadInput(
                f"{name} does not divide",
                found=f"{whole} / {part}",
                expected="no remainder",
                next_step="change one of the two",
            )
    longest = config.data.max_prompt_length + config.data.max_response_length
    limit = a.actor.ppo_max_token_len_per_gpu * a.actor.fsdp_config.ulysses_sequence_parallel_size
    if dynamic and limit < longest:
        raise BadInput(
            "a micro-batch does not hold one sequence",
            found=f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu {limit} tokens",
            expected=f"at least data.max_prompt_length + data.max_response_length = {longest}",
            next_step=f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={longest}",
        )


def validate(config: Any, *, ask_worker: bool) -> dict[str, str]:
    """veRL's own validation; with `ask_worker`, what a worker's process has registered (empty otherwise).

    Raises:
        BadInput: when veRL refuses the configuration, or something is not registered.
    """
    from hydra.errors import HydraException

    with registration.asked(config) if ask_worker else nullcontext() as answer:
        # veRL warns of every engine that is not installed; the one that is needed is asked for by name
        warnings.filterwarnings("ignore", message=".* engine is not available")
        from stapo_training.verl_ext import run as verl_run  # imports veRL: tens of seconds

        try:
            with redirect_stdout(sys.stderr):  # veRL prints notices
                verl_run.validate(config)
        except (AssertionError, ValueError, TypeError, NotImplementedError, HydraException) as e:
            raise BadInput(
                "veRL refuses the configuration",
                found=str(e) or type(e).__name__,
                next_step="correct the value it names; stapo-train run ... --config-only shows every key",
            ) from e
        return answer() if answer else {}
