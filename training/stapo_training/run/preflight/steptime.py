"""How long a step takes: measured where a record exists, else a formula with its assumptions beside the number."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stapo_results import store, throughput
from stapo_results.errors import RecordError
from stapo_results.schema import Run, StepMetrics
from stapo_results.throughput import CARDS
from stapo_training.run.preflight.fit import Plan

PAPER = (
    "stated, not measured: the paper's runs took 5 to 7 days on 64 H20 for 3,000 steps (144 to 202 s a step); this "
    "formula gives 50, 222 and 284 s there for 1.7B, 8B and 14B, 6.4 days in the mean"
)
_LAST_STEPS = 20


@dataclass(frozen=True)
class Estimate:
    """Seconds a step (None: not known) and where the number comes from, one sentence a line."""

    seconds: float | None
    basis: tuple[str, ...]


def estimate(config: Any, plan: Plan, card: str | None, out: Path, records: Path) -> Estimate:
    """The best estimate there is.

    Args:
        card: a key of CARDS, or None.
        out: the run's folder: its own steps go before all else.
        records: committed records (results/records).
    """
    planned = "no formula without a GPU" if plan.cpu else "no formula for this card (run.card=H20 plans for one)"
    return (
        own_steps(out)
        or recorded(config, records)
        or (formula(config, plan, card) if card and not plan.cpu else None)
        or Estimate(None, (f"no record of this size on this hardware, and {planned}",))
    )


def own_steps(out: Path) -> Estimate | None:
    """The median of the last steps in the run's own timings.jsonl."""
    file = out / "timings.jsonl"
    if not file.exists():
        return None
    try:
        seconds = [m.values["seconds"] for m in store.read(file, StepMetrics) if "seconds" in m.values]
    except RecordError:
        return None  # half a line of a killed run: it is mended when the run goes on
    if not seconds:
        return None
    last = seconds[-_LAST_STEPS:]
    return Estimate(statistics.median(last), (f"measured: median of this run's last {len(last)} steps",))


def recorded(config: Any, records: Path) -> Estimate | None:
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
    machines = sorted(
        {", ".join(r.hardware["gpus"][:1]) or f"{r.hardware['cores']} cores of {r.hardware['cpu']}" for r in same}
    )
    names = ", ".join(sorted({r.config["run"]["method"] for r in same}))
    return Estimate(
        statistics.median(steps),
        (
            f"measured: median of {len(same)} recorded run{'s' if len(same) > 1 else ''} ({names}), "
            f"{steps[0]:.1f} to {steps[-1]:.1f} s a step",
            f"(start and validation included) on {' and '.join(machines)}",
        ),
    )


def _machine(run: Run) -> str:
    return ", ".join(run.hardware["gpus"][:1]) or f"{run.hardware['cores']} cores of {run.hardware['cpu']}"


def _what_takes_time(config: Any) -> tuple[Any, ...]:
    a, trainer, data = config["actor_rollout_ref"], config["trainer"], config["data"]
    return (
        config["run"]["size"],
        *(trainer["device"], trainer["nnodes"], trainer["n_gpus_per_node"]),
        *(data["train_batch_size"], data["max_response_length"], a["rollout"]["n"]),
    )


def formula(config: Any, plan: Plan, card: str) -> Estimate:
    """`stapo_results.throughput` for this configuration; validation is left out."""
    t, r, shape = plan.training, plan.rollout, plan.shape
    selector = config.actor_rollout_ref.selector
    own_pass = selector.name != "keep_all" and selector.get("form") == "two_pass"
    sequences = int(config.data.train_batch_size) * int(config.actor_rollout_ref.rollout.n)
    update = throughput.Update(
        parameters=shape.parameters,
        sequences=sequences,
        mean=throughput.SHARE * int(config.data.max_response_length),
        checkpointing=t.checkpointing,
        reference=t.reference,
        own_pass=own_pass,
    )
    sampling = throughput.Sampling(
        parameters=shape.parameters,
        kv_bytes=shape.kv_bytes_per_token(r.width),
        sequences=sequences,
        mean=update.mean,
        limit=int(config.data.max_response_length),
        tensor_parallel=r.tensor_parallel,
        width=r.width,
        places=r.sequences,
    )
    return Estimate(
        update.seconds(CARDS[card], t.ranks) + sampling.seconds(CARDS[card], t.ranks),
        (
            f"formula, not measured: {update.words(card, t.ranks)}",
            sampling.words(card, t.ranks),
            f"assumed: mean response {update.mean:.0f} tokens ({throughput.SHARE:g} of the limit), prompt "
            f"{throughput.PROMPT}; no validation",
            PAPER,
        ),
    )
