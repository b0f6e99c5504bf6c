"""How long a step takes: measured where a record exists, else a formula with its assumptions beside the number."""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stapo_results import store
from stapo_results.errors import RecordError
from stapo_results.schema import Run, StepMetrics
from stapo_training.preflight.fit import Plan

# bf16 dense TFLOP/s, memory TB/s, memory GiB by nvidia-smi: NVIDIA's datasheets, SXM versions
CARDS = {
    "A100": (312, 2.04, 80.0),
    "H20": (148, 4.0, 95.6),
    "H100": (989, 3.35, 79.6),
    "H200": (989, 4.8, 140.4),
    "B200": (2250, 8.0, 179.1),
}
EFFICIENCY = 0.4  # share of the TFLOP/s that training reaches
BANDWIDTH = 0.5  # share of the TB/s that decoding reaches
PROMPT = 150  # tokens of a problem with its instruction
SHARE = 1 / 8  # mean response as a share of the limit
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


def card_named(name: str) -> str | None:
    """The key of CARDS in a card's full name: "NVIDIA H20" -> "H20"."""
    found = [card for card in CARDS if re.search(rf"\b{card}\b", name)]
    return found[0] if found else None


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
    """FLOPs over the card's rate for training, bytes over its bandwidth for generation.

    Training: 6 P a token (8 P with gradient checkpointing), 2 P for the old log-probabilities, 2 P for a reference
    model, 2 P where a selector takes its statistics in a pass of its own. Generation: the longest response decides how
    often the weights are read; every token reads the cache of those before it. P: parameters. Validation is left out.
    """
    t, r, shape = plan.training, plan.rollout, plan.shape
    flops, bandwidth, _ = CARDS[card]
    selector = config.actor_rollout_ref.selector
    own_pass = selector.name != "keep_all" and selector.get("form") == "two_pass"
    passes = (8 if t.checkpointing else 6) + 2 + 2 * t.reference + 2 * own_pass
    sequences = int(config.data.train_batch_size) * int(config.actor_rollout_ref.rollout.n)
    limit = int(config.data.max_response_length)
    mean = SHARE * limit
    tokens = sequences * (PROMPT + mean)
    training = passes * shape.parameters * tokens / (t.ranks * flops * 1e12 * EFFICIENCY)
    each = sequences * r.tensor_parallel / t.ranks  # sequences of one replica
    waves = max(1, -(-each // r.sequences))
    weights = waves * limit * r.width * shape.parameters / r.tensor_parallel
    cache = each * mean * (PROMPT + mean / 2) * shape.kv_bytes_per_token(r.width) / r.tensor_parallel
    generation = (weights + cache) / (bandwidth * 1e12 * BANDWIDTH)
    return Estimate(
        training + generation,
        (
            f"formula, not measured: training {training:.0f} s = {passes} x P x {tokens / 1e6:.1f}e6 tokens at "
            f"{EFFICIENCY:.0%} of {flops} TFLOP/s x {t.ranks} {card}",
            f"generation {generation:.0f} s = {sequences * mean / generation:.0f} tokens/s: weights read "
            f"{waves * limit:.0f} times, and the cache, at {BANDWIDTH:.0%} of {bandwidth} TB/s",
            f"assumed: mean response {mean:.0f} tokens ({SHARE:g} of the limit), prompt {PROMPT}; no validation",
            PAPER,
        ),
    )
