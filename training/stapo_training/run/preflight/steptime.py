"""How long a step takes: measured where a record exists, else a formula with its assumptions beside the number."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stapo_results import store, throughput
from stapo_results.schema import Run
from stapo_results.terminal import duration
from stapo_results.throughput import CARDS
from stapo_training.run.preflight.memory import MemoryPlan

PAPER = (
    "stated, not measured: the paper's runs took 5 to 7 days on 64 H20 for 3,000 steps (144 to 202 s a step); this "
    "formula gives 50, 222 and 284 s there for 1.7B, 8B and 14B, 6.4 days in the mean"
)


@dataclass(frozen=True)
class StepTime:
    """Seconds a step (None: not known) and where the number comes from, one sentence a line."""

    seconds: float | None
    basis: tuple[str, ...]

    def lines(self, steps: int) -> list[str]:
        """For people: the time of a step and of the run, then the basis."""
        if self.seconds is None:
            return ["not known", *self.basis]
        return [f"about {duration(self.seconds)} a step, {duration(self.seconds * steps)} in all", *self.basis]


UNKNOWN = StepTime(None, ("no record of this size on this hardware, and no formula (run.card=H20 plans for one)",))


def estimate(config: Any, plan: MemoryPlan, card: str | None, records: Path) -> StepTime:
    """The best estimate there is.

    Args:
        card: a key of CARDS, or None.
        records: committed records (results/records).
    """
    return recorded(config, records) or (formula(config, plan, card) if card and not plan.cpu else UNKNOWN)


def recorded(config: Any, records: Path) -> StepTime | None:
    """The mean step of finished runs of the same size, ranks and batch (the median run); of the same method, if any."""
    same: list[Run] = []
    for file in sorted(records.glob("**/run.json")):
        if json.loads(file.read_text(encoding="utf-8")).get("kind") != "train":
            continue
        run = store.read_json(file, Run)
        if run.status == "done" and run.wall_seconds and _what_takes_time(run.config) == _what_takes_time(config):
            same.append(run)
    if not same:
        return None
    same = [r for r in same if r.config["run"]["method"] == config.run.method] or same
    steps = sorted((r.wall_seconds or 0.0) / r.config["run"]["steps"] for r in same)
    names = ", ".join(sorted({r.config["run"]["method"] for r in same}))
    machines = {
        ", ".join(r.hardware["gpus"][:1]) or f"{r.hardware['cores']} cores of {r.hardware['cpu']}" for r in same
    }
    basis = (
        f"measured, with start and validation: {steps[0]:.1f} to {steps[-1]:.1f} s a step in {len(same)} recorded "
        f"run{'s' if len(same) > 1 else ''} ({names}) on {' and '.join(sorted(machines))}"
    )
    return StepTime(statistics.median(steps), (basis,))


def _what_takes_time(config: Any) -> tuple[Any, ...]:
    a, trainer, data = config["actor_rollout_ref"], config["trainer"], config["data"]
    return (
        config["run"]["size"],
        *(trainer["device"], trainer["nnodes"], trainer["n_gpus_per_node"]),
        *(data["train_batch_size"], data["max_response_length"], a["rollout"]["n"]),
    )


def formula(config: Any, plan: MemoryPlan, card: str) -> StepTime:
    """`stapo_results.throughput` for this configuration; validation is left out."""
    selector, shape, limit = config.actor_rollout_ref.selector, plan.shape, int(config.data.max_response_length)
    update = throughput.Update(
        parameters=shape.parameters,
        sequences=int(config.data.train_batch_size) * int(config.actor_rollout_ref.rollout.n),
        mean=throughput.SHARE * limit,
        checkpointing=plan.checkpointing,
        reference=plan.reference,
        own_pass=selector.name != "keep_all" and selector.get("form") == "two_pass",
    )
    sampling = throughput.Sampling(
        parameters=shape.parameters,
        kv_bytes=shape.kv_bytes_per_token(plan.rollout_width),
        sequences=update.sequences,
        mean=update.mean,
        limit=limit,
        tensor_parallel=plan.tensor_parallel,
        width=plan.rollout_width,
        places=plan.sequences,
    )
    basis = (
        f"formula, not measured: {update.words(card, plan.ranks)}",
        sampling.words(card, plan.ranks),
        f"assumed: mean response {update.mean:.0f} tokens ({throughput.SHARE:g} of the limit), prompt "
        f"{throughput.PROMPT}; no validation",
        PAPER,
    )
    return StepTime(update.seconds(CARDS[card], plan.ranks) + sampling.seconds(CARDS[card], plan.ranks), basis)
