"""`stapo-train run --dry-run`: what would run, whether it fits, how long it takes, how to start it."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from stapo_results import store, throughput
from stapo_results.checks import Checks
from stapo_results.schema import Run
from stapo_results.shapes import Shape
from stapo_results.terminal import duration
from stapo_training.methods import selector_from
from stapo_training.run.preflight import memory
from stapo_training.run.preflight.checks import Preflight

_ENOUGH = 20  # steps: the start, which counts too, is a large part of a shorter run
RECORDS = Path(store.__file__).parents[1] / "records"


def show(config: Any, found: Preflight, registered: dict[str, str], command: str) -> None:
    """Print all that is known of a run; what a failed check left open is said as "not known".

    Args:
        registered: what a worker's process has registered; empty where it was not asked.
        command: the command line that starts the run.
    """
    validation = found.validation or throughput.VALIDATION
    time = Checks().attempt("time", time_line, config, found.shape, found.card, validation)  # a refusal is said below
    for title, lines in (
        ("What runs", _run_lines(config, found)),
        ("Memory", [_memory_line(found)]),
        ("Disk", [_disk_line(config, found)]),
        ("Cores", found.warnings or ["enough, or not known"]),
        ("Time", [time or "not known: see below"]),
        ("Registered in a fresh worker process", [f"{k}: {v}" for k, v in registered.items()] or ["not known"]),
        ("To start it, or to go on with it", [command]),
    ):
        print(f"\n{title}", *lines, sep="\n  ")


def _run_lines(config: Any, found: Preflight) -> list[str]:
    a, data, trainer, run = config.actor_rollout_ref, config.data, config.trainer, config.run
    prompts = "prompts not known"
    if found.prompts:
        prompts = f"{found.prompts} prompts ({found.prompts / data.train_batch_size:.1f} steps an epoch)"
    updates = data.train_batch_size // a.actor.ppo_mini_batch_size
    return [
        f"{run.method} on {run.size}, seed {run.seed}, {run.steps} steps, into {run.out}",
        f"{trainer.nnodes} node(s) x {trainer.n_gpus_per_node} {trainer.device} rank(s), model {a.model.path}",
        f"{data.train_batch_size} prompts x {a.rollout.n} responses a step, {updates} update(s), {prompts}",
        f"selector {a.selector.name} ({a.selector.policy}, {a.selector.scope}), lr {a.actor.optim.lr}",
    ]


def _memory_line(found: Preflight) -> str:
    if found.memory is None:
        return "not known, or too little: see below; run.card=H100 plans for a GPU that is not here"
    m = found.memory
    return f"about {m.gib:.1f} of {m.limit:.1f} GiB on {found.card or 'this machine'} ({m.moment})"


def _disk_line(config: Any, found: Preflight) -> str:
    c = found.checkpoints
    if c is None:
        return "not known: the model's size is not known"
    line = (
        f"a checkpoint of {c.each:.2f} GiB every {config.trainer.save_freq} steps: {c.made} made, {c.kept} kept; "
        f"at most {c.whole:.1f} GiB, free {c.free:.1f} GiB"
    )
    return line + ("; NOT ENOUGH: trainer.max_actor_ckpt_to_keep=N keeps the newest N" if c.whole > c.free else "")


def time_line(config: Any, shape: Shape | None, card: str | None, validation: int) -> str:
    """The time of a step and of the run, and where the number comes from.

    Args:
        card: a key of throughput.CARDS, or None. validation: samples of a validation.
    """
    seconds, basis = (
        recorded(config, RECORDS),
        "measured: committed records of this size, ranks, batch, validation and selector form",
    )
    if seconds is None and shape and card:
        step, gpus = planned_step(config, shape, validation), memory.ranks(config)
        seconds = step.seconds(throughput.CARDS[card], gpus)
        basis = f"formula, not measured: {step.words(card, gpus)}"
    if seconds is None:
        return "not known: no record of this size on this hardware, and no card (run.card=H20 plans for one)"
    return f"about {duration(seconds)} a step, {duration(seconds * config.run.steps)} in all ({basis})"


def recorded(config: Any, records: Path) -> float | None:
    """Seconds a step, in the median, of the finished runs that compute as much; of its method, if any."""
    same: list[Run] = []
    for file in sorted(records.glob("**/run.json")):
        if json.loads(file.read_text(encoding="utf-8")).get("kind") == "train":
            run = store.read_json(file, Run)
            long_enough = run.status == "done" and run.wall_seconds and run.config["run"]["steps"] >= _ENOUGH
            if long_enough and _what_takes_time(run.config) == _what_takes_time(config):
                same.append(run)
    own = [r for r in same if r.config["run"]["method"] == config.run.method] or same
    return statistics.median((r.wall_seconds or 0.0) / r.config["run"]["steps"] for r in own) if own else None


def _what_takes_time(config: Any) -> tuple[Any, ...]:
    a, trainer, data = config["actor_rollout_ref"], config["trainer"], config["data"]
    passes = len(config["run"].get("validation_settings") or ("one",))  # an older record names none
    return (
        *(config["run"]["size"], passes, trainer["test_freq"], a["selector"]["form"]),
        *(trainer["device"], trainer["nnodes"], trainer["n_gpus_per_node"]),
        *(data["train_batch_size"], data["max_response_length"], a["rollout"]["n"]),
    )


def planned_step(config: Any, shape: Shape, validation: int) -> throughput.Step:
    """A step as `stapo_results.throughput` reckons with it; `validation`: samples of a validation."""
    a, sequences = config.actor_rollout_ref, int(config.data.train_batch_size) * int(config.actor_rollout_ref.rollout.n)
    lengths, selector = throughput.lengths_of(int(config.data.max_response_length)), selector_from(a.selector)
    update = throughput.Update(
        shape,
        sequences,
        lengths,
        checkpointing=bool(a.model.enable_gradient_checkpointing),
        reference=memory.reference(config),
        own_pass=selector.selects and selector.plan == "two_pass",
    )
    sampling = throughput.Sampling(
        shape,
        sequences,
        lengths,
        tensor_parallel=int(a.rollout.tensor_model_parallel_size),
        width=memory.width(a.rollout.dtype),
        places=int(a.rollout.max_num_seqs),
    )
    passes = len(config.run.validation_settings)
    return throughput.Step(update, sampling, validation, passes, int(config.trainer.test_freq))
